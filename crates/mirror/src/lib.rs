//! On-demand disks: machines run from an image before it has arrived, and commit what they changed.
//!
//! A [`Mirror`] is such a disk, over a folder and some [`Source`]s. Front ends (NBD, FUSE) know it as something
//! [`Served`]: the seam. A [`Guide`] tells it what other machines read. [`machine`] decides what is fetched when, and
//! in which order data and records reach the local medium; [`state`] is what survives a crash.

mod attached;
mod depot;
pub mod error;
pub mod fuse;
mod guide;
pub mod machine;
pub mod nbd;
pub mod raw;
pub mod served;
mod source;
pub mod state;

pub use attached::{
    CastOptions, Commit, CommitOptions, Damage, Join, Mirror, MirrorOptions, Moment, Onto, Waiting,
};
pub use depot::{Addition, Depot};
pub use error::{Error, ErrorKind, Result};
pub use guide::{Guide, Heard, RepositoryGuide, Told};
pub use raw::RawDisk;
pub use served::{Durability, ReadOnly, Served, Space, Status, StatusRun};
pub use source::Source;
