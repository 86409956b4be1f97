//! The engine of several instances: etcd. One instance at a time holds a key that is bound to a lease of etcd, its
//! *seat*; whatever it reads or changes is done on the condition that the seat is still its own. So an instance that
//! was stopped for longer than its lease changes nothing when it goes on, and answers nothing from what it remembers.
//!
//! Each commit writes the seat, too, on the condition that nobody has written it since the last commit. So a commit
//! whose answer was lost can be sent again: it is made once, and what the seat holds tells whether it was.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::Notify;

pub use super::access::{EtcdAccess, EtcdUser, Secret};
use super::engine::{CHANGES_MAX, Condition, Engine, Stored, Write};
use super::failed::Failed;
use super::gateway::{Bytes, Gateway, KeyValue, Outcome, blocking, range};
use crate::clock::monotonic;
use crate::token::random;

/// Shortest lease of a seat; etcd makes it longer if its own elections take longer.
const LEASE_MIN: Duration = Duration::from_secs(2);
/// The longest time that history stays, however little there is.
const HISTORY_MAX: Duration = Duration::from_secs(3600);

/// Where etcd is.
#[derive(Debug)]
pub struct EtcdSetting {
    /// Its members: `https://10.0.0.1:2379`.
    pub members: Vec<String>,
    /// How it and this instance recognise each other.
    pub access: EtcdAccess,
    /// What the keys of this cluster begin with: one etcd can serve several.
    pub prefix: String,
    /// How long an instance that fell silent keeps the others waiting, about.
    pub lease: Duration,
    /// After so many changes etcd is asked to drop the history before.
    pub history: u64,
}

/// An etcd cluster, as an instance of the metadata service uses it.
#[derive(Debug)]
pub struct Etcd {
    gateway: Gateway,
    prefix: String,
    lease: Duration,
    history: u64,
    /// The revision up to which history was dropped, and when.
    compacted: Mutex<(u64, base::Instant)>,
}

/// What came of trying to become the leader.
#[derive(Debug)]
pub enum Election {
    /// This instance leads, with this engine.
    Won(Arc<Term>),
    /// Another one does: its address.
    Lost(String),
}

/// The time during which one instance leads: an engine that works as long as its seat is its own.
#[derive(Debug)]
pub struct Term {
    etcd: Arc<Etcd>,
    address: String,
    lease: i64,
    lease_lasts: Duration,
    created: i64,
    /// The revision in which the seat was written last. One commit at a time.
    written: Mutex<i64>,
    over: AtomicBool,
    ended: Notify,
}

/// What a seat holds.
#[derive(Debug, Serialize, Deserialize)]
struct Seat {
    /// Where the leader serves.
    address: String,
    /// That of the commit that wrote it.
    nonce: String,
}

fn seat(found: &KeyValue) -> Result<Seat> {
    let failed =
        |error| Error::from_source(ErrorKind::Corrupt, "read which instance leads, from etcd", error);
    serde_json::from_slice(&found.value.0).map_err(failed)
}

fn put(key: &str, value: &[u8]) -> Value {
    json!({"request_put": {"key": Bytes(key.as_bytes().to_vec()), "value": Bytes(value.to_vec())}})
}

impl Etcd {
    /// Sets up the connection; nothing is asked yet.
    ///
    /// # Errors
    /// `Invalid` without a member, with an address that is none, or with certificates that can't be used; also if the
    /// password would pass in the clear. `Io` if the client can't be set up.
    pub fn open(setting: &EtcdSetting) -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            gateway: Gateway::new(&setting.members, &setting.access)?,
            prefix: setting.prefix.trim_matches('/').to_owned(),
            lease: setting.lease.max(LEASE_MIN),
            history: setting.history,
            compacted: Mutex::new((0, monotonic())),
        }))
    }

    fn seat_key(&self) -> String {
        format!("{}/leader", self.prefix)
    }

    fn key(&self, key: &str) -> String {
        format!("{}/state/{key}", self.prefix)
    }

    /// What the seat holds.
    fn look(&self) -> std::result::Result<Outcome, Failed> {
        self.gateway.transact(&json!({"success": [{"request_range": range(&self.seat_key())}]}))
    }

    /// Takes the seat for the instance at `address`, if it is free.
    ///
    /// # Errors
    /// `Io` if etcd does not answer, `Full` if its quota is used up; `Untrusted`, `Denied` and `Refused` say what is to
    /// be set up differently, there or here.
    pub fn campaign(self: &Arc<Self>, address: &str) -> Result<Election> {
        let seat_key = self.seat_key();
        if let Some(found) = self.look()?.found().first() {
            return Ok(Election::Lost(seat(found)?.address));
        }
        let (lease, lasts) = self.gateway.grant(self.lease)?;
        let own = Seat { address: address.to_owned(), nonce: nonce()? };
        let value = serde_json::to_vec(&own).expect("it is plain data");
        let mut take = put(&seat_key, &value);
        take["request_put"]["lease"] = lease.to_string().into();
        let transaction = json!({
            "compare": [is_absent(&seat_key)], "success": [take], "failure": [{"request_range": range(&seat_key)}],
        });
        let outcome = self.gateway.transact(&transaction)?;
        let created = if outcome.succeeded {
            outcome.revision()
        } else {
            // Taken by an earlier try, whose answer was lost, or by another instance.
            let taken = outcome.found();
            let holder = taken.first().map(|found| Ok::<_, Error>((seat(found)?, found.create_revision)));
            match holder.transpose()? {
                Some((holder, created)) if holder.nonce == own.nonce => created,
                holder => {
                    self.gateway.revoke(lease)?;
                    return Ok(Election::Lost(holder.map(|(holder, _)| holder.address).unwrap_or_default()));
                }
            }
        };
        Ok(Election::Won(Arc::new(Term {
            etcd: Arc::clone(self),
            address: own.address,
            lease,
            lease_lasts: lasts,
            created,
            written: Mutex::new(created),
            over: AtomicBool::new(false),
            ended: Notify::new(),
        })))
    }

    /// How often the seat is looked at while another instance has it.
    pub(super) fn look_every(&self) -> Duration {
        self.lease / 8
    }

    /// Asks etcd to drop its history, if there is much of it, or if it is old.
    fn tidy(&self) -> Result<()> {
        let mut compacted = self.compacted.lock();
        let (revision, now) = (self.gateway.revision(), monotonic());
        let is_due = revision >= compacted.0 + self.history || now.since(compacted.1) >= HISTORY_MAX;
        if is_due && revision > compacted.0 {
            self.gateway.compact(revision)?;
            *compacted = (revision, now);
        }
        Ok(())
    }
}

fn nonce() -> Result<String> {
    Ok(base::hex::encode(&random::<16>()?))
}

fn is_absent(key: &str) -> Value {
    json!({"target": "CREATE", "key": Bytes(key.as_bytes().to_vec()), "create_revision": "0"})
}

fn is_created_in(key: &str, revision: i64) -> Value {
    json!({"target": "CREATE", "key": Bytes(key.as_bytes().to_vec()), "create_revision": revision.to_string()})
}

fn is_written_in(key: &str, revision: i64) -> Value {
    json!({"target": "MOD", "key": Bytes(key.as_bytes().to_vec()), "mod_revision": revision.to_string()})
}

impl Term {
    /// Renews the lease of the seat; returns whether the seat is still this instance's, as far as it knows.
    ///
    /// # Errors
    /// `Io` if etcd does not answer.
    pub fn keep(&self) -> Result<bool> {
        if !self.etcd.gateway.renew(self.lease)? {
            self.end();
        }
        self.etcd.tidy()?;
        Ok(!self.is_over())
    }

    /// How often the lease is renewed.
    pub fn keep_every(&self) -> Duration {
        self.lease_lasts / 4
    }

    /// Leaves the seat to another instance.
    ///
    /// # Errors
    /// `Io` if etcd does not answer: the seat is free when its lease ends.
    pub fn resign(&self) -> Result<()> {
        self.end();
        self.etcd.gateway.revoke(self.lease)
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Waits until the seat was lost.
    pub(super) async fn ended(&self) {
        while !self.is_over() {
            self.ended.notified().await;
        }
    }

    fn end(&self) -> Error {
        self.over.store(true, Ordering::Release);
        self.ended.notify_one();
        Error::new(ErrorKind::Revoked, "another instance of the metadata service leads by now")
    }

    /// Asks a question on the condition that the seat is still this instance's.
    fn ask(&self, question: &Value) -> Result<Vec<KeyValue>> {
        if self.is_over() {
            return Err(self.end());
        }
        let transaction = json!({
            "compare": [is_created_in(&self.etcd.seat_key(), self.created)],
            "success": [{"request_range": question}],
        });
        let outcome = self.etcd.gateway.transact(&transaction)?;
        if outcome.succeeded { Ok(outcome.found()) } else { Err(self.end()) }
    }

    fn stored(&self, found: KeyValue) -> Result<(String, Stored)> {
        let base = self.etcd.key("");
        let wrong = || Error::new(ErrorKind::Corrupt, "etcd holds a key that is not valid");
        let key = String::from_utf8(found.key.0).map_err(|_| wrong())?;
        let key = key.strip_prefix(&base).ok_or_else(wrong)?.to_owned();
        let revision = u64::try_from(found.mod_revision).unwrap_or(0);
        Ok((key, Stored { value: found.value.0, revision }))
    }

    fn transaction(&self, written: i64, own: &Seat, conditions: &[Condition], writes: &[Write]) -> Value {
        let seat_key = self.etcd.seat_key();
        let mut compare = vec![is_written_in(&seat_key, written)];
        compare.extend(conditions.iter().map(|condition| match condition {
            Condition::Absent(key) => is_absent(&self.etcd.key(key)),
            Condition::Revision(key, revision) => {
                is_written_in(&self.etcd.key(key), i64::try_from(*revision).unwrap_or(i64::MAX))
            }
        }));
        let value = serde_json::to_vec(own).expect("it is plain data");
        let mut stay = put(&seat_key, &value);
        stay["request_put"]["lease"] = self.lease.to_string().into();
        let mut success = vec![stay];
        success.extend(writes.iter().map(|write| match write {
            Write::Put(key, value) => put(&self.etcd.key(key), value),
            Write::Remove(key) => json!({"request_delete_range": range(&self.etcd.key(key))}),
        }));
        json!({"compare": compare, "success": success, "failure": [{"request_range": range(&seat_key)}]})
    }
}

impl Engine for Term {
    fn leader(&self) -> Option<String> {
        Some(self.address.clone())
    }

    fn get(&self, key: &str) -> Result<Option<Stored>> {
        let found = self.ask(&range(&self.etcd.key(key)))?.into_iter().next();
        Ok(found.map(|found| self.stored(found)).transpose()?.map(|(_, stored)| stored))
    }

    fn list(&self, prefix: &str, after: &str, limit: usize) -> Result<Vec<(String, Stored)>> {
        let (first, last) = (self.etcd.key(prefix).into_bytes(), self.etcd.key(after).into_bytes());
        // The key behind one is the same with a zero byte.
        let from =
            if after >= prefix && !after.is_empty() { [last, vec![0]].concat() } else { first.clone() };
        let question = json!({
            "key": Bytes(from), "range_end": Bytes(end_of(first)), "limit": limit.to_string(),
        });
        self.ask(&question)?.into_iter().map(|found| self.stored(found)).collect()
    }

    fn commit(&self, conditions: &[Condition], writes: &[Write]) -> Result<bool> {
        if conditions.len() + writes.len() > CHANGES_MAX {
            return Err(Error::new(ErrorKind::Invalid, "too many changes at once"));
        }
        let own = Seat { address: self.address.clone(), nonce: nonce()? };
        blocking(|| {
            let mut written = self.written.lock();
            if self.is_over() {
                return Err(self.end());
            }
            let transaction = self.transaction(*written, &own, conditions, writes);
            let (outcome, refused): (Outcome, _) = match self.etcd.gateway.transact(&transaction) {
                Ok(outcome) => (outcome, None),
                // Whether it was made shows when this instance, or another one, takes the seat anew.
                Err(unknown @ Failed::Unknown(_)) => {
                    self.end();
                    return Err(unknown.into());
                }
                // The change with which the quota is exceeded is refused, but made: `quotaApplierV3` of etcd.
                Err(Failed::Refused(error)) if error.kind() == ErrorKind::Full => {
                    (self.etcd.look()?, Some(error))
                }
                Err(refused) => return Err(refused.into()),
            };
            if refused.is_none() && outcome.succeeded {
                *written = outcome.revision();
                return Ok(true);
            }
            match outcome.found().first() {
                // The seat is as this instance left it: nothing was made, since a condition of the caller does not
                // hold, or since it was refused.
                Some(found) if found.mod_revision == *written => refused.map_or(Ok(false), Err),
                // It was made, by an earlier try, or although it was refused.
                Some(found) if seat(found)?.nonce == own.nonce => {
                    *written = found.mod_revision;
                    Ok(true)
                }
                _ => Err(self.end()),
            }
        })
    }
}

/// The first key behind all that begin with `prefix`.
fn end_of(mut prefix: Vec<u8>) -> Vec<u8> {
    // Keys are text, which has no byte 255.
    *prefix.last_mut().expect("keys have a base") += 1;
    prefix
}
