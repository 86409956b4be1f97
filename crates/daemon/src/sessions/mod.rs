//! Multicast sessions of a server. There is one per version, interface and IP family, and another one for attached
//! disks. A session starts with its first client and ends after its last one has left.

pub(crate) mod groups;
mod places;
pub(crate) mod probes;
mod receivers;
pub mod statistics;

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;

use image::{Catalogue, Cipher, Manifest, ObjectRef, SignedManifest};
use net::api::{ProblemKind, SessionGrant, SessionId, SessionRequest, SessionStatistics};
use net::interface::Interface;
use net::multicast::budget::Budget;
use net::multicast::bundle::BUNDLE_BLOCKS_ATTACHED;
use net::multicast::order::{NODES_MAX, order};
use net::multicast::server::{RATE_FLOOR, SessionConfig, SessionServer, block_bytes_for};
use net::profile::runs_of;
use net::udp::SendOptions;
use parking_lot::Mutex;
use store::Repository;
use tokio::time::Instant;

use crate::event::{Event, Log};
use crate::limits::address_share::AddressShare;
use crate::limits::per_address::Joins;
use crate::limits::unicast_share::UnicastShare;
use crate::metrics::SessionTotals;
use crate::problem::Failure;
use crate::sessions::groups::{
    MulticastOptions, REPORT_PORTS, family, group, interface_towards, is_taken, refused, unavailable,
};
use crate::sessions::places::{SessionPlace, SessionPlaces};
use crate::sessions::receivers::Receivers;

/// Maximum number of sessions at the same time.
const SESSIONS_MAX: usize = 64;
/// A session's packets are made to fit the MTU of the machine that begins it, down to this one: that of IPv6.
const MTU_LEAST: u32 = 1280;
/// Maximum number of ended sessions whose statistics are kept.
const ENDED_MAX: usize = 64;

/// All sessions of a server.
pub(crate) struct Sessions {
    repository: Arc<Repository>,
    options: Option<MulticastOptions>,
    epoch: u32,
    budget: Arc<Budget>,
    log: Log,
    slots: Mutex<HashMap<Key, Slot>>,
    past: Mutex<Past>,
    /// Of the running sessions and those in `past`.
    receivers: Receivers,
    unicast_share: UnicastShare,
    address_share: Arc<AddressShare>,
    joins: Joins,
    places: SessionPlaces,
}

/// Identifies a session: clients with equal keys share one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    /// `image@version`.
    reference: String,
    interface: u32,
    ipv4: bool,
    /// Whether the session is for attached disks, which are in use during the transfer.
    attached: bool,
}

/// Runs of chunks: index on the disk, count.
type Runs = Vec<(u64, u32)>;
/// A session while it runs. The slot stays locked while the session starts, so that the first clients share one
/// session.
type Slot = Arc<Mutex<Option<Running>>>;

struct Running {
    session: SessionServer,
    _place: SessionPlace,
}

impl Running {
    fn is_over(&self) -> bool {
        self.session.is_over()
    }
}

#[derive(Default)]
struct Past {
    ended: VecDeque<SessionStatistics>,
    totals: SessionTotals,
    /// Payload bytes that each running session had sent when it was last logged.
    logged: HashMap<SessionId, u64>,
    started: u64,
    closed: bool,
}

impl Sessions {
    /// `epoch` differs between any two starts of a server.
    pub(crate) fn new(
        repository: Arc<Repository>,
        options: Option<MulticastOptions>,
        epoch: u32,
        log: Log,
    ) -> Arc<Self> {
        let rates = options.as_ref();
        let budget = Budget::new(
            rates.and_then(|rates| rates.rate_bits_per_second),
            rates.map_or(RATE_FLOOR, |rates| rates.rate_floor_bits_per_second),
        );
        let (slots, past, receivers) = (Mutex::default(), Mutex::default(), Receivers::default());
        let unicast_share = UnicastShare::new(Arc::clone(&budget));
        let address_share = Arc::new(AddressShare::new(Arc::clone(&budget)));
        let (joins, places) = Default::default();
        Arc::new(Self {
            repository,
            options,
            epoch,
            budget,
            log,
            slots,
            past,
            receivers,
            unicast_share,
            address_share,
            joins,
            places,
        })
    }

    /// Whether machines are known to come one soon after the other.
    pub(crate) fn come_together(&self) -> bool {
        self.options.as_ref().is_some_and(|options| options.together)
    }

    /// Admits the client at `peer` to the session of `version`, and starts the session if it does not run. It can get
    /// objects from other machines, if there are any, which reported that they hold `held` together. Blocks.
    pub(crate) fn join(
        &self,
        request: &SessionRequest,
        version: &SignedManifest,
        peer: SocketAddr,
        held: Option<Vec<Range<u32>>>,
    ) -> Result<SessionGrant, Failure> {
        let options = self.options.as_ref().ok_or_else(|| refused("this server offers no multicast"))?;
        // A machine that joins again and again gets the image by unicast.
        if !self.joins.allow(peer.ip(), Instant::now()) {
            return Err(refused("too many joins from this address within a minute"));
        }
        let interface = interface_towards(options, peer)?;
        let ipv4 = family(&interface, &request.families).ok_or_else(|| {
            refused(&format!("interface {} has no address of these families", interface.name))
        })?;
        let reference = format!("{}@{}", version.manifest.image, version.manifest.number);
        let attached = request.attached;
        let key = Key { reference: reference.clone(), interface: interface.index, ipv4, attached };
        let slot = self.slot(key.clone())?;
        let grant = self.admit(&slot, &key, version, options, interface, (request, peer, held));
        drop(slot);
        // A session that could not be started takes no place.
        let grant = grant.inspect_err(|_| self.sweep())?;
        (self.log)(&Event::ReceiverJoined { reference, receiver: request.receiver.clone(), peer });
        Ok(grant)
    }

    /// Admits a client to the session of `slot`, and starts it if it does not run.
    fn admit(
        &self,
        slot: &Slot,
        key: &Key,
        version: &SignedManifest,
        options: &MulticastOptions,
        interface: Interface,
        (request, peer, held): (&SessionRequest, SocketAddr, Option<Vec<Range<u32>>>),
    ) -> Result<SessionGrant, Failure> {
        let mut running = slot.lock();
        if running.as_ref().is_none_or(Running::is_over) {
            self.retire(running.take());
            let place = self
                .places
                .take(peer.ip())
                .ok_or_else(|| refused("this address has started too many sessions that still run"))?;
            let session = self.start(key, version, options, interface, (request.mtu, place.bytes))?;
            *running = Some(Running { session, _place: place });
        }
        let session = &running.as_ref().expect("just started").session;
        let mut grant = session.admit(request, peer.ip()).map_err(|error| refused(&base::chain(&error)))?;
        let held = held.filter(|_| !options.together);
        grant.elsewhere = held.map(|held| session.elsewhere(held)).unwrap_or_default();
        self.receivers.admit(session.id(), peer.ip());
        Ok(grant)
    }

    fn slot(&self, key: Key) -> Result<Slot, Failure> {
        let mut slots = self.slots.lock();
        if self.past.lock().closed {
            return Err(Failure::new(ProblemKind::Unavailable, "the server is stopping"));
        }
        if slots.len() >= SESSIONS_MAX && !slots.contains_key(&key) {
            return Err(refused(&format!("{SESSIONS_MAX} sessions run already")));
        }
        Ok(slots.entry(key).or_default().clone())
    }

    fn start(
        &self,
        key: &Key,
        version: &SignedManifest,
        options: &MulticastOptions,
        interface: Interface,
        (mtu, cache_bytes): (u32, u64),
    ) -> Result<SessionServer, Failure> {
        let catalogue = Catalogue::load(&version.manifest, &*self.repository, self.repository.cipher())?;
        let (objects, order) = match key.attached {
            true => self.attached_order(&version.manifest, &catalogue)?,
            false => (catalogue.objects().to_vec(), None),
        };
        let number = {
            let mut past = self.past.lock();
            past.started += 1;
            past.started
        };
        let group = group(&version.digest(), self.epoch, number, key.ipv4, options.ttl);
        // The network between may carry less than this machine's own cable.
        let mtu = interface.mtu().min(mtu.max(MTU_LEAST));
        let mut send = SendOptions::on(interface);
        send.ttl = options.ttl.into();
        let mut last = None;
        for port in REPORT_PORTS {
            send.port = port;
            let mut config = SessionConfig::new(&key.reference, self.epoch, group, send.clone());
            config.budget = Arc::clone(&self.budget);
            config.cache_bytes = cache_bytes;
            config.block_bytes = block_bytes_for(mtu, !key.ipv4);
            config.encrypted = options.encrypted && matches!(self.repository.cipher(), Cipher::None);
            config.order.clone_from(&order);
            if key.attached {
                config.bundle_blocks = BUNDLE_BLOCKS_ATTACHED;
            }
            let (objects, source) = (objects.clone(), self.repository.clone());
            match SessionServer::start(config, objects, catalogue.heads(), source) {
                Ok(session) => {
                    self.receivers.begin(session.id());
                    (self.log)(&Event::SessionStarted { reference: key.reference.clone(), group });
                    return Ok(session);
                }
                Err(error) if is_taken(&error) => last = Some(error),
                Err(error) => return Err(unavailable(&error)),
            }
        }
        Err(unavailable(&last.expect("there are ports")))
    }

    /// The chunks that machines are expected to read when they start, from the boot profile. A damaged profile counts
    /// as none, since it is only a hint.
    fn first_reads(&self, manifest: &Manifest, chunks: u64) -> Runs {
        let image = manifest.image.parse().ok();
        let profile = image.and_then(|image| self.repository.profile(&image, manifest.number).ok()?);
        let order = profile.map(|profile| profile.order()).unwrap_or_default();
        runs_of(&order.into_iter().filter(|&chunk| chunk < chunks).collect::<Vec<_>>())
    }

    /// The objects of a session for attached disks in the order of sending, and the runs of chunks from which
    /// receivers compute the same order.
    fn attached_order(
        &self,
        manifest: &Manifest,
        catalogue: &Catalogue,
    ) -> Result<(Vec<ObjectRef>, Option<Runs>), Failure> {
        if catalogue.heads() > NODES_MAX {
            let text = format!("a tree of {} nodes is not multicast to attached disks", catalogue.heads());
            return Err(refused(&text));
        }
        let first = self.first_reads(manifest, catalogue.layout().chunk_count());
        let order = order(catalogue, &first)?.ids;
        let object = |id| catalogue.objects()[usize::try_from(id).expect("an index")];
        Ok((order.into_iter().map(object).collect(), Some(first)))
    }

    /// Removes sessions that have ended by themselves. Must be called regularly.
    pub(crate) fn sweep(&self) {
        let slots: Vec<_> = self.slots.lock().iter().map(|(key, slot)| (key.clone(), slot.clone())).collect();
        for (key, slot) in slots {
            // A locked slot has a client that joins, so its session is not over.
            let Some(mut running) = slot.try_lock() else { continue };
            if running.as_ref().is_some_and(Running::is_over) {
                self.retire(running.take());
            }
            drop(running);
            let mut slots = self.slots.lock();
            // Only the map and this function hold the slot, so no client is about to join.
            if Arc::strong_count(&slot) == 2 && slot.lock().is_none() {
                slots.remove(&key);
            }
        }
    }

    /// The versions of sessions that run, without those for attached disks, as `image@version`.
    pub(crate) fn fetched(&self) -> Vec<String> {
        let slots: Vec<_> = self.slots.lock().iter().map(|(key, slot)| (key.clone(), slot.clone())).collect();
        // A locked slot has a client that joins, which counts by itself.
        let runs = |slot: &Slot| {
            slot.try_lock().is_some_and(|slot| slot.as_ref().is_some_and(|running| !running.is_over()))
        };
        let fetched = slots.into_iter().filter(|(key, slot)| !key.attached && runs(slot));
        fetched.map(|(key, _)| key.reference).collect()
    }

    /// Logs each session that has sent something since the last call. Blocks.
    pub(crate) fn log_running(&self) {
        for session in self.running() {
            let before = self.past.lock().logged.insert(session.session, session.payload_bytes);
            if before != Some(session.payload_bytes) {
                (self.log)(&Event::SessionRuns {
                    receivers: session.receivers.iter().filter(|receiver| !receiver.left).count() as u64,
                    rate_bits_per_second: session.recent_bits_per_second,
                    reference: session.reference,
                    payload_bytes: session.payload_bytes,
                    image_bytes: session.image_bytes,
                });
            }
        }
    }

    /// Ends all sessions, tells their receivers so, and refuses new ones.
    pub(crate) fn end(&self) {
        self.past.lock().closed = true;
        let slots: Vec<_> = self.slots.lock().drain().map(|(_, slot)| slot).collect();
        slots.iter().for_each(|slot| self.retire(slot.lock().take()));
    }

    fn retire(&self, running: Option<Running>) {
        let Some(Running { session, _place: place }) = running else { return };
        let statistics = self.with_unicast(session.stop());
        drop(place);
        {
            let mut past = self.past.lock();
            past.totals.add(&statistics);
            past.logged.remove(&statistics.session);
            let kept = past.ended.len().min(ENDED_MAX - 1);
            for forgotten in past.ended.drain(kept..) {
                self.receivers.forget(&forgotten.session);
            }
            past.ended.push_front(statistics.clone());
        }
        (self.log)(&Event::SessionEnded { statistics: Box::new(statistics) });
    }

    /// Statistics of the running sessions, then of the ended ones, the latest first. Blocks.
    pub(crate) fn statistics(&self) -> Vec<SessionStatistics> {
        let mut all = self.running();
        all.extend(self.past.lock().ended.iter().cloned());
        all.into_iter().map(|session| self.with_unicast(session)).collect()
    }

    /// What each address may get by unicast, outside sessions.
    pub(crate) fn address_share(&self) -> Arc<AddressShare> {
        Arc::clone(&self.address_share)
    }

    /// The session of a request from `address` that names `session`: it counts only if a receiver there was admitted.
    pub(crate) fn session_of(&self, session: Option<SessionId>, address: IpAddr) -> Option<SessionId> {
        session.filter(|session| self.receivers.has(session, address))
    }

    /// Waits until `bytes` may be sent by unicast to a receiver at `address`.
    pub(crate) async fn wait_beside(&self, address: IpAddr, bytes: u64) -> Result<(), Failure> {
        self.unicast_share.wait_for(address, bytes).await
    }

    /// How fast an answer to a receiver is sent, in bits per second; `None`: as fast as it goes.
    pub(crate) fn pace_beside(&self) -> Option<u64> {
        self.unicast_share.pace()
    }

    /// Counts `bytes` that a present or past receiver of `session` got by unicast.
    pub(crate) fn sent_beside(&self, session: &SessionId, bytes: u64) {
        self.receivers.count(session, bytes);
    }

    fn with_unicast(&self, session: SessionStatistics) -> SessionStatistics {
        let unicast_bytes = self.receivers.unicast_bytes(&session.session);
        SessionStatistics { unicast_bytes, ..session }
    }

    fn running(&self) -> Vec<SessionStatistics> {
        let slots: Vec<_> = self.slots.lock().values().cloned().collect();
        slots
            .iter()
            .filter_map(|slot| slot.lock().as_ref().map(|running| running.session.statistics()))
            .collect()
    }

    /// Sums over all sessions since the server started. Blocks.
    pub(crate) fn totals(&self) -> SessionTotals {
        let running = self.running();
        let mut totals = self.past.lock().totals;
        running.iter().for_each(|session| totals.add(session));
        totals
    }
}

impl SessionTotals {
    fn add(&mut self, session: &SessionStatistics) {
        self.sessions += 1;
        self.joined += session.receivers.len() as u64;
        if session.running {
            self.running += 1;
            self.receivers += session.receivers.iter().filter(|receiver| !receiver.left).count() as u64;
        }
        self.blocks += session.blocks_sent;
        self.symbols += session.symbols_sent;
        let causes = [session.resent_late, session.resent_buffer_full, session.resent_lost];
        self.resent.iter_mut().zip(causes).for_each(|(sum, blocks)| *sum += blocks);
        self.payload_bytes += session.payload_bytes;
        self.packet_bytes += session.packet_bytes;
        self.reports += session.reports;
        self.rejected += session.rejected;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_sum_up_what_sessions_did() {
        let mut totals = SessionTotals::default();
        let session = crate::sessions::statistics::tests::sample();
        totals.add(&session);
        totals.add(&SessionStatistics { running: true, ..session });
        assert_eq!((totals.sessions, totals.running, totals.receivers, totals.joined), (2, 1, 0, 8));
        assert_eq!(totals.resent, [1_400_000, 114_000, 1520]);
    }
}
