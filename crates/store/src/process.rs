//! Identifies the process that holds a lease, so that a prune on the same machine need not wait for a dead one.
//! proc(5): `/proc/[pid]/stat`, `/proc/sys/kernel/random/boot_id`; pid_namespaces(7).

use std::fmt;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::process::Pid;
use serde::{Deserialize, Serialize};

/// Separates this digest of a boot's id from other uses of that id.
const BOOT_CONTEXT: &str = "diskcast repository v1: boot of a machine";
/// Number of hexadecimal digits of that digest that are kept.
const BOOT_DIGITS: usize = 32;

/// A process of any machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Identifies one boot of one machine: digest of the kernel's boot id, 32 hexadecimal digits.
    pub boot: String,
    /// Inode of its PID namespace.
    pub namespace: u64,
    /// Its process number in that namespace.
    pub pid: u32,
    /// Its start time in clock ticks since the boot, since process numbers are reused.
    pub started: u64,
}

impl Process {
    /// This process; `None` if `/proc` can't be read.
    fn own() -> Option<Self> {
        let boot = std::fs::read("/proc/sys/kernel/random/boot_id").ok()?;
        let mut boot = blake3::derive_key(BOOT_CONTEXT, &boot).map(|byte| format!("{byte:02x}")).concat();
        boot.truncate(BOOT_DIGITS);
        let namespace = std::fs::metadata("/proc/self/ns/pid").ok()?.ino();
        let pid = std::process::id();
        Some(Self { boot, namespace, pid, started: Status::of(pid)?.started })
    }

    /// Whether it is known to be dead. Always `false` for a process of another machine, boot or PID namespace.
    fn is_dead(&self) -> bool {
        let is_near =
            Self::own().is_some_and(|own| (own.boot, own.namespace) == (self.boot.clone(), self.namespace));
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else { return false };
        // Test with a signal first: `/proc` may hide processes of other users.
        is_near
            && (rustix::process::test_kill_process(pid) == Err(Errno::SRCH)
                || Status::of(self.pid).is_some_and(|now| now.started != self.started || now.is_over))
    }
}

/// The state of a process, read from `/proc`.
struct Status {
    started: u64,
    /// It and all its threads have ended, but its parent has not collected its status yet (a zombie).
    is_over: bool,
}

impl Status {
    fn of(pid: u32) -> Option<Self> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The fields after the name. The name is in parentheses, and may contain parentheses itself.
        let fields: Vec<_> = text[text.rfind(')')? + 1..].split_ascii_whitespace().collect();
        let (state, threads, started) = (fields.first()?, fields.get(17)?, fields.get(19)?);
        Some(Self { started: started.parse().ok()?, is_over: *state == "Z" && *threads == "1" })
    }
}

/// The source of information about processes.
#[derive(Clone, Default)]
pub(crate) enum Processes {
    /// The kernel.
    #[default]
    Kernel,
    /// A simulation: its own process, and a function that says whether another one is dead.
    Simulated(Process, Arc<dyn Fn(&Process) -> bool + Send + Sync>),
}

impl Processes {
    /// This process; `None` if it is not known.
    pub(crate) fn own(&self) -> Option<Process> {
        match self {
            Self::Kernel => Process::own(),
            Self::Simulated(own, _) => Some(own.clone()),
        }
    }

    /// Whether `process` is known to be dead.
    pub(crate) fn is_dead(&self, process: &Process) -> bool {
        match self {
            Self::Kernel => process.is_dead(),
            Self::Simulated(_, is_dead) => is_dead(process),
        }
    }
}

impl fmt::Debug for Processes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Processes")
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_living_and_strangers_are_not_dead() {
        let own = Process::own().unwrap();
        assert!(!own.is_dead());
        assert!(Process { started: own.started + 1, ..own.clone() }.is_dead(), "another had its number");
        for stranger in [
            Process { boot: "0".repeat(BOOT_DIGITS), started: 1, ..own.clone() },
            Process { namespace: 1, started: 1, ..own },
        ] {
            assert!(!stranger.is_dead(), "{stranger:?}");
        }
    }

    #[test]
    fn who_was_killed_is_dead_before_and_after_its_parent_asks() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        let process = Process { pid, started: Status::of(pid).unwrap().started, ..Process::own().unwrap() };
        assert!(!process.is_dead());
        // `cat` blocks on a pipe until it is killed. `waitid` waits for its end without collecting it, so it stays a
        // zombie.
        child.kill().unwrap();
        let ended = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
        let id = rustix::process::WaitId::Pid(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap());
        rustix::process::waitid(id, ended).unwrap();
        assert!(process.is_dead());
        child.wait().unwrap();
        assert!(process.is_dead());
    }
}
