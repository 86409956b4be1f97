//! Multicast sessions: one per version that somebody fetches, from its first client until after its last.

use std::sync::Arc;

use net::api::SessionStatistics;
use store::Repository;

use crate::event::Log;
use crate::metrics::SessionTotals;

/// How to multicast.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MulticastOptions {
    /// Network interface, by name or address; that of the client's route if not said.
    pub interface: Option<String>,
    /// Most that all sessions send together, in bits per second.
    pub rate_bits_per_second: u64,
    /// Routers that packets may pass; 1 stays in the network.
    pub ttl: u8,
}

/// All sessions of a server.
pub struct Sessions {
    _repository: Arc<Repository>,
    _options: Option<MulticastOptions>,
    _log: Log,
}

impl Sessions {
    pub fn new(repository: Arc<Repository>, options: Option<MulticastOptions>, log: Log) -> Arc<Self> {
        Arc::new(Self { _repository: repository, _options: options, _log: log })
    }

    /// Statistics of sessions that run, then of those that ended not long ago.
    pub fn statistics(&self) -> Vec<SessionStatistics> {
        Vec::new()
    }

    /// What all sessions did.
    pub fn totals(&self) -> SessionTotals {
        SessionTotals::default()
    }

    /// Ends all sessions.
    pub fn end(&self) {}
}
