//! Versions of images: numbered manifests, tags that name them, and differences between two of them.
//! formats/repository.md, "Versions" and "Tags".

pub(crate) mod cut_over;
pub(crate) mod diff;
pub(crate) mod floor;
mod judge;
mod manifests;
pub(crate) mod newest;
mod numbering;
mod proofs;
pub(crate) mod tags;

pub use cut_over::CutOverReport;
pub use judge::{CutOverOf, Judge};
pub use manifests::{Found, Removed};
pub(crate) use manifests::{Numbers, gaps};
pub(crate) use numbering::{RACES_MAX, next};
pub use proofs::FreeProofs;
