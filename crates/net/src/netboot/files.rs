//! The files that machines boot from.

use bytes::Bytes;

use crate::mac::Mac;

/// What a server of boot files offers. Many threads call it at the same time.
pub trait BootFiles: Send + Sync {
    /// The content of the file at `path`, which has no slash in front; `None` if there is none. Nobody has shown who
    /// they are: all of this is public.
    fn open(&self, path: &str) -> Option<Bytes>;

    /// Whether firmware that loads everything at once is to load it on the machine with this card. Else it goes on, to
    /// its disk. The other boot loaders ask by themselves what to do.
    fn boots(&self, mac: Mac) -> bool;

    /// What UEFI loads if there is a unified kernel image ([`super::unified`]): that one, or shim before it.
    fn unified(&self) -> Option<&'static str>;
}
