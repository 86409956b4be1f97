//! Certificates and keys in files of PEM text.

use std::path::Path;

use base::{Error, ErrorKind, Result};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::private_file::read_private;

/// The certificates in the file at `path`.
///
/// # Errors
/// `Invalid` if it can't be read or holds something else.
pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let found =
        CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>);
    found.map_err(|error| unread(path, error))
}

/// The key in the file at `path`.
///
/// # Errors
/// `Invalid` as above; `Refused` if others than its owner may read it.
pub(crate) fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>> {
    let text = read_private(path).map_err(|error| match error.kind() {
        ErrorKind::Refused => error,
        _ => unread(path, error),
    })?;
    PrivateKeyDer::from_pem_slice(&text).map_err(|error| unread(path, error))
}

fn unread(path: &Path, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::from_source(ErrorKind::Invalid, format!("read `{}`", path.display()), error)
}
