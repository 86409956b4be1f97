//! How a machine becomes a member of a swarm.

use base::{Digest, ErrorKind, Result};

use super::node::{Node, PeerOptions};
use crate::api::SwarmRequest;
use crate::client::Client;

/// Joins the swarm of the version `reference`, whose manifest has this digest. `None` if there is no such swarm: the
/// server is older or does not want this, or is reached by loopback, where there is nobody to share with and no port is
/// to be opened to the network.
///
/// # Errors
/// Those of the server, and `Io` if ports or threads fail. Everything works without a swarm, too.
pub fn join(
    client: &Client,
    reference: &str,
    manifest: &Digest,
    options: PeerOptions,
) -> Result<Option<Node>> {
    let server = client.address()?.ip();
    if server.to_canonical().is_loopback() {
        return Ok(None);
    }
    let request = SwarmRequest {
        reference: reference.to_owned(),
        manifest: manifest.to_hex(),
        peer: proto::peer::VERSION,
    };
    let joined = client.join_swarm(&request).and_then(|grant| Node::start(grant, server, options));
    match joined {
        Ok(node) => Ok(Some(node)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Refused) => Ok(None),
        Err(error) => Err(error),
    }
}
