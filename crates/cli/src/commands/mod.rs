//! One file per command: what it prints, in which order it does things. The work itself is done further down the house.

pub mod attach;
pub mod capture;
pub mod clone;
pub mod commit;
pub mod copy;
pub mod create;
pub mod detach;
pub mod diff;
pub mod disks;
pub mod fetch;
pub mod images;
pub mod init;
pub mod inspect;
pub mod install;
pub mod key;
pub mod log;
pub mod mount;
pub mod profile;
pub mod prune;
pub mod remove;
pub mod repository;
pub mod running;
pub mod serve;
pub mod tag;
pub mod token;
pub mod usage;
pub mod verify;

use crate::args::Global;
use crate::ui::output::Output;

/// What every command gets.
pub struct Context {
    pub global: Global,
    pub output: Output,
}

impl Context {
    /// What a sentence about a change begins with if nothing is changed.
    pub fn would(&self) -> &'static str {
        if self.global.dry_run { "would do: " } else { "" }
    }
}
