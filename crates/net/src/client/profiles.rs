//! Boot profiles of a server's images, and the exchange of reads between machines that boot. `formats/api.md`, "Boot
//! profiles".

use base::{ErrorKind, Result};
use reqwest::Method;

use super::{Body, Client};
use crate::api;
use crate::profile::{BootAnswer, BootRequest, ExchangeAnswer, ExchangeRequest, ProfileAnswer};

impl Client {
    /// What a machine that boots from a version is likely to read; `None` if the server has no profile.
    ///
    /// # Errors
    /// As [`Self::images`].
    pub fn profile(&self, image: &str, version: u64) -> Result<Option<ProfileAnswer>> {
        match self.json(Method::GET, &api::path::profile(image, version), Body::None) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// Reports what a machine read when it booted.
    ///
    /// # Errors
    /// `NotFound`; as [`Self::images`].
    pub fn add_boot(&self, image: &str, boot: &BootRequest) -> Result<BootAnswer> {
        let body = Body::Json(serde_json::to_vec(boot).expect("a request is plain data"));
        self.json(Method::POST, &api::path::boots(image), body)
    }

    /// Reports what a machine has just read, and returns what other machines have read since the last exchange.
    ///
    /// # Errors
    /// `NotFound`; as [`Self::images`].
    pub fn exchange_reads(&self, image: &str, request: &ExchangeRequest) -> Result<ExchangeAnswer> {
        let body = Body::Json(serde_json::to_vec(request).expect("a request is plain data"));
        self.json(Method::POST, &api::path::reads(image), body)
    }
}
