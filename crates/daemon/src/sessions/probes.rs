//! Probes of the network that machines ask for (`diskcast doctor`).

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use base::Digest;
use net::api::{ProbeGrant, ProbeRequest, ProbeView, ProblemKind, SessionId};
use net::probe::{self, ProbeConfig, ProbeServer};
use net::udp::SendOptions;
use parking_lot::Mutex;

use crate::problem::Failure;
use crate::sessions::groups::{
    MulticastOptions, REPORT_PORTS, family, group, interface_towards, is_taken, refused, unavailable,
};

/// Maximum number of probes at the same time. Each sends some hundred kilobits per second.
const PROBES_MAX: usize = 16;
/// Maximum number of probes of one address.
const PROBES_OF_ADDRESS_MAX: usize = 2;

/// All probes of a server.
pub(crate) struct Probes {
    options: Option<MulticastOptions>,
    running: Mutex<HashMap<SessionId, (IpAddr, ProbeServer)>>,
}

impl Probes {
    pub(crate) fn new(options: Option<MulticastOptions>) -> Self {
        Self { options, running: Mutex::default() }
    }

    /// Starts a probe for the machine at `peer`. Blocks.
    pub(crate) fn start(&self, request: &ProbeRequest, peer: SocketAddr) -> Result<ProbeGrant, Failure> {
        let options = self.options.as_ref().ok_or_else(|| refused("this server offers no multicast"))?;
        self.sweep();
        let interface = interface_towards(options, peer)?;
        let ipv4 = family(&interface, &request.families).ok_or_else(|| {
            refused(&format!("interface {} has no address of these families", interface.name))
        })?;
        let (id, key) = probe::draw()?;
        let seed = Digest::of(&id.0.to_be_bytes());
        let sizes = probe::sizes(interface.mtu());
        let mut send = SendOptions::on(interface);
        send.ttl = options.ttl.into();
        let (group, patience) = (group(&seed, 0, 0, ipv4, options.ttl), probe::FORGOTTEN_AFTER);
        let mut config = ProbeConfig { id, key, group, send, sizes, patience };
        let mut running = self.running.lock();
        let ip = peer.ip().to_canonical();
        let of_address = running.values().filter(|(owner, _)| *owner == ip).count();
        if running.len() >= PROBES_MAX || of_address >= PROBES_OF_ADDRESS_MAX {
            return Err(refused("too many probes run already: try again in a minute"));
        }
        let mut last = None;
        for port in REPORT_PORTS {
            config.send.port = port;
            match ProbeServer::start(config.clone()) {
                Ok(server) => {
                    let grant = ProbeGrant {
                        probe: id,
                        group: config.group,
                        source: server.local().ip(),
                        report: server.local(),
                        key,
                        sizes: config.sizes,
                        ttl: options.ttl,
                        peer: ip,
                    };
                    running.insert(id, (ip, server));
                    return Ok(grant);
                }
                Err(error) if is_taken(&error) => last = Some(error),
                Err(error) => return Err(unavailable(&error)),
            }
        }
        Err(unavailable(&last.expect("there are ports")))
    }

    /// The state of a probe, which goes on. `NotFound` if there is none with that id.
    pub(crate) fn view(&self, id: SessionId) -> Result<ProbeView, Failure> {
        let running = self.running.lock();
        let (_, server) = running
            .get(&id)
            .ok_or_else(|| Failure::new(ProblemKind::NotFound, format!("there is no probe {id}")))?;
        Ok(server.view())
    }

    /// Forgets the probes that have ended.
    pub(crate) fn sweep(&self) {
        self.running.lock().retain(|_, (_, server)| !server.is_over());
    }

    /// Ends all probes.
    pub(crate) fn end(&self) {
        self.running.lock().clear();
    }
}
