//! How many commits each device made, as far as it told: one that comes back with fewer has an older copy of its
//! folder. formats/cluster.md, section 4.

use std::time::Duration;

use base::{Instant, Result};

use super::cluster::Metadata;
use super::members::{Kept, Member};
use crate::clock::monotonic;
use crate::wire::JoinRequest;

/// How often the engine is told how many commits a device made.
const KEEP_EVERY: Duration = Duration::from_secs(10);

impl Metadata {
    /// What a device told of its commits.
    pub(super) fn commits_of(&self, member: &Member) -> Kept {
        let told = self.devices.lock().get(&member.device).map_or(0, |seen| seen.commits);
        Kept { commits: told.max(member.kept.commits), ..member.kept.clone() }
    }

    /// Remembers the start of a device, and what it has from then on.
    pub(super) fn remember_start(&self, member: &Member, request: &JoinRequest) -> Result<()> {
        let kept = Kept { start: request.start.clone(), commits: request.commits };
        self.change_member(member.device, |member| member.kept = kept.clone())?;
        if let Some(seen) = self.devices.lock().get_mut(&member.device) {
            seen.commits = request.commits;
        }
        Ok(())
    }

    /// Remembers from time to time how many commits a device told of: between two such times, and after a restart of
    /// the service, an older copy that was made in between is not recognised.
    pub(super) fn remember_commits(&self, member: &Member, commits: u64) -> Result<()> {
        let now = monotonic();
        let due = |last: &Instant| now.since(*last) >= KEEP_EVERY;
        let is_due = self.commits_kept.lock().get(&member.device).is_none_or(due);
        if commits <= member.kept.commits || !is_due {
            return Ok(());
        }
        self.commits_kept.lock().insert(member.device, now);
        self.change_member(member.device, |member| member.kept.commits = commits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_commits_than_before_are_an_older_copy() {
        let kept = Kept { start: "a".to_owned(), commits: 7 };
        assert!(!kept.is_older("a", 7) && !kept.is_older("a", 8), "the same start asks again");
        assert!(kept.is_older("a", 6));
        assert!(!kept.is_older("b", 8), "each start makes a commit");
        assert!(kept.is_older("b", 7), "a copy of before the last start, started once");
        assert!(!Kept::default().is_older("b", 1), "nothing is known of it");
        assert!(!kept.is_older("", 0), "a device that does not count");
    }
}
