//! The repository: versioned images over any object store, as formats/repository.md lays it out.
//!
//! Objects (chunks and tree nodes) are write-once and named by their digest. A version appears by one create-if-absent
//! of its manifest under the next number; tags move by numbered records that are created only if absent, too; removal
//! leaves a tombstone, so that no number is ever used twice. There is no lock, no database and no other mutable state.
//!
//! Outside everything blocks; `object_store` and its futures stay inside.

mod access;
mod backend;
mod blob;
mod cache;
mod complete;
mod copy;
mod diff;
mod epoch;
mod error;
mod executor;
mod files;
mod filter;
mod floor;
mod folder;
mod http;
mod layout;
mod lease;
mod location;
mod mend;
mod mutant;
mod names;
mod newest;
mod parallel;
mod probe;
mod process;
mod profiles;
mod prune;
mod rebuild;
mod record;
mod records;
mod repair;
mod repository;
mod s3;
mod scrubs;
mod tags;
mod uploads;
mod usage;
mod verify;
mod versions;
mod writer;

pub use access::S3Access;
pub use blob::{Blob, Changes, Committed, Content, Draft, Drafter, Piece, Recent, Shape, Snapshot};
pub use cache::{CACHE_BYTES_DEFAULT, CACHE_BYTES_MIN, Cache, CacheSetting};
pub use copy::{Copier, CopyReport};
pub use diff::{Change, Changed, Closeness, DiffTotals};
pub use error::{Error, ErrorKind, Result};
pub use lease::{Owner, Purpose};
pub use location::{Bucket, Location};
pub use mutant::Mutant;
pub use names::{ImageName, Reference, TagName};
pub use probe::{Probe, Replaces};
pub use process::Process;
pub use profiles::{Profile, ProfileRun};
pub use prune::{Overseer, PruneEvent, PruneOptions, PruneReport, Tally};
pub use repair::{Healed, How, RepairReport};
pub use repository::{Keys, Repository, Setting};
pub use scrubs::ScrubSetting;
pub use tags::{Tag, read_tag};
pub use usage::{ImageUsage, Usage};
pub use verify::{Damage, Scope, Signer, VerifyReport, Why};
pub use versions::{Removed, Stamp};
pub use writer::Writer;
