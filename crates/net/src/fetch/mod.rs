//! Fetches a version from a server and installs it, by every transport that works.
//!
//! The fetch uses multicast first, unless told otherwise; unicast fetches what multicast could not deliver. If a
//! session worked and then fails, unicast continues for some seconds, then multicast is tried again: the server or
//! the switch may work again. Every wait is bounded, and each change of plan is reported with its reason. Nothing
//! that arrived is fetched again: the installer identifies objects by digest, whatever session, epoch or transport
//! they came from.

mod by_peers;
mod by_unicast;
mod counted;
mod intake;
mod on_target;
mod options;
mod reporter;
mod setback;
mod sharing;
#[cfg(test)]
pub(crate) mod tests;
mod unicast_fallback;
mod version;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use base::{Error, ErrorKind, Result, chain};
use image::{ObjectSource, SignedManifest};
use parking_lot::Mutex;
use proto::multicast::{Half, ReceiverCounters, Strain, packet_bytes};

use crate::api::{MULTICAST_VERSION, SessionGrant, SessionRequest};
use crate::client::Client;
use crate::clock::Clock;
use crate::interface::{self, Interface};
use crate::multicast::SCATTERED_BYTES_MAX;
use crate::multicast::receiver::{End, Reach, ReceiveOptions, Received, receive};
use crate::peer::{self, Node};
use counted::Counted;
pub use counted::{Arrived, Counting};
pub use intake::Begin;
use intake::Intake;
pub use on_target::OnTarget;
pub use options::{FetchOptions, FetchReport, Transport};
pub use reporter::HostReporter;
use setback::Setback;
pub use version::{manifest, version};

/// Unicast takes over after more than this many sessions in a row that brought no object.
const FRUITLESS_JOINS_MAX: u32 = 3;
/// If no packet ever arrived, unicast continues for this many times longer: multicast probably does not work there.
const UNHEARD_FACTOR: u32 = 6;
/// How long a receiver that joins a session again waits for its first packet. The server has just said that the
/// session runs, so packets must arrive at once.
const REJOIN_SILENCE: Duration = Duration::from_secs(1);
/// The time until multicast is tried again is doubled at most this many times.
const DOUBLINGS_MAX: u32 = 4;
/// If fewer bytes are missing, unicast fetches them and multicast is not tried again.
const SESSION_BYTES_MIN: u64 = 16 << 20;

/// Fetches the version of `sealed` from the server of `client`, and installs it with the installer that `begin`
/// makes.
///
/// # Errors
/// Those of the client and of the installer; `Stopped`; `Unreachable` if only multicast was allowed and it failed.
pub fn fetch(
    client: &Arc<Client>,
    sealed: &SignedManifest,
    begin: Begin,
    options: &FetchOptions,
) -> Result<FetchReport> {
    let clock = Clock::start();
    let source = Arc::new(Counted::new(client, &options.arrived));
    let mut fetch = Fetch {
        reference: format!("{}@{}", sealed.manifest.image, sealed.manifest.number),
        client,
        sealed,
        options,
        intake: Intake::new(
            sealed,
            begin,
            Arc::clone(&source) as Arc<dyn ObjectSource>,
            client.cipher().clone(),
            &options.arrived,
        )?,
        node: None,
        multicast_bytes: 0,
        stays: false,
        spoilt: 0,
        scattered: 0,
        unanswered: 0,
        farewell: Duration::ZERO,
        sessions: 0,
        rejoins: false,
        given_up: Arc::default(),
        counters: ReceiverCounters::default(),
    };
    let unicast_reason = fetch.get_all()?;
    let received = clock.elapsed() - fetch.farewell.min(clock.elapsed());
    let beside = fetch.beside();
    let Fetch { reference, node, multicast_bytes, sessions, counters, intake, .. } = fetch;
    let peer_counters = intake.peer_counters();
    let install = intake.finish()?;
    let unicast_bytes = source.bytes();
    let unicast_reason = unicast_reason.or_else(|| (unicast_bytes > 0).then_some(beside));
    let installed = clock.elapsed();
    let report = FetchReport {
        reference,
        multicast_bytes,
        peer_bytes: options.arrived.peer_bytes(),
        peer_counters,
        unicast_bytes,
        node,
        unicast_reason,
        sessions,
        counters,
        received,
        installed,
        install,
    };
    Ok(report)
}

struct Fetch<'a> {
    reference: String,
    client: &'a Arc<Client>,
    sealed: &'a SignedManifest,
    options: &'a FetchOptions,
    intake: Intake,
    node: Option<Arc<Node>>,
    multicast_bytes: u64,
    /// Leaving a session did not make room for other traffic.
    stays: bool,
    /// Objects that arrived damaged by multicast.
    spoilt: u64,
    /// Objects that were fetched by unicast because only a small part of their bundles was wanted.
    scattered: u64,
    /// Objects that sessions did not complete.
    unanswered: u64,
    /// Time that leaving the session took after everything had arrived.
    farewell: Duration,
    sessions: u32,
    /// The session that is joined next was left because it fell silent.
    rejoins: bool,
    /// The server did not answer during an outage of the session, within the client's patience.
    given_up: Arc<Mutex<Option<Error>>>,
    counters: ReceiverCounters,
}

/// What to do after a session has ended.
enum Next {
    /// Every object has arrived.
    Done,
    /// Join the session of this grant.
    Join(Box<SessionGrant>),
    /// Continue by unicast.
    Unicast(Setback),
}

impl Fetch<'_> {
    /// Fetches everything. Returns why unicast was needed, if it was.
    fn get_all(&mut self) -> Result<Option<String>> {
        let options = self.options;
        if options.transport == Transport::Unicast {
            self.intake.pull(&options.stop, None, false)?;
            return Ok(Some("asked for".to_owned()));
        }
        if let Some(reason) = self.by_peers_first()? {
            return Ok(reason);
        }
        let mut first_reason = None;
        for tries in 0.. {
            let Some(Setback { reason, again_after, left }) = self.by_multicast()? else {
                if self.intake.missing_bytes() > 0 {
                    // What the session was not asked for, because others have it.
                    self.farewell = Duration::ZERO;
                    self.intake.pull(&options.stop, None, true)?;
                }
                break;
            };
            if options.transport == Transport::Multicast {
                return Err(Error::new(ErrorKind::Unreachable, format!("fetch by multicast: {reason}")));
            }
            (options.tell)(&format!("continuing by unicast: {reason}"));
            first_reason.get_or_insert(reason);
            if let Some(left) = left
                && self.left_in_vain(left)?
            {
                self.stays = true;
                (options.tell)(
                    "the switch sends the session's packets here anyway; joining it again, and asking the server to \
                     leave room for other traffic",
                );
                continue;
            }
            let limit = again_after.map(|slice| slice * (1 << tries.min(DOUBLINGS_MAX)));
            if self.intake.pull(&options.stop, limit, again_after.is_some())? {
                break;
            }
            if self.intake.missing_bytes() < SESSION_BYTES_MIN {
                self.intake.pull(&options.stop, None, true)?;
                break;
            }
            (options.tell)("trying multicast again");
        }
        Ok(first_reason)
    }

    /// Joins the machines that serve each other, and gets everything without a session if a session would serve this
    /// machine alone: others hold everything, or nobody else is there. Returns why unicast was needed, if everything
    /// has arrived; `None` if a session is to be joined.
    fn by_peers_first(&mut self) -> Result<Option<Option<String>>> {
        let Some(node) = self.join_swarm() else { return Ok(None) };
        let (stop, grant) = (&self.options.stop, node.grant());
        self.intake.serve_with(Arc::clone(&node), self.options.on_target.clone());
        if grant.held.first().is_some_and(|&(first, _)| first == 0) {
            self.intake.prepare(stop)?;
        }
        let alone = "no other machine fetches it".to_owned();
        let done = match grant.others {
            true if is_all(&grant.held, grant.objects) => self.intake.pull(stop, None, true)?.then_some(None),
            true => None,
            false => self.intake.pull_alone(stop)?.then_some(Some(alone)),
        };
        self.node = Some(node);
        Ok(done)
    }

    /// Whether leaving the last session made no room, so that it is joined again. Unicast goes on meanwhile.
    fn left_in_vain(&mut self, (group, interface): (IpAddr, u32)) -> Result<bool> {
        if self.intake.missing_bytes() < SESSION_BYTES_MIN {
            return Ok(false);
        }
        let stop = &self.options.stop;
        std::thread::scope(|scope| {
            let listens = scope.spawn(|| setback::is_flooded(group, interface, stop));
            self.intake.pull_aside(|| listens.is_finished())?;
            listens.join().expect("it does not panic")
        })
    }

    /// Takes part in sessions until everything has arrived (`None`) or multicast does not work.
    fn by_multicast(&mut self) -> Result<Option<Setback>> {
        let interface = match self.interface() {
            Ok(interface) => interface,
            Err(error) => return Ok(Some(Setback::for_good(chain(&error)))),
        };
        let mut next = self.ask(&interface)?;
        let mut fruitless = 0;
        loop {
            let grant = match next {
                Next::Done => return Ok(None),
                Next::Unicast(setback) => return Ok(Some(setback)),
                Next::Join(_) if fruitless > FRUITLESS_JOINS_MAX => {
                    let reason = format!("{fruitless} sessions in a row delivered nothing");
                    return Ok(Some(Setback::after(reason, self.options.retry_after)));
                }
                Next::Join(grant) => grant,
            };
            let bytes_before = self.multicast_bytes;
            let outcome = self.take_part(&grant, &interface)?;
            fruitless = if self.multicast_bytes > bytes_before { 0 } else { fruitless + 1 };
            next = match outcome {
                Ok(End::Complete) => Next::Done,
                Ok(end) => self.after(end, fruitless == 0, &grant, &interface)?,
                Err(reason) => Next::Unicast(Setback::for_good(reason)),
            };
        }
    }

    /// Joins the machines that serve each other, if there is such a swarm. Without one, everything else works.
    fn join_swarm(&self) -> Option<Arc<Node>> {
        let options = self.options.peers.clone().filter(|_| self.options.transport == Transport::Auto)?;
        match peer::join(self.client, &self.reference, &self.sealed.digest(), options) {
            Ok(node) => node.map(Arc::new),
            Err(error) => {
                (self.options.tell)(&format!("without other machines: {}", chain(&error)));
                None
            }
        }
    }

    fn interface(&self) -> Result<Interface> {
        match &self.options.interface {
            Some(choice) => interface::choose(choice),
            None => Ok(interface::towards(self.client.address()?)?.0),
        }
    }

    /// Requests a grant from the server.
    fn ask(&self, interface: &Interface) -> Result<Next> {
        let request = SessionRequest {
            reference: self.reference.clone(),
            manifest: self.sealed.digest().to_hex(),
            receiver: self.options.name.clone(),
            families: interface.families(self.client.address()?.is_ipv4()),
            mtu: interface.mtu(),
            multicast: MULTICAST_VERSION,
            attached: false,
            peers: self.node.is_some(),
        };
        match self.client.join_session(&request) {
            Ok(grant) => Ok(Next::Join(Box::new(grant))),
            // The version was removed meanwhile: without a lease of the server a prune may delete it.
            Err(error) if error.kind() == ErrorKind::NotFound && self.is_removed() => Err(error),
            // These errors mean that the server offers no session to us; it can still be used by unicast.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::Refused | ErrorKind::NotFound | ErrorKind::Invalid | ErrorKind::Corrupt
                ) =>
            {
                Ok(Next::Unicast(Setback::for_good(chain(&error))))
            }
            Err(error) => Err(error),
        }
    }

    /// Whether the server does not have the version any more.
    fn is_removed(&self) -> bool {
        self.client.manifest(&self.reference).is_err_and(|error| error.kind() == ErrorKind::NotFound)
    }

    /// Receives one session. The inner error says why this session cannot be received; the outer error ends the
    /// fetch.
    fn take_part(
        &mut self,
        grant: &SessionGrant,
        interface: &Interface,
    ) -> Result<std::result::Result<End, String>> {
        if let Err(reason) = self.intake.begin_session(grant) {
            return Ok(Err(reason));
        }
        self.intake.pull_tree_from_others(&self.options.stop)?;
        self.sessions += 1;
        let options = ReceiveOptions {
            interface: interface.clone(),
            source_specific: self.options.source_specific,
            buffer_bytes: self.options.buffer_bytes.max(2 * self.intake.object_bytes_max()),
            object_bytes_mean: self.intake.object_bytes_mean(),
            scattered_bytes_max: match self.options.transport {
                Transport::Multicast => 0,
                Transport::Auto | Transport::Unicast => SCATTERED_BYTES_MAX,
            },
            silent_after: match std::mem::take(&mut self.rejoins) {
                true => self.options.silent_after.min(REJOIN_SILENCE),
                false => self.options.silent_after,
            },
            stalled_after: self.options.stalled_after,
            leaves_if_slow: self.options.transport != Transport::Multicast,
            stays: self.stays,
            reach: Some(self.reach(grant)),
            stop: self.options.stop.clone(),
        };
        match receive(grant, &options, &mut self.intake) {
            Ok(Received {
                end, bytes, spoilt, scattered, unanswered, counters, farewell, forged, ..
            }) => {
                self.multicast_bytes += bytes;
                if forged.packets > 0 {
                    (self.options.tell)(&forged.to_string());
                }
                if end == End::Complete {
                    self.farewell = farewell;
                }
                self.spoilt += spoilt;
                self.scattered += scattered;
                self.unanswered += unanswered;
                self.counters = counters;
                Ok(Ok(end))
            }
            Err(error) if self.intake.is_broken() => Err(error),
            Err(error) => Ok(Err(chain(&error))),
        }
    }

    /// Asks for the server of a session that fell silent.
    fn reach(&self, grant: &SessionGrant) -> Reach {
        let (client, tell, group) = (Arc::clone(self.client), Arc::clone(&self.options.tell), grant.group);
        let given_up = Arc::clone(&self.given_up);
        Reach(Arc::new(move || {
            tell(&format!("group {group} fell silent; asking the server"));
            // Any answer will do: only whether there is one counts.
            let answer = client.token_grant();
            *given_up.lock() = answer.err().filter(|error| error.kind() == ErrorKind::Unreachable);
        }))
    }

    /// Why some objects were fetched by unicast although sessions worked.
    fn beside(&self) -> String {
        let reasons = [
            (self.spoilt, "came damaged by multicast"),
            (self.unanswered, "were left to unicast by the server"),
            (self.scattered, "were scattered: little was wanted of what multicast sends together"),
        ];
        reason_of(&reasons)
    }

    /// What speaks against multicast after a session that ended so; `None` if it ended in another way.
    fn setback_of(&self, end: End, grant: &SessionGrant, interface: &Interface) -> Option<Setback> {
        let again = self.options.retry_after;
        let slice = again * UNHEARD_FACTOR;
        let slow = "the link to this machine carries less than the session sends";
        Some(match end {
            End::Stalled => {
                Setback::after("the session continues, but nothing new arrives".to_owned(), again)
            }
            End::TooSlow(Strain::Losses) => Setback::after(format!("{slow}: many packets are lost"), slice),
            End::TooSlow(Strain::Queue) => Setback {
                left: Some((grant.group.ip(), interface.index)),
                ..Setback::after(format!("{slow}: packets wait longer than those to others"), slice)
            },
            End::Behind => {
                let reason = "multicast brings little of what the session sends, and another way brings more";
                Setback::after(reason.to_owned(), slice)
            }
            End::Half(Half::NoBlocks) => {
                let bytes = packet_bytes(grant.block_bytes, grant.group.is_ipv6());
                // Nor will those of TCP.
                self.client.narrow();
                self.node.iter().for_each(|node| node.narrow());
                Setback::for_good(format!(
                    "of multicast only short packets arrive here: those of {bytes} bytes do not fit through the network"
                ))
            }
            End::Half(Half::NoReports) => {
                let port = grant.report.port();
                let reason =
                    format!("multicast arrives, but the server hears nothing at its UDP port {port}");
                Setback::after(reason, slice)
            }
            End::Complete | End::Stopped | End::NewEpoch | End::Ended | End::Silent { .. } => return None,
        })
    }

    /// What to do after a session that ended before everything had arrived. `delivered` says whether it brought
    /// anything.
    fn after(
        &mut self,
        end: End,
        delivered: bool,
        grant: &SessionGrant,
        interface: &Interface,
    ) -> Result<Next> {
        if let Some(setback) = self.setback_of(end, grant, interface) {
            return Ok(Next::Unicast(setback));
        }
        let why = match end {
            End::Complete => return Ok(Next::Done),
            End::Stopped => {
                return Err(Error::new(ErrorKind::Stopped, format!("fetch `{}`", self.reference)));
            }
            End::NewEpoch => "the server was restarted".to_owned(),
            End::Ended => "the session ended".to_owned(),
            End::Silent { heard: true } => format!("group {} fell silent", grant.group),
            End::Silent { heard: false } => format!("nothing came from group {}", grant.group),
            End::Stalled | End::TooSlow(_) | End::Behind | End::Half(_) => unreachable!("they are setbacks"),
        };
        if end == (End::Silent { heard: true }) {
            if let Some(error) = self.given_up.lock().take() {
                return Err(error);
            }
        } else {
            (self.options.tell)(&format!("{why}; asking the server"));
        }
        // If the server is being restarted, the client waits for it within its patience.
        match self.ask(interface)? {
            // The server answers again, so a cable or a switch may be back. The group is joined anew, which also
            // renews the membership at the switch.
            Next::Join(new) if delivered && end == (End::Silent { heard: true }) => {
                self.rejoins = true;
                Ok(Next::Join(new))
            }
            Next::Join(new) if (new.session, new.epoch) == (grant.session, grant.epoch) => {
                let factor = if end == (End::Silent { heard: false }) { UNHEARD_FACTOR } else { 1 };
                Ok(Next::Unicast(Setback::after(why, self.options.retry_after * factor)))
            }
            next => Ok(next),
        }
    }
}

/// What is said of objects, so many for each reason, that came by unicast while sessions worked.
fn reason_of(reasons: &[(u64, &str)]) -> String {
    let said = reasons.iter().filter(|(objects, _)| *objects > 0);
    let said: Vec<_> = said.map(|(objects, why)| format!("{objects} objects {why}")).collect();
    match said.is_empty() {
        true => "some objects were asked for before multicast brought them".to_owned(),
        false => said.join("; "),
    }
}

/// Whether runs of objects are all of `objects`.
fn is_all(held: &[(u32, u32)], objects: u32) -> bool {
    held.first().is_some_and(|&(first, count)| first == 0 && count == objects)
}
