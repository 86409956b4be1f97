//! On-demand disks: machines run from an image before it has arrived, and commit what they changed.
//!
//! A [`Mirror`] is such a disk, over a folder and some [`Source`]s. Front ends (NBD, FUSE) know it as something
//! [`Served`]: the seam. [`images`] is a repository here or behind a server: where versions come from and commits go.
//! [`machine`] decides what is fetched when, and in which order data and records reach the local medium; [`state`] is
//! what survives a crash.

mod attached;
pub mod fuse;
pub mod images;
pub mod machine;
pub mod nbd;
pub mod raw;
pub mod served;
mod source;
pub mod state;

pub use attached::{
    Commit, CommitOptions, Damage, Join, Mirror, MirrorOptions, MulticastOptions, Onto, QuiesceHook, Waiting,
};
pub use images::{Addition, BootProfiles, Images, ReadReport, ReadUpdate, Written};
pub use raw::RawDisk;
pub use served::{Durability, ReadOnly, Served, Space, Status, StatusRun};
pub use source::Source;
