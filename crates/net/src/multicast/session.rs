//! Configuration of a session, and the state that its threads and its owner share.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::limits;
use crossbeam_channel::Sender;
use parking_lot::Mutex;
use proto::multicast::{
    MachineId, PayloadCipher, RateConfig, ReceiverId, Reject, Shape, Upstream, open_upstream, peek_receiver,
};
use ring::signature::Ed25519KeyPair;

use super::admitted::Admitted;
use super::budget::Budget;
use super::bundle::{BUNDLE_BLOCKS, Packing};
use super::outgoing::Protection;
use super::readahead::ReadCounters;
use super::receiver_key;
use crate::api::{Key, PublicKey, SessionId, SessionStatistics};
use crate::udp::SendOptions;
use crate::waker::Waker;

/// The rate at which the search begins, in bits per second.
const RATE_INITIAL: u64 = 250_000_000;
/// Highest rate without a ceiling, in bits per second.
pub(super) const RATE_MAX: u64 = 1_000_000_000_000;
/// Default of the lowest rate of a session, in bits per second.
pub const RATE_FLOOR: u64 = 1_000_000;

/// Configuration of a session.
#[derive(Debug, Clone)]
pub struct SessionConfig {
    /// `image@version`.
    pub reference: String,
    /// Number of this start of the server; each start has another one.
    pub epoch: u32,
    /// Whether blocks are encrypted, so that only receivers can read them. Not needed for objects that are encrypted.
    pub encrypted: bool,
    /// Group and port to which blocks are sent.
    pub group: SocketAddr,
    /// Interface and socket options for sending.
    pub send: SendOptions,
    /// Address to which receivers report, if it differs from the one that packets are sent from.
    pub report_address: Option<IpAddr>,
    /// Payload of a block in bytes; by default the largest that fits the interface's MTU.
    pub block_bytes: Option<u16>,
    /// In a session for attached disks: the runs of chunks of the disk that are sent first. `objects` are in this
    /// order.
    pub order: Option<Vec<(u64, u32)>>,
    /// Most blocks of a bundle of several stored objects.
    pub bundle_blocks: u16,
    /// The budget that the server's sessions share.
    pub budget: Arc<Budget>,
    /// Memory for objects, in bytes.
    pub cache_bytes: u64,
    /// Number of threads that read objects in advance.
    pub readers: usize,
    /// A receiver that is silent for this time no longer counts.
    pub receiver_timeout: Duration,
    /// The session ends after this time without receivers.
    pub deserted_after: Duration,
}

impl SessionConfig {
    /// A session for `group` with the defaults of everything else.
    #[must_use]
    pub fn new(reference: impl Into<String>, epoch: u32, group: SocketAddr, send: SendOptions) -> Self {
        Self {
            reference: reference.into(),
            epoch,
            encrypted: true,
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
    pub(super) payload_key: Option<Key>,
    pub(super) secret: [u8; 32],
    /// Seed of the key that control packets are signed with, and its public part.
    pub(super) signing_seed: [u8; 32],
    pub(super) server_key: PublicKey,
    pub(super) source: SocketAddr,
    pub(super) admitted: Mutex<Admitted>,
    pub(super) commands: Sender<Command>,
    pub(super) waker: Arc<Waker>,
    pub(super) over: AtomicBool,
    pub(super) last: Mutex<Option<SessionStatistics>>,
    pub(super) read: Arc<ReadCounters>,
}

/// Commands for the driving thread.
pub(super) enum Command {
    Admit(ReceiverId, MachineId),
    Statistics(Sender<SessionStatistics>),
    /// See [`super::server::SessionServer::elsewhere`].
    Elsewhere(Vec<Range<u32>>, Sender<Vec<(u64, u64)>>),
    Stop,
}

impl Shared {
    pub(super) fn protection(&self) -> Protection {
        let cipher = self.payload_key.map(|key| PayloadCipher::new(&key.into()));
        let signer = signer_of(&self.signing_seed);
        Protection { key: self.group_key.into(), cipher, signer }
    }

    /// Opens a report and verifies it with its sender's key.
    pub(super) fn open(&self, packet: &[u8]) -> std::result::Result<Upstream, Reject> {
        let receiver = peek_receiver(packet).ok_or(Reject::Length)?;
        if receiver.0 as usize >= self.admitted.lock().len() {
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
            sending_ms: 0,
            recent_bits_per_second: None,
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

/// The key that control packets are signed with.
pub(super) fn signer_of(seed: &[u8; 32]) -> Ed25519KeyPair {
    Ed25519KeyPair::from_seed_unchecked(seed).expect("every 32 bytes are a seed")
}

/// The bounds of the rate, within the budget.
pub(super) fn rate_of(config: &SessionConfig) -> RateConfig {
    let ceiling = config.budget.ceiling().unwrap_or(RATE_MAX);
    let floor = config.budget.floor().min(ceiling);
    RateConfig { initial: RATE_INITIAL.clamp(floor, ceiling), floor, ceiling }
}

/// The address without its IPv6 scope, which only this machine understands.
pub(super) fn unscoped(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port())
}

/// `duration` in whole milliseconds.
pub(super) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
