//! On-demand disks: machines run from an image before it has arrived, and commit what they changed.
//!
//! A [`Mirror`] is such a disk; it has a folder for its local state and some [`Source`]s to fetch from. The front
//! ends (NBD, FUSE) use it through the trait [`Served`]. [`images`] is the place where versions come from and
//! commits go to: a local repository or a server. [`machine`] decides what is fetched when, and in which order data
//! and journal records are written to the local medium. [`state`] is the part that survives a crash.

mod attached;
pub mod fuse;
pub mod images;
mod lock;
pub mod machine;
pub mod nbd;
pub mod raw;
pub mod served;
mod source;
pub mod state;
mod swarm;

pub use attached::{
    Commit, CommitOptions, Damage, Join, Mirror, MirrorOptions, MulticastOptions, Onto, QuiesceHook, Waiting,
    WriteHold,
};
pub use images::{
    Addition, BootProfiles, Images, ReadReport, ReadUpdate, Sighting, Written, newest_versions,
};
pub use raw::RawDisk;
pub use served::{Durability, ReadOnly, Served, Space, Status, StatusRun};
pub use source::Source;
pub use swarm::{Swarm, SwarmTraffic};
