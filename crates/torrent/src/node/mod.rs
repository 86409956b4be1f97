//! Sockets and tasks around swarms: a node listens on one port for all its torrents.

mod cache;
mod connection;
mod link;
#[cfg(test)]
mod tests;
mod torrent;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use base::{Chance, Error, Result};
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::bits::Bits;
use crate::content::Content;
use crate::metainfo::{InfoHash, Metainfo};
use crate::swarm::Nearness;
use crate::wire::Handshake;
use cache::Cache;
use link::Link;
pub use torrent::{Torrent, Traffic};

/// Most connections of a node.
const CONNECTIONS_MAX: usize = 1024;
/// Most connections that one address opened.
const CONNECTIONS_PER_ADDRESS_MAX: u32 = 32;
/// Most torrents of a node.
const TORRENTS_MAX: usize = 4096;
/// Pause after a failed `accept`, mostly for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const TICK: Duration = Duration::from_secs(1);

/// A torrent that a node has all of.
pub type Found = (Arc<Metainfo>, Arc<dyn Content>);
/// Finds the torrent that a peer asks for; may wait for a disk.
pub type Find = Arc<dyn Fn(&InfoHash) -> Option<Found> + Send + Sync>;

/// Options of [`Node::start`].
pub struct NodeOptions {
    /// Where it listens, of [`listen`].
    pub listener: std::net::TcpListener,
    /// The runtime of its tasks.
    pub handle: Handle,
    /// The number of the place of this machine; 0 if it is not known.
    pub place: u32,
    /// Whether this is the server, whose link is shared by all.
    pub is_origin: bool,
    /// Memory for what is sent to several peers, in bytes.
    pub cache_bytes: u64,
    /// Seed of its name and choices.
    pub chance: Chance,
    /// Where torrents come from that were not added.
    pub find: Option<Find>,
}

/// A machine's part in swarms. It ends when it is dropped.
pub struct Node {
    shared: Arc<Shared>,
    tasks: Vec<JoinHandle<()>>,
    address: SocketAddr,
}

struct Shared {
    name: [u8; 20],
    place: u32,
    handle: Handle,
    find: Option<Find>,
    cache: Arc<Cache>,
    chance: Mutex<Chance>,
    torrents: Mutex<HashMap<InfoHash, Arc<Torrent>>>,
    places: Arc<Semaphore>,
    crowd: Mutex<HashMap<IpAddr, u32>>,
}

/// Listens on `address` for peers; port 0 takes a free one.
///
/// # Errors
/// `Io`, or `Refused` if the address is in use.
pub fn listen(address: SocketAddr) -> Result<std::net::TcpListener> {
    let failed = |error| Error::from_io(format!("listen on {address} for peers"), error);
    let listener = std::net::TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}

impl Node {
    /// Starts a node.
    ///
    /// # Errors
    /// `Io`.
    pub fn start(options: NodeOptions) -> Result<Self> {
        let NodeOptions { listener, handle, place, is_origin, cache_bytes, mut chance, find } = options;
        let failed = |error| Error::from_io("take connections of peers".to_owned(), error);
        let address = listener.local_addr().map_err(failed)?;
        let _inside = handle.enter();
        let listener = TcpListener::from_std(listener).map_err(failed)?;
        let mut random = [0; 7];
        chance.fill(&mut random);
        let random = random.map(|byte| b'a' + byte % 26);
        let shared = Arc::new(Shared {
            name: connection::name(is_origin, place, random),
            place,
            handle: handle.clone(),
            find,
            cache: Arc::new(Cache::new(cache_bytes)),
            chance: Mutex::new(chance),
            torrents: Mutex::default(),
            places: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
            crowd: Mutex::default(),
        });
        let tasks = vec![
            handle.spawn(accept(listener, Arc::clone(&shared))),
            handle.spawn(tick(Arc::clone(&shared))),
        ];
        Ok(Self { shared, tasks, address })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// This side's name, as an announce says it.
    #[must_use]
    pub fn name(&self) -> &[u8; 20] {
        &self.shared.name
    }

    /// Takes part in a torrent, of which the pieces `have` are here.
    #[must_use]
    pub fn add(&self, metainfo: Arc<Metainfo>, content: Arc<dyn Content>, have: Bits) -> Arc<Torrent> {
        self.shared.add(metainfo, content, have)
    }

    /// Leaves a torrent.
    pub fn remove(&self, torrent: &InfoHash) {
        if let Some(torrent) = self.shared.torrents.lock().remove(torrent) {
            torrent.close();
        }
    }

    /// What the node's torrents moved so far: bytes sent and received, and the number of connections.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        let torrents: Vec<_> = self.shared.torrents.lock().values().cloned().collect();
        let none = Traffic { sent_bytes: 0, received_bytes: 0, pieces: 0, peers: 0 };
        torrents.iter().map(|torrent| torrent.traffic()).fold(none, |sum, one| Traffic {
            sent_bytes: sum.sent_bytes + one.sent_bytes,
            received_bytes: sum.received_bytes + one.received_bytes,
            pieces: sum.pieces + one.pieces,
            peers: sum.peers + one.peers,
        })
    }

    /// Connects to peers of a torrent. Those that are connected already, and those that can't be reached, are left.
    pub fn connect(&self, torrent: &Arc<Torrent>, peers: &[SocketAddr]) {
        for &peer in peers.iter().filter(|peer| peer.port() != 0) {
            if !torrent.begins(peer) {
                continue;
            }
            let (torrent, shared) = (Arc::clone(torrent), Arc::clone(&self.shared));
            self.shared.handle.spawn(async move {
                let _ = shared.call(peer, &torrent).await;
                torrent.ends(peer);
            });
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
        self.shared.torrents.lock().values().for_each(|torrent| torrent.close());
    }
}

async fn tick(shared: Arc<Shared>) {
    let mut interval = tokio::time::interval(TICK);
    loop {
        interval.tick().await;
        let torrents: Vec<_> = shared.torrents.lock().values().cloned().collect();
        torrents.iter().for_each(Torrent::tick);
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        // The place first: without one, the connection stays in the kernel's queue.
        let place = Arc::clone(&shared.places).acquire_owned().await.expect("the semaphore is never closed");
        let Ok((stream, peer)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Some(seat) = Seat::take(&shared, peer.ip()) else { continue };
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            // Errors concern only this peer.
            let _ = shared.answer(stream, peer).await;
            drop((place, seat));
        });
    }
}

/// A connection that an address opened.
struct Seat(Arc<Shared>, IpAddr);

impl Seat {
    fn take(shared: &Arc<Shared>, address: IpAddr) -> Option<Self> {
        let mut crowd = shared.crowd.lock();
        let count = crowd.entry(address).or_default();
        (*count < CONNECTIONS_PER_ADDRESS_MAX).then(|| {
            *count += 1;
            Self(Arc::clone(shared), address)
        })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut crowd = self.0.crowd.lock();
        if let Some(count) = crowd.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                crowd.remove(&self.1);
            }
        }
    }
}

impl Shared {
    fn add(&self, metainfo: Arc<Metainfo>, content: Arc<dyn Content>, have: Bits) -> Arc<Torrent> {
        let name = metainfo.info_hash();
        let chance = self.chance.lock().fork();
        let of_node = (Arc::clone(&self.cache), self.handle.clone());
        let torrent = Arc::new(Torrent::new(metainfo, content, have, (self.name, chance), of_node));
        Arc::clone(self.torrents.lock().entry(name).or_insert(torrent))
    }

    /// The torrent of that name, looked up if it was not added.
    async fn torrent(self: &Arc<Self>, name: InfoHash) -> Option<Arc<Torrent>> {
        {
            let torrents = self.torrents.lock();
            if let Some(torrent) = torrents.get(&name) {
                return Some(Arc::clone(torrent));
            }
            if torrents.len() >= TORRENTS_MAX {
                return None;
            }
        }
        let find = self.find.clone()?;
        let (metainfo, content) = self.handle.spawn_blocking(move || find(&name)).await.ok()??;
        let all = Bits::all(metainfo.piece_count());
        Some(self.add(metainfo, content, all))
    }

    /// Answers a peer that connected.
    async fn answer(self: &Arc<Self>, mut stream: TcpStream, peer: SocketAddr) -> Result<()> {
        let theirs = connection::greeting(&mut stream).await?;
        let Some(torrent) = self.torrent(theirs.info_hash).await else { return Ok(()) };
        connection::greet(&mut stream, &Handshake { peer: self.name, ..theirs }).await?;
        self.run(stream, peer, &torrent, Link::new(theirs.peer, false)).await
    }

    /// Connects to a peer.
    async fn call(self: &Arc<Self>, peer: SocketAddr, torrent: &Arc<Torrent>) -> Result<()> {
        let Ok(_place) = Arc::clone(&self.places).try_acquire_owned() else { return Ok(()) };
        let mut stream = connection::open(peer).await?;
        let ours = Handshake { info_hash: torrent.metainfo().info_hash(), peer: self.name };
        connection::greet(&mut stream, &ours).await?;
        let theirs = connection::greeting(&mut stream).await?;
        if theirs.info_hash != ours.info_hash {
            return Ok(());
        }
        self.run(stream, peer, torrent, Link::new(theirs.peer, true)).await
    }

    async fn run(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        torrent: &Arc<Torrent>,
        link: Link,
    ) -> Result<()> {
        let failed = |error| Error::from_io(format!("talk to the peer {peer}"), error);
        stream.set_nodelay(true).map_err(failed)?;
        let own = stream.local_addr().map_err(failed)?.ip();
        let nearness: Nearness = connection::nearness(&link.peer, peer.ip(), own, self.place);
        let Some((key, link)) = torrent.connect(link, nearness, &self.name) else { return Ok(()) };
        connection::run(stream, Arc::clone(torrent), key, link).await;
        torrent.disconnect(key);
        Ok(())
    }
}
