//! The manifest of the version that is fetched.

use base::{Error, ErrorKind, Result};
use image::{Manifest, SignedManifest};

use crate::client::Client;

/// The manifest of `image`, `image:tag` or `image@version` from the server.
///
/// # Errors
/// Those of the client; `Corrupt` if it is not a manifest, or of another image or number than requested;
/// `Unsupported` if this program cannot read it.
pub fn manifest(client: &Client, reference: &str) -> Result<SignedManifest> {
    version(&client.manifest(reference)?, reference)
}

/// The manifest that a server sent as that of `image`, `image:tag` or `image@version`.
///
/// # Errors
/// `Corrupt` if it is not a manifest, or of another image or number than `reference` says; `Unsupported` if this
/// program cannot read it.
pub fn version(bytes: &[u8], reference: &str) -> Result<SignedManifest> {
    let sealed = SignedManifest::open(bytes)
        .map_err(|error| error.within(format!("read the manifest of `{reference}`")))?;
    let Manifest { image, number, .. } = &sealed.manifest;
    // A client must not accept another version than it requested. Which version a tag names, only the server knows.
    let is_right = match reference.split_once('@') {
        Some((name, asked)) => image == name && asked.parse() == Ok(*number),
        None => reference.split(':').next() == Some(image),
    };
    if is_right {
        return Ok(sealed);
    }
    let text = format!("the server answers for `{reference}` with `{}@{number}`", image.escape_debug());
    Err(Error::new(ErrorKind::Corrupt, text))
}
