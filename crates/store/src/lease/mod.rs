//! Leases: what a writer or a prune counts on while it works, as a log of create-only records that it appends to until
//! somebody appends `revoked`. formats/repository.md, "Pruning".

mod complete;
pub(crate) mod epoch;
pub(crate) mod filter;
pub(crate) mod writer;

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use base::limits::MANIFEST_BYTES_MAX;
use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use image::{ChunkSize, Root, SignedManifest};
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};

use crate::backend::Created;
use crate::layout;
use crate::lease::epoch::Epoch;
use crate::names::ImageName;
use crate::process::Process;
use crate::record::{self, RECORD_BYTES_MAX, Stamp};
use crate::repository::Repository;
use crate::versions::RACES_MAX;

const LEASE: &str = "lease";
/// How often an owner says that it lives. A prune waits many times as long.
const BEAT: Duration = Duration::from_secs(60);

/// What a lease was taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Purpose {
    /// To add versions.
    Write,
    /// To prune.
    Prune,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Begin,
    Alive,
    Delete,
    Closed,
    Revoked,
}

/// The body of an entry that is no commit.
#[derive(Debug, Serialize, Deserialize)]
struct Body {
    entry: Kind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    owner: Option<Owner>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    part: Option<u64>,
    nonce: String,
}

/// Who took a lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// What for.
    pub purpose: Purpose,
    /// When, RFC 3339, by the owner's clock.
    pub created: String,
    /// A person or a program.
    pub creator: String,
    /// The process that holds it, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<Process>,
}

/// One entry of a lease.
#[derive(Debug)]
pub(crate) enum Entry {
    Begin(Owner),
    Alive,
    /// The part of its candidates that a prune deletes now.
    Delete(u64),
    /// A commit, and the manifest as it is to be stored.
    Commit(Commit, Bytes),
    Closed,
    Revoked,
}

/// A version that a writer is about to create.
#[derive(Debug, Clone)]
pub(crate) struct Commit {
    pub(crate) image: ImageName,
    pub(crate) number: u64,
    pub(crate) root: Root,
    pub(crate) size: ChunkSize,
}

/// Entry `entry` of a lease; `None` if there is none yet.
pub(crate) fn read(repository: &Repository, epoch: u64, lease: u64, entry: u64) -> Result<Option<Entry>> {
    let path = layout::lease_entry(epoch, lease, entry);
    let bytes = match repository.backend.read_record(&path, u64::from(MANIFEST_BYTES_MAX)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        result => result?,
    };
    if !bytes.starts_with(b"{") {
        return Ok(Some(Entry::Commit(commit(repository, path.as_ref(), &bytes)?, bytes)));
    }
    let body: Body =
        record::decode(LEASE, path.as_ref(), &record::decrypt(repository.cipher(), path.as_ref(), bytes)?)?;
    let incomplete = || Error::new(ErrorKind::Corrupt, format!("`{path}` does not say all that it should"));
    Ok(Some(match body.entry {
        Kind::Begin => Entry::Begin(body.owner.ok_or_else(incomplete)?),
        Kind::Alive => Entry::Alive,
        Kind::Delete => Entry::Delete(body.part.ok_or_else(incomplete)?),
        Kind::Closed => Entry::Closed,
        Kind::Revoked => Entry::Revoked,
    }))
}

fn commit(repository: &Repository, path: &str, bytes: &Bytes) -> Result<Commit> {
    let failed = |error: Error| error.within(format!("read `{path}`"));
    let opened =
        repository.cipher().decrypt_manifest(bytes).and_then(|envelope| SignedManifest::open(&envelope));
    let manifest = opened.map_err(failed)?.manifest;
    Ok(Commit {
        image: manifest.image.parse()?,
        number: manifest.number,
        root: manifest.root,
        size: manifest.layout().map_err(failed)?.chunk,
    })
}

/// Appends `revoked` as entry `entry` of a lease, unless its owner was faster.
pub(crate) fn revoke(repository: &Repository, epoch: u64, lease: u64, entry: u64) -> Result<Created> {
    let bytes = encode(repository, Kind::Revoked, None, None)?;
    match repository.backend.create(&layout::lease_entry(epoch, lease, entry), &bytes) {
        // It was there, and is not any more: another prune deletes this log.
        Err(error) if error.kind() == ErrorKind::Exists => Ok(Created::Taken),
        created => created,
    }
}

fn encode(repository: &Repository, entry: Kind, owner: Option<Owner>, part: Option<u64>) -> Result<Bytes> {
    let body = Body { entry, owner, part, nonce: record::nonce()? };
    record::encrypt(repository.cipher(), record::encode(LEASE, &body))
}

/// An entry by which an owner says that it lives, as it is stored.
pub(crate) fn sealed_alive(repository: &Repository) -> Result<Bytes> {
    encode(repository, Kind::Alive, None, None)
}

/// The first entry of a lease of `owner`, as it is stored.
pub(crate) fn sealed_begin(repository: &Repository, owner: Owner) -> Result<Bytes> {
    encode(repository, Kind::Begin, Some(owner), None)
}

/// A lease that this process took. It is closed when it is dropped, as well as that can be done.
#[derive(Debug)]
pub(crate) struct Lease {
    repository: Repository,
    epoch: u64,
    number: u64,
    /// Its first entry, which tells it from a lease of the same number that somebody took too late.
    first: Bytes,
    log: Mutex<Log>,
}

#[derive(Debug)]
struct Log {
    next: u64,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    Closed,
    Revoked,
    /// Something was begun and its outcome is not known, so that nothing may be said any more.
    Undecided,
}

impl Lease {
    /// Takes a lease in the current epoch.
    pub(crate) fn take(repository: &Repository, purpose: Purpose, stamp: &Stamp) -> Result<(Self, Epoch)> {
        let (created, creator) = (stamp.created.clone(), stamp.creator.clone());
        let owner = Owner { purpose, created, creator, process: repository.processes.own() };
        for _ in 0..RACES_MAX {
            let epoch = Epoch::current(repository)?;
            let lease = match Self::take_in(repository, epoch.number, &owner) {
                // It was there, and is not any more: this epoch has passed, and its logs are being deleted.
                Err(error) if error.kind() == ErrorKind::Exists => continue,
                lease => lease?,
            };
            if !epoch.has_passed(repository)? {
                return Ok((lease, epoch));
            }
        }
        Err(Error::new(ErrorKind::Io, "take a lease: too many prunes begin at this moment"))
    }

    fn take_in(repository: &Repository, epoch: u64, owner: &Owner) -> Result<Self> {
        let bytes = encode(repository, Kind::Begin, Some(owner.clone()), None)?;
        let entry = |number| layout::lease_entry(epoch, number, 1);
        let free = crate::lease::epoch::first_absent(|number| repository.backend.exists(&entry(number)))?;
        for number in (free..).take(RACES_MAX as usize) {
            if repository.backend.create(&entry(number), &bytes)? == Created::Ours {
                let log = Mutex::new(Log { next: 2, state: State::Open });
                return Ok(Self { repository: repository.clone(), epoch, number, first: bytes, log });
            }
        }
        Err(Error::new(ErrorKind::Io, "take a lease: too many others do at this moment"))
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Says that the owner lives. `Revoked` if somebody thought otherwise.
    pub(crate) fn beat(&self) -> Result<()> {
        self.append_checked(&mut self.log(), &encode(&self.repository, Kind::Alive, None, None)?)
    }

    /// Says that the owner, a prune, deletes part `part` now.
    pub(crate) fn announce(&self, part: u64) -> Result<()> {
        self.append_checked(&mut self.log(), &encode(&self.repository, Kind::Delete, None, Some(part))?)
    }

    /// Commits to `manifest`, then creates its version by `create`. While the outcome is not known nothing else is
    /// appended, and if it never gets known, nothing ever.
    pub(crate) fn commit(
        &self,
        manifest: &Bytes,
        create: impl FnOnce() -> Result<Created>,
    ) -> Result<Created> {
        let mut log = self.log();
        let appended = self.append_checked(&mut log, manifest);
        if appended.is_err() && log.state == State::Open {
            log.state = State::Undecided;
        }
        appended?;
        log.state = State::Undecided;
        let created = create()?;
        log.state = State::Open;
        Ok(created)
    }

    /// Says that the owner does nothing more under it, as well as that can be said.
    pub(crate) fn close(&self) {
        let mut log = self.log();
        if log.state == State::Open {
            // A lease that stays open costs the next prune its patience, and nothing else.
            let _ = encode(&self.repository, Kind::Closed, None, None)
                .and_then(|bytes| self.append(&mut log, &bytes));
            log.state = State::Closed;
        }
    }

    /// Whether something can still be done under it.
    pub(crate) fn is_open(&self) -> bool {
        self.log().state == State::Open
    }

    /// Whether somebody took its owner for dead.
    pub(crate) fn is_revoked(&self) -> bool {
        self.log().state == State::Revoked
    }

    /// Leaves the lease open: what was begun under it may not be over.
    pub(crate) fn abandon(&self) {
        self.log().state = State::Undecided;
    }

    /// Appends an entry, and makes sure that the log was whole: the first entry of a log is deleted before all others,
    /// and an entry that was deleted could be created twice.
    fn append_checked(&self, log: &mut Log, bytes: &Bytes) -> Result<()> {
        self.append(log, bytes)?;
        let path = layout::lease_entry(self.epoch, self.number, 1);
        let is_ours = match self.repository.backend.read_record(&path, RECORD_BYTES_MAX) {
            Ok(first) if first == self.first => true,
            // Another's, or a damaged one, which is an error.
            Ok(first) => {
                let first = record::decrypt(self.repository.cipher(), path.as_ref(), first)?;
                record::decode::<Body>(LEASE, path.as_ref(), &first).map(|_| false)?
            }
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        };
        if is_ours {
            return Ok(());
        }
        log.state = State::Revoked;
        Err(revoked())
    }

    fn append(&self, log: &mut Log, bytes: &Bytes) -> Result<()> {
        loop {
            match log.state {
                State::Open => {}
                State::Closed | State::Revoked => return Err(revoked()),
                State::Undecided => {
                    let text = "an earlier change under this lease was never answered: start again";
                    return Err(Error::new(ErrorKind::Revoked, text));
                }
            }
            let path = layout::lease_entry(self.epoch, self.number, log.next);
            let created = match self.repository.backend.create(&path, bytes) {
                // It was there, and is not any more: the log is being deleted.
                Err(error) if error.kind() == ErrorKind::Exists => Created::Taken,
                created => created?,
            };
            if created == Created::Ours {
                log.next += 1;
                return Ok(());
            }
            match read(&self.repository, self.epoch, self.number, log.next)? {
                None | Some(Entry::Revoked) => log.state = State::Revoked,
                // An entry of our own, whose reply was lost.
                Some(_) => log.next += 1,
            }
        }
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock()
    }
}

fn revoked() -> Error {
    let text = "a prune took this for dead, since it was silent for long, and revoked its lease: start again";
    Error::new(ErrorKind::Revoked, text)
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.close();
    }
}

/// A thread that says every minute that the owner of a lease lives.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Heartbeat {
    pub(crate) fn start(lease: Arc<Lease>) -> Result<Self> {
        let (stop, stopped) = channel::<()>();
        let beat = move || {
            while stopped.recv_timeout(BEAT) == Err(RecvTimeoutError::Timeout) {
                // A beat that fails otherwise is tried again; a prune waits for several.
                if lease.beat().is_err_and(|error| error.kind() == ErrorKind::Revoked) {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("lease".to_owned()).spawn(beat);
        let thread = thread.map_err(|error| Error::from_io("start a thread that keeps a lease", error))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It does not panic, and if it did, the lease would just fall silent.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    macro_rules! golden {
        ($lease:literal, $entry:literal) => {
            include_str!(concat!(
                "../../../../golden/repository/v1/pruned/leases/00000000000000000001/0000000000000000000",
                $lease,
                ".0000000000000000000",
                $entry
            ))
        };
    }

    #[test]
    fn entries_are_still_written_as_they_were() {
        for (golden, entry) in [
            (golden!(1, 1), Kind::Begin),
            (golden!(1, 3), Kind::Closed),
            (golden!(2, 2), Kind::Alive),
            (golden!(2, 3), Kind::Revoked),
            (golden!(3, 1), Kind::Begin),
            (golden!(3, 2), Kind::Delete),
        ] {
            let body: Body = record::decode(LEASE, "golden", golden.as_bytes()).unwrap();
            assert_eq!(body.entry, entry);
            assert_eq!(record::encode(LEASE, &body), golden);
        }
    }
}
