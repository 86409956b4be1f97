//! Options that several commands share. Those of one command stand in its own file.

mod attached;
mod global;
pub mod parse;
mod server;
mod source;
mod target;

pub use attached::{DisksFolder, RunningDisk};
pub use global::{Global, Keys};
pub use server::{Reach, StateFolder, There, Transport};
pub use source::{SourceForm, Taking};
pub use target::{Effort, Free, Writing};
