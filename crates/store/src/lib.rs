//! The repository: versioned images over any object store, as formats/repository.md lays it out.
//!
//! Objects (chunks and tree nodes) are write-once and named by their digest. A version appears by one create-if-absent
//! of its manifest under the next number; tags move by numbered records that are created only if absent, too; removal
//! leaves a tombstone, so that no number is ever used twice. There is no lock, no database and no other mutable state.
//!
//! Outside everything blocks; `object_store` and its futures stay inside.

mod backend;
mod blob;
mod copy;
mod diff;
mod error;
mod folder;
mod layout;
mod location;
mod names;
mod parallel;
mod record;
mod repair;
mod repository;
mod tags;
mod usage;
mod verify;
mod versions;

pub use blob::{Blob, Committed, Content, Piece, Recent, Shape, Snapshot};
pub use copy::{Copier, CopyReport};
pub use diff::{Change, Changed, Closeness, DiffTotals};
pub use error::{Error, ErrorKind, Result};
pub use location::Location;
pub use names::{ImageName, Reference, TagName};
pub use repair::RepairReport;
pub use repository::{Keys, Repository};
pub use tags::{Tag, read_tag};
pub use usage::{ImageUsage, Usage};
pub use verify::{Damage, Scope, Signer, VerifyReport, Why};
pub use versions::{Removed, Stamp};
