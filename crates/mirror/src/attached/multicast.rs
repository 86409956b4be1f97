//! Takes part in multicast sessions for attached disks. Chunks that many machines read when they boot, or that
//! several wait for at the same time, are sent once for all of them.
//!
//! One thread receives objects and verifies them; a second thread decodes them and gives them to the core. A machine
//! that is alone in a session takes nothing from it. Once other machines take part, the core relies on the session:
//! all nodes come first, then the chunks with which the session begins, and the chunks that a read waits for. While
//! the session delivers nothing, the core does not rely on it and asks sources, as without a session.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use base::{Error, ErrorKind, Instant, Result};
use bytes::Bytes;
use image::{Catalogue, CatalogueBuilder, Cipher, Leaf, ObjectRef, Verified};
use net::api::{MULTICAST_VERSION, SessionGrant, SessionRequest};
use net::client::Client;
use net::clock::{Clock, Stop};
use net::interface::{self, Interface};
use net::multicast::order::{self, NODES_MAX};
use net::multicast::receiver::{Accept, Consumer, End, ReceiveOptions, SessionView, Wish, receive};
use net::waker::Waker;

use super::fetch::Worker;
use super::shared::Shared;
use crate::machine::{ChunkWish, Expectation};

/// How long a wanted item is left to a session that delivers other items meanwhile.
const PATIENCE: Duration = Duration::from_secs(3);
/// While nothing is heard from a session, prefetches are held back for this long.
const HOLD: Duration = Duration::from_millis(100);
/// If items are wanted and a session delivers nothing for this long, the core stops relying on it until it does.
const STALL: Duration = Duration::from_millis(600);
/// After this long, prefetches are not held back for it any more either.
const DESPAIR: Duration = Duration::from_secs(4);
/// A session from which nothing was needed for this long is left.
const LINGER: Duration = Duration::from_secs(30);
/// Memory in bytes for objects that are not complete or not taken yet.
const BUFFER_BYTES: u64 = 16 << 20;
/// Objects in the queue to the second thread.
const QUEUE_MAX: usize = 16;
/// Maximum number of sessions that are joined one after the other because the last one was lost. Before each but the
/// first there is a pause of [`PAUSE`].
const SESSIONS_MAX: u32 = 4;
const PAUSE: Duration = Duration::from_secs(2);
/// How often the wanted chunks are compared with those that are local.
const SWEEP: Duration = Duration::from_millis(100);

/// Asks the server for a place in a session.
pub type Join = dyn Fn(&SessionRequest) -> Result<SessionGrant> + Send + Sync;

/// How a disk takes part in sessions.
#[derive(Clone)]
pub struct MulticastOptions {
    /// How it asks for a place.
    pub join: Arc<Join>,
    /// How the server's objects are encrypted.
    pub cipher: Cipher,
    /// The network interface on which the group is joined.
    pub interface: Interface,
    /// The name of this machine in the server's statistics.
    pub name: String,
    /// Called with a text that says why a session was left.
    pub tell: Arc<dyn Fn(&str) + Send + Sync>,
}

impl MulticastOptions {
    /// Sessions of the server of `client`. `interface` is the name or address of a network interface; the default is
    /// the one that leads to the server.
    ///
    /// `NotFound` if there is no such interface; `Unreachable` if the server's name does not resolve.
    pub fn of(client: &Arc<Client>, interface: Option<&str>, name: &str) -> Result<Self> {
        let interface = match interface {
            Some(choice) => interface::choose(choice),
            None => client.address().and_then(|server| Ok(interface::towards(server)?.0)),
        };
        let interface = interface
            .map_err(|error| Error::from_source(ErrorKind::NotFound, "take part in multicast", error))?;
        let asks = Arc::clone(client);
        Ok(Self {
            join: Arc::new(move |request| asks.join_session(request)),
            cipher: client.cipher().clone(),
            interface,
            name: name.to_owned(),
            tell: Arc::new(|_| {}),
        })
    }
}

/// The membership of a disk in sessions. [`Self::end`] ends it.
pub(super) struct Membership {
    stop: Stop,
    waker: Arc<Waker>,
    thread: JoinHandle<()>,
}

impl Membership {
    /// Takes part from now on, as long as it is useful.
    pub(super) fn start(shared: Arc<Shared>, options: MulticastOptions) -> Result<Self> {
        let failed = |error| Error::from_source(ErrorKind::Io, "take part in multicast", error);
        let waker = Arc::new(Waker::new().map_err(failed)?);
        let stop = Stop::new();
        // Prefetches are held back already while the server is asked, so that chunks which the session will bring
        // are not fetched.
        shared.expect_multicast(Expectation::Perhaps);
        shared.lock().multicast = Some(Arc::clone(&waker));
        let member = Member { shared, options, stop: stop.clone(), waker: Arc::clone(&waker) };
        let spawned = std::thread::Builder::new().name("mirror-multicast".into()).spawn(move || member.run());
        Ok(Self { stop, waker, thread: spawned.map_err(failed)? })
    }

    /// Leaves the session and waits for the thread.
    pub(super) fn end(self) {
        self.stop.stop();
        self.waker.wake();
        // A thread that panicked has already printed its message.
        let _ = self.thread.join();
    }
}

struct Member {
    shared: Arc<Shared>,
    options: MulticastOptions,
    stop: Stop,
    waker: Arc<Waker>,
}

impl Member {
    fn run(self) {
        for session in 0..SESSIONS_MAX {
            if session > 0 && !self.pause() {
                break;
            }
            match self.take_part() {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    (self.options.tell)(&base::chain(&error));
                    if error.kind() != ErrorKind::Unreachable {
                        break;
                    }
                }
            }
            self.shared.expect_multicast(Expectation::Nothing);
        }
        self.shared.lock().multicast = None;
        self.shared.expect_multicast(Expectation::Nothing);
    }

    /// Waits before the next session. False if the membership ends.
    fn pause(&self) -> bool {
        let clock = Clock::start();
        while !self.stop.is_stopped() && clock.elapsed() < PAUSE {
            let _ = net::udp::wait(&[&*self.waker], None, PAUSE);
            self.waker.clear();
        }
        !self.stop.is_stopped()
    }

    /// Takes part in one session. True if another one may be useful.
    fn take_part(&self) -> Result<bool> {
        let (request, manifest, epoch) = {
            let state = self.shared.lock();
            let reference = format!("{}@{}", state.manifest.image, state.manifest.number);
            (self.request(reference), state.manifest.clone(), state.tree.epoch)
        };
        let grant = (self.options.join)(&request)?;
        let Some(first) = grant.order.clone().filter(|_| grant.heads <= NODES_MAX) else { return Ok(false) };
        let builder = CatalogueBuilder::from_manifest(&manifest, self.options.cipher.clone());
        let builder = builder.map_err(|error| unfit("read the version's tree", error))?;
        let (jobs, orders) = sync_channel(QUEUE_MAX);
        // This queue needs no limit: it has at most one entry for each job of the other queue.
        let (filled, filling) = channel();
        let worker = Worker::of_arrivals(Arc::clone(&self.shared), self.options.cipher.clone());
        let worker = worker.map_err(|error| unfit("begin to fill a disk", error))?;
        let waker = Arc::clone(&self.waker);
        let filler = std::thread::spawn(move || fill(worker, &orders, &filled, &waker));
        let mut intake = Intake::new(self, &grant, first, (builder, epoch), (jobs, filling));
        let options = ReceiveOptions {
            buffer_bytes: BUFFER_BYTES,
            object_bytes_mean: manifest.chunk_bytes / 3,
            scattered_bytes_max: 0,
            silent_after: Duration::from_millis(1500),
            stop: self.stop.clone(),
            ..ReceiveOptions::on(self.options.interface.clone())
        };
        let received = receive(&grant, &options, &mut intake);
        let useless = intake.is_useless;
        let rest = intake.rest();
        let _ = filler.join();
        self.shared.lock().core.expect_reads(&rest);
        let end = received?.end;
        if !useless && end != End::Stopped {
            (self.options.tell)(&format!("multicast session {}: {end:?}", grant.session));
        }
        let again = matches!(end, End::NewEpoch | End::Ended | End::Silent { heard: true });
        Ok(again && !useless)
    }

    fn request(&self, reference: String) -> SessionRequest {
        let interface = &self.options.interface;
        SessionRequest {
            reference,
            // Empty: nodes are verified against the root that this machine knows.
            manifest: String::new(),
            receiver: self.options.name.clone(),
            families: interface.families(true),
            mtu: interface.mtu(),
            multicast: MULTICAST_VERSION,
            attached: true,
            peers: false,
        }
    }
}

fn unfit(what: &str, error: Error) -> Error {
    Error::from_source(ErrorKind::Invalid, what, error)
}

/// A job for the second thread.
enum Job {
    /// All nodes of the tree.
    Tree(Arc<Catalogue>),
    /// An object, and the chunks of the disk that it is for.
    Chunk(Arrived),
}

/// An object that arrived. `place` is its number in the session, `chunks` are the chunks that have this object.
struct Arrived {
    place: u64,
    object: ObjectRef,
    bytes: Verified,
    chunks: Vec<u64>,
}

fn fill(mut worker: Worker, jobs: &Receiver<Job>, filled: &Sender<u64>, waker: &Waker) {
    for job in jobs {
        match job {
            Job::Tree(catalogue) => worker.load_tree(&catalogue),
            Job::Chunk(Arrived { place, object, bytes, chunks }) => {
                chunks.into_iter().for_each(|chunk| worker.take_arrived(chunk, &object, &bytes));
                // The receiving thread may have ended already.
                let _ = filled.send(place);
            }
        }
        // The queue has room again, and wishes can be mapped to objects once the tree is known.
        waker.wake();
    }
}

/// The phase of a session.
enum Stage {
    /// Nodes are missing.
    Tree(CatalogueBuilder),
    /// All nodes are known, so the digest and the number of every object are known.
    Chunks(Session),
    Broken,
}

/// The objects of a session.
struct Session {
    catalogue: Arc<Catalogue>,
    /// Maps the number in the session to the number in the catalogue.
    ids: Vec<u64>,
    /// The inverse of `ids`.
    places: Vec<u64>,
}

impl Session {
    fn lengths(&self) -> Vec<u32> {
        self.ids.iter().map(|&id| self.catalogue.objects()[index(id)].len).collect()
    }
}

fn index(number: u64) -> usize {
    usize::try_from(number).expect("an index")
}

struct Intake<'a> {
    member: &'a Member,
    clock: Clock,
    stage: Stage,
    /// Runs of chunks with which the session begins.
    first: Vec<(u64, u32)>,
    /// Objects with numbers below this are the nodes of the tree.
    heads: u64,
    /// The `Tree::epoch` of the tree that this session transfers.
    epoch: u64,
    jobs: SyncSender<Job>,
    filled: Receiver<u64>,
    /// Objects that the second thread is writing, by number in the session.
    filling: BTreeSet<u64>,
    /// The complete tree, until there is room for it in the queue to the second thread.
    tree_to_load: Option<Arc<Catalogue>>,
    /// Wanted objects: number in the session, and the chunks that need the object.
    wanted: BTreeMap<u64, Vec<u64>>,
    /// Wishes for chunks whose object is not known yet.
    unnamed: VecDeque<ChunkWish>,
    /// Messages for the session.
    wishes: Vec<Wish>,
    /// Other machines take part, so objects are taken from the session.
    begun: bool,
    /// How many machines take part, this one included; `None` until the session tells it.
    members: Option<u32>,
    /// The last expectation that the core was given.
    expectation: Expectation,
    blocks: u64,
    /// When a wanted item last arrived, or when the first one was wanted.
    moved_at: Instant,
    /// When the session was last useful.
    useful_at: Instant,
    /// When the wanted chunks were last compared with the local ones.
    swept_at: Instant,
    is_useless: bool,
}

impl<'a> Intake<'a> {
    fn new(
        member: &'a Member,
        grant: &SessionGrant,
        first: Vec<(u64, u32)>,
        (builder, epoch): (CatalogueBuilder, u64),
        (jobs, filled): (SyncSender<Job>, Receiver<u64>),
    ) -> Self {
        let clock = Clock::start();
        let now = clock.now();
        Self {
            member,
            clock,
            stage: Stage::Tree(builder),
            first,
            heads: grant.heads,
            epoch,
            jobs,
            filled,
            filling: BTreeSet::new(),
            tree_to_load: None,
            wanted: BTreeMap::new(),
            unnamed: VecDeque::new(),
            wishes: Vec::new(),
            begun: false,
            members: None,
            expectation: Expectation::Perhaps,
            blocks: 0,
            moved_at: now,
            useful_at: now,
            swept_at: now,
            is_useless: false,
        }
    }

    /// The chunks that were wanted from the session and did not arrive.
    fn rest(self) -> Vec<u64> {
        self.wanted.into_values().flatten().collect()
    }

    fn is_waiting(&self) -> bool {
        !self.wanted.is_empty() || (self.begun && matches!(self.stage, Stage::Tree(_)))
    }

    /// Decides how far the core relies on the session, and leaves a session that is useless or about an old tree.
    fn judge(&mut self, now: Instant) {
        let still = if self.is_waiting() { now.since(self.moved_at) } else { Duration::ZERO };
        let is_open = self.members.is_none() && now.since(self.useful_at) < HOLD;
        let takes_part = self.begun && (self.members > Some(1) || self.is_waiting());
        let expectation = match still {
            _ if is_open => Expectation::Perhaps,
            still if !takes_part || still > DESPAIR => Expectation::Nothing,
            still if still > STALL => Expectation::Perhaps,
            _ => Expectation::Everything(PATIENCE),
        };
        if std::mem::replace(&mut self.expectation, expectation) != expectation {
            self.member.shared.expect_multicast(expectation);
        }
        let over = !self.is_waiting() && now.since(self.useful_at) > LINGER;
        if over || self.member.shared.lock().tree.epoch != self.epoch {
            self.is_useless = true;
            self.member.stop.stop();
        }
    }

    fn moved(&mut self) {
        self.moved_at = self.clock.now();
        self.useful_at = self.moved_at;
    }

    /// Takes a node, which may arrive before its parent.
    fn take_node(&mut self, id: u64, bytes: &Bytes) -> Result<Accept> {
        let Stage::Tree(builder) = &mut self.stage else { return Ok(Accept::Taken) };
        match builder.take(id, bytes.clone()) {
            Ok(damaged) if damaged.is_empty() => {}
            Ok(_) => return Err(Error::corrupt("a node of the tree came early, and damaged")),
            Err(_) => return Ok(Accept::Bad),
        }
        // A node that came before its name is known is not kept: nothing has verified it.
        if let Some(object) = builder.object(id) {
            self.keep(&object, bytes);
        }
        self.leave_tree()?;
        Ok(Accept::Taken)
    }

    /// Once all nodes are known: computes the number of every object in the session and moves on to chunks.
    fn leave_tree(&mut self) -> Result<()> {
        if !matches!(&self.stage, Stage::Tree(builder) if builder.is_complete()) {
            return Ok(());
        }
        let Stage::Tree(builder) = std::mem::replace(&mut self.stage, Stage::Broken) else { return Ok(()) };
        let wrong = |error| unfit("order the objects of a session", error);
        let catalogue = Arc::new(builder.finish().map_err(wrong)?);
        let order = order::order(&catalogue, &self.first).map_err(wrong)?;
        let mut places = vec![0; order.ids.len()];
        (0..).zip(&order.ids).for_each(|(place, &id)| places[index(id)] = place);
        self.tree_to_load = Some(Arc::clone(&catalogue));
        let session = Session { catalogue, ids: order.ids, places };
        self.wishes.push(Wish::Lengths(session.lengths()));
        let first = order.first.into_iter().map(|(chunk, id)| (chunk, session.places[index(id)]));
        let first: Vec<_> = first.collect();
        self.stage = Stage::Chunks(session);
        for (chunk, place) in first {
            self.want(chunk, place, false);
        }
        Ok(())
    }

    /// Wants a chunk from the session, unless it is local or being written.
    fn want(&mut self, chunk: u64, place: u64, urgent: bool) {
        let is_here = {
            let state = self.member.shared.lock();
            state.core.is_here(&state.core.cut().chunk(chunk))
        };
        if is_here || self.filling.contains(&place) {
            return;
        }
        if !self.is_waiting() {
            self.moved_at = self.clock.now();
        }
        let chunks = self.wanted.entry(place).or_default();
        if !chunks.contains(&chunk) {
            chunks.push(chunk);
        } else if !urgent {
            return;
        }
        self.wishes.push(if urgent { Wish::Hurry(place) } else { Wish::Want(place..place + 1) });
    }

    /// Takes the wishes of the core and maps chunks to objects of the session.
    fn heed_wishes(&mut self) {
        {
            let mut state = self.member.shared.lock();
            self.unnamed.extend(std::iter::from_fn(|| state.core.poll_wish()));
        }
        let Stage::Chunks(session) = &self.stage else { return };
        let mut named = Vec::new();
        {
            let state = self.member.shared.lock();
            self.unnamed.retain(|wish| match state.tree.leaf(wish.chunk) {
                None => true,
                Some(Leaf::Data(_, reference)) => {
                    let id = session.catalogue.id_of(&reference.object().digest);
                    named.extend(id.map(|id| (*wish, session.places[index(id)])));
                    false
                }
                Some(_) => false,
            });
        }
        for (wish, place) in named {
            self.want(wish.chunk, place, wish.urgent);
        }
    }

    /// Removes wanted objects whose chunks have become local by another way.
    fn sweep(&mut self) {
        let state = self.member.shared.lock();
        let is_here = |chunk: &u64| state.core.is_here(&state.core.cut().chunk(*chunk));
        let here = self.wanted.iter().filter(|(_, chunks)| chunks.iter().all(is_here));
        let here: Vec<u64> = here.map(|(place, _)| *place).collect();
        drop(state);
        for place in here {
            self.wanted.remove(&place);
            self.wishes.push(Wish::Have(place));
        }
    }

    /// Passes the tree to the second thread, if its queue has room.
    fn load_tree(&mut self) {
        if let Some(catalogue) = self.tree_to_load.take()
            && let Err(TrySendError::Full(Job::Tree(catalogue))) = self.jobs.try_send(Job::Tree(catalogue))
        {
            self.tree_to_load = Some(catalogue);
        }
    }

    /// Keeps a verified object for the machines of a swarm. A copy, since the bytes are a part of a large buffer.
    fn keep(&self, object: &ObjectRef, bytes: &Bytes) {
        let swarm = self.member.shared.lock().swarm.clone();
        if let Some(swarm) = swarm {
            swarm.keep(object, &Bytes::copy_from_slice(bytes));
        }
    }

    fn take_chunk(&mut self, place: u64, bytes: &Bytes) -> Accept {
        let Stage::Chunks(session) = &self.stage else { return Accept::Taken };
        let Some(chunks) = self.wanted.get(&place) else { return Accept::Taken };
        if self.tree_to_load.is_some() {
            return Accept::Full;
        }
        let object = session.catalogue.objects()[index(session.ids[index(place)])];
        let Ok(verified) = object.verified(bytes.clone()) else { return Accept::Bad };
        let job = Arrived { place, object, bytes: verified, chunks: chunks.clone() };
        match self.jobs.try_send(Job::Chunk(job)) {
            Ok(()) => {
                self.wanted.remove(&place);
                self.filling.insert(place);
                self.moved();
                self.keep(&object, bytes);
                Accept::Taken
            }
            Err(_) => Accept::Full,
        }
    }
}

impl Consumer for Intake<'_> {
    fn wishes(&mut self) -> Result<Vec<Wish>> {
        if let Stage::Broken = self.stage {
            return Err(Error::new(ErrorKind::Corrupt, "a node of the tree arrived damaged by multicast"));
        }
        self.filled.try_iter().for_each(|place| _ = self.filling.remove(&place));
        let now = self.clock.now();
        if now.since(self.swept_at) >= SWEEP {
            self.swept_at = now;
            self.sweep();
        }
        self.judge(now);
        if self.begun {
            self.leave_tree()?;
            self.load_tree();
            self.heed_wishes();
        }
        Ok(std::mem::take(&mut self.wishes))
    }

    fn take(&mut self, object: u64, bytes: &Bytes) -> Result<Accept> {
        if object < self.heads {
            self.moved();
            return self.take_node(object, bytes);
        }
        Ok(self.take_chunk(object, bytes))
    }

    fn waker(&self) -> Option<&Waker> {
        Some(&self.member.waker)
    }

    fn observe(&mut self, view: SessionView) {
        if view.blocks > self.blocks {
            self.blocks = view.blocks;
            self.moved();
        }
        self.members = Some(view.receivers);
        if view.receivers > 1 && !std::mem::replace(&mut self.begun, true) {
            self.moved();
            if self.heads > 0 {
                self.wishes.push(Wish::Want(0..self.heads));
            }
            self.judge(self.clock.now());
        }
    }

    fn get_otherwise(&mut self, object: u64) {
        if object < self.heads {
            self.stage = Stage::Broken;
        }
        for chunk in self.wanted.remove(&object).unwrap_or_default() {
            self.member.shared.fetch_instead(chunk);
        }
        if matches!(self.stage, Stage::Chunks(_)) {
            self.wishes.push(Wish::Have(object));
        }
    }
}
