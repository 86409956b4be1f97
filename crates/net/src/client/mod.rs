//! The client of the HTTP API: one pinned server, every request with a time limit, and safe retries.
//!
//! Every request of this API is safe to repeat: reads change nothing, objects are named by their digest, and versions
//! are published under an idempotency key. So a request that failed on the way is repeated, after growing and partly
//! random pauses, until [`ClientOptions::patience`] has passed. If the server has never answered, the address may be
//! wrong: the user is told soon, and the client gives up earlier.

mod blobs;
mod credential;
mod failure;
mod lists;
mod machines;
mod objects;
mod options;
mod probes;
mod profiles;
mod relay;
mod signed;
mod status;
#[cfg(test)]
mod tests;
mod tls;
mod tokens;
mod watch;
mod ways;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::{Chance, Error, ErrorKind, Result, limits};
use bytes::Bytes;
use image::{Cipher, ObjectRef, ObjectSink, ObjectSource};
use parking_lot::Mutex;
use reqwest::blocking::{RequestBuilder, Response};
use reqwest::{Method, Url, header};
use serde::de::DeserializeOwned;

use crate::api::{self, SessionGrant, SessionRequest, SwarmGrant, SwarmRequest};
use crate::clock::{self, Clock};
use crate::neighbour::Neighbour;
use crate::token::JoinToken;
pub use blobs::{Changes, ReadContent};
pub use credential::{Again, Credential};
use failure::{Failure, read_at_most};
pub use options::ClientOptions;
pub(crate) use relay::SEGMENT_BYTES;
use watch::OutageNotice;
use ways::{Ways, addresses_of};

/// Largest JSON answer that is read, in bytes.
const JSON_BYTES_MAX: u64 = 16 << 20;
/// First and longest pause between two attempts.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// See [`PAUSE_MIN`].
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// A client of one server. Threads may share it.
pub struct Client {
    ways: Arc<Ways>,
    server: Url,
    credential: Arc<Credential>,
    options: ClientOptions,
    chance: Mutex<Chance>,
    /// Whether the server has ever answered.
    answered: AtomicBool,
    neighbour: Neighbour,
    /// Whether the user was told that the server does not answer.
    outage: OutageNotice,
    /// The session to whose statistics fetched objects are assigned.
    session: Mutex<Option<api::SessionId>>,
    /// The name of this client's upload (see [`api::UPLOAD_HEADER`]).
    upload: String,
}

impl Client {
    /// How the server's objects are encrypted, as [`ClientOptions::cipher`] says.
    #[must_use]
    pub fn cipher(&self) -> &Cipher {
        &self.options.cipher
    }

    /// A client of the server at `server`: `host`, `host:port` or a URL. Sends nothing yet. The client must not be
    /// made or dropped inside an asynchronous task.
    ///
    /// # Errors
    /// `Invalid` for a wrong address, or for one without TLS that is not loopback.
    pub fn connect(server: &str, token: &JoinToken, options: ClientOptions) -> Result<Self> {
        Self::connect_by(server, Credential::fixed(token.clone()), options)
    }

    /// The same with a token that may be replaced while the client is in use.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn connect_by(server: &str, credential: Arc<Credential>, options: ClientOptions) -> Result<Self> {
        let server = address_of(server, &credential.token())?;
        let ways = Arc::new(Ways::new(&server, &credential, &options)?);
        let (chance, answered) = (Mutex::new(clock::jitter()), AtomicBool::new(false));
        let session = Mutex::default();
        let upload = upload_name();
        Ok(Self {
            ways,
            server,
            credential,
            options,
            chance,
            answered,
            neighbour: Neighbour::default(),
            outage: OutageNotice::default(),
            session,
            upload,
        })
    }

    /// The same client with other options, for another upload.
    #[must_use]
    pub fn with_options(&self, options: ClientOptions) -> Self {
        Self {
            ways: Arc::clone(&self.ways),
            server: self.server.clone(),
            credential: Arc::clone(&self.credential),
            options,
            chance: Mutex::new(clock::jitter()),
            answered: AtomicBool::new(self.answered.load(Ordering::Relaxed)),
            neighbour: self.neighbour.clone(),
            outage: OutageNotice::default(),
            session: Mutex::new(self.beside()),
            upload: upload_name(),
        }
    }

    /// The same client for another upload: what one of them publishes does not end the other's upload.
    #[must_use]
    pub fn another(&self) -> Self {
        self.with_options(self.options.clone())
    }

    /// The client's options.
    #[must_use]
    pub fn options(&self) -> &ClientOptions {
        &self.options
    }

    /// The client's token.
    #[must_use]
    pub fn credential(&self) -> &Arc<Credential> {
        &self.credential
    }

    /// The server's URL.
    #[must_use]
    pub fn url(&self) -> &str {
        self.server.as_str()
    }

    /// The server's address on the network.
    ///
    /// # Errors
    /// `Unreachable` if its name does not resolve.
    pub fn address(&self) -> Result<SocketAddr> {
        let host = self.server.host_str().unwrap_or_default();
        let context = || format!("resolve `{host}`");
        let found = addresses_of(&self.server)
            .map_err(|error| Error::from_source(ErrorKind::Unreachable, context(), error))?;
        found.first().copied().ok_or_else(|| Error::new(ErrorKind::Unreachable, context()))
    }

    /// The repository that the server offers, and how it is encrypted.
    ///
    /// # Errors
    /// As [`Self::images`].
    pub fn repository(&self) -> Result<api::RepositorySummary> {
        self.json(Method::GET, &api::path::repository(), Body::None)
    }

    /// The encoded manifest of `image`, `image:tag` or `image@version`, decrypted.
    ///
    /// # Errors
    /// `NotFound`; `Refused` or `Corrupt` if it is encrypted and the key is missing or wrong; as [`Self::images`].
    pub fn manifest(&self, reference: &str) -> Result<Bytes> {
        let path = api::path::manifest(reference);
        self.opened(self.bytes(Method::GET, &path, Body::None, limits::MANIFEST_BYTES_MAX)?, reference)
    }

    fn opened(&self, stored: Bytes, reference: &str) -> Result<Bytes> {
        let opened = self.options.cipher.decrypt_manifest(&stored);
        opened.map_err(|error| error.within(format!("read the manifest of `{reference}`")))
    }

    /// Publishes the encoded manifest `draft`, which has no number yet, as the next version of `image`. Returns the
    /// manifest as published. `key` names this publication: a repetition with the same key makes no second version.
    ///
    /// # Errors
    /// `Refused` if objects are missing; as [`Self::images`].
    pub fn publish(&self, image: &str, draft: Bytes, key: &str) -> Result<Bytes> {
        self.publish_at(&api::path::versions(image), image, draft, key)
    }

    /// The same, but only if `expect` is still the newest version; 0 if the image does not exist yet.
    ///
    /// # Errors
    /// `Refused` with the newest version's number if that is another; as [`Self::publish`].
    pub fn publish_onto(&self, image: &str, draft: Bytes, expect: u64) -> Result<Bytes> {
        self.publish_at(&api::path::versions_onto(image, expect), image, draft, &self.new_key())
    }

    fn publish_at(&self, path: &str, image: &str, draft: Bytes, key: &str) -> Result<Bytes> {
        let draft = self.options.cipher.encrypt_manifest(draft);
        let draft = draft.map_err(|error| error.within(format!("publish `{image}`")))?;
        let body = Body::Keyed { kind: api::OBJECT_TYPE, body: draft, key: key.to_owned() };
        self.opened(self.bytes(Method::POST, path, body, limits::MANIFEST_BYTES_MAX)?, image)
    }

    /// Requests a grant for a multicast session. The server assigns objects that are fetched from now on to that
    /// session's statistics.
    ///
    /// # Errors
    /// `Refused` if the server offers no session; as [`Self::images`].
    pub fn join_session(&self, request: &SessionRequest) -> Result<SessionGrant> {
        let body = Body::Json(serde_json::to_vec(request).expect("a request is plain data"));
        let grant: SessionGrant = self.json(Method::POST, &api::path::sessions(), body)?;
        *self.session.lock() = Some(grant.session);
        Ok(grant)
    }

    /// Joins the swarm of a version.
    ///
    /// # Errors
    /// `NotFound` from a server without swarms; as [`Self::images`].
    pub fn join_swarm(&self, request: &SwarmRequest) -> Result<SwarmGrant> {
        let body = Body::Json(serde_json::to_vec(request).expect("a request is plain data"));
        self.json(Method::POST, &api::path::swarms(), body)
    }

    fn beside(&self) -> Option<api::SessionId> {
        *self.session.lock()
    }

    /// Statistics of the server's sessions.
    ///
    /// # Errors
    /// As [`Self::images`].
    pub fn sessions(&self) -> Result<api::Sessions> {
        self.json(Method::GET, &api::path::sessions(), Body::None)
    }

    /// Helps the kernel to find the server.
    fn find_soon(&self) {
        self.neighbour.find_soon(self.server.host_str().unwrap_or_default().trim_matches(['[', ']']));
    }

    fn json<T: DeserializeOwned>(&self, method: Method, path: &str, body: Body) -> Result<T> {
        let context = format!("{method} {path}");
        self.attempts(&context, |limit| {
            let text = self.read_body(self.once(&method, path, &body, limit)?, JSON_BYTES_MAX)?;
            serde_json::from_slice(&text).map_err(|error| Failure::final_from(ErrorKind::Corrupt, error))
        })
    }

    fn bytes(&self, method: Method, path: &str, body: Body, bytes_max: u32) -> Result<Bytes> {
        let context = format!("{method} {path}");
        self.attempts(&context, |limit| {
            self.read_body(self.once(&method, path, &body, limit)?, u64::from(bytes_max))
        })
    }

    fn read_body(&self, answer: Response, bytes_max: u64) -> std::result::Result<Bytes, Failure> {
        let body = read_at_most(answer, bytes_max)?;
        self.ways.passed(body.len());
        Ok(body)
    }

    fn answer(&self, method: Method, path: &str, body: &Body) -> Result<Response> {
        self.attempts(&format!("{method} {path}"), |limit| self.once(&method, path, body, limit))
    }

    /// Makes one attempt, which may take `limit`. Returns the answer if its status is a success; the body is not read
    /// yet.
    fn once(
        &self,
        method: &Method,
        path: &str,
        body: &Body,
        limit: Duration,
    ) -> std::result::Result<Response, Failure> {
        let url = self.server.join(path).map_err(|error| Failure::final_from(ErrorKind::Invalid, error))?;
        let way = self.ways.choose(limit, body.len());
        let request = way.http.request(method.clone(), url).timeout(way.limit);
        let request = body.attach(request.header(header::AUTHORIZATION, self.credential.authorization()));
        let request = match self.beside() {
            Some(session) => request.header(api::SESSION_HEADER, session.to_string()),
            None => request,
        };
        let request = match *method {
            Method::GET => request,
            _ => request.header(api::UPLOAD_HEADER, &self.upload),
        };
        if !self.answered.load(Ordering::Relaxed) {
            self.find_soon();
        }
        let response = request.send().map_err(|error| {
            if error.is_connect() {
                self.find_soon();
            }
            Failure { at_once: self.ways.was_in_haste(&way, &error), ..Failure::of_transport(error) }
        })?;
        self.answered.store(true, Ordering::Relaxed);
        self.ways.passed(body.len());
        if response.status().is_success() { Ok(response) } else { Err(Failure::of_answer(response)) }
    }

    /// Repeats `attempt`, which gets its time limit, until it succeeds, fails for good, or the patience ends.
    fn attempts<T>(
        &self,
        context: &str,
        attempt: impl Fn(Duration) -> std::result::Result<T, Failure>,
    ) -> Result<T> {
        let clock = Clock::start();
        let first = !self.answered.load(Ordering::Relaxed);
        let _watch = first.then(|| self.outage.watch(&self.server, &self.options));
        let (mut pause, mut reloaded) = (PAUSE_MIN, false);
        loop {
            if self.options.stop.is_stopped() {
                return Err(Error::new(ErrorKind::Stopped, format!("{context}: stopped")));
            }
            let tests = self.ways.tests();
            let failure = match attempt(self.limit(&clock)) {
                Ok(done) => {
                    self.outage.answered(&self.server, &self.options);
                    return Ok(done);
                }
                Err(failure) => failure,
            };
            // The token may have been renewed since it was read: read it again, but only once.
            let rejected = matches!(failure.kind, ErrorKind::Denied | ErrorKind::Untrusted);
            if rejected && !std::mem::replace(&mut reloaded, true) && self.credential.reload() {
                continue;
            }
            let context = || format!("{context} at {}", self.server);
            let left = self.patience().saturating_sub(clock.elapsed());
            if !failure.passing || left.is_zero() {
                return Err(failure.into_error(context()));
            }
            if failure.at_once || failure.timed_out() && self.ways.heed_stall(tests, &self.options) {
                continue;
            }
            self.outage.failed(&self.server, &self.options, &failure, left);
            // A random pause between half of `pause` and all of it, so that clients that failed together do not
            // return together.
            let half = u64::try_from(pause.min(left).as_micros() / 2).unwrap_or(u64::MAX);
            let extra = self.chance.lock().below(half);
            self.options.stop.pause(Duration::from_micros(half + extra));
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// It was found that the network loses full-size packets to or from this machine: further requests travel in small
    /// ones. An attempt that is under way ends as before.
    pub fn narrow(&self) {
        self.ways.narrow(&self.options);
    }

    fn patience(&self) -> Duration {
        let answered = self.answered.load(Ordering::Relaxed);
        if answered { self.options.patience } else { self.options.first_patience }
    }

    /// Time limit of one more attempt. Before the first answer it does not exceed the remaining patience, in case a
    /// server accepts connections but never answers.
    fn limit(&self, clock: &Clock) -> Duration {
        if self.answered.load(Ordering::Relaxed) {
            return self.options.request_timeout;
        }
        let left = self.options.first_patience.saturating_sub(clock.elapsed());
        self.options.request_timeout.min(left.max(PAUSE_MIN))
    }
}

/// The body of a request.
enum Body {
    None,
    Json(Vec<u8>),
    Bytes(Bytes),
    /// The body of a request that makes a version, at most once per key.
    Keyed {
        kind: &'static str,
        body: Bytes,
        key: String,
    },
}

impl Body {
    /// Its length in bytes.
    fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Json(text) => text.len(),
            Self::Bytes(bytes) | Self::Keyed { body: bytes, .. } => bytes.len(),
        }
    }

    fn attach(&self, request: RequestBuilder) -> RequestBuilder {
        match self {
            Self::None => request,
            Self::Json(text) => request.header(header::CONTENT_TYPE, "application/json").body(text.clone()),
            Self::Bytes(bytes) => request.header(header::CONTENT_TYPE, api::OBJECT_TYPE).body(bytes.clone()),
            Self::Keyed { kind, body, key } => request
                .header(header::CONTENT_TYPE, *kind)
                .header(api::IDEMPOTENCY_KEY, key)
                .body(body.clone()),
        }
    }
}

/// 32 hexadecimal digits that no other client has drawn.
fn upload_name() -> String {
    let mut chance = clock::jitter();
    format!("{:016x}{:016x}", chance.u64(), chance.u64())
}

/// The URL of `server`, with scheme and port filled in.
fn address_of(server: &str, token: &JoinToken) -> Result<Url> {
    let invalid = |why: &str| Error::new(ErrorKind::Invalid, format!("server `{server}`: {why}"));
    let scheme = if token.fingerprint.is_some() { "https" } else { "http" };
    let text = if server.contains("://") { server.to_owned() } else { format!("{scheme}://{server}") };
    let mut url = Url::parse(&text).map_err(|_| invalid("expected `host`, `host:port` or an URL"))?;
    if url.scheme() != scheme {
        let why = if scheme == "https" {
            "the token is for https"
        } else {
            "the token has no fingerprint for https"
        };
        return Err(invalid(why));
    }
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    let loopback = host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
    if host.is_empty() || (token.fingerprint.is_none() && !loopback) {
        return Err(invalid("without TLS a server is used on loopback only"));
    }
    if url.port().is_none() && !text.trim_end_matches('/').ends_with(&format!(":{}", default_port(scheme))) {
        url.set_port(Some(api::PORT_DEFAULT)).map_err(|()| invalid("the port cannot be set"))?;
    }
    Ok(url)
}

fn default_port(scheme: &str) -> u16 {
    if scheme == "https" { 443 } else { 80 }
}

impl ObjectSource for Client {
    fn fetch(&self, object: &ObjectRef) -> Result<Bytes> {
        self.object(object).map_err(|error| error.within(format!("fetch {object}")))
    }
}

impl ObjectSink for Client {
    fn contains(&self, object: &ObjectRef) -> Result<bool> {
        self.has_object(object).map_err(|error| error.within(format!("ask for {object}")))
    }

    fn put(&self, object: &ObjectRef, bytes: Bytes) -> Result<()> {
        self.put_object(object, bytes).map_err(|error| error.within(format!("upload {object}")))
    }
}
