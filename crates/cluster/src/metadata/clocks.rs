//! How far the clocks of devices are from the cluster's time. formats/cluster.md, section 4.

use base::units::show_duration;
use base::{Error, ErrorKind, Result};

use super::cluster::Metadata;
use crate::clock::skew_ms;

/// How far the clocks of a new device and of this instance may be apart.
const SKEW_MAX_MS: u64 = 5 * 60_000;

impl Metadata {
    /// How far a clock is ahead of the cluster's time, in milliseconds.
    pub(super) fn skew_of(&self, clock: Option<u64>) -> Option<i64> {
        clock.map(|clock| skew_ms(clock, self.now_ns()))
    }

    /// Refuses a new device whose clock and this instance's are minutes apart. One that belongs to the cluster serves
    /// all the same, by the cluster's time.
    pub(super) fn check_clock(&self, clock: Option<u64>) -> Result<()> {
        let skew = self.skew_of(clock).unwrap_or(0);
        if skew.unsigned_abs() <= SKEW_MAX_MS {
            return Ok(());
        }
        let side = if skew > 0 { "ahead of" } else { "behind" };
        let by = show_duration(std::time::Duration::from_secs((skew.unsigned_abs() + 500) / 1000));
        let detail =
            format!("the device's clock is {by} {side} the metadata service's: set the one that is wrong");
        Err(Error::new(ErrorKind::Invalid, detail))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use proto::cluster::Width;

    use crate::database::Opening;
    use crate::metadata::engine::Embedded;
    use crate::metadata::{ClusterSetting, Metadata};
    use crate::token::ClusterToken;
    use crate::wire::{Heartbeat, JoinRequest};

    fn open(folder: &std::path::Path) -> Arc<Metadata> {
        let engine = Arc::new(Embedded::open(&folder.join("state"), Opening::OrNew).unwrap());
        let (lease, lifetime) = (Duration::from_secs(3), Duration::from_secs(3600));
        let setting = ClusterSetting { width: Width::new(1, 1).unwrap(), lease, lifetime, tls: false };
        Metadata::open(engine, ClusterToken::random().unwrap(), &setting).unwrap()
    }

    fn join(identity: char, clock: u64) -> JoinRequest {
        JoinRequest {
            identity: identity.to_string().repeat(32),
            address: "http://127.0.0.1:1".to_owned(),
            domain: "a".to_owned(),
            bytes: 1,
            free: 1,
            epoch: 0,
            clock: Some(clock),
            cluster: String::new(),
            start: "a".to_owned(),
            commits: 1,
        }
    }

    fn beat(metadata: &Metadata, clock: u64) -> Heartbeat {
        Heartbeat {
            identity: "a".repeat(32),
            epoch: 0,
            used: 0,
            free: 1,
            ready: Vec::new(),
            clock: Some(clock),
            cluster: metadata.map().cluster,
            commits: 1,
            health: Default::default(),
        }
    }

    #[test]
    fn a_new_device_with_a_wrong_clock_is_refused_and_one_that_is_known_is_shown() {
        let folder = tempfile::tempdir().unwrap();
        let metadata = open(folder.path());
        let now = metadata.now_ns();
        let two_hours = 7_200_000_000_000;
        let ahead = metadata.join(&join('a', now + two_hours)).unwrap_err().to_string();
        assert!(ahead.contains("is 2h00m ahead of"), "{ahead}");
        let behind = metadata.join(&join('a', now - two_hours)).unwrap_err().to_string();
        assert!(behind.contains("2h00m behind the metadata service's"), "{behind}");
        let device = metadata.join(&join('a', now + 60_000_000_000)).unwrap().device;
        assert!(metadata.join(&join('a', now - two_hours)).is_ok(), "it belongs to the cluster");
        let pulse = metadata.heartbeat(device, &beat(&metadata, now + two_hours)).unwrap();
        assert!(pulse.now.is_some_and(|told| told >= now));
        let skew = metadata.status().unwrap().devices[0].skew_ms.unwrap();
        assert!((7_000_000..=7_200_000).contains(&skew), "{skew}");
    }

    fn is_searching(metadata: &Metadata) -> bool {
        metadata.status().unwrap().devices[0].health.searching
    }

    #[test]
    fn who_comes_back_is_not_known_to_be_whole_before_it_looked() {
        let folder = tempfile::tempdir().unwrap();
        let metadata = open(folder.path());
        let now = metadata.now_ns();
        let device = metadata.join(&join('a', now)).unwrap().device;
        assert!(is_searching(&metadata));
        metadata.heartbeat(device, &beat(&metadata, now)).unwrap();
        assert!(!is_searching(&metadata), "it told that it has looked");
        metadata.join(&join('a', now)).unwrap();
        assert!(is_searching(&metadata), "it was started again, perhaps with an older copy of its folder");
        metadata.heartbeat(device, &beat(&metadata, now)).unwrap();
        drop(metadata);
        assert!(is_searching(&open(folder.path())), "a service that has just begun has heard nothing yet");
    }
}
