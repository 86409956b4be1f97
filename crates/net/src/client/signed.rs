//! Requests for signed records, as they are stored: the client checks their signatures itself.

use base::Result;
use bytes::Bytes;
use reqwest::Method;

use super::{Body, Client};
use crate::api;

/// Longest record of a tag (formats/repository.md, "Records").
const TAG_BYTES_MAX: u32 = 16 << 10;
/// Longest cut-over record (formats/repository.md, "Keys").
const CUT_OVER_BYTES_MAX: u32 = 1 << 20;

impl Client {
    /// The newest record of a tag as it is stored, with its signature if it has one.
    ///
    /// # Errors
    /// `NotFound`; as [`Self::images`].
    pub fn tag(&self, image: &str, tag: &str) -> Result<Bytes> {
        self.bytes(Method::GET, &api::path::tag(image, tag), Body::None, TAG_BYTES_MAX)
    }

    /// The newest cut-over record of an image as it is stored, with its signature.
    ///
    /// # Errors
    /// `NotFound`, also from a server that does not know this request yet; as [`Self::images`].
    pub fn cut_over(&self, image: &str) -> Result<Bytes> {
        self.bytes(Method::GET, &api::path::cut_over(image), Body::None, CUT_OVER_BYTES_MAX)
    }
}
