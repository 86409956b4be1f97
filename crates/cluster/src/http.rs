//! Requests of the cluster's programs to each other.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base::{Error, ErrorKind, Result, Subject};
use bytes::Bytes;
use reqwest::{Client, ClientBuilder, RequestBuilder, Response, StatusCode, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::authority::Authority;
use crate::buffers::Buffers;
use crate::clock::monotonic;
use crate::problem::{Body, Problem, Word};
use crate::token::ClusterToken;
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
    /// What answers there is no part of this cluster, or one of the two speaks TLS and the other does not.
    Untrusted(String),
}

impl Failure {
    pub(crate) fn word(&self) -> Option<Word> {
        match self {
            Self::Refused(problem) => Some(problem.word),
            Self::Unreachable(_) | Self::Untrusted(_) => None,
        }
    }

    pub(crate) fn into_error(self, what: &str) -> Error {
        let (kind, why) = match self {
            Self::Refused(problem) => (problem.word.kind(), problem.detail),
            Self::Unreachable(why) => (ErrorKind::Unreachable, why),
            Self::Untrusted(why) => (ErrorKind::Untrusted, why),
        };
        Error::new(kind, format!("{what}: {why}")).about(Subject::Cluster)
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused(problem) => f.write_str(&problem.detail),
            Self::Unreachable(why) | Self::Untrusted(why) => f.write_str(why),
        }
    }
}

/// A client of the parts of the cluster with this token, which keeps connections open. With `tls` it sends nothing in
/// plain HTTP, whatever the map says. Each request has a timeout of its own.
pub(crate) fn client(token: &ClusterToken, tls: bool) -> Result<Client> {
    made(Client::builder().use_preconfigured_tls(Authority::of(token)?.client()?).https_only(tls))
}

/// A client of the cluster's programs, as `builder` wants it.
pub(crate) fn made(builder: ClientBuilder) -> Result<Client> {
    builder
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

/// Sends a request and takes the whole answer, which has `bytes` bytes, into a buffer that is used again.
pub(crate) async fn send_for_buffer(
    request: RequestBuilder,
    buffers: &Buffers,
    bytes: usize,
) -> Reply<Bytes> {
    let mut answer = send(request).await?;
    let mut whole = buffers.fill(bytes);
    let wrong = || Failure::Unreachable("an answer is longer or shorter than what was asked for".to_owned());
    while let Some(part) = answer.chunk().await.map_err(|error| unreachable(&error))? {
        whole.push(&part).ok_or_else(wrong)?;
    }
    if whole.len() == bytes { Ok(whole.freeze()) } else { Err(wrong()) }
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
        .map_err(|error| Failure::Unreachable(format!("the answer is not the expected JSON: {error}")))
}

async fn refusal(answer: Response) -> Failure {
    let status = answer.status();
    let place = place(Some(answer.url()));
    let number = |name| answer.headers().get(name)?.to_str().ok()?.parse::<u64>().ok();
    let number = number(EPOCH_HEADER).or_else(|| number(LENGTH_HEADER));
    let body = answer.bytes().await.unwrap_or_default();
    match serde_json::from_slice::<Body>(&body) {
        Ok(body) if body.problem == Word::Tls => Failure::Untrusted(format!(
            "{place} speaks TLS: its location begins with cluster://, and its devices need no --no-tls"
        )),
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
    let place = place(error.url());
    if error.is_timeout() {
        return Failure::Unreachable(format!("{place} does not answer in time"));
    }
    match tls_failure(cause) {
        Some(rustls::Error::InvalidCertificate(_)) => Failure::Untrusted(format!(
            "{place} has no certificate of this cluster: it, or the token, belongs to another cluster"
        )),
        // What came is no TLS at all.
        Some(rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType)) => {
            Failure::Untrusted(format!(
                "{place} speaks plain HTTP: its location begins with cluster+http://, and its devices need --no-tls"
            ))
        }
        _ => Failure::Unreachable(format!("{place}: {cause}")),
    }
}

/// The host and the port of a request.
pub(crate) fn place(url: Option<&Url>) -> String {
    let place = url.and_then(|url| Some(format!("{}:{}", url.host_str()?, url.port_or_known_default()?)));
    place.unwrap_or_else(|| "the other side".to_owned())
}

/// What TLS says about a failed request. It lies in errors of I/O, which do not name it as their source.
pub(crate) fn tls_failure<'a>(cause: &'a (dyn std::error::Error + 'static)) -> Option<&'a rustls::Error> {
    let inner = |error: &'a std::io::Error| tls_failure(error.get_ref()?);
    cause.downcast_ref().or_else(|| cause.downcast_ref().and_then(inner))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_with_tls_sends_nothing_in_plain_http() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let token = ClusterToken::random().unwrap();
        let plain = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        plain.set_nonblocking(true).unwrap();
        let url = format!("http://{}/device/v1/status", plain.local_addr().unwrap());
        let failed = runtime.block_on(send(client(&token, true).unwrap().get(url))).unwrap_err();
        assert!(matches!(failed, Failure::Unreachable(_)), "{failed}");
        assert_eq!(plain.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "nobody came");
    }
}
