//! FUSE front end: versions and writable clones as files in a folder, fetched as they are read.
//!
//! [`mount`] shows what an [`Origin`] has. [`names`] says which file is what, [`disks`] opens and closes what is behind
//! them, [`bytes`] makes files of disks, [`control`] makes clones and commits, [`front`] speaks with the kernel.

mod bytes;
mod control;
mod disks;
mod event;
mod front;
mod locks;
mod names;
mod origin;
mod session;
mod thread_pool;

pub use control::{IOCTL_CLONE, IOCTL_COMMIT, LINE_BYTES_MAX};
pub use disks::{DiskSettings, MountCounters};
pub use event::{Event, Log};
pub use origin::Origin;
pub use session::{MountOptions, Mounted, mount};
