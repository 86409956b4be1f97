//! Tests the capabilities that a repository needs of its store, on the store itself: of several writers that create
//! the same record exactly one succeeds, a writer whose reply was lost finds its own record, and what was written can
//! be read and listed at once. Nothing is written to a repository before its store has passed. The result is stored
//! with the name of the tester, the time and the store. See formats/repository.md, "What a store must do".

use std::collections::HashSet;
use std::sync::Barrier;

use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use object_store::path::Path;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::backend::{Backend, Created};
use crate::layout;
use crate::record::{self, RECORD_BYTES_MAX, Stamp};

const PROBE: &str = "probe";
/// Writers that race to create each record, and the number of such records.
const WRITERS: usize = 8;
const ROUNDS: usize = 4;

/// Result of a capability test of a store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// The store that was tested: a repository that was copied to another store is tested again.
    pub place: String,
    /// The program that ran the test.
    pub program: String,
    /// Time of the test, RFC 3339.
    pub created: String,
    /// The user who ran it.
    pub creator: String,
    /// The result, in plain words.
    pub verdict: String,
    /// Whether records can also be replaced on a condition. diskcast does not need this; other programs may.
    pub replaces: Replaces,
}

/// How a store answers a request to replace a record only if it has not changed since it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Replaces {
    /// It replaces the record, and refuses if the record has changed.
    OnCondition,
    /// It does not support such requests, or refuses all of them.
    Never,
    /// It replaces the record even if it has changed.
    Always,
}

impl Replaces {
    fn words(self) -> &'static str {
        match self {
            Self::OnCondition => "it can replace a record on a condition (diskcast does not need that)",
            Self::Never => "it can't replace a record on a condition (diskcast does not need that)",
            Self::Always => {
                "it ignores the condition on which a record is to be replaced (diskcast never asks for that)"
            }
        }
    }
}

/// A test result as it is stored.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    number: u64,
    #[serde(flatten)]
    probe: Capabilities,
    nonce: String,
}

/// Whether a store is known to have the required capabilities, and the store's name in records.
#[derive(Debug)]
pub(crate) struct CapabilityCheck {
    place: String,
    /// Creator and time of the stored result; without it no result is stored.
    stamp: Option<Stamp>,
    given: Mutex<bool>,
}

impl CapabilityCheck {
    /// A check not made yet, of the store with the name `place`.
    pub(crate) fn new(place: String, stamp: Option<Stamp>) -> Self {
        Self { place, stamp, given: Mutex::new(false) }
    }

    /// The check of a store that is known to have all capabilities.
    pub(crate) fn given() -> Self {
        Self { place: String::new(), stamp: None, given: Mutex::new(true) }
    }

    /// Makes sure that the store has passed the test: looks for a stored result, or else runs the test now.
    /// `Unsupported` says which capability is missing.
    pub(crate) fn require(&self, backend: &Backend) -> Result<()> {
        let mut given = self.given.lock();
        if !*given {
            let known = newest(backend)?.is_some_and(|(_, probe)| probe.place == self.place);
            if !known {
                self.give(backend)?;
            }
            *given = true;
        }
        Ok(())
    }

    /// Runs the test now and stores the result. `Unsupported` says which capability is missing.
    pub(crate) fn give(&self, backend: &Backend) -> Result<Capabilities> {
        let (created, creator) = match &self.stamp {
            Some(stamp) => (stamp.created.clone(), stamp.creator.clone()),
            None => Default::default(),
        };
        let replaces = try_out(backend, &self.place)?;
        let verdict = format!(
            "{WRITERS} writers raced for each of {ROUNDS} records and one won each; a writer whose reply is lost finds \
             its record; what is written is read and listed at once; {}",
            replaces.words()
        );
        let program = concat!("diskcast ", env!("CARGO_PKG_VERSION")).to_owned();
        let probe = Capabilities { place: self.place.clone(), program, created, creator, verdict, replaces };
        if self.stamp.is_some() {
            keep(backend, &probe)?;
        }
        Ok(probe)
    }
}

/// The newest stored result, and its number. `None` if there is none, or if it is damaged or of a newer format: then
/// the test is repeated.
pub(crate) fn newest(backend: &Backend) -> Result<Option<(u64, Capabilities)>> {
    let Some(number) = newest_number(backend)? else { return Ok(None) };
    match read(backend, number) {
        Ok(probe) => Ok(Some((number, probe))),
        Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads the stored result `number`.
pub(crate) fn read(backend: &Backend, number: u64) -> Result<Capabilities> {
    let path = layout::capabilities(number);
    let bytes = backend.read_record(&path, RECORD_BYTES_MAX)?;
    record::decode(PROBE, path.as_ref(), &bytes).map(|kept: Kept| kept.probe)
}

fn newest_number(backend: &Backend) -> Result<Option<u64>> {
    let mut newest = None;
    backend.each_name(&layout::probes(), &mut |name| newest = newest.max(layout::number_named(name)))?;
    Ok(newest)
}

fn keep(backend: &Backend, probe: &Capabilities) -> Result<()> {
    // Another process that stores its result now found the same; the loop just takes the next free number.
    let mut number = newest_number(backend)?.unwrap_or(0);
    loop {
        number = number.checked_add(1).ok_or_else(|| {
            Error::new(ErrorKind::Refused, "the numbers of probes are used up: remove the folder `probes`")
        })?;
        let kept = Kept { number, probe: probe.clone(), nonce: record::nonce()? };
        let path = layout::capabilities(number);
        if backend.create_unproven(&path, &record::encode(PROBE, &kept))? == Created::Ours {
            return Ok(());
        }
    }
}

/// Runs the test in a scratch folder, and then deletes the scratch records if the store allows it.
fn try_out(backend: &Backend, place: &str) -> Result<Replaces> {
    let nonce = record::nonce()?;
    let paths: Vec<Path> = (0..ROUNDS).map(|round| layout::scratch(&format!("{nonce}-{round}"))).collect();
    let outcome = try_paths(backend, &paths);
    paths.iter().for_each(|path| backend.clear(path));
    outcome.map_err(|error| match error.kind() {
        ErrorKind::Unsupported => {
            Error::new(ErrorKind::Unsupported, format!("`{place}` can't hold a repository: {error}"))
        }
        _ => error,
    })
}

fn try_paths(backend: &Backend, paths: &[Path]) -> Result<Replaces> {
    for path in paths {
        let winner = race(backend, path)?;
        let lost_reply = backend.create_unproven(path, &winner)?;
        if lost_reply != Created::Ours {
            return Err(unfit("a writer whose reply is lost does not find the record that it made"));
        }
        let found = backend.read(path, RECORD_BYTES_MAX);
        if found.is_err() || found.is_ok_and(|bytes| bytes != winner) {
            return Err(unfit("a record that was made is not read back right after"));
        }
    }
    let mut listed = HashSet::new();
    backend.each_name(&layout::scratch_folder(), &mut |name| listed.extend([layout::scratch(name)]))?;
    if paths.iter().any(|path| !listed.contains(path)) {
        return Err(unfit("a record that was made is not listed right after"));
    }
    Ok(try_replacing(backend, &paths[0]))
}

fn unfit(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unsupported, why)
}

/// Starts `WRITERS` threads that create `path` at the same time. Returns the bytes of the one that succeeded.
fn race(backend: &Backend, path: &Path) -> Result<Bytes> {
    let start = Barrier::new(WRITERS);
    let run = || -> Result<Option<Bytes>> {
        let bytes = record::nonce().map(Bytes::from);
        // Every thread must reach the barrier, even after an error, or the others would wait for ever.
        start.wait();
        let bytes = bytes?;
        Ok((backend.create_unproven(path, &bytes)? == Created::Ours).then_some(bytes))
    };
    let outcomes: Vec<Result<Option<Bytes>>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..WRITERS).map(|_| scope.spawn(run)).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.map(|joined| joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    let mut winners: Vec<Bytes> =
        outcomes.into_iter().filter_map(Result::transpose).collect::<Result<_>>()?;
    match (winners.len(), winners.pop()) {
        (1, Some(winner)) => Ok(winner),
        (count, _) => Err(unfit(format!(
            "{WRITERS} writers created the same record and {count} were told that they had made it, so writers would \
             overwrite each other's versions. Use a folder, or a store with conditional writes (`If-None-Match: *` on \
             put), as Amazon S3, Ceph, MinIO and versitygw 1.8 have and Garage has not"
        ))),
    }
}

fn try_replacing(backend: &Backend, path: &Path) -> Replaces {
    let Some(first) = backend.replace_if(path, None, "second") else { return Replaces::Never };
    // `first` is the tag from before `second` was written, so it is out of date now.
    match backend.replace_if(path, Some(first), "third") {
        None => Replaces::OnCondition,
        Some(_) => Replaces::Always,
    }
}
