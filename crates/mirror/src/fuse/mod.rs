//! The FUSE front end: versions and writable clones as files in a folder. Their content is fetched when it is read.
//!
//! [`mount`] shows the images of an [`Origin`], whose versions may be shared with other machines ([`Sharing`]).
//! [`names`] maps names and inode numbers to files, [`disks`] opens and closes the disks behind them, [`aside`]
//! keeps those that stood in the place of others, [`bytes`] gives byte access to a disk, [`control`] makes clones and
//! commits, [`front`] answers the kernel's requests.

mod aside;
mod bytes;
mod control;
mod disks;
mod event;
mod front;
mod locks;
mod names;
mod origin;
mod session;
mod sharing;
mod thread_pool;

pub use control::{IOCTL_CLONE, IOCTL_COMMIT, LINE_BYTES_MAX};
pub use disks::{Content, DiskSettings, MountCounters};
pub use event::{Event, Log};
pub use origin::{Origin, Watch};
pub use session::{MountOptions, Mounted, mount};
pub use sharing::{MakeSwarm, Sharing};
