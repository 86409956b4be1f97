//! The chunks that a boot reads, in the order of their first reads: as recorded, and scaled to other chunk sizes.

use std::collections::HashSet;

use base::Chance;

/// `chunk bytes-of-its-object` in the order of first touch, recorded by the bench (`golden/boot`).
const RECORDED: &str = include_str!("../../../../golden/boot/debian12.txt");
/// Chunk size of the recording, in bytes.
const RECORDED_CHUNK_BYTES: u64 = 256 << 10;
/// Disk size of the recording, in bytes.
const RECORDED_DISK_BYTES: u64 = 4 << 30;
/// For chunks of 64 KiB to 4 MiB (in KiB): how much a boot touches, in MiB, as measured.
const TOUCHED_MIB: [(u64, u64); 7] =
    [(64, 101), (128, 115), (256, 136), (512, 167), (1024, 222), (2048, 296), (4096, 384)];

/// A chunk that a boot touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Touch {
    /// Its index.
    pub chunk: u64,
    /// Length of its object in bytes.
    pub bytes: u32,
}

/// The reads of a boot.
#[derive(Debug, Clone)]
pub struct Boot {
    /// Size of a chunk in bytes.
    pub chunk_bytes: u64,
    /// Size of the disk in bytes.
    pub disk_bytes: u64,
    /// The chunks in the order of their first reads.
    pub touches: Vec<Touch>,
}

impl Boot {
    /// The recording: a boot and a small job of Debian 12 on a disk of 4 GiB, in chunks of 256 KiB.
    #[must_use]
    pub fn recorded() -> Self {
        let lines = RECORDED.lines().filter(|line| !line.starts_with('#'));
        let touches = lines.filter_map(|line| {
            let (chunk, bytes) = line.split_once(' ')?;
            Some(Touch { chunk: chunk.parse().ok()?, bytes: bytes.parse().ok()? })
        });
        let touches = touches.collect();
        Self { chunk_bytes: RECORDED_CHUNK_BYTES, disk_bytes: RECORDED_DISK_BYTES, touches }
    }

    /// Bytes of all objects together.
    #[must_use]
    pub fn object_bytes(&self) -> u64 {
        self.touches.iter().map(|touch| u64::from(touch.bytes)).sum()
    }

    /// The same boot of a disk `spread` times as large, in chunks of `chunk_kib` KiB (64, 128, … 4096). With smaller
    /// chunks, a random part is touched, as much as was measured on average. The lengths of objects are proportional.
    #[must_use]
    pub fn scaled(&self, chunk_kib: u64, spread: u64) -> Self {
        let chunk_bytes = chunk_kib << 10;
        let (mut chance, mut seen, mut touches) = (Chance::from_seed(chunk_kib), HashSet::new(), Vec::new());
        let touched = |kib| TOUCHED_MIB.iter().find(|(size, _)| *size == kib).map_or(0, |(_, mib)| *mib);
        for touch in &self.touches {
            let first = touch.chunk * self.chunk_bytes / chunk_bytes;
            if chunk_bytes >= self.chunk_bytes {
                if seen.insert(first) {
                    // The recording lacks the untouched parts of a larger chunk, so their length is assumed to be
                    // average.
                    let bytes = u64::from(touch.bytes) * (chunk_bytes / self.chunk_bytes);
                    touches.push(Touch { chunk: first * spread, bytes: bytes as u32 });
                }
                continue;
            }
            let parts = self.chunk_bytes / chunk_bytes;
            let share = touched(chunk_kib) * 1_000_000 / touched(self.chunk_bytes >> 10);
            for part in 0..parts {
                if chance.hits(share as u32) {
                    let bytes = touch.bytes / parts as u32;
                    touches.push(Touch { chunk: (first + part) * spread, bytes });
                }
            }
        }
        Self { chunk_bytes, disk_bytes: self.disk_bytes * spread, touches }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_in_other_chunks_touches_what_was_measured() {
        let boot = Boot::recorded();
        assert!((540..=580).contains(&boot.touches.len()), "{}", boot.touches.len());
        let mib = |boot: &Boot| (boot.touches.len() as u64 * boot.chunk_bytes) >> 20;
        for (kib, measured) in TOUCHED_MIB {
            let found = mib(&boot.scaled(kib, 1));
            assert!(found.abs_diff(measured) * 100 <= measured * 12, "{kib} KiB: {found}, not {measured}");
        }
    }
}
