//! How the client's requests travel: on TCP connections as the system makes them, or, if the network loses full-size
//! packets, on connections with small segments.
//!
//! Such networks are found by what happens, so that others pay nothing: an attempt that takes too long asks whether a
//! request of several full-size packets, with an answer of several, passes; and whether, at the same time, it passes
//! again and again in small segments. A network that is busy, and a server that is slow, pass one like the other. What
//! was found holds for all further requests, until an attempt takes too long again.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use reqwest::Url;
use reqwest::blocking::{Client as Http, ClientBuilder, Response};

use super::credential::Credential;
use super::options::ClientOptions;
use super::relay::{KEEPALIVE, Relay, SILENCE_MAX};
use super::tls;
use crate::api;

/// Timeout of quick connections: if a packet of the TCP handshake is lost, the client connects again after this time
/// instead of the second that TCP waits (RFC 6298). After `QUICK_ATTEMPTS` failures it uses the normal timeout,
/// because the server may be farther away.
const QUICK_TIMEOUT: Duration = Duration::from_millis(100);
const QUICK_ATTEMPTS: u32 = 5;
/// Longest attempt, while no full-size packet is known to have passed; an upload may take as much longer as its bytes
/// need at [`UPLOAD_BYTES_PER_SECOND`].
const STALL_MAX: Duration = Duration::from_secs(5);
const UPLOAD_BYTES_PER_SECOND: usize = 1 << 20;
/// Longest wait for the answer of a test, and the number of rounds of tests, that must all say the same.
const TEST_MAX: Duration = Duration::from_secs(3);
const ROUNDS: u32 = 2;
/// The same where a session has shown before that full-size packets are lost.
const NARROW_MAX: Duration = Duration::from_secs(1);
/// About so many tests with small packets are made while one with full-size ones waits, of which so many must pass.
const SMALL_TESTS: u32 = 8;
const SMALL_MIN: u32 = 3;
/// A message of so many bytes has a full-size packet, whatever the network's packets are: of 9000 bytes at most.
const FULL_BYTES: usize = 9001;
/// Bytes of a test's request beside its headers, which servers limit to 16 KiB; and the least bytes of its answer.
const TEST_REQUEST_BYTES: usize = 12_000;
const TEST_ANSWER_BYTES: usize = 4_000;

/// The HTTP clients of a server, and which of them to use.
pub(super) struct Ways {
    server: Url,
    whole: Http,
    /// The same with [`QUICK_TIMEOUT`] for connections.
    quick: Http,
    /// How many quick connections failed.
    quick_failures: AtomicU32,
    credential: Arc<Credential>,
    way: Mutex<Way>,
    /// How many tests were made.
    tests: AtomicUsize,
    judging: Mutex<()>,
}

#[derive(Clone)]
enum Way {
    /// No full-size packet has passed yet.
    Untried,
    /// Full-size packets pass.
    Whole,
    /// They do not.
    Small(Arc<Small>),
}

struct Small {
    http: Http,
    /// It carries the connections of `http`.
    _relay: Relay,
}

/// What an attempt uses.
pub(super) struct Chosen {
    pub(super) http: Http,
    /// Longest time that the attempt may take.
    pub(super) limit: Duration,
    quick: bool,
}

impl Ways {
    pub(super) fn new(server: &Url, credential: &Arc<Credential>, options: &ClientOptions) -> Result<Self> {
        let client = |connect_timeout| build(server, credential, options, connect_timeout, |builder| builder);
        Ok(Self {
            server: server.clone(),
            whole: client(options.connect_timeout)?,
            quick: client(QUICK_TIMEOUT)?,
            quick_failures: AtomicU32::new(0),
            credential: Arc::clone(credential),
            way: Mutex::new(Way::Untried),
            tests: AtomicUsize::new(0),
            judging: Mutex::new(()),
        })
    }

    /// How the next attempt travels, which sends `body_bytes` and may take `limit`.
    pub(super) fn choose(&self, limit: Duration, body_bytes: usize) -> Chosen {
        let way = self.way.lock().clone();
        let quick = self.quick_failures.load(Ordering::Relaxed) < QUICK_ATTEMPTS;
        let upload = Duration::from_secs((body_bytes / UPLOAD_BYTES_PER_SECOND) as u64);
        let whole = if quick { &self.quick } else { &self.whole };
        match way {
            Way::Untried => Chosen { http: whole.clone(), limit: limit.min(STALL_MAX + upload), quick },
            Way::Whole => Chosen { http: whole.clone(), limit, quick },
            Way::Small(small) => Chosen { http: small.http.clone(), limit, quick: false },
        }
    }

    /// Whether `error` of an attempt is that of a quick connection, so that the next one follows at once.
    pub(super) fn was_in_haste(&self, chosen: &Chosen, error: &reqwest::Error) -> bool {
        let haste = chosen.quick && error.is_connect();
        self.quick_failures.fetch_add(u32::from(haste), Ordering::Relaxed);
        haste && error.is_timeout()
    }

    /// A request or an answer of `bytes` has arrived.
    pub(super) fn passed(&self, bytes: usize) {
        let mut way = self.way.lock();
        if bytes >= FULL_BYTES && matches!(*way, Way::Untried) {
            *way = Way::Whole;
        }
    }

    /// How many tests were made, for [`Self::heed_stall`].
    pub(super) fn tests(&self) -> usize {
        self.tests.load(Ordering::Relaxed)
    }

    /// An attempt took too long that began when there had been `tests`. Finds out whether the size of its packets was
    /// the reason, which takes some seconds. Returns whether packets pass in some way, so that another attempt is
    /// worth it at once.
    pub(super) fn heed_stall(&self, tests: usize, options: &ClientOptions) -> bool {
        let _only_one = self.judging.lock();
        // Of attempts that stalled together, one asks for all.
        if self.tests() != tests {
            return true;
        }
        self.is_there() && self.judge(ROUNDS, TEST_MAX.min(options.request_timeout), options)
    }

    /// A session has shown that full-size packets are lost: requests travel in small segments, if one more look says
    /// the same.
    pub(super) fn narrow(&self, options: &ClientOptions) {
        let _only_one = self.judging.lock();
        if !matches!(&*self.way.lock(), Way::Small(_)) {
            self.judge(1, NARROW_MAX.min(options.request_timeout), options);
        }
    }

    /// Chooses the way by so many rounds, each of which may take `limit`: small segments only if in each of them small
    /// packets passed all the while, and full-size ones did not. A network that is merely busy loses both. False if
    /// nothing can be said.
    fn judge(&self, rounds: u32, limit: Duration, options: &ClientOptions) -> bool {
        self.tests.fetch_add(1, Ordering::Relaxed);
        let small = match &*self.way.lock() {
            Way::Small(small) => Ok(Arc::clone(small)),
            _ => self.small(options).map(Arc::new),
        };
        let Ok(small) = small else { return self.test(&self.whole, limit) };
        for _ in 0..rounds {
            match self.round(&small, limit) {
                Some(true) => {
                    *self.way.lock() = Way::Whole;
                    return true;
                }
                Some(false) => {}
                None => return false,
            }
        }
        let before = std::mem::replace(&mut *self.way.lock(), Way::Small(small));
        if !matches!(before, Way::Small(_)) {
            (options.tell)(&format!(
                "the network loses full-size packets on the way to or from {}, and passes small ones: going on with \
                 those",
                self.server
            ));
        }
        true
    }

    /// Sends full-size packets and, until these have passed or `limit` is over, small ones again and again. Returns
    /// whether full-size ones passed; `None` if they did not, but not all small ones either.
    fn round(&self, small: &Small, limit: Duration) -> Option<bool> {
        std::thread::scope(|scope| {
            let (tell, told) = std::sync::mpsc::channel();
            scope.spawn(move || tell.send(self.test(&self.whole, limit)));
            let (mut passed, mut is_lost) = (0, false);
            loop {
                match told.recv_timeout(limit / SMALL_TESTS) {
                    Ok(true) => return Some(true),
                    Ok(false) => return (!is_lost && passed >= SMALL_MIN).then_some(false),
                    Err(RecvTimeoutError::Timeout) if is_lost => {}
                    Err(RecvTimeoutError::Timeout) => match self.test(&small.http, limit) {
                        true => passed += 1,
                        false => is_lost = true,
                    },
                    Err(RecvTimeoutError::Disconnected) => return None,
                }
            }
        })
    }

    /// Whether the server's machine accepts connections at all, which takes small packets only.
    fn is_there(&self) -> bool {
        let addresses = addresses_of(&self.server).unwrap_or_default();
        addresses.iter().any(|address| TcpStream::connect_timeout(address, TEST_MAX / 3).is_ok())
    }

    /// Whether a request and an answer of several packets pass within `limit`.
    fn test(&self, http: &Http, limit: Duration) -> bool {
        let request = http.get(self.server.clone()).header("x-padding", "-".repeat(TEST_REQUEST_BYTES));
        let answer = request.timeout(limit).send().and_then(Response::bytes);
        answer.is_ok_and(|answer| answer.len() >= TEST_ANSWER_BYTES)
    }

    fn small(&self, options: &ClientOptions) -> Result<Small> {
        let server = self.server.clone();
        let resolve = move || addresses_of(&server);
        let relay = Relay::start(Arc::new(resolve));
        let relay = relay.map_err(|error| failed(&self.server, error.into()))?;
        let path = relay.path();
        let http = build(&self.server, &self.credential, options, options.connect_timeout, |builder| {
            builder.unix_socket(path)
        })?;
        Ok(Small { http, _relay: relay })
    }
}

/// The addresses of the server at `url` on the network.
pub(super) fn addresses_of(url: &Url) -> std::io::Result<Vec<SocketAddr>> {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    let port = url.port_or_known_default().unwrap_or(api::PORT_DEFAULT);
    Ok((host, port).to_socket_addrs()?.collect())
}

fn build(
    server: &Url,
    credential: &Arc<Credential>,
    options: &ClientOptions,
    connect_timeout: Duration,
    more: impl FnOnce(ClientBuilder) -> ClientBuilder,
) -> Result<Http> {
    let builder = Http::builder()
        .connect_timeout(connect_timeout)
        .timeout(options.request_timeout)
        .tcp_user_timeout(SILENCE_MAX)
        .tcp_keepalive(KEEPALIVE)
        .tcp_keepalive_interval(KEEPALIVE)
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy();
    let tls = tls::pinned(Arc::clone(credential)).map_err(|error| failed(server, error.into()))?;
    more(builder).use_preconfigured_tls(tls).build().map_err(|error| failed(server, error.into()))
}

fn failed(server: &Url, error: Box<dyn std::error::Error + Send + Sync>) -> Error {
    Error::from_source(ErrorKind::Io, format!("set up a client of {server}"), error)
}
