//! Requests to etcd through its JSON gateway, which needs no protobuf compiler. Any member will do: the next one is
//! asked when one fails. etcd's own description: `rpc.proto` of version 3.4.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use parking_lot::Mutex;
use reqwest::header::AUTHORIZATION;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Handle, Runtime, RuntimeFlavor};

use super::access::{EtcdAccess, EtcdUser, Secret};
use super::failed::{Failed, refused, unanswered};
use crate::clock::monotonic;
use crate::http::with_json;

/// Longest wait for one member.
const MEMBER_MAX: Duration = Duration::from_secs(1);
/// Longest wait for a member that drops its history.
const COMPACT_MAX: Duration = Duration::from_secs(30);
/// How long requests are repeated; etcd elects a leader in less.
const TRY_MAX: Duration = Duration::from_secs(8);
/// Longest wait for a member that verifies a password, which is slow on purpose.
const PASSWORD_MAX: Duration = Duration::from_secs(3);
/// Wait before all members are asked once more.
const PAUSE: Duration = Duration::from_millis(50);

/// The members of an etcd cluster.
#[derive(Debug)]
pub(super) struct Gateway {
    members: Vec<String>,
    /// The one that answered last.
    last: AtomicUsize,
    /// The newest revision that an answer named.
    revision: AtomicU64,
    http: reqwest::Client,
    user: Option<EtcdUser>,
    /// What etcd gave the user last.
    token: Mutex<Option<Secret>>,
    /// A thread of its own: who waits for an answer may stand in the way of other tasks.
    runtime: Option<Runtime>,
}

/// Bytes, as base64 in JSON.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Bytes(pub(super) Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_str(&BASE64.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        BASE64.decode(text).map(Self).map_err(serde::de::Error::custom)
    }
}

/// A number of 64 bits, which is text in JSON.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<i64, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

/// A value. etcd leaves out what is zero or empty.
#[derive(Debug, Deserialize)]
pub(super) struct KeyValue {
    pub(super) key: Bytes,
    #[serde(default)]
    pub(super) value: Bytes,
    #[serde(deserialize_with = "number")]
    pub(super) create_revision: i64,
    #[serde(deserialize_with = "number")]
    pub(super) mod_revision: i64,
}

#[derive(Debug, Default, Deserialize)]
struct Header {
    #[serde(default, deserialize_with = "number")]
    revision: i64,
}

#[derive(Debug, Default, Deserialize)]
struct Range {
    #[serde(default)]
    kvs: Vec<KeyValue>,
}

#[derive(Debug, Default, Deserialize)]
struct Response {
    #[serde(default)]
    response_range: Range,
}

/// What a transaction did.
#[derive(Debug, Deserialize)]
pub(super) struct Outcome {
    header: Header,
    /// Whether all that was compared was as wanted.
    #[serde(default)]
    pub(super) succeeded: bool,
    #[serde(default)]
    responses: Vec<Response>,
}

impl Outcome {
    /// etcd's revision after it.
    pub(super) fn revision(&self) -> i64 {
        self.header.revision
    }

    /// What its only question found.
    pub(super) fn found(self) -> Vec<KeyValue> {
        self.responses.into_iter().flat_map(|response| response.response_range.kvs).collect()
    }
}

/// A lease. One that ended has no time to live.
#[derive(Debug, Deserialize)]
struct Lease {
    #[serde(rename = "ID", deserialize_with = "number")]
    id: i64,
    #[serde(rename = "TTL", default, deserialize_with = "number")]
    seconds: i64,
}

/// What a stream of the gateway brings.
#[derive(Debug, Deserialize)]
struct Streamed<T> {
    result: T,
}

/// What etcd gives a user that shows the right password.
#[derive(Deserialize)]
struct Authenticated {
    token: String,
}

/// A question for one key.
pub(super) fn range(key: &str) -> Value {
    json!({"key": Bytes(key.as_bytes().to_vec())})
}

impl Gateway {
    /// The cluster with these members: `https://10.0.0.1:2379`.
    ///
    /// # Errors
    /// `Invalid` without a member, and as [`EtcdAccess::client`]; `Io` if there is no thread.
    pub(super) fn new(members: &[String], access: &EtcdAccess) -> Result<Self> {
        let none = || Error::new(ErrorKind::Invalid, "etcd needs the address of at least one member");
        let members: Vec<_> = members.iter().map(|member| member.trim_end_matches('/').to_owned()).collect();
        members.first().ok_or_else(none)?;
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("etcd").enable_all().build();
        let failed = |error| Error::from_io("start the thread that talks to etcd", error);
        let http = access.client(&members)?;
        Ok(Self {
            members,
            last: AtomicUsize::new(0),
            revision: AtomicU64::new(0),
            http,
            user: access.user.clone(),
            token: Mutex::new(None),
            runtime: Some(runtime.map_err(failed)?),
        })
    }

    /// Makes all changes of a transaction, or none; or answers questions of one moment. It is sent until a member
    /// answers: one that changes something must be such that it can't be made twice.
    pub(super) fn transact(&self, transaction: &Value) -> std::result::Result<Outcome, Failed> {
        let end = monotonic() + TRY_MAX;
        let mut lost = false;
        let outcome: Outcome = loop {
            match self.ask("kv/txn", transaction, MEMBER_MAX, &mut lost) {
                Err(Failed::Unknown(_)) if monotonic() < end => self.pause(),
                // Another try may still be made, or was: whoever asks can see that only in the seat. One that exceeds
                // the quota is refused always, and `commit` looks at the seat then.
                Err(Failed::Refused(error) | Failed::Untrusted(error) | Failed::Token(error))
                    if lost && error.kind() != ErrorKind::Full =>
                {
                    return Err(Failed::Unknown(base::chain(&error)));
                }
                other => break other?,
            }
        };
        self.revision.fetch_max(u64::try_from(outcome.revision()).unwrap_or(0), Ordering::Relaxed);
        Ok(outcome)
    }

    /// A new lease of about this length; returns its number, and how long it really lasts.
    pub(super) fn grant(&self, lasts: Duration) -> Result<(i64, Duration)> {
        let seconds = lasts.as_secs() + u64::from(lasts.subsec_nanos() > 0);
        let lease: Lease =
            self.ask("lease/grant", &json!({"TTL": seconds.to_string()}), MEMBER_MAX, &mut false)?;
        Ok((lease.id, Duration::from_secs(u64::try_from(lease.seconds).unwrap_or(0))))
    }

    /// Renews a lease; returns whether there still was one.
    pub(super) fn renew(&self, lease: i64) -> Result<bool> {
        let kept: Streamed<Lease> =
            self.ask("lease/keepalive", &json!({"ID": lease.to_string()}), MEMBER_MAX, &mut false)?;
        Ok(kept.result.seconds > 0)
    }

    /// Ends a lease, and all keys that it holds.
    pub(super) fn revoke(&self, lease: i64) -> Result<()> {
        let revoked =
            self.ask::<Value>("lease/revoke", &json!({"ID": lease.to_string()}), MEMBER_MAX, &mut false);
        match revoked {
            Err(Failed::Refused(error)) if error.kind() == ErrorKind::NotFound => Ok(()),
            other => Ok(other.map(drop)?),
        }
    }

    /// Drops the history before `revision`.
    pub(super) fn compact(&self, revision: u64) -> Result<()> {
        let asked = self.ask::<Value>(
            "kv/compaction",
            &json!({"revision": revision.to_string()}),
            COMPACT_MAX,
            &mut false,
        );
        match asked {
            // Somebody was faster.
            Err(Failed::Refused(error)) if error.kind() == ErrorKind::Invalid => Ok(()),
            other => Ok(other.map(drop)?),
        }
    }

    /// The newest revision that an answer named.
    pub(super) fn revision(&self) -> u64 {
        self.revision.load(Ordering::Relaxed)
    }

    /// Asks one member after the other, from the one that answered last, each once. `lost` becomes true if it is not
    /// known what came of a try.
    fn ask<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &Value,
        wait: Duration,
        lost: &mut bool,
    ) -> std::result::Result<T, Failed> {
        let first = self.last.load(Ordering::Relaxed);
        let mut failed = None;
        for at in (first..first + self.members.len()).map(|at| at % self.members.len()) {
            match self.ask_member(at, path, body, wait) {
                Ok(answer) => {
                    self.last.store(at, Ordering::Relaxed);
                    return parsed(&answer);
                }
                Err(refused @ (Failed::Refused(_) | Failed::Token(_))) => return Err(refused),
                Err(unknown @ Failed::Unknown(_)) => {
                    *lost = true;
                    failed = Some(unknown);
                }
                // What is unknown counts more.
                Err(untrusted @ Failed::Untrusted(_)) => failed = failed.or(Some(untrusted)),
            }
        }
        Err(failed.expect("there is a member"))
    }

    /// Asks one member, with another token if the one that there is has ended.
    fn ask_member(
        &self,
        at: usize,
        path: &str,
        body: &Value,
        wait: Duration,
    ) -> std::result::Result<bytes::Bytes, Failed> {
        let token = self.token(at, None)?;
        match self.post(at, path, body, wait, token.as_ref()) {
            Err(Failed::Token(_)) if token.is_some() => {
                let fresh = self.token(at, token.as_ref())?;
                self.post(at, path, body, wait, fresh.as_ref())
            }
            answer => answer,
        }
    }

    /// A token of the user, other than the one that was `refused`; a member is asked for it if there is none.
    fn token(&self, at: usize, refused: Option<&Secret>) -> std::result::Result<Option<Secret>, Failed> {
        let Some(user) = &self.user else { return Ok(None) };
        blocking(|| {
            // One asks, and the others wait for what it gets.
            let mut token = self.token.lock();
            if token.as_ref() == refused {
                let body = json!({"name": user.name, "password": user.password.0});
                let answer = self.post(at, "auth/authenticate", &body, PASSWORD_MAX, None)?;
                *token = Some(Secret(parsed::<Authenticated>(&answer)?.token));
            }
            Ok(token.clone())
        })
    }

    fn post(
        &self,
        at: usize,
        path: &str,
        body: &Value,
        wait: Duration,
        token: Option<&Secret>,
    ) -> std::result::Result<bytes::Bytes, Failed> {
        let mut request = self.http.post(format!("{}/v3/{path}", self.members[at])).timeout(wait);
        if let Some(Secret(token)) = token {
            request = request.header(AUTHORIZATION, token);
        }
        self.wait_for(with_json(request, body))
    }

    fn pause(&self) {
        let (tell, told) = channel();
        self.runtime().spawn(async move {
            tokio::time::sleep(PAUSE).await;
            tell.send(())
        });
        let _ = blocking(|| told.recv());
    }

    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("it is taken when dropped")
    }

    /// Sends a request from the own thread, and waits here for its answer.
    fn wait_for(&self, request: reqwest::RequestBuilder) -> std::result::Result<bytes::Bytes, Failed> {
        let (tell, told) = channel();
        self.runtime().spawn(async move { tell.send(send(request).await) });
        // It was sent by a task that ends by its timeout.
        let waiting = || told.recv().unwrap_or_else(|_| Err(Failed::Unknown("a thread failed".to_owned())));
        blocking(waiting)
    }
}

/// Waits where it holds up nobody else, whether in async code or not.
pub(super) fn blocking<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // The owner may be in async code, where waiting for the thread is not allowed.
            runtime.shutdown_background();
        }
    }
}

async fn send(request: reqwest::RequestBuilder) -> std::result::Result<bytes::Bytes, Failed> {
    let answer = request.send().await.map_err(unanswered)?;
    let status = answer.status();
    let body = answer.bytes().await.map_err(unanswered)?;
    if status.is_success() { Ok(body) } else { Err(refused(status, &body)) }
}

fn parsed<T: DeserializeOwned>(answer: &[u8]) -> std::result::Result<T, Failed> {
    serde_json::from_slice(answer)
        .map_err(|error| Failed::Unknown(format!("its answer can't be read: {error}")))
}
