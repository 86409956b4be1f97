//! Requests about the machines that fetch.

use base::Result;
use reqwest::Method;

use super::{Body, Client};
use crate::api::{self, HostReport, NextReport, Status};

impl Client {
    /// Sessions and machines, as far as the token covers their images.
    ///
    /// # Errors
    /// `NotFound` if the server is too old for this request; as [`Self::images`].
    pub fn status(&self) -> Result<Status> {
        self.json(Method::GET, &api::path::status(), Body::None)
    }

    /// Reports the progress of the fetch `id`, 32 hexadecimal digits.
    ///
    /// # Errors
    /// `NotFound` if the server is too old for this request; as [`Self::images`].
    pub(crate) fn report_host(&self, id: &str, report: &HostReport) -> Result<NextReport> {
        let body = Body::Json(serde_json::to_vec(report).expect("a report is plain data"));
        self.json(Method::PUT, &api::path::host(id), body)
    }
}
