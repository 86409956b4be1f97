//! One file per command: its options, the order of its steps, and its output. The other crates do the work.

pub(crate) mod agent;
pub(crate) mod attach;
pub(crate) mod boot_agent;
pub(crate) mod boot_image;
pub(crate) mod by_torrent;
mod caller;
pub(crate) mod capture;
pub(crate) mod clone;
pub(crate) mod cluster;
pub(crate) mod commit;
pub(crate) mod commit_attached;
pub(crate) mod copy;
pub(crate) mod create;
pub(crate) mod deploy;
pub(crate) mod detach;
pub(crate) mod device;
pub(crate) mod diff;
pub(crate) mod disks;
pub(crate) mod doctor;
mod facts;
pub(crate) mod fetch;
pub(crate) mod grow;
pub(crate) mod hosts;
pub(crate) mod images;
pub(crate) mod init;
pub(crate) mod inspect;
pub(crate) mod install;
mod job_log;
pub(crate) mod key;
pub(crate) mod log;
pub(crate) mod metadata;
pub(crate) mod mount;
pub(crate) mod netboot;
pub(crate) mod opennebula;
pub(crate) mod personalize;
pub(crate) mod profile;
pub(crate) mod prune;
pub(crate) mod remove;
pub(crate) mod repository;
pub(crate) mod serve;
mod serving;
pub(crate) mod shrink;
pub(crate) mod status;
mod surveyed;
pub(crate) mod switch;
pub(crate) mod tag;
pub(crate) mod token;
pub(crate) mod usage;
pub(crate) mod verify;
pub(crate) mod work;

use crate::args::Global;
use crate::ui::output::Output;

/// Options and output, which every command gets.
pub(crate) struct Context {
    pub global: Global,
    pub output: Output,
}

impl Context {
    /// Prefix of a sentence about a change: not empty with --dry-run.
    pub(crate) fn would(&self) -> &'static str {
        if self.global.dry_run { "would do: " } else { "" }
    }
}
