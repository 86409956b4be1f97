//! Requests of the cluster's programs to each other.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use reqwest::{Client, RequestBuilder, Response, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::clock::monotonic;
use crate::problem::{Body, Problem, Word};
use crate::wire::{EPOCH_HEADER, LENGTH_HEADER};

/// Longest time to set up a connection.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// Most idle connections to one device.
const IDLE_MAX: usize = 32;

/// Wait before instances are asked again of which none leads.
const LEADER_PAUSE: Duration = Duration::from_millis(200);

/// What a request brings.
pub(crate) type Reply<T> = std::result::Result<T, Failure>;

/// Why a request brought no answer that can be used.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    /// The other side refused.
    Refused(Problem),
    /// It can't be reached, or its answer broke off.
    Unreachable(String),
}

impl Failure {
    pub(crate) fn word(&self) -> Option<Word> {
        match self {
            Self::Refused(problem) => Some(problem.word),
            Self::Unreachable(_) => None,
        }
    }

    pub(crate) fn into_error(self, what: &str) -> Error {
        match self {
            Self::Refused(problem) => Error::new(problem.word.kind(), format!("{what}: {}", problem.detail)),
            Self::Unreachable(why) => Error::new(ErrorKind::Unreachable, format!("{what}: {why}")),
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused(problem) => f.write_str(&problem.detail),
            Self::Unreachable(why) => f.write_str(why),
        }
    }
}

/// A client that keeps connections open. Each request has a timeout of its own.
pub(crate) fn client() -> Result<Client> {
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring knows TLS 1.2 and 1.3")
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    Client::builder()
        .use_preconfigured_tls(tls)
        .user_agent(concat!("diskcast/", env!("CARGO_PKG_VERSION")))
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_MAX)
        .pool_max_idle_per_host(IDLE_MAX)
        .tcp_nodelay(true)
        .build()
        .map_err(|error| Error::from_source(ErrorKind::Io, "set up the client of the cluster", error))
}

/// Sends a request; the answer is a success.
pub(crate) async fn send(request: RequestBuilder) -> Reply<Response> {
    let answer = request.send().await.map_err(|error| unreachable(&error))?;
    if answer.status().is_success() {
        return Ok(answer);
    }
    Err(refusal(answer).await)
}

/// Sends a request and takes the whole answer.
pub(crate) async fn send_for_bytes(request: RequestBuilder) -> Reply<Bytes> {
    send(request).await?.bytes().await.map_err(|error| unreachable(&error))
}

/// The instances of a metadata service.
pub(crate) struct Instances<'a> {
    pub(crate) addresses: &'a [String],
    /// The one that answered last.
    pub(crate) last: &'a AtomicUsize,
    /// How long to wait until one of them leads.
    pub(crate) patience: Duration,
}

/// Asks one instance after the other, from the one that answered last, until one leads and can be reached: what `read`
/// makes of its answer counts.
pub(crate) async fn ask_in_turn<T>(
    instances: Instances<'_>,
    request: impl Fn(&str) -> RequestBuilder,
    read: impl Fn(Reply<Bytes>) -> Reply<T>,
) -> Reply<T> {
    let Instances { addresses, last, patience } = instances;
    let end = monotonic() + patience;
    loop {
        let mut failed = Failure::Unreachable("no address of a metadata service is known".to_owned());
        let mut is_there = false;
        let first = last.load(Ordering::Relaxed);
        for at in (first..first + addresses.len()).map(|at| at % addresses.len()) {
            match read(send_for_bytes(request(&addresses[at])).await) {
                Err(Failure::Refused(problem)) if problem.word == Word::NotLeader => {
                    is_there = true;
                    failed = Failure::Unreachable(problem.detail);
                }
                // One that can't reach its database: perhaps another one leads.
                Err(failure) if matches!(failure.word(), None | Some(Word::Failed)) => failed = failure,
                answer => {
                    last.store(at, Ordering::Relaxed);
                    return answer;
                }
            }
        }
        if !is_there || monotonic() > end {
            return Err(failed);
        }
        tokio::time::sleep(LEADER_PAUSE).await;
    }
}

/// A request with a body of JSON.
pub(crate) fn with_json(request: RequestBuilder, body: &impl Serialize) -> RequestBuilder {
    let body = serde_json::to_vec(body).expect("bodies are plain data");
    request.header(reqwest::header::CONTENT_TYPE, "application/json").body(body)
}

/// Sends JSON and takes JSON.
pub(crate) async fn send_json<T: DeserializeOwned>(
    request: RequestBuilder,
    body: &impl Serialize,
) -> Reply<T> {
    get_json(with_json(request, body)).await
}

/// Takes JSON.
pub(crate) async fn get_json<T: DeserializeOwned>(request: RequestBuilder) -> Reply<T> {
    json(send_for_bytes(request).await)
}

/// An answer of JSON.
pub(crate) fn json<T: DeserializeOwned>(answer: Reply<Bytes>) -> Reply<T> {
    serde_json::from_slice(&answer?)
        .map_err(|error| Failure::Unreachable(format!("the answer is no JSON of ours: {error}")))
}

async fn refusal(answer: Response) -> Failure {
    let status = answer.status();
    let number = |name| answer.headers().get(name)?.to_str().ok()?.parse::<u64>().ok();
    let number = number(EPOCH_HEADER).or_else(|| number(LENGTH_HEADER));
    let body = answer.bytes().await.unwrap_or_default();
    match serde_json::from_slice::<Body>(&body) {
        Ok(body) => Failure::Refused(Problem { word: body.problem, detail: body.detail, number }),
        Err(_) if status == StatusCode::NOT_FOUND => {
            Failure::Unreachable("something else answers there: it does not know this command".to_owned())
        }
        Err(_) => {
            let text: String = String::from_utf8_lossy(&body).chars().take(200).collect();
            Failure::Unreachable(format!("status {status}: {}", text.escape_debug()))
        }
    }
}

fn unreachable(error: &reqwest::Error) -> Failure {
    // The causes above the last one only say that this is about a request.
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    let place =
        error.url().and_then(|url| Some(format!("{}:{}", url.host_str()?, url.port_or_known_default()?)));
    let place = place.unwrap_or_else(|| "the other side".to_owned());
    if error.is_timeout() {
        return Failure::Unreachable(format!("{place} does not answer in time"));
    }
    Failure::Unreachable(format!("{place}: {cause}"))
}
