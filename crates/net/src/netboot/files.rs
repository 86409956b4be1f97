//! The files that machines boot from.

use bytes::Bytes;

/// What a server of boot files offers. Many threads call it at the same time.
pub trait BootFiles: Send + Sync {
    /// The content of the file at `path`, which has no slash in front; `None` if there is none. Nobody has shown who
    /// they are: all of this is public.
    fn open(&self, path: &str) -> Option<Bytes>;
}
