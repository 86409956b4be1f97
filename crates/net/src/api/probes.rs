//! Probes of the network: their request, grant and state.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::{Family, Key, SessionId};

/// The body of `POST /api/v1/probes`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeRequest {
    /// The address families that the machine can use, best first; empty for any.
    #[serde(default)]
    pub families: Vec<Family>,
}

/// The answer to a [`ProbeRequest`]: the probe runs, for as long as its state is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeGrant {
    /// The probe.
    pub probe: SessionId,
    /// Multicast group and port of the server's packets.
    pub group: SocketAddr,
    /// The address from which the server sends.
    pub source: IpAddr,
    /// The address for the machine's reports, by unicast.
    pub report: SocketAddr,
    /// Key of the packets of both sides.
    pub key: Key,
    /// Sizes of the server's IP packets, in bytes; the last is the server's MTU.
    pub sizes: Vec<u16>,
    /// Time to live of the server's packets.
    pub ttl: u8,
    /// The address from which the server got the request.
    pub peer: IpAddr,
}

/// The answer to `GET /api/v1/probes/{id}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeView {
    /// Rounds of packets that the server has sent.
    pub rounds: u32,
    /// Reports that the server got.
    pub reports: u32,
    /// The machine's packets that arrived, by the length of the IP packet in bytes; `None` of an older server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sizes: Option<BTreeMap<u16, u32>>,
    /// Where the last report came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<SocketAddr>,
}
