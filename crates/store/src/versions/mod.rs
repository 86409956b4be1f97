//! Versions of images: numbered manifests, tags that name them, and differences between two of them.
//! formats/repository.md, "Versions" and "Tags".

pub(crate) mod diff;
pub(crate) mod floor;
mod manifests;
pub(crate) mod newest;
pub(crate) mod tags;

pub use manifests::Removed;
pub(crate) use manifests::{Numbers, RACES_MAX, gaps, next};
