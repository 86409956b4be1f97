//! What a store can do, tried on the store itself: only one of many creators of a record wins, a creator whose reply
//! was lost finds its own record, and what was written is read and listed at once. A repository is not written to
//! before that was shown; the record of it says who tried it, when and where. formats/repository.md, "What a store must
//! do".

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
/// Writers that race for each record, and how many records they race for.
const WRITERS: usize = 8;
const ROUNDS: usize = 4;

/// What was found about a store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// The store that it was found about: a repository that was copied elsewhere is probed again.
    pub place: String,
    /// Which program tried it.
    pub program: String,
    /// When, RFC 3339.
    pub created: String,
    /// Who.
    pub creator: String,
    /// What was found, in plain words.
    pub verdict: String,
    /// Whether records can also be replaced on a condition. diskcast does not need it; other programs may.
    pub replaces: Replaces,
}

/// What a store does when it is asked to replace a record only if it is still the one that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Replaces {
    /// It does, and refuses if the record has changed.
    OnCondition,
    /// It does not take such requests, or refuses all of them.
    Never,
    /// It replaces the record whatever it was.
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

/// A probe as it is stored.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    number: u64,
    #[serde(flatten)]
    probe: Capabilities,
    nonce: String,
}

/// Whether a store is known to do what a repository needs, and how it is called in records.
#[derive(Debug)]
pub(crate) struct CapabilityCheck {
    place: String,
    /// Who asks and when, for the record; nothing is kept without.
    stamp: Option<Stamp>,
    given: Mutex<bool>,
}

impl CapabilityCheck {
    /// A check that is still to be made of the store that people call `place`.
    pub(crate) fn new(place: String, stamp: Option<Stamp>) -> Self {
        Self { place, stamp, given: Mutex::new(false) }
    }

    /// That of a store which is known to be fit.
    pub(crate) fn given() -> Self {
        Self { place: String::new(), stamp: None, given: Mutex::new(true) }
    }

    /// Makes sure that the store was proved: by a record of it, or else now. `Unsupported` says what it can't do.
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

    /// Tries the store now and keeps what was found.
    pub(crate) fn give(&self, backend: &Backend) -> Result<Capabilities> {
        let (created, creator) = match &self.stamp {
            Some(stamp) => (stamp.created.clone(), stamp.creator.clone()),
            None => Default::default(),
        };
        let replaces = try_out(backend, &self.place)?;
        let verdict = format!(
            "{WRITERS} writers raced for each of {ROUNDS} records and one won each; a writer whose reply is lost finds its \
             record; what is written is read and listed at once; {}",
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

/// The newest probe that was kept, and its number. A damaged or newer record is as good as none: the next one says
/// more.
pub(crate) fn newest(backend: &Backend) -> Result<Option<(u64, Capabilities)>> {
    let Some(number) = newest_number(backend)? else { return Ok(None) };
    match read(backend, number) {
        Ok(probe) => Ok(Some((number, probe))),
        Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Capabilities `number`.
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
    // Whoever keeps one at this moment found the same; a few numbers further is room enough for all of them.
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

/// Writes, races and reads below a folder of scratch, which is cleared again as far as the store allows.
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

/// Lets writers that start together create `path`. Returns the bytes of the one that won.
fn race(backend: &Backend, path: &Path) -> Result<Bytes> {
    let start = Barrier::new(WRITERS);
    let run = || -> Result<Option<Bytes>> {
        let bytes = record::nonce().map(Bytes::from);
        // Nobody may be waited for in vain.
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
             overwrite each other's versions. Use a folder, or a store with conditional writes (`If-None-Match: *` on put), \
             as Amazon S3, Ceph, MinIO and versitygw 1.8 have and Garage has not"
        ))),
    }
}

fn try_replacing(backend: &Backend, path: &Path) -> Replaces {
    let Some(first) = backend.replace_if(path, None, "second") else { return Replaces::Never };
    // `first` names what was there before `second` is.
    match backend.replace_if(path, Some(first), "third") {
        None => Replaces::OnCondition,
        Some(_) => Replaces::Always,
    }
}
