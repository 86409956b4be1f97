//! What the server knows of versions as files: which ones are open, their digests, and which images are for everybody.

mod checksums;
mod key;
mod opened;
mod public;

use std::sync::Arc;

use crate::auth::claims::Claims;

pub(crate) use checksums::{Checksums, Sums};
pub(crate) use key::FileKey;
pub(crate) use opened::Forms;
pub use public::PublicImages;

/// See the module.
pub(crate) struct Files {
    /// What everybody may read.
    pub public: Claims,
    pub open: Forms,
    pub checksums: Arc<Checksums>,
}

impl Files {
    /// None of them is open.
    pub(crate) fn new(public: &PublicImages, checksums: Checksums) -> Self {
        Self { public: public.claims(), open: Forms::default(), checksums: Arc::new(checksums) }
    }
}
