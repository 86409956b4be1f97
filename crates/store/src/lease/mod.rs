//! Leases: a lease protects the objects that a writer or a prune relies on while it works. It is a log of create-only
//! records; only its owner appends, until a prune appends `revoked`. formats/repository.md, "Pruning".

mod complete;
pub(crate) mod epoch;
pub(crate) mod filter;
pub(crate) mod reading;
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
/// How often an owner appends `alive`. A prune waits many times as long before it revokes.
const BEAT: Duration = Duration::from_secs(60);

/// The purpose of a lease.
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

/// The body of an entry other than a commit.
#[derive(Debug, Serialize, Deserialize)]
struct Body {
    entry: Kind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    owner: Option<Owner>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    part: Option<u64>,
    nonce: String,
}

/// The owner of a lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// What the lease is for.
    pub purpose: Purpose,
    /// Time of the `begin` entry, RFC 3339, by the owner's clock.
    pub created: String,
    /// The user or program that took the lease.
    pub creator: String,
    /// The process that holds the lease, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<Process>,
    /// The version that is read under the lease, as `image@version`, if it is one of a reader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reads: Option<String>,
}

/// One entry of a lease.
#[derive(Debug)]
pub(crate) enum Entry {
    Begin(Owner),
    Alive,
    /// The prune now deletes the part of its candidates with this number.
    Delete(u64),
    /// A commit, and its manifest as it will be stored.
    Commit(Commit, Bytes),
    Closed,
    Revoked,
}

/// A version that a writer is going to create.
#[derive(Debug, Clone)]
pub(crate) struct Commit {
    pub(crate) image: ImageName,
    pub(crate) number: u64,
    pub(crate) root: Root,
    pub(crate) size: ChunkSize,
}

/// Reads entry `entry` of a lease; `None` if it does not exist.
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
    let incomplete = || Error::new(ErrorKind::Corrupt, format!("`{path}` is damaged: a field is missing"));
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

/// Appends `revoked` as entry `entry` of a lease. `Taken` if the owner appended an entry first.
pub(crate) fn revoke(repository: &Repository, epoch: u64, lease: u64, entry: u64) -> Result<Created> {
    let bytes = encode(repository, Kind::Revoked, None, None)?;
    match repository.backend.create(&layout::lease_entry(epoch, lease, entry), &bytes) {
        // The create found an entry, but reading it back did not: another prune is deleting this log.
        Err(error) if error.kind() == ErrorKind::Exists => Ok(Created::Taken),
        created => created,
    }
}

fn encode(repository: &Repository, entry: Kind, owner: Option<Owner>, part: Option<u64>) -> Result<Bytes> {
    let body = Body { entry, owner, part, nonce: record::nonce()? };
    record::encrypt(repository.cipher(), record::encode(LEASE, &body))
}

/// An `alive` entry as it is stored.
pub(crate) fn sealed_alive(repository: &Repository) -> Result<Bytes> {
    encode(repository, Kind::Alive, None, None)
}

/// The first entry of a lease of `owner`, as it is stored.
pub(crate) fn sealed_begin(repository: &Repository, owner: Owner) -> Result<Bytes> {
    encode(repository, Kind::Begin, Some(owner), None)
}

/// A lease that this process took. Dropping it closes it, without reporting errors.
#[derive(Debug)]
pub(crate) struct Lease {
    repository: Repository,
    epoch: u64,
    number: u64,
    /// Its first entry. It differs from that of any other lease that got the same number after this log was deleted.
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
    /// A request was sent and its outcome is not known, so nothing more may be appended.
    Undecided,
}

impl Lease {
    /// Takes a lease in the current epoch, and returns it with that epoch.
    pub(crate) fn take(repository: &Repository, purpose: Purpose, stamp: &Stamp) -> Result<(Self, Epoch)> {
        Self::take_to_read(repository, purpose, stamp, None)
    }

    /// The same, to read the version `reads`.
    pub(crate) fn take_to_read(
        repository: &Repository,
        purpose: Purpose,
        stamp: &Stamp,
        reads: Option<String>,
    ) -> Result<(Self, Epoch)> {
        let (created, creator) = (stamp.created.clone(), stamp.creator.clone());
        let owner = Owner { purpose, created, creator, process: repository.processes.own(), reads };
        for _ in 0..RACES_MAX {
            let epoch = Epoch::current(repository)?;
            let lease = match Self::take_in(repository, epoch.number, &owner) {
                // An entry was found but is gone now: this epoch has passed, and its logs are being deleted.
                Err(error) if error.kind() == ErrorKind::Exists => continue,
                lease => lease?,
            };
            // A prune that began in between may not have seen this lease, and this lease ignores its candidates:
            // start again.
            if !epoch.has_passed(repository)? {
                return Ok((lease, epoch));
            }
        }
        Err(Error::new(ErrorKind::Io, "take a lease: too many prunes begin now"))
    }

    fn take_in(repository: &Repository, epoch: u64, owner: &Owner) -> Result<Self> {
        let bytes = encode(repository, Kind::Begin, Some(owner.clone()), None)?;
        let entry = |number| layout::lease_entry(epoch, number, 1);
        let free = crate::lease::epoch::first_absent(|number| repository.backend.exists(&entry(number)))?;
        // Other processes may take the same number at this moment: then try the next one.
        for number in (free..).take(RACES_MAX as usize) {
            if repository.backend.create(&entry(number), &bytes)? == Created::Ours {
                let log = Mutex::new(Log { next: 2, state: State::Open });
                return Ok(Self { repository: repository.clone(), epoch, number, first: bytes, log });
            }
        }
        Err(Error::new(ErrorKind::Io, "take a lease: too many other processes take leases now"))
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Appends `alive`. `Revoked` if a prune has revoked the lease.
    pub(crate) fn beat(&self) -> Result<()> {
        self.append_checked(&mut self.log(), &encode(&self.repository, Kind::Alive, None, None)?)
    }

    /// Appends that the owner, a prune, deletes part `part` from now on.
    pub(crate) fn announce(&self, part: u64) -> Result<()> {
        self.append_checked(&mut self.log(), &encode(&self.repository, Kind::Delete, None, Some(part))?)
    }

    /// Appends `manifest` as a commit, then creates its version with `create`. Nothing else is appended until the
    /// outcome of both is known; if it never becomes known, nothing is appended any more.
    pub(crate) fn commit(
        &self,
        manifest: &Bytes,
        create: impl FnOnce() -> Result<Created>,
    ) -> Result<Created> {
        let mut log = self.log();
        let appended = self.append_checked(&mut log, manifest);
        // The commit may be in the log although the append failed: a prune will decide, and nothing may follow it.
        if appended.is_err() && log.state == State::Open {
            log.state = State::Undecided;
        }
        appended?;
        log.state = State::Undecided;
        let created = create()?;
        log.state = State::Open;
        Ok(created)
    }

    /// Appends `closed`: the owner does nothing more under this lease. Errors are ignored.
    pub(crate) fn close(&self) {
        let mut log = self.log();
        if log.state == State::Open {
            // If this fails, the next prune has to wait until it can revoke the lease; there is no other harm.
            let _ = encode(&self.repository, Kind::Closed, None, None)
                .and_then(|bytes| self.append(&mut log, &bytes));
            log.state = State::Closed;
            self.repository.backend.keep_reserve();
        }
    }

    /// Appends `closed`, like [`Self::close`]. `Revoked` if a prune has revoked the lease, or deleted its log.
    pub(crate) fn finish(&self) -> Result<()> {
        let mut log = self.log();
        self.append_checked(&mut log, &encode(&self.repository, Kind::Closed, None, None)?)?;
        log.state = State::Closed;
        self.repository.backend.keep_reserve();
        Ok(())
    }

    /// Whether the owner can still append to it.
    pub(crate) fn is_open(&self) -> bool {
        self.log().state == State::Open
    }

    /// Whether a prune revoked it, as far as this process has noticed.
    pub(crate) fn is_revoked(&self) -> bool {
        self.log().state == State::Revoked
    }

    /// Leaves the lease open, because a request under it may still be under way.
    pub(crate) fn abandon(&self) {
        self.log().state = State::Undecided;
    }

    /// Appends an entry, then checks that the log was not deleted. A deletion of a log starts with its first entry;
    /// without this check an entry could be created again at a number where `revoked` was deleted.
    fn append_checked(&self, log: &mut Log, bytes: &Bytes) -> Result<()> {
        self.append(log, bytes)?;
        let path = layout::lease_entry(self.epoch, self.number, 1);
        let is_ours = match self.repository.backend.read_record(&path, RECORD_BYTES_MAX) {
            Ok(first) if first == self.first => true,
            // Another lease has this number now. If the entry is damaged, that is an error.
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
                    let text = "the outcome of an earlier change under this lease is not known: start again";
                    return Err(Error::new(ErrorKind::Revoked, text));
                }
            }
            let path = layout::lease_entry(self.epoch, self.number, log.next);
            let created = match self.repository.backend.create(&path, bytes) {
                // An entry was found but is gone now: the log is being deleted.
                Err(error) if error.kind() == ErrorKind::Exists => Created::Taken,
                created => created?,
            };
            if created == Created::Ours {
                log.next += 1;
                return Ok(());
            }
            match read(&self.repository, self.epoch, self.number, log.next)? {
                None | Some(Entry::Revoked) => log.state = State::Revoked,
                // Our own earlier entry, whose reply was lost.
                Some(_) => log.next += 1,
            }
        }
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock()
    }
}

fn revoked() -> Error {
    let text = "a prune revoked the lease of this process, which was silent for too long: start again";
    Error::new(ErrorKind::Revoked, text)
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.close();
    }
}

/// A thread that appends `alive` to a lease every minute.
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
                // After any other error, just try again at the next beat: a prune waits for several beats.
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
            // The thread should not panic; if it did, the lease would only become silent.
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
