//! Names of namespaces. A name contains the process that owns the lab, so that a later lab can find and remove the
//! namespaces of a process that was killed.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use base::{Error, ErrorKind, Result};
use rustix::process::{Pid, Signal};

use crate::tool::run;

const PREFIX: &str = "dclab";
/// The folder where `ip netns` keeps the names of namespaces (`man 8 ip-netns`).
const NAMES: &str = "/run/netns";

/// A process: its id and its start time. The id alone is not enough, because the kernel reuses ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Owner {
    pid: u32,
    /// In clock ticks since boot: field 22 of `/proc/PID/stat`.
    started: u64,
}

/// The name of one lab: `dclab-PID-STARTED-SERIAL`. Its namespaces add `-sw0` (switch 0) or `-h3` (host 3).
#[derive(Debug, Clone)]
pub(crate) struct LabName(String);

impl LabName {
    /// Creates a name that no other lab on this machine has.
    pub(crate) fn new() -> Result<Self> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let pid = std::process::id();
        let started = started(pid)
            .ok_or_else(|| Error::new(ErrorKind::Io, format!("read the start time in `/proc/{pid}/stat`")))?;
        Ok(Self(format!("{PREFIX}-{pid}-{started}-{}", SERIAL.fetch_add(1, Ordering::Relaxed))))
    }

    /// The namespace of switch `index`.
    pub(crate) fn switch(&self, index: u32) -> String {
        format!("{}-sw{index}", self.0)
    }

    /// The namespace of host `index`.
    pub(crate) fn host(&self, index: u32) -> String {
        format!("{}-h{index}", self.0)
    }
}

/// Removes the namespaces of labs whose owner no longer runs, and kills the processes inside. Returns the number of
/// namespaces removed.
///
/// # Errors
/// `Io` if a namespace cannot be removed.
pub fn sweep() -> Result<usize> {
    let Ok(entries) = std::fs::read_dir(NAMES) else { return Ok(0) };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let orphans: Vec<String> = names.filter(|name| owner(name).is_some_and(|owner| !alive(owner))).collect();
    for name in &orphans {
        remove(name)?;
    }
    Ok(orphans.len())
}

/// Kills the processes in a namespace and removes it. A namespace that no longer exists is no error, because two
/// processes may sweep at the same time.
pub(crate) fn remove(namespace: &str) -> Result<()> {
    for pid in run("ip", &["netns", "pids", namespace]).unwrap_or_default().split_whitespace() {
        let pid =
            pid.parse().ok().filter(|&pid| pid != std::process::id().cast_signed()).and_then(Pid::from_raw);
        // An error means that the process has already ended.
        let _ = pid.map(|pid| rustix::process::kill_process(pid, Signal::KILL));
    }
    match run("ip", &["netns", "del", namespace]) {
        Err(_) if !Path::new(NAMES).join(namespace).exists() => Ok(()),
        result => result.map(drop),
    }
}

fn owner(namespace: &str) -> Option<Owner> {
    let mut parts = namespace.split('-');
    (parts.next() == Some(PREFIX)).then_some(())?;
    Some(Owner { pid: parts.next()?.parse().ok()?, started: parts.next()?.parse().ok()? })
}

fn alive(owner: Owner) -> bool {
    started(owner.pid) == Some(owner.started)
}

/// The start time of a process, in clock ticks since boot; `None` if it does not run.
fn started(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Field 2, the name in brackets, may itself contain spaces and brackets. So split after its last bracket: the rest
    // begins with field 3, and the start time is field 22.
    stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_their_owner() {
        let name = LabName::new().unwrap();
        assert!(alive(owner(&name.switch(0)).unwrap()));
        assert_eq!(owner(&name.switch(0)), owner(&name.host(3)));
        let gone = Owner { started: 1, ..owner(&name.switch(0)).unwrap() };
        assert!(!alive(gone), "a process number that was used again is not the owner");
        for foreign in ["", "dclab", "dclab-x-1-0-sw0", "other-1-2-0-sw0"] {
            assert_eq!(owner(foreign), None, "{foreign}");
        }
    }
}
