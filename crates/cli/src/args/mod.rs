//! Options that several commands share. The options of a single command are in its own file.

mod attached;
mod global;
mod keeping;
pub(crate) mod parse;
mod personal;
mod server;
mod source;
mod target;

pub(crate) use attached::{DisksFolder, QUIESCE, RunningDisk};
pub(crate) use global::{Global, Keys};
pub(crate) use keeping::Keeping;
pub(crate) use personal::Own;
pub(crate) use server::{FromServer, ServerAccess, StateFolder, There, Transport};
pub(crate) use source::{SourceForm, Taking};
pub(crate) use target::{Effort, FileForm, Free, Reuse, Writing};
