//! Requests about probes of the network.

use base::Result;
use reqwest::Method;

use super::{Body, Client};
use crate::api::{self, ProbeGrant, ProbeRequest, ProbeView, SessionId};

impl Client {
    /// Starts a probe of the network between the server and this machine.
    ///
    /// # Errors
    /// `Refused` if the server offers no multicast or runs many probes; `NotFound` if it is too old for this request;
    /// as [`Self::images`].
    pub fn probe(&self, request: &ProbeRequest) -> Result<ProbeGrant> {
        let body = Body::Json(serde_json::to_vec(request).expect("a request is plain data"));
        self.json(Method::POST, &api::path::probes(), body)
    }

    /// The state of a probe, which goes on for as long as somebody asks for it.
    ///
    /// # Errors
    /// `NotFound` if it has ended; as [`Self::images`].
    pub fn probe_view(&self, probe: SessionId) -> Result<ProbeView> {
        self.json(Method::GET, &api::path::probe(&probe.to_string()), Body::None)
    }
}
