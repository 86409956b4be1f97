//! Reads and writes disks: devices and raw files, partition tables, filesystems, and which sectors matter. This crate
//! does not depend on the image format.

pub mod backup_gpt;
mod container;
mod coverage;
pub mod device;
mod file;
mod files;
mod filesystem;
pub mod find;
mod freeze;
pub mod grow;
mod in_use;
mod ioctl;
pub mod logical_volume;
pub mod map;
mod mounts;
pub mod personal;
mod place;
pub mod position;
pub mod preflight;
mod rescue;
mod scratch;
pub mod second_copy;
mod sfdisk;
pub mod shrink;
mod signature;
pub mod source;
pub mod stale;
pub mod survey;
mod table;
pub mod target;
mod text;
mod tools;
mod volume;
mod watch;
mod window;
mod writers;

pub use backup_gpt::length_by_table;
pub use container::{
    ArchivedDisk, Compression, Container, ContainerKind, NEEDS_ANOTHER, Qcow2Header, Qcow2Stream,
    Qcow2Target, Qcow2Written, VirtualDisk, container_of, linked_files, make_overlay_of_raw,
    members_of_appliance, open_qcow2_overlay, open_qcow2_target, open_virtual_disk, qcow2_backing, unpack,
};
pub use device::{Geometry, ReadAt, WriteAt};
pub use file::{Identity, sector_bytes_by_table};
pub use files::{FileThere, files_at};
pub use freeze::Freezer;
pub use map::{DiskMap, Filesystem, Partition, SurveyOptions, TableKind};
pub use place::{Place, place_of};
pub use preflight::preflight;
pub use rescue::{Rescue, unreadable_sector};
pub use scratch::private_folder;
pub use signature::{Claim, claims};
pub use source::{Source, open_source};
pub use survey::{survey, survey_failing};
pub use target::{Target, TargetOptions, look_at_target, open_target};
pub use watch::Watch;
pub use window::{Window, partition_of};
pub use writers::{Writer, writers};
