//! Objects: named by kind, digest and length.

use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use image::ObjectRef;
use reqwest::Method;

use super::{Body, Client};
use crate::{api, patch};

/// Longest file of a torrent.
const TORRENT_BYTES_MAX: u32 = 64 << 20;

impl Client {
    /// The torrent of `image@version`, as a file that any client of BitTorrent reads. Waits while the server makes it.
    ///
    /// # Errors
    /// `NotFound` if there is no such version, or the server serves no torrents; as [`Self::images`].
    pub fn torrent(&self, reference: &str) -> Result<Bytes> {
        self.bytes(Method::GET, &api::path::torrent(reference), Body::None, TORRENT_BYTES_MAX)
    }

    /// The stored bytes of an object, not verified.
    ///
    /// # Errors
    /// `NotFound`; `Corrupt` if there are more bytes than `object` has; as [`Self::images`].
    pub fn object(&self, object: &ObjectRef) -> Result<Bytes> {
        self.bytes(Method::GET, &api::path::object(object), Body::None, object.len)
    }

    /// The bytes of an object, not verified, of which the caller has a `damaged` copy of the same length; and how many
    /// bytes were sent for it: only what differs.
    ///
    /// # Errors
    /// As [`Self::object`]; `Corrupt` for an answer that does not fit the copy.
    pub fn mended(&self, object: &ObjectRef, mut damaged: Vec<u8>) -> Result<(Bytes, u64)> {
        let (path, digests) = (api::path::object(object), patch::digests(&damaged));
        let sent = digests.len() as u64;
        let body = Body::Bytes(digests.into());
        let answer = self.bytes(Method::POST, &path, body, patch::answer_bytes_max(object.len))?;
        match patch::apply(&mut damaged, &answer) {
            Some(()) => Ok((damaged.into(), sent + answer.len() as u64)),
            None => Err(Error::new(ErrorKind::Corrupt, format!("mend {object}: a wrong answer"))),
        }
    }

    /// Whether the server has an object.
    ///
    /// # Errors
    /// As [`Self::images`].
    pub fn has_object(&self, object: &ObjectRef) -> Result<bool> {
        match self.answer(Method::HEAD, &api::path::object(object), &Body::None) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Uploads an object.
    ///
    /// # Errors
    /// `Corrupt` if the bytes do not match the digest; as [`Self::images`].
    pub fn put_object(&self, object: &ObjectRef, bytes: Bytes) -> Result<()> {
        let path = api::path::object(object);
        self.answer(Method::PUT, &path, &Body::Bytes(bytes)).map(drop)
    }
}
