//! The repository: versioned images over any object store, as formats/repository.md lays it out.
//!
//! Objects (chunks and tree nodes) are written once and named by their digest. To publish a version, a writer creates
//! its manifest under the next number, only if that number is free. Tags move by numbered records, which are also
//! created only if absent. Removing a version leaves a tombstone, so no number is ever used twice. There is no lock,
//! no database and no other mutable state.
//!
//! The public API blocks. `object_store` and its futures are used only inside this crate.

mod backend;
mod digest_cache;
mod edit;
mod error;
mod form;
mod layout;
mod lease;
mod maintain;
mod memory;
mod names;
mod nodes;
mod objects;
mod parallel;
mod process;
mod profiles;
mod prune;
mod record;
mod repository;
mod versions;
mod walk;

pub use backend::access::S3Access;
pub use backend::cache::{CACHE_BYTES_MIN, Cache, CacheSetting};
pub use backend::capabilities::{Capabilities, Replaces};
pub use backend::location::{Bucket, Location};
pub use backend::scrubs::ScrubSetting;
pub use edit::{Blob, Changes, Committed, Content, Draft, Drafter, Piece, Recent, Shape, Snapshot};
pub use form::{Form, FormKind};
pub use layout::names_a_path;
pub use lease::reading::Reading;
pub use lease::writer::Writer;
pub use lease::{Owner, Purpose};
pub use maintain::copy::{Copier, CopyReport};
pub use maintain::elsewhere::{Elsewhere, Verification};
pub use maintain::repair::{Healed, How, RepairReport};
pub use maintain::usage::{ImageUsage, Usage};
pub use maintain::verify::{Damage, Scope, Signer, VerifyReport, Why};
pub use names::{ImageName, Reference, TagName};
pub use process::Process;
pub use profiles::{Profile, ProfileRun};
pub use prune::{Overseer, PruneEvent, PruneOptions, PruneReport, Tally};
pub use record::Stamp;
pub use repository::{Keys, Repository, Setting};
pub use versions::diff::{Change, Changed, Closeness, DiffTotals};
pub use versions::tags::{Tag, TagMove};
pub use versions::{CutOverOf, CutOverReport, Found, FreeProofs, Judge, Removed};
