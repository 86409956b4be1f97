//! What a fetch is told, and what it reports.

use std::sync::Arc;
use std::time::Duration;

use base::limits;
use image::InstallReport;
use proto::multicast::ReceiverCounters;
use proto::peer::SeekerCounters;

use super::counted::Arrived;
use super::on_target::OnTarget;
use crate::clock::Stop;
use crate::peer::{Node, PeerOptions};

/// Which transports may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transport {
    /// Multicast if it works on this network, other machines, and unicast for what is left.
    #[default]
    Auto,
    /// Multicast only: if it does not work, the fetch fails.
    Multicast,
    /// Unicast only.
    Unicast,
}

/// Options of a fetch.
#[derive(Clone)]
pub struct FetchOptions {
    /// Which transports may be used.
    pub transport: Transport,
    /// Interface of the multicast group, by name or address; by default the interface towards the server.
    pub interface: Option<String>,
    /// Name of this machine in the server's statistics.
    pub name: String,
    /// Whether to accept packets to the group only from the server's address (RFC 4607).
    pub source_specific: bool,
    /// Memory in bytes for objects that are incomplete or wait for the installer.
    pub buffer_bytes: u64,
    /// Multicast has failed after this time without any packet.
    pub silent_after: Duration,
    /// Multicast has failed after this time without a new block.
    pub stalled_after: Duration,
    /// How long unicast continues before multicast is tried again after a failure. Doubled each time, and longer if
    /// no packet ever arrived.
    pub retry_after: Duration,
    /// How other machines get objects from this one, and it from them; `None` if they do not. Only with
    /// [`Transport::Auto`].
    pub peers: Option<PeerOptions>,
    /// What other machines get from the target. `None`: they get what memory keeps for them.
    pub on_target: Option<Arc<OnTarget>>,
    /// Counts what arrives.
    pub arrived: Arc<Arrived>,
    /// Ends the fetch. Usually the same [`Stop`] as the client's.
    pub stop: Stop,
    /// Called with a text for every change of plan.
    pub tell: Arc<dyn Fn(&str) + Send + Sync>,
}

impl FetchOptions {
    /// The defaults, for a machine called `name`.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            transport: Transport::Auto,
            interface: None,
            name: name.into(),
            source_specific: false,
            buffer_bytes: limits::RECEIVER_BUFFER_BYTES_DEFAULT,
            silent_after: Duration::from_secs(3),
            stalled_after: Duration::from_secs(10),
            retry_after: Duration::from_secs(5),
            peers: None,
            on_target: None,
            arrived: Arc::default(),
            stop: Stop::new(),
            tell: Arc::new(|_| {}),
        }
    }
}

/// The result of a fetch.
#[derive(Debug, Clone)]
pub struct FetchReport {
    /// `image@version`.
    pub reference: String,
    /// Bytes of objects that arrived by multicast.
    pub multicast_bytes: u64,
    /// Bytes of objects that arrived from other machines.
    pub peer_bytes: u64,
    /// Bytes of objects that arrived from the server by unicast.
    pub unicast_bytes: u64,
    /// What it asked other machines for, and what came of it.
    pub peer_counters: SeekerCounters,
    /// This machine among those that serve each other. It serves what it has until this is dropped.
    pub node: Option<Arc<Node>>,
    /// Why unicast was used, if it was.
    pub unicast_reason: Option<String>,
    /// Number of sessions joined.
    pub sessions: u32,
    /// The counters of the last session's receiver.
    pub counters: ReceiverCounters,
    /// Time until every object had arrived and was verified.
    pub received: Duration,
    /// Time until everything was written, durable and, if requested, read back.
    pub installed: Duration,
    /// What the installer did to the target.
    pub install: InstallReport,
}
