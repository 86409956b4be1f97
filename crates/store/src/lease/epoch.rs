//! Epochs: which prunes have begun and ended, and which copies of objects one of them may still delete.
//! formats/repository.md, "Pruning".

use base::{Digest, Error, ErrorKind, Result};
use bytes::Bytes;
use image::{Cipher, ObjectKind};
use object_store::path::Path;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::layout;
use crate::lease::filter::Filter;
use crate::process::Process;
use crate::record;
use crate::repository::Repository;
use crate::versions::RACES_MAX;

const PRUNE: &str = "prune";
const PRUNE_END: &str = "prune-end";
const CANDIDATES: &str = "candidates";

/// Most paths in a part of a list of candidates: the number that S3 deletes in one request.
pub(crate) const PART_PATHS_MAX: usize = 1000;
/// Longest part in bytes.
const PART_BYTES_MAX: u64 = 128 << 10;
/// Longest record of a prune in bytes: it names all parts in doubt, and encryption doubles its length.
const PRUNE_BYTES_MAX: u64 = 128 << 10;
/// Most parts in doubt that a prune passes on to the next.
const DOUBT_MAX: usize = 256;
/// Memory for the filter of condemned copies: 32 bits per copy for four million, fewer bits for more copies.
const CONDEMNED_BYTES_MAX: u64 = 16 << 20;
const CONDEMNED_BITS: u64 = 32;

/// The name of a part of a list of candidates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PartName {
    /// Epoch of the prune's lease.
    pub(crate) epoch: u64,
    /// Number of the prune's lease.
    pub(crate) lease: u64,
    pub(crate) part: u64,
    /// The process that may still delete it. If it is not known, it counts as alive for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) process: Option<Process>,
}

impl PartName {
    pub(crate) fn of(epoch: u64, lease: u64, part: u64) -> Self {
        Self { epoch, lease, part, process: None }
    }

    pub(crate) fn path(&self) -> Path {
        layout::candidates_part(self.epoch, self.lease, self.part)
    }
}

/// The body of `prunes/<n>/begin`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Begin {
    pub(crate) number: u64,
    /// Number of the prune's lease, in the epoch before.
    pub(crate) lease: u64,
    pub(crate) parts: u64,
    /// Number of slots that may be in use from now on.
    pub(crate) slots: u8,
    pub(crate) doubt: Vec<PartName>,
    pub(crate) created: String,
    pub(crate) creator: String,
    pub(crate) nonce: String,
}

/// The body of `prunes/<n>/end`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct End {
    pub(crate) number: u64,
    /// All leases of lower epochs are closed, and lists show the versions published under them.
    pub(crate) closed: u64,
    pub(crate) doubt: Vec<PartName>,
    pub(crate) nonce: String,
}

impl Begin {
    pub(crate) fn encode(&self, cipher: &Cipher) -> Result<Bytes> {
        record::encrypt(cipher, record::encode(PRUNE, self))
    }
}

impl End {
    /// The end record of prune `number`. Drops the oldest parts in doubt if there are more than `DOUBT_MAX`.
    pub(crate) fn new(number: u64, closed: u64, mut doubt: Vec<PartName>) -> Result<Self> {
        doubt.drain(..doubt.len().saturating_sub(DOUBT_MAX));
        Ok(Self { number, closed, doubt, nonce: record::nonce()? })
    }

    pub(crate) fn encode(&self, cipher: &Cipher) -> Result<Bytes> {
        record::encrypt(cipher, record::encode(PRUNE_END, self))
    }
}

/// The lowest number from 1 for which `exists` is false, if it is true for all numbers below. Uses a logarithmic
/// number of calls.
pub(crate) fn first_absent(mut exists: impl FnMut(u64) -> Result<bool>) -> Result<u64> {
    let (mut there, mut absent) = (0, 1);
    while exists(absent)? {
        there = absent;
        let used_up = || Error::new(ErrorKind::Refused, "the numbers of leases or prunes are used up");
        absent = absent.checked_mul(2).ok_or_else(used_up)?;
    }
    while absent - there > 1 {
        let middle = there + (absent - there) / 2;
        if exists(middle)? { there = middle } else { absent = middle }
    }
    Ok(absent)
}

/// An epoch: the time between the beginnings of two consecutive prunes.
#[derive(Debug, Clone)]
pub(crate) struct Epoch {
    /// Number of the prune that began it; 0 before the first prune.
    pub(crate) number: u64,
    /// The `begin` of that prune; `None` before the first prune.
    pub(crate) begin: Option<Begin>,
}

/// Whether the `begin` of prune `number` exists.
fn has_begun(repository: &Repository, number: u64) -> Result<bool> {
    repository.backend.exists(&layout::prune_begin(number))
}

/// The numbers of prunes in the store's list, ascending.
fn listed(repository: &Repository) -> Result<Vec<u64>> {
    let folders = repository.backend.folders(&layout::prunes())?;
    Ok(folders.iter().filter_map(|name| layout::number_named(name)).collect())
}

/// The highest listed number whose `begin` exists; 0 if there is none.
fn newest_listed(repository: &Repository) -> Result<u64> {
    for number in listed(repository)?.into_iter().rev() {
        if has_begun(repository, number)? {
            return Ok(number);
        }
    }
    Ok(0)
}

/// Deletes the records of old prunes after prune `newest` has ended; those of `newest` and of the prune before it
/// stay. Deletes nothing unless the list shows one of these two, so that every later list also shows one that exists.
/// Deletes in ascending order without gaps: if the record of a prune exists, that of the next was never deleted.
pub(crate) fn forget(repository: &Repository, newest: u64) -> Result<()> {
    let listed = listed(repository)?;
    let is_shown = listed.last().is_some_and(|&last| last + 1 >= newest);
    let Some(&first) = listed.first().filter(|_| is_shown) else { return Ok(()) };
    let mut first = first;
    while first > 1 && has_begun(repository, first - 1)? {
        first -= 1;
    }
    for number in first..newest.saturating_sub(1) {
        repository.backend.delete(&[layout::prune_begin(number)])?;
        repository.backend.delete(&[layout::prune_end(number)])?;
    }
    Ok(())
}

impl Epoch {
    /// The newest epoch. A newer one may have begun since: check with [`Epoch::has_passed`].
    pub(crate) fn current(repository: &Repository) -> Result<Self> {
        for _ in 0..RACES_MAX {
            let newest = newest_listed(repository)?;
            let number = newest + first_absent(|more| has_begun(repository, newest + more))? - 1;
            // This read must come after the next number was found absent, or both could have been deleted.
            if let Some(epoch) = Self::find(repository, number)? {
                return Ok(epoch);
            }
        }
        Err(Error::new(ErrorKind::Io, "find the newest prune: too many prunes begin now"))
    }

    /// The epoch that prune `number` began. `Revoked` if its record was deleted.
    pub(crate) fn of(repository: &Repository, number: u64) -> Result<Self> {
        let deleted = || {
            let path = layout::prune_begin(number);
            Error::new(ErrorKind::Revoked, format!("`{path}` was deleted, since later prunes have ended"))
        };
        Self::find(repository, number)?.ok_or_else(deleted)
    }

    fn find(repository: &Repository, number: u64) -> Result<Option<Self>> {
        if number == 0 {
            return Ok(Some(Self { number, begin: None }));
        }
        let path = layout::prune_begin(number);
        let begin: Option<Begin> = read_enclosed(repository, PRUNE, &path)?;
        if begin.as_ref().is_some_and(|begin| begin.number != number) {
            return Err(Error::new(ErrorKind::Corrupt, format!("`{path}` is the record of another prune")));
        }
        Ok(begin.map(|begin| Self { number, begin: Some(begin) }))
    }

    /// Whether a later prune has begun. Finds every prune that began before this call: if the record of the next
    /// prune was deleted, the record of this one was deleted before it.
    pub(crate) fn has_passed(&self, repository: &Repository) -> Result<bool> {
        if has_begun(repository, self.number + 1)? {
            return Ok(true);
        }
        match self.number {
            0 => Ok(newest_listed(repository)? > 0),
            number => Ok(!has_begun(repository, number)?),
        }
    }

    /// The `end` of its prune; `None` if the prune has not ended.
    pub(crate) fn end(&self, repository: &Repository) -> Result<Option<End>> {
        let path = layout::prune_end(self.number);
        if self.number == 0 {
            return End::new(0, 0, Vec::new()).map(Some);
        }
        let end: Option<End> = read_enclosed(repository, PRUNE_END, &path)?;
        match end {
            Some(end) if end.number != self.number => {
                Err(Error::new(ErrorKind::Corrupt, format!("`{path}` is the record of another prune")))
            }
            end => Ok(end),
        }
    }

    /// The copies that a prune may still delete. `Revoked` if a later prune has deleted the lists.
    pub(crate) fn condemned(&self, repository: &Repository) -> Result<Filter> {
        // Before the first prune nothing is condemned.
        let Some(begin) = &self.begin else { return Ok(Filter::new(0, 1, 1 << 13, 0)) };
        loop {
            let end = self.end(repository)?;
            let has_ended = end.is_some();
            let mut doubt = end.map_or_else(|| begin.doubt.clone(), |end| end.doubt);
            let own = if has_ended { 0 } else { begin.parts };
            doubt.extend((1..=own).map(|part| PartName::of(self.number - 1, begin.lease, part)));
            match collect(repository, &doubt) {
                // This prune ended in between and deleted its lists: read its `end`.
                Err(error)
                    if error.kind() == ErrorKind::NotFound
                        && !has_ended
                        && self.end(repository)?.is_some() => {}
                Err(error) if error.kind() == ErrorKind::NotFound && self.has_passed(repository)? => {
                    let text = format!("what prune {} condemned was deleted by a later one", self.number);
                    return Err(Error::from_source(ErrorKind::Revoked, text, error));
                }
                result => return result,
            }
        }
    }

    /// Number of slots that may hold copies of objects, 1 to 8.
    pub(crate) fn slots(&self) -> u8 {
        self.begin.as_ref().map_or(1, |begin| begin.slots.clamp(1, layout::SLOTS))
    }
}

/// A filter with all copies that `parts` name.
pub(crate) fn collect(repository: &Repository, parts: &[PartName]) -> Result<Filter> {
    let objects = (parts.len() as u64).saturating_mul(PART_PATHS_MAX as u64);
    let mut condemned = Filter::new(objects, CONDEMNED_BITS, CONDEMNED_BYTES_MAX, 0);
    for part in parts {
        for candidate in read_part(repository, part)? {
            condemned.insert(&candidate.digest, candidate.slot);
        }
    }
    Ok(condemned)
}

/// A copy of an object that a prune may delete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) kind: ObjectKind,
    pub(crate) digest: Digest,
    pub(crate) slot: u8,
    /// Its length in bytes.
    pub(crate) bytes: u64,
}

impl Candidate {
    pub(crate) fn path(&self) -> Path {
        layout::object_in(self.kind, &self.digest, self.slot)
    }

    /// The copy of an object at `path`, of `bytes` bytes; `None` if `path` is not that of an object.
    pub(crate) fn at(path: &Path, bytes: u64) -> Option<Self> {
        [ObjectKind::Chunk, ObjectKind::Node].into_iter().find_map(|kind| {
            let (digest, slot) = layout::object_at(kind, path)?;
            Some(Self { kind, digest, slot, bytes })
        })
    }
}

/// The body of a part.
#[derive(Debug, Serialize, Deserialize)]
struct Part {
    objects: Vec<(String, u64)>,
}

/// Encodes `candidates`, at most [`PART_PATHS_MAX`], as a part.
pub(crate) fn seal_part(candidates: &[Candidate]) -> Bytes {
    assert!(candidates.len() <= PART_PATHS_MAX);
    let objects = candidates.iter().map(|found| (found.path().to_string(), found.bytes)).collect();
    record::encode(CANDIDATES, &Part { objects })
}

/// Reads the candidates of a part. `NotFound` if the part was deleted.
pub(crate) fn read_part(repository: &Repository, name: &PartName) -> Result<Vec<Candidate>> {
    let path = name.path();
    let bytes = repository.backend.read_record(&path, PART_BYTES_MAX)?;
    let part: Part = record::decode(CANDIDATES, path.as_ref(), &bytes)?;
    let corrupt = || Error::new(ErrorKind::Corrupt, format!("`{path}` names a path that is not an object"));
    let candidate = |(object, bytes): &(String, u64)| Candidate::at(&Path::from(object.as_str()), *bytes);
    part.objects.iter().map(|object| candidate(object).ok_or_else(corrupt)).collect()
}

/// Reads the record of a prune at `path`; `None` if there is none.
fn read_enclosed<T: DeserializeOwned>(repository: &Repository, kind: &str, path: &Path) -> Result<Option<T>> {
    let bytes = match repository.backend.read_record(path, PRUNE_BYTES_MAX) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        bytes => record::decrypt(repository.cipher(), path.as_ref(), bytes?)?,
    };
    record::decode(kind, path.as_ref(), &bytes).map(Some)
}

#[cfg(test)]
mod tests {
    use image::EncryptionKey;

    use super::*;

    #[test]
    fn the_first_that_is_absent_is_found_wherever_it_is() {
        for first in (1..200).chain([1 << 20, (1 << 40) + 1]) {
            let mut asked = 0;
            let found = first_absent(|number| {
                asked += 1;
                Ok(number < first)
            });
            assert_eq!(found.unwrap(), first);
            assert!(asked <= 2 * first.ilog2() + 2, "{asked} questions for {first}");
        }
        assert_eq!(first_absent(|_| Ok(true)).unwrap_err().kind(), ErrorKind::Refused);
    }

    #[test]
    fn records_are_still_written_as_they_were() {
        let begin = include_str!("../../../../golden/repository/v1/pruned/prunes/00000000000000000002/begin");
        let end = include_str!("../../../../golden/repository/v1/pruned/prunes/00000000000000000001/end");
        let part = include_str!(concat!(
            "../../../../golden/repository/v1/pruned/candidates/",
            "00000000000000000001/00000000000000000003/00000000000000000001"
        ));
        let body: Begin = record::decode(PRUNE, "golden", begin.as_bytes()).unwrap();
        assert_eq!((body.number, body.lease, body.parts, body.slots), (2, 3, 8, 2));
        assert_eq!(record::encode(PRUNE, &body), begin);
        let body: End = record::decode(PRUNE_END, "golden", end.as_bytes()).unwrap();
        assert_eq!((body.number, body.closed, body.doubt.len()), (1, 1, 0));
        assert_eq!(record::encode(PRUNE_END, &body), end);
        let body: Part = record::decode(CANDIDATES, "golden", part.as_bytes()).unwrap();
        assert_eq!(record::encode(CANDIDATES, &body), part);
    }

    #[test]
    fn the_longest_records_fit_their_limits() {
        let longest =
            Candidate { kind: ObjectKind::Chunk, digest: Digest([255; 32]), slot: 7, bytes: 1 << 25 };
        let part = seal_part(&vec![longest; PART_PATHS_MAX]);
        assert!(part.len() as u64 <= PART_BYTES_MAX, "{}", part.len());
        let (number, boot) = (1 << 20, "0".repeat(32));
        let process = Process { boot, namespace: u64::from(u32::MAX), pid: u32::MAX, started: 1 << 40 };
        let name = PartName { process: Some(process), ..PartName::of(number, number, number) };
        let end = End::new(u64::MAX, u64::MAX, vec![name; DOUBT_MAX + 7]).unwrap();
        assert_eq!(end.doubt.len(), DOUBT_MAX);
        let sealed = end.encode(&Cipher::Key(EncryptionKey::from_bytes([1; 32]))).unwrap();
        assert!(sealed.len() as u64 + 1024 <= PRUNE_BYTES_MAX, "{}", sealed.len());
    }
}
