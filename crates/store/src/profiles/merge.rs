//! Merges the chunks that boots of an image read into one order.

use std::collections::{HashMap, HashSet};

use base::limits::{CHUNK_BYTES_MIN, DISK_SECTORS_MAX, SECTOR_BYTES};
use serde::{Deserialize, Serialize};

use crate::names::ImageName;

/// An exclusive upper bound of chunk indexes: the largest disk in the smallest chunks.
pub(super) const CHUNK_INDEX_END: u64 = DISK_SECTORS_MAX / (CHUNK_BYTES_MIN as u64 / SECTOR_BYTES);
/// Boots that a profile remembers: one bit each in [`ProfileRun::seen`].
pub(super) const BOOTS_MAX: u32 = 8;
/// A chunk that none of this many newest boots read is dropped.
const FORGET_AFTER: u32 = 4;
/// Greatest weight of the known order against that of a new boot, in boots.
const ORDER_WEIGHT_MAX: u64 = 3;

/// The chunks that machines read when they start from an image, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// The image whose profile this is: that of the requested version, or the one from which that was cloned.
    pub image: ImageName,
    /// Number of the profile, from 1.
    pub number: u64,
    /// Version that the newest boot ran.
    pub version: u64,
    /// Size in bytes of the chunks that it names.
    pub chunk_bytes: u32,
    /// Number of remembered boots, 1 to 8.
    pub boots: u32,
    /// Chunks in the order of reads. No chunk occurs twice; at most `PROFILE_CHUNKS_MAX` chunks.
    pub runs: Vec<ProfileRun>,
    /// Time when the newest boot was added, RFC 3339.
    pub created: String,
    /// The user or program that added it.
    pub creator: String,
}

/// Consecutive chunks that are read one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u64, u32, u8)", into = "(u64, u32, u8)")]
pub struct ProfileRun {
    /// Index of the first chunk.
    pub first: u64,
    /// Number of chunks, at least 1.
    pub count: u32,
    /// The remembered boots that read them, one bit each: bit 0 is the newest.
    pub seen: u8,
}

impl From<(u64, u32, u8)> for ProfileRun {
    fn from((first, count, seen): (u64, u32, u8)) -> Self {
        Self { first, count, seen }
    }
}

impl From<ProfileRun> for (u64, u32, u8) {
    fn from(run: ProfileRun) -> Self {
        (run.first, run.count, run.seen)
    }
}

impl ProfileRun {
    pub(super) fn chunks(&self) -> impl Iterator<Item = u64> + use<> {
        self.first..self.first + u64::from(self.count)
    }
}

impl Profile {
    /// The chunks that the next boot will probably read, in order: those that at least half of the remembered boots
    /// read, or both of the newest two.
    #[must_use]
    pub fn order(&self) -> Vec<u64> {
        let likely = self.runs.iter().filter(|run| is_likely(run.seen, self.boots));
        likely.flat_map(ProfileRun::chunks).collect()
    }

    /// Number of chunks in the profile, whether the next boot will probably read them or not.
    #[must_use]
    pub fn chunks(&self) -> u64 {
        self.runs.iter().map(|run| u64::from(run.count)).sum()
    }
}

pub(super) fn is_likely(seen: u8, boots: u32) -> bool {
    seen & 0b11 == 0b11 || seen.count_ones() * 2 >= boots
}

/// The first `max` different chunks of `chunks`.
pub(super) fn distinct(chunks: &[u64], max: usize) -> Vec<u64> {
    let mut known = HashSet::new();
    let is_new = |chunk: &u64| *chunk < CHUNK_INDEX_END && known.insert(*chunk);
    chunks.iter().copied().filter(is_new).take(max).collect()
}

/// A chunk during a merge.
struct Merged {
    chunk: u64,
    seen: u8,
    /// Its place in the order, in quarters of a place.
    place: u64,
}

/// The runs of `before`, merged with one more boot. A chunk's new place is the mean of its old place and its place in
/// the boot; the old place weighs as much as the number of boots behind it, up to `ORDER_WEIGHT_MAX`.
pub(super) fn merge(before: Option<&Profile>, boot: &[u64], max: usize) -> Vec<ProfileRun> {
    let weight = before.map_or(0, |before| u64::from(before.boots)).min(ORDER_WEIGHT_MAX);
    let known = before.map(|before| &before.runs[..]).unwrap_or_default();
    // Bit 0 is for the new boot, so the bits of older boots move up by one.
    let known = known.iter().flat_map(|run| run.chunks().map(|chunk| (chunk, run.seen << 1)));
    let mut merged: Vec<Merged> =
        known.zip(0..).map(|((chunk, seen), place)| Merged { chunk, seen, place: 4 * place }).collect();
    let at: HashMap<u64, usize> = merged.iter().map(|one| one.chunk).zip(0..).collect();
    for (&chunk, place) in boot.iter().zip((0..).map(|place| 4 * place)) {
        match at.get(&chunk) {
            Some(&at) => {
                let one = &mut merged[at];
                (one.seen, one.place) = (one.seen | 1, (one.place * weight + place) / (weight + 1));
            }
            None => merged.push(Merged { chunk, seen: 1, place }),
        }
    }
    merged.retain(|one| u32::from(one.seen).trailing_zeros() < FORGET_AFTER);
    if merged.len() > max {
        merged.sort_by_key(|one| (u32::MAX - one.seen.count_ones(), one.place, one.chunk));
        merged.truncate(max);
    }
    merged.sort_by_key(|one| (one.place, one.chunk));
    runs(&merged)
}

fn runs(merged: &[Merged]) -> Vec<ProfileRun> {
    let mut runs: Vec<ProfileRun> = Vec::new();
    for one in merged {
        match runs.last_mut() {
            Some(run) if run.first + u64::from(run.count) == one.chunk && run.seen == one.seen => {
                run.count += 1;
            }
            _ => runs.push(ProfileRun { first: one.chunk, count: 1, seen: one.seen }),
        }
    }
    runs
}
