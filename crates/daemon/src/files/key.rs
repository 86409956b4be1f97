//! Names one file for the server: it stays the same for ever.

use std::fmt;

use base::Digest;
use store::FormKind;

/// Which file it is: the digest of the version's manifest, and the format.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct FileKey {
    pub manifest: Digest,
    pub kind: FormKind,
}

impl fmt::Display for FileKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.manifest.to_hex(), self.kind)
    }
}
