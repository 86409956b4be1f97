//! One torrent of a node: its swarm, its connections and its content.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::{Chance, Error, ErrorKind, Instant, Result};
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::cache::Cache;
use super::link::Link;
use crate::bits::Bits;
use crate::content::Content;
use crate::metainfo::Metainfo;
use crate::swarm::{Key, Name, Nearness, Output, Swarm};
use crate::wire::Block;

/// A torrent that a node serves or fetches.
pub struct Torrent {
    metainfo: Arc<Metainfo>,
    content: Arc<dyn Content>,
    cache: Arc<Cache>,
    handle: Handle,
    started: tokio::time::Instant,
    state: Mutex<State>,
    end: watch::Sender<End>,
    sent: AtomicU64,
    received: AtomicU64,
}

struct State {
    swarm: Swarm,
    links: HashMap<Key, Arc<Link>>,
    last_key: Key,
    /// Where connections of this side lead.
    outgoing: HashSet<SocketAddr>,
    /// Peers that sent wrong pieces.
    banned: HashSet<[u8; 20]>,
}

/// How far a torrent is.
#[derive(Debug, Clone, Default)]
enum End {
    #[default]
    Fetching,
    Complete,
    Failed(Arc<Error>),
}

/// What a torrent moved so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes of blocks that were sent to peers.
    pub sent_bytes: u64,
    /// Bytes of blocks that came from peers.
    pub received_bytes: u64,
    /// Pieces that are here.
    pub pieces: u32,
    /// Peers that are connected.
    pub peers: usize,
}

impl Torrent {
    pub(super) fn new(
        metainfo: Arc<Metainfo>,
        content: Arc<dyn Content>,
        have: Bits,
        (own, chance): (Name, Chance),
        (cache, handle): (Arc<Cache>, Handle),
    ) -> Self {
        let end = if have.is_full() { End::Complete } else { End::Fetching };
        let state = State {
            swarm: Swarm::new(&metainfo, have, own, chance),
            links: HashMap::new(),
            last_key: 0,
            outgoing: HashSet::new(),
            banned: HashSet::new(),
        };
        Self {
            metainfo,
            content,
            cache,
            handle,
            started: tokio::time::Instant::now(),
            state: Mutex::new(state),
            end: watch::Sender::new(end),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
        }
    }

    /// What it says.
    #[must_use]
    pub fn metainfo(&self) -> &Arc<Metainfo> {
        &self.metainfo
    }

    /// What it moved so far.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        let state = self.state.lock();
        Traffic {
            sent_bytes: self.sent.load(Ordering::Relaxed),
            received_bytes: self.received.load(Ordering::Relaxed),
            pieces: state.swarm.have().count(),
            peers: state.swarm.peers(),
        }
    }

    /// Waits until every piece is here and kept.
    ///
    /// # Errors
    /// Those of the content, which could not keep a piece.
    pub async fn complete(&self) -> Result<()> {
        let mut end = self.end.subscribe();
        let end = end.wait_for(|end| !matches!(end, End::Fetching)).await;
        match &*end.expect("the torrent holds the sender") {
            End::Failed(error) => Err(error.restated()),
            _ => Ok(()),
        }
    }

    /// Whether a connection to `address` may be opened; it then counts as open.
    pub(super) fn begins(&self, address: SocketAddr) -> bool {
        self.state.lock().outgoing.insert(address)
    }

    /// The connection to `address` is over.
    pub(super) fn ends(&self, address: SocketAddr) {
        self.state.lock().outgoing.remove(&address);
    }

    /// Adds a connection, whose handshakes are done. `None` if it is one too many to the same peer: of two that both
    /// sides opened at the same time, that of the lower name stays. `own` is this side's name.
    pub(super) fn connect(
        self: &Arc<Self>,
        link: Link,
        nearness: Nearness,
        own: &[u8; 20],
    ) -> Option<(Key, Arc<Link>)> {
        let link = Arc::new(link);
        let name = link.peer;
        let key = {
            let mut state = self.state.lock();
            if link.peer == *own || state.banned.contains(&link.peer) {
                return None;
            }
            let double = state.links.values().find(|known| known.peer == link.peer);
            if let Some(double) = double {
                let stays = link.is_outgoing == (*own < link.peer);
                if double.is_outgoing == link.is_outgoing || !stays {
                    return None;
                }
                double.close();
            }
            state.last_key += 1;
            let key = state.last_key;
            state.links.insert(key, Arc::clone(&link));
            key
        };
        self.with(|swarm, now| swarm.connected(key, (name, nearness), now));
        Some((key, link))
    }

    /// Removes a connection.
    pub(super) fn disconnect(self: &Arc<Self>, key: Key) {
        self.with(|swarm, now| swarm.disconnected(key, now));
        self.state.lock().links.remove(&key);
    }

    /// Ends all connections.
    pub(super) fn close(&self) {
        self.state.lock().links.values().for_each(|link| link.close());
    }

    /// Says that time has passed.
    pub(super) fn tick(self: &Arc<Self>) {
        self.with(Swarm::tick);
    }

    /// Tells the machine something, and does what it says.
    pub(super) fn with<R>(self: &Arc<Self>, work: impl FnOnce(&mut Swarm, Instant) -> R) -> R {
        let now = Instant::ZERO
            + Duration::from_nanos(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(0));
        let mut state = self.state.lock();
        let result = work(&mut state.swarm, now);
        // Still locked: what one peer is told must not overtake what it was told before.
        while let Some(output) = state.swarm.poll() {
            self.act(&mut state, output);
        }
        result
    }

    fn act(self: &Arc<Self>, state: &mut State, output: Output) {
        let with = |key: Key, act: &dyn Fn(&Link)| {
            if let Some(link) = state.links.get(&key) {
                act(link);
            }
        };
        match output {
            Output::Send(key, message) => with(key, &|link| link.send(&message)),
            Output::Serve(key, block) => with(key, &|link| link.serve(block)),
            Output::Unserve(key, block) => with(key, &|link| link.unserve(block)),
            Output::UnserveAll(key) => with(key, &Link::unserve_all),
            Output::Close(key, is_banned) => {
                with(key, &Link::close);
                if let Some(link) = state.links.get(&key).filter(|_| is_banned) {
                    state.banned.insert(link.peer);
                }
            }
            Output::Verify(piece, bytes) => {
                let torrent = Arc::clone(self);
                drop(self.handle.spawn_blocking(move || torrent.verify(piece, bytes.into())));
            }
            Output::Complete => {
                self.end.send_if_modified(|end| {
                    let is_new = matches!(end, End::Fetching);
                    if is_new {
                        *end = End::Complete;
                    }
                    is_new
                });
            }
        }
    }

    /// Verifies and keeps a piece. Waits for the disk.
    fn verify(self: &Arc<Self>, piece: u32, bytes: Bytes) {
        let is_right = self.metainfo.is_piece(piece, &bytes);
        if is_right {
            if let Err(error) = self.content.keep(self.metainfo.piece_offset(piece), &bytes) {
                self.end.send_replace(End::Failed(Arc::new(error)));
                return;
            }
            self.cache.keep(&self.metainfo, piece, &bytes);
        }
        self.with(|swarm, now| swarm.verified(piece, is_right, now));
    }

    /// The bytes of a block of a piece that is here.
    ///
    /// # Errors
    /// Those of the content.
    pub(super) async fn block(self: &Arc<Self>, block: Block) -> Result<Bytes> {
        if let Some(bytes) = self.cache.look(&self.metainfo, block) {
            return Ok(bytes);
        }
        let torrent = Arc::clone(self);
        let read = move || torrent.cache.read(&torrent.metainfo, &*torrent.content, block);
        let read = self.handle.spawn_blocking(read).await;
        read.unwrap_or_else(|_| Err(Error::new(ErrorKind::Io, "the read of a block ended unexpectedly")))
    }

    pub(super) fn sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}
