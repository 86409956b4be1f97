//! What a server has: its images, and the versions of one.

use base::Result;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use reqwest::Method;

use super::{Body, Client};
use crate::api;

impl Client {
    /// All images.
    ///
    /// # Errors
    /// As for every request: `Unreachable`, `Untrusted`, `Denied`, `Stopped`, or the error in the server's answer.
    pub fn images(&self) -> Result<api::Images> {
        self.json(Method::GET, &api::path::images(), Body::None)
    }

    /// All images, each with the encoded manifest of its newest version, decrypted. A manifest is missing if the server
    /// is older than this request or can't read it. One request for all that an answer holds, thousands as a rule.
    ///
    /// # Errors
    /// `Refused` or `Corrupt` if they are encrypted and the key is missing or wrong; as [`Self::images`].
    pub fn images_with_manifests(&self) -> Result<Vec<(api::ImageSummary, Option<Bytes>)>> {
        let mut all = self.images_after(None)?;
        // Where an answer has no room for more, the manifests of all further images are missing.
        while let Some(last) = all.iter().rposition(|found| found.manifest.is_some())
            && last + 1 < all.len()
        {
            let rest = self.images_after(Some(&all[last].name))?;
            // An older server begins again.
            let goes_on = |first: &api::ImageSummary| first.name > all[last].name && first.manifest.is_some();
            if !rest.first().is_some_and(goes_on) {
                break;
            }
            all.truncate(last + 1);
            all.extend(rest);
        }
        let each = all.into_iter().map(|mut summary| {
            let stored = summary.manifest.take().and_then(|text| BASE64.decode(text).ok());
            let manifest = stored.map(|stored| self.opened(stored.into(), &summary.name)).transpose()?;
            Ok((summary, manifest))
        });
        each.collect()
    }

    fn images_after(&self, name: Option<&str>) -> Result<Vec<api::ImageSummary>> {
        let path = api::path::images_with_manifests(name);
        self.json(Method::GET, &path, Body::None).map(|found: api::Images| found.images)
    }

    /// The versions of an image.
    ///
    /// # Errors
    /// `NotFound`; as [`Self::images`].
    pub fn versions(&self, image: &str) -> Result<api::Versions> {
        self.json(Method::GET, &api::path::versions(image), Body::None)
    }
}
