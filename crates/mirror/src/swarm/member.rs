//! A disk as a member of a swarm: who waits for which object, and what others may get from it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::{Error, Result};
use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use image::{CatalogueBuilder, ObjectRef, ObjectSource, Verified};
use net::clock::{Clock, Stop};
use net::peer::{Demand, News, Node, Taker, Want};
use parking_lot::Mutex;
use store::Cache;

use super::numbers::Numbers;
use super::peer_backoff::{Counted, PeerBackoff};
use super::traffic::SwarmTraffic;

/// Most objects that are fetched from the server at the same time.
const AT_ONCE: usize = 16;
/// How long an object waits for the tree, from which its number is known. Then the server is asked.
const TREE_MAX: Duration = Duration::from_secs(1);
/// Longest wait for the pull, which answers sooner: a bound in case that it does not.
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// Pause after a node did not come, for each time that this happened, and most such times.
const PAUSE: Duration = Duration::from_millis(200);
const FAILURES_MAX: u32 = 10;

type Answer = Result<Verified>;

pub(super) struct Member {
    node: Node,
    numbers: Arc<Numbers>,
    cache: Option<Arc<Cache>>,
    clock: Clock,
    backoff: Mutex<PeerBackoff>,
    /// To the pull; `None` when the member leaves.
    demands: Mutex<Option<Sender<Demand>>>,
    waiting: Mutex<HashMap<u64, Vec<Sender<Answer>>>>,
    stop: Stop,
    peer_bytes: AtomicU64,
}

impl Member {
    /// A member with the node `node`, and what its pull is to hear. It also serves what is in `cache`.
    pub(super) fn new(
        node: Node,
        builder: CatalogueBuilder,
        cache: Option<Arc<Cache>>,
    ) -> (Self, Receiver<Demand>) {
        let (demands, demanded) = unbounded();
        let (objects, others) = (node.grant().objects, node.grant().others);
        let numbers = Arc::new(Numbers::new(builder, objects));
        if let Some(cache) = cache.clone() {
            let numbers = Arc::clone(&numbers);
            node.spool().back(move |id| Some(cache.get(&numbers.object(id)?)?.bytes().clone()));
        }
        let member = Self {
            node,
            numbers,
            cache,
            clock: Clock::start(),
            backoff: Mutex::new(PeerBackoff::new(others)),
            demands: Mutex::new(Some(demands)),
            waiting: Mutex::default(),
            stop: Stop::new(),
            peer_bytes: AtomicU64::new(0),
        };
        (member, demanded)
    }

    /// Takes part until [`Self::leave`]. `server` has what no member has.
    pub(super) fn run(&self, server: &dyn ObjectSource, demanded: Receiver<Demand>, object_bytes: u32) {
        std::thread::scope(|scope| {
            scope.spawn(|| self.learn_tree(server));
            let want = Want {
                objects: Vec::new(),
                taker: self,
                server,
                at_once: AT_ONCE,
                object_bytes,
                stop: &self.stop,
                alone: false,
                limit: None,
                demands: Some(demanded),
                arrived: &|bytes| _ = self.peer_bytes.fetch_add(bytes, Ordering::Relaxed),
            };
            // It ends without an error only by `leave`. Everything works without members, too.
            let _ = self.node.pull(&want);
            drop(want);
            self.leave();
            self.waiting.lock().clear();
        });
    }

    /// Makes [`Self::run`] end, and all who wait ask the server.
    pub(super) fn leave(&self) {
        self.stop.stop();
        self.demands.lock().take();
        self.numbers.give_up();
    }

    /// What happened since it joined.
    pub(super) fn traffic(&self) -> SwarmTraffic {
        let Counted { overdue, shunned } = self.backoff.lock().counted();
        SwarmTraffic {
            peer_bytes: self.peer_bytes.load(Ordering::Relaxed),
            served_bytes: self.node.traffic().sent_bytes,
            overdue,
            shunned,
        }
    }

    /// An object from this machine or another one, or by the swarm's order from the server. `None` if the server is to
    /// be asked at once.
    pub(super) fn get(&self, object: &ObjectRef) -> Option<Answer> {
        let is_asked = self.asks_others();
        let limit = if is_asked { TREE_MAX.saturating_sub(self.clock.elapsed()) } else { Duration::ZERO };
        let id = self.numbers.of_soon(object, limit)?;
        if let Some(kept) = self.kept(id, object) {
            return Some(Ok(kept));
        }
        if !is_asked {
            self.node.announce(id);
            return None;
        }
        self.demand(id, object)?.recv_timeout(ANSWER_MAX).ok()
    }

    /// An object that arrived before.
    fn kept(&self, id: u64, object: &ObjectRef) -> Option<Verified> {
        object.verified(self.node.spool().get(id)?).ok()
    }

    /// Keeps for others what has arrived in any way, and gives it to those who wait for it. It was verified.
    pub(super) fn keep(&self, object: &ObjectRef, bytes: &Bytes) {
        if self.stop.is_stopped() {
            return;
        }
        for (id, bytes) in self.numbers.learn(object, bytes) {
            let _ = self.node.spool().put(id, &bytes);
            if self.waiting.lock().contains_key(&id)
                && let Some(verified) = self.numbers.object(id).and_then(|object| object.verified(bytes).ok())
            {
                self.answer(id, &verified);
                self.send(Demand::Have(id));
            }
        }
    }

    fn asks_others(&self) -> bool {
        self.backoff.lock().is_asked(self.clock.elapsed())
    }

    fn send(&self, demand: Demand) -> Option<()> {
        self.demands.lock().as_ref()?.send(demand).ok()
    }

    /// Demands an object, and returns where it will come. It comes, or its sender is gone. An object for which somebody
    /// waits already, or which arrived just now, is not asked for again.
    fn demand(&self, id: u64, object: &ObjectRef) -> Option<Receiver<Answer>> {
        let (answer, answers) = bounded(1);
        let mut waiting = self.waiting.lock();
        if let Some(waiters) = waiting.get_mut(&id) {
            waiters.push(answer);
        } else if let Some(kept) = self.kept(id, object) {
            let _ = answer.send(Ok(kept));
        } else {
            self.send(Demand::Want(id))?;
            waiting.insert(id, vec![answer]);
        }
        Some(answers)
    }

    fn answer(&self, id: u64, verified: &Verified) {
        for waiter in self.waiting.lock().remove(&id).unwrap_or_default() {
            let _ = waiter.send(Ok(verified.clone()));
        }
    }

    /// Gets the nodes of the tree, so that all numbers are known. A machine that is alone gets them one by one, beside
    /// what reads wait for.
    fn learn_tree(&self, server: &dyn ObjectSource) {
        let mut failures = 0;
        loop {
            let needed = self.numbers.needed();
            if needed.is_empty() || self.stop.is_stopped() {
                break;
            }
            let came = if self.nodes_of_cache(&needed) {
                true
            } else if self.asks_others() {
                self.nodes_of_others(&needed)
            } else {
                self.node_of(server, &needed[0])
            };
            if !came {
                failures += 1;
                if failures > FAILURES_MAX || !self.stop.pause(PAUSE * failures) {
                    break;
                }
            }
        }
        if !self.numbers.are_known() {
            self.leave();
        }
        self.offer_cached();
    }

    /// Offers what the cache of this machine holds already.
    fn offer_cached(&self) {
        let Some(cache) = &self.cache else { return };
        for id in 0..self.node.grant().objects.into() {
            if self.stop.is_stopped() {
                return;
            }
            if self.numbers.object(id).is_some_and(|object| cache.holds(&object)) {
                self.node.spool().offer(id);
            }
        }
    }

    /// Whether a node was in the cache.
    fn nodes_of_cache(&self, needed: &[(u64, ObjectRef)]) -> bool {
        let found = |object: &ObjectRef| self.cache.as_ref()?.get(object);
        let nodes = needed.iter().filter_map(|(_, object)| Some((object, found(object)?)));
        nodes.map(|(object, node)| self.keep(object, node.bytes())).count() > 0
    }

    fn nodes_of_others(&self, needed: &[(u64, ObjectRef)]) -> bool {
        let demanded: Vec<_> = needed.iter().map(|(id, object)| self.demand(*id, object)).collect();
        let came =
            demanded.into_iter().map(|answers| answers.map(|answers| answers.recv_timeout(ANSWER_MAX)));
        came.fold(true, |all, came| all & matches!(came, Some(Ok(Ok(_)))))
    }

    fn node_of(&self, server: &dyn ObjectSource, (id, object): &(u64, ObjectRef)) -> bool {
        self.node.announce(*id);
        let came = server.verified(object);
        came.map(|node| self.keep(object, node.bytes())).is_ok()
    }
}

impl Taker for Member {
    fn object(&self, id: u64) -> Option<ObjectRef> {
        self.numbers.object(id)
    }

    fn take(&self, id: u64, bytes: Bytes) -> Result<bool> {
        // Only what has a name is demanded: the disk has left the swarm.
        let Some(object) = self.numbers.object(id) else { return Ok(true) };
        let Ok(verified) = object.verified(bytes) else { return Ok(false) };
        for (id, bytes) in self.numbers.learn(&object, verified.bytes()) {
            let _ = self.node.spool().put(id, &bytes);
        }
        self.answer(id, &verified);
        Ok(true)
    }

    /// One of those who wait gets the error; the others ask the server themselves.
    fn failed(&self, id: u64, error: Error) -> Option<Error> {
        if let Some(first) = self.waiting.lock().remove(&id).unwrap_or_default().first() {
            let _ = first.send(Err(error));
        }
        None
    }

    fn hear(&self, news: News) {
        self.backoff.lock().hear(self.clock.elapsed(), news);
    }
}
