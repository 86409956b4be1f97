//! Machines of which nothing is heard any more: which ones these are, and what an administrator is told.

use std::time::Duration;

use base::units::show_seconds;

/// What the server can notice, and how much it believes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Watch {
    /// How long a machine may show nothing while it boots.
    pub boot_time: Duration,
    /// Whether it sees the DHCP requests of the systems on the machines' disks.
    pub sees_systems: bool,
    /// Whether a job begins only with a key that an administrator has confirmed.
    pub strict: bool,
}

/// What was seen of a machine last, when more is to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Last {
    /// It was woken or restarted.
    Power,
    /// Its firmware asked where to boot from.
    Firmware,
    /// Its boot loader asked what to load.
    Loader,
    /// It waited in our system for its job to begin.
    Wait,
    /// It was told to start from its disk.
    Start,
}

impl Last {
    /// What is missing, and what to look at.
    pub(super) fn why(self, silent: Duration) -> String {
        let (what, look) = match self {
            Self::Power => {
                ("it was told to boot", "check that it has power, and boots from the network first")
            }
            Self::Firmware => (
                "its firmware asked where to boot from",
                "check that its screen shows a boot loader, and that nothing blocks UDP port 69 or TCP port 80",
            ),
            Self::Loader => (
                "its boot loader asked what to load",
                "check on its screen that the kernel starts, and knows its network card",
            ),
            Self::Wait => ("it waited for its job to begin", "check that it has power"),
            Self::Start => (
                "it was told to start from its disk",
                "check on its screen that it does; a system with a fixed address makes no sign",
            ),
        };
        let goes_on = if self == Self::Start { "" } else { "; it goes on when it boots again" };
        let silent = show_seconds(silent.as_secs());
        format!("no sign for {silent} since {what}: {look}{goes_on}")
    }
}
