//! Disks that take part in a swarm (`docs/peers.md`): a disk gets objects from other machines, and serves them what it
//! got. The server has everything, so a swarm costs a read at most some time.
//!
//! ```text
//! numbers       the numbers of objects, by which members ask for them
//! peer_backoff  whether other machines are asked, or the server at once
//! traffic       what came from others, and what they got
//! member        who waits for which object, and what others may get
//! ```

mod member;
mod numbers;
mod peer_backoff;
mod traffic;

use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use image::{CatalogueBuilder, Cipher, Manifest, ObjectRef, ObjectSource, SignedManifest, Verified};
use net::client::Client;
use net::clock::Clock;
use net::peer::{Node, PeerOptions, join};
use parking_lot::{Condvar, Mutex};
use store::Cache;

use member::Member;
pub use traffic::SwarmTraffic;

/// How long the first objects of a disk wait for the server's answer whether there are others.
const JOIN_MAX: Duration = Duration::from_millis(300);

/// Joins the swarm of a version; `None` if there is none.
type Join = dyn Fn(&Manifest) -> Result<Option<Node>> + Send + Sync;

/// A server as a source whose objects also come from other machines. The same as the server until
/// [`crate::Mirror::join_swarm`].
pub struct Swarm {
    join: Box<Join>,
    tell: Box<dyn Fn(&str) + Send + Sync>,
    cipher: Cipher,
    server: Arc<dyn ObjectSource>,
    /// What it holds is served, too.
    cache: OnceLock<Arc<Cache>>,
    clock: Clock,
    phase: Mutex<Phase>,
    /// The answer of the server is there.
    joined: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// What happened in swarms that were left. Locked after `phase`.
    before: Mutex<SwarmTraffic>,
}

enum Phase {
    Away,
    /// Until when objects wait for the server's answer.
    Joining(Duration),
    In(Arc<Member>),
}

impl Swarm {
    /// Swarms that `join` joins. Objects are encrypted as `cipher` says; `server` has all of them. `tell` hears why
    /// there is no swarm.
    pub fn new(
        join: impl Fn(&Manifest) -> Result<Option<Node>> + Send + Sync + 'static,
        cipher: Cipher,
        server: Arc<dyn ObjectSource>,
        tell: impl Fn(&str) + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            join: Box::new(join),
            tell: Box::new(tell),
            cipher,
            server,
            cache: OnceLock::new(),
            clock: Clock::start(),
            phase: Mutex::new(Phase::Away),
            joined: Condvar::new(),
            thread: Mutex::default(),
            before: Mutex::default(),
        })
    }

    /// Swarms of the server of `client`.
    pub fn of(
        client: &Arc<Client>,
        options: PeerOptions,
        tell: impl Fn(&str) + Send + Sync + 'static,
    ) -> Arc<Self> {
        let asks = Arc::clone(client);
        let join = move |manifest: &Manifest| {
            let digest = SignedManifest::open(&manifest.encode(None)?)?.digest();
            join(&asks, &format!("{}@{}", manifest.image, manifest.number), &digest, options.clone())
        };
        Self::new(join, client.cipher().clone(), Arc::clone(client) as Arc<dyn ObjectSource>, tell)
    }

    /// What came from others, and what they got.
    #[must_use]
    pub fn traffic(&self) -> SwarmTraffic {
        let phase = self.phase.lock();
        let before = *self.before.lock();
        match &*phase {
            Phase::In(member) => before.and(member.traffic()),
            Phase::Away | Phase::Joining(_) => before,
        }
    }

    /// Takes part in the swarm of the version of `manifest` from now on.
    pub(crate) fn begin(self: &Arc<Self>, manifest: Manifest) -> Result<()> {
        self.end();
        *self.phase.lock() = Phase::Joining(self.clock.elapsed() + JOIN_MAX);
        let swarm = Arc::clone(self);
        let spawned =
            std::thread::Builder::new().name("mirror-swarm".into()).spawn(move || swarm.run(&manifest));
        let failed = |error| Error::from_source(ErrorKind::Io, "take part in a swarm", error);
        *self.thread.lock() = Some(spawned.map_err(|error| {
            self.leave();
            failed(error)
        })?);
        Ok(())
    }

    /// Leaves the swarm: the disk has another tree, or ends. Does not wait.
    pub(crate) fn leave(&self) {
        let mut phase = self.phase.lock();
        if let Phase::In(member) = std::mem::replace(&mut *phase, Phase::Away) {
            let mut before = self.before.lock();
            *before = before.and(member.traffic());
            member.leave();
        }
        self.joined.notify_all();
    }

    /// [`Self::leave`], and waits for the thread.
    pub(crate) fn end(&self) {
        self.leave();
        let thread = self.thread.lock().take();
        // A thread that panicked has already printed its message.
        thread.map(JoinHandle::join);
    }

    /// Serves what `cache` holds, from the next [`Self::begin`] on.
    pub(crate) fn serve_from(&self, cache: &Arc<Cache>) {
        let _ = self.cache.set(Arc::clone(cache));
    }

    /// Keeps a verified object for others.
    pub(crate) fn keep(&self, object: &ObjectRef, bytes: &Bytes) {
        let member = match &*self.phase.lock() {
            Phase::In(member) => Arc::clone(member),
            Phase::Away | Phase::Joining(_) => return,
        };
        member.keep(object, bytes);
    }

    fn run(&self, manifest: &Manifest) {
        let joined = (self.join)(manifest).and_then(|node| {
            let Some(node) = node else { return Ok(None) };
            let builder = CatalogueBuilder::from_manifest(manifest, self.cipher.clone())?;
            Ok(Some(Member::new(node, builder, self.cache.get().cloned())))
        });
        let member = match joined {
            Ok(member) => member,
            Err(error) => {
                (self.tell)(&format!("without other machines: {}", base::chain(&error)));
                None
            }
        };
        let Some((member, demanded)) = member else { return self.leave() };
        let member = Arc::new(member);
        {
            let mut phase = self.phase.lock();
            // It may have been left meanwhile.
            let Phase::Joining(_) = *phase else { return };
            *phase = Phase::In(Arc::clone(&member));
            self.joined.notify_all();
        }
        member.run(&*self.server, demanded, manifest.chunk_bytes / 3);
        self.leave();
    }

    /// This disk as a member, if it is one; waits for the answer of the server for a moment.
    fn member(&self) -> Option<Arc<Member>> {
        let mut phase = self.phase.lock();
        while let Phase::Joining(until) = *phase {
            let left = until.saturating_sub(self.clock.elapsed());
            if left.is_zero() {
                return None;
            }
            self.joined.wait_for(&mut phase, left);
        }
        match &*phase {
            Phase::In(member) => Some(Arc::clone(member)),
            Phase::Away | Phase::Joining(_) => None,
        }
    }
}

impl ObjectSource for Swarm {
    fn fetch(&self, object: &ObjectRef) -> Result<Bytes> {
        Ok(self.verified(object)?.bytes().clone())
    }

    fn verified(&self, object: &ObjectRef) -> Result<Verified> {
        let answer = self.member().and_then(|member| member.get(object));
        answer.unwrap_or_else(|| self.server.verified(object))
    }
}
