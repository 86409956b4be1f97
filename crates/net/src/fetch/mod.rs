//! A fetch: from a server to an installed image, over whatever works.
//!
//! Multicast first, unless told otherwise; unicast finishes whatever multicast could not. Where a session worked and
//! stopped working, unicast goes on for some seconds, then multicast gets another chance: the server may be back, the
//! switch may have healed. Every wait is bounded, each change of plan has a reason that is told, and what was received
//! once is never fetched again: the installer knows what it holds by digest, whichever session, epoch or transport it
//! came from.

mod intake;
#[cfg(test)]
pub(crate) mod tests;
mod unicast_fallback;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::{Error, ErrorKind, Result, chain, limits};
use bytes::Bytes;
use image::{Cipher, InstallReport, Manifest, ObjectRef, ObjectSource, SignedManifest};
use proto::multicast::ReceiverCounters;

use crate::api::{Family, SessionGrant, SessionRequest};
use crate::client::Client;
use crate::clock::{Clock, Stop};
use crate::interface::{self, Interface};
use crate::multicast::SCATTERED_BYTES_MAX;
use crate::multicast::receiver::{End, ReceiveOptions, Received, receive};
pub use intake::Begin;
use intake::Intake;

/// How often a session is joined again in a row without a single object coming of it.
const FRUITLESS_JOINS_MAX: u32 = 3;
/// So much longer does unicast go on where nothing was ever heard: it is likely that multicast does not work there at
/// all.
const UNHEARD_FACTOR: u32 = 6;
/// Times that the time until another try is doubled at most.
const DOUBLINGS_MAX: u32 = 4;
/// Less than this is finished by unicast without another look.
const SESSION_BYTES_MIN: u64 = 16 << 20;

/// Which ways may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transport {
    /// Multicast if it works on this network, unicast for what is left.
    #[default]
    Auto,
    /// Multicast only: if it does not work, the fetch fails.
    Multicast,
    /// Unicast only.
    Unicast,
}

/// How to fetch.
#[derive(Clone)]
pub struct FetchOptions {
    /// Which ways may be used.
    pub transport: Transport,
    /// Interface of the multicast group, by name or address; by default the one that leads to the server.
    pub interface: Option<String>,
    /// What this machine calls itself in the server's statistics.
    pub name: String,
    /// Whether to join the group for the server's address only (RFC 4607).
    pub source_specific: bool,
    /// Memory for objects that are not complete or not taken yet, in bytes.
    pub buffer_bytes: u64,
    /// Without any packet for so long, multicast has failed.
    pub silent_after: Duration,
    /// Without anything new for so long, multicast has failed.
    pub stalled_after: Duration,
    /// How long unicast goes on until multicast that failed gets another chance: the first time; then twice as long,
    /// and so on, and longer where nothing was ever heard.
    pub retry_after: Duration,
    /// Ends the fetch. The client's own [`Stop`] should be the same one.
    pub stop: Stop,
    /// Hears of every change of plan, in words.
    pub tell: Arc<dyn Fn(&str) + Send + Sync>,
}

impl FetchOptions {
    /// The defaults, for a machine called `name`.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            transport: Transport::Auto,
            interface: None,
            name: name.into(),
            source_specific: false,
            buffer_bytes: limits::RECEIVER_BUFFER_BYTES_DEFAULT,
            silent_after: Duration::from_secs(3),
            stalled_after: Duration::from_secs(10),
            retry_after: Duration::from_secs(5),
            stop: Stop::new(),
            tell: Arc::new(|_| {}),
        }
    }
}

/// What a fetch did.
#[derive(Debug, Clone)]
pub struct FetchReport {
    /// `image@version`.
    pub reference: String,
    /// Bytes of objects that came by multicast.
    pub multicast_bytes: u64,
    /// Bytes of objects that came by unicast.
    pub unicast_bytes: u64,
    /// Why unicast was used, if it was.
    pub unicast_reason: Option<String>,
    /// Sessions joined.
    pub sessions: u32,
    /// What the last session's receiver counted.
    pub counters: ReceiverCounters,
    /// From the begin until every object was here and verified.
    pub received: Duration,
    /// From the begin until all was written, durable and, if asked for, read back.
    pub installed: Duration,
    /// What was done to the target.
    pub install: InstallReport,
}

/// The manifest of `image`, `image:tag` or `image@version`, as the server has it.
///
/// # Errors
/// Those of the client; `Corrupt` if it is of another image or number than was asked for, or no manifest; `Unsupported`
/// if this program can't read it.
pub fn manifest(client: &Client, reference: &str) -> Result<SignedManifest> {
    let bytes = client.manifest(reference)?;
    let sealed = SignedManifest::open(&bytes)
        .map_err(|error| error.within(format!("read the manifest of `{reference}`")))?;
    let Manifest { image, number, .. } = &sealed.manifest;
    let is_right = match reference.split_once('@') {
        Some((name, asked)) => image == name && asked.parse() == Ok(*number),
        None => reference.split(':').next() == Some(image),
    };
    if is_right {
        return Ok(sealed);
    }
    let text = format!("the server answers for `{reference}` with `{}@{number}`", image.escape_debug());
    Err(Error::new(ErrorKind::Corrupt, text))
}

/// Fetches the version of `sealed` from the server of `client` and installs it with the installer that `begin` makes.
///
/// # Errors
/// Those of the client, of the installer, and `Stopped`. `Unreachable` if only multicast was allowed and it failed.
pub fn fetch(
    client: &Arc<Client>,
    sealed: &SignedManifest,
    begin: Begin,
    options: &FetchOptions,
) -> Result<FetchReport> {
    let clock = Clock::start();
    let source = Arc::new(Counted { client: Arc::clone(client), bytes: AtomicU64::new(0) });
    let mut fetch = Fetch {
        reference: format!("{}@{}", sealed.manifest.image, sealed.manifest.number),
        client,
        sealed,
        options,
        intake: Intake::new(sealed, begin, Arc::clone(&source) as Arc<dyn ObjectSource>)?,
        multicast_bytes: 0,
        spoilt: 0,
        scattered: 0,
        unanswered: 0,
        farewell: Duration::ZERO,
        sessions: 0,
        counters: ReceiverCounters::default(),
    };
    let unicast_reason = fetch.get_all()?;
    let received = clock.elapsed() - fetch.farewell.min(clock.elapsed());
    let beside = fetch.beside();
    let Fetch { reference, multicast_bytes, sessions, counters, intake, .. } = fetch;
    let install = intake.finish()?;
    let unicast_bytes = source.bytes.load(Ordering::Relaxed);
    let unicast_reason = unicast_reason.or_else(|| (unicast_bytes > 0).then_some(beside));
    let installed = clock.elapsed();
    let report = FetchReport {
        reference,
        multicast_bytes,
        unicast_bytes,
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
    multicast_bytes: u64,
    /// Objects that came damaged by multicast.
    spoilt: u64,
    /// Objects that were left to unicast because little of their bundles was wanted.
    scattered: u64,
    /// Objects that sessions did not bring to their end.
    unanswered: u64,
    /// What the goodbye took after all was here.
    farewell: Duration,
    sessions: u32,
    counters: ReceiverCounters,
}

/// What to do after a session.
enum Next {
    /// All is here.
    Done,
    /// Join with this grant.
    Join(SessionGrant),
    /// Multicast does not work.
    Unicast(Setback),
}

/// Multicast does not work.
struct Setback {
    reason: String,
    /// After so long it may be worth another try; never if `None`.
    again_after: Option<Duration>,
}

impl Setback {
    fn for_good(reason: String) -> Self {
        Self { reason, again_after: None }
    }

    fn after(reason: String, slice: Duration) -> Self {
        Self { reason, again_after: Some(slice) }
    }
}

impl Fetch<'_> {
    /// Gets all there is, and says why unicast was needed, if it was.
    fn get_all(&mut self) -> Result<Option<String>> {
        let options = self.options;
        if options.transport == Transport::Unicast {
            self.intake.pull(&options.stop, None)?;
            return Ok(Some("asked for".to_owned()));
        }
        let mut first_reason = None;
        for tries in 0.. {
            let Some(Setback { reason, again_after }) = self.by_multicast()? else { break };
            if options.transport == Transport::Multicast {
                return Err(Error::new(ErrorKind::Unreachable, format!("fetch by multicast: {reason}")));
            }
            (options.tell)(&format!("going on by unicast: {reason}"));
            first_reason.get_or_insert(reason);
            let limit = again_after.map(|slice| slice * (1 << tries.min(DOUBLINGS_MAX)));
            if self.intake.pull(&options.stop, limit)? {
                break;
            }
            if self.intake.missing_bytes() < SESSION_BYTES_MIN {
                self.intake.pull(&options.stop, None)?;
                break;
            }
            (options.tell)("trying multicast again");
        }
        Ok(first_reason)
    }

    /// Takes part in sessions until all is here (`None`) or multicast turns out not to work.
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
                    let reason = format!("{fruitless} sessions in a row brought nothing");
                    return Ok(Some(Setback::after(reason, self.options.retry_after)));
                }
                Next::Join(grant) => grant,
            };
            let bytes_before = self.multicast_bytes;
            next = match self.take_part(&grant, &interface)? {
                Ok(End::Complete) => Next::Done,
                Ok(end) => self.after(end, &grant, &interface)?,
                Err(reason) => Next::Unicast(Setback::for_good(reason)),
            };
            fruitless = if self.multicast_bytes > bytes_before { 0 } else { fruitless + 1 };
        }
    }

    fn interface(&self) -> Result<Interface> {
        match &self.options.interface {
            Some(choice) => interface::choose(choice),
            None => Ok(interface::towards(self.client.address()?)?.0),
        }
    }

    /// Asks the server for a place in a session.
    fn ask(&self, interface: &Interface) -> Result<Next> {
        let has = |ipv4| interface.address(ipv4).is_some();
        let families = [(Family::V4, has(true)), (Family::V6, has(false))];
        let request = SessionRequest {
            reference: self.reference.clone(),
            manifest: self.sealed.digest().to_hex(),
            receiver: self.options.name.clone(),
            families: families.into_iter().filter(|(_, has)| *has).map(|(family, _)| family).collect(),
            mtu: interface.mtu(),
            attached: false,
        };
        match self.client.join_session(&request) {
            Ok(grant) => Ok(Next::Join(grant)),
            // These mean that there is no session for us, not that there is no server.
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

    /// Receives one session. The inner error says why that is not possible; the outer one ends the fetch.
    fn take_part(
        &mut self,
        grant: &SessionGrant,
        interface: &Interface,
    ) -> Result<std::result::Result<End, String>> {
        if let Err(reason) = self.intake.begin_session(grant) {
            return Ok(Err(reason));
        }
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
            silent_after: self.options.silent_after,
            stalled_after: self.options.stalled_after,
            leaves_if_slow: self.options.transport != Transport::Multicast,
            stop: self.options.stop.clone(),
        };
        match receive(grant, &options, &mut self.intake) {
            Ok(Received { end, bytes, spoilt, scattered, unanswered, counters, farewell, .. }) => {
                self.multicast_bytes += bytes;
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

    /// Why something came by unicast although sessions worked.
    fn beside(&self) -> String {
        let reasons = [
            (self.spoilt, "came damaged by multicast"),
            (self.unanswered, "were left to unicast by the server"),
            (self.scattered, "were scattered: little was wanted of what multicast sends together"),
        ];
        let said = reasons.iter().filter(|(objects, _)| *objects > 0);
        said.map(|(objects, why)| format!("{objects} objects {why}")).collect::<Vec<_>>().join("; ")
    }

    /// What to do after a session that ended before all was here.
    fn after(&self, end: End, grant: &SessionGrant, interface: &Interface) -> Result<Next> {
        let why = match end {
            End::Complete => return Ok(Next::Done),
            End::Stopped => {
                return Err(Error::new(ErrorKind::Stopped, format!("fetch `{}`", self.reference)));
            }
            End::Stalled => {
                let reason = "the session goes on, but nothing new comes".to_owned();
                return Ok(Next::Unicast(Setback::after(reason, self.options.retry_after)));
            }
            End::TooSlow => {
                let reason = "this machine's link is too slow for the session".to_owned();
                return Ok(Next::Unicast(Setback::after(reason, self.options.retry_after * UNHEARD_FACTOR)));
            }
            End::NewEpoch => "the server started anew".to_owned(),
            End::Ended => "the session ended".to_owned(),
            End::Silent { heard: true } => format!("group {} fell silent", grant.group),
            End::Silent { heard: false } => format!("nothing came from group {}", grant.group),
        };
        (self.options.tell)(&format!("{why}; asking the server"));
        // Waits, within the client's patience, for a server that is being started again.
        match self.ask(interface)? {
            Next::Join(new) if (new.session, new.epoch) == (grant.session, grant.epoch) => {
                let factor = if end == (End::Silent { heard: false }) { UNHEARD_FACTOR } else { 1 };
                Ok(Next::Unicast(Setback::after(why, self.options.retry_after * factor)))
            }
            next => Ok(next),
        }
    }
}

/// The server as a source, which counts what it gave.
struct Counted {
    client: Arc<Client>,
    bytes: AtomicU64,
}

impl ObjectSource for Counted {
    fn fetch(&self, object: &ObjectRef) -> Result<Bytes> {
        let bytes = self.client.fetch(object)?;
        self.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(bytes)
    }

    fn cipher(&self) -> Cipher {
        ObjectSource::cipher(&*self.client)
    }
}
