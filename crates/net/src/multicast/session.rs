//! What a session is made of, and what its threads and its owner share.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::limits;
use crossbeam_channel::Sender;
use parking_lot::Mutex;
use proto::multicast::{RateConfig, ReceiverId, Reject, Shape, Upstream, open_upstream, peek_receiver};

use super::budget::Budget;
use super::bundle::{BUNDLE_BLOCKS, Packing};
use super::readahead::ReadCounters;
use super::receiver_key;
use crate::api::{Key, SessionId, SessionStatistics};
use crate::udp::SendOptions;
use crate::waker::Waker;

/// Where the search for the rate begins, and what it never reaches, in bits per second.
const RATE_INITIAL: u64 = 250_000_000;
/// See [`RATE_INITIAL`].
pub(super) const RATE_MAX: u64 = 1_000_000_000_000;
/// The rate is not lower than this unless the budget says otherwise, in bits per second.
pub const RATE_FLOOR: u64 = 1_000_000;

/// What a session is made of.
#[derive(Debug, Clone)]
pub struct SessionConfig {
    /// `image@version`.
    pub reference: String,
    /// Number of this start of the server; never the same twice.
    pub epoch: u32,
    /// Group and port that blocks go to.
    pub group: SocketAddr,
    /// How they go there.
    pub send: SendOptions,
    /// Address that receivers report to, where it differs from the one that packets come from.
    pub report_address: Option<IpAddr>,
    /// Payload of a block; by default what fits the interface's MTU.
    pub block_bytes: Option<u16>,
    /// In a session for attached disks: runs of chunks of the disk that go first, as the objects are ordered.
    pub order: Option<Vec<(u64, u32)>>,
    /// Stored objects are packed while an object of the session has at most so many blocks.
    pub bundle_blocks: u16,
    /// What it shares with the server's other sessions.
    pub budget: Arc<Budget>,
    /// Memory for objects, in bytes.
    pub cache_bytes: u64,
    /// Threads that read objects ahead.
    pub readers: usize,
    /// A receiver that was not heard for so long has gone.
    pub receiver_timeout: Duration,
    /// The session ends itself after so long without a receiver.
    pub deserted_after: Duration,
}

impl SessionConfig {
    /// A session for `group` with the defaults of everything else.
    #[must_use]
    pub fn new(reference: impl Into<String>, epoch: u32, group: SocketAddr, send: SendOptions) -> Self {
        Self {
            reference: reference.into(),
            epoch,
            group,
            send,
            report_address: None,
            block_bytes: None,
            order: None,
            bundle_blocks: BUNDLE_BLOCKS,
            budget: Budget::new(None, RATE_FLOOR),
            cache_bytes: limits::RECEIVER_BUFFER_BYTES_DEFAULT,
            readers: 2,
            receiver_timeout: Duration::from_secs(20),
            deserted_after: Duration::from_secs(10),
        }
    }
}

/// What the threads of a session and its owner share.
pub(super) struct Shared {
    pub(super) config: SessionConfig,
    pub(super) session: SessionId,
    pub(super) shape: Shape,
    pub(super) packing: Arc<Packing>,
    pub(super) group_key: Key,
    pub(super) secret: [u8; 32],
    pub(super) source: SocketAddr,
    /// Names of the receivers admitted; a receiver's number is its index.
    pub(super) names: Mutex<Vec<String>>,
    pub(super) commands: Sender<Command>,
    pub(super) waker: Arc<Waker>,
    pub(super) over: AtomicBool,
    pub(super) last: Mutex<Option<SessionStatistics>>,
    pub(super) read: Arc<ReadCounters>,
}

/// What the driving thread is told.
pub(super) enum Command {
    Admit(ReceiverId),
    Statistics(Sender<SessionStatistics>),
    Stop,
}

impl Shared {
    /// A report as its sender's key confirms it.
    pub(super) fn open(&self, packet: &[u8]) -> std::result::Result<Upstream, Reject> {
        let receiver = peek_receiver(packet).ok_or(Reject::Length)?;
        if receiver.0 as usize >= self.names.lock().len() {
            return Err(Reject::Tag);
        }
        open_upstream(&receiver_key(&self.secret, receiver.0).into(), &self.shape, packet)
    }

    pub(super) fn empty_statistics(&self) -> SessionStatistics {
        SessionStatistics {
            session: self.session,
            epoch: self.shape.epoch,
            reference: self.config.reference.clone(),
            group: unscoped(self.config.group),
            running: !self.over.load(Ordering::Acquire),
            runtime_ms: 0,
            read_ms: milliseconds(self.read.time()),
            read_bytes: self.read.bytes(),
            reread_bytes: self.read.bytes_again(),
            read_failures: self.read.failures(),
            objects: self.shape.objects,
            stored_objects: self.packing.stored_objects(),
            image_bytes: 0,
            blocks_in_image: 0,
            blocks_sent: 0,
            resent_late: 0,
            resent_buffer_full: 0,
            resent_lost: 0,
            symbols_sent: 0,
            symbols_ahead: 0,
            rate_bits_per_second: 0,
            unicast_bytes: 0,
            payload_bytes: 0,
            packet_bytes: 0,
            control_packets: 0,
            reports: 0,
            rejected: 0,
            trouble: None,
            receivers: Vec::new(),
        }
    }
}

/// The bounds of the rate that the budget leaves.
pub(super) fn rate_of(config: &SessionConfig) -> RateConfig {
    let ceiling = config.budget.ceiling().unwrap_or(RATE_MAX);
    let floor = config.budget.floor().min(ceiling);
    RateConfig { initial: RATE_INITIAL.clamp(floor, ceiling), floor, ceiling }
}

/// The address without the interface that this machine calls it by.
pub(super) fn unscoped(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port())
}

/// `duration` in whole milliseconds.
pub(super) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
