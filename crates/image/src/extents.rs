//! Extents: which sectors of one chunk are allocated. `formats/image.md`, "Extents of a chunk".
//!
//! Most chunks are fully allocated, which takes one byte to encode. Each set of sectors has exactly one encoding, so
//! that equal content gives equal digests: `full`, else the shorter one of runs and bitmap, and runs if both are
//! equally long.

use base::limits::{CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, SECTOR_BYTES};
use base::wire::Reader;
use base::{Error, Result};

/// A chunk size: a power of two between `CHUNK_BYTES_MIN` and `CHUNK_BYTES_MAX`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChunkSize {
    log2: u8,
}

impl ChunkSize {
    /// The size of `bytes` bytes; `None` if that is not a power of two or is out of bounds.
    #[must_use]
    pub fn from_bytes(bytes: u32) -> Option<Self> {
        let good = bytes.is_power_of_two() && (CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX).contains(&bytes);
        good.then(|| Self { log2: u8::try_from(bytes.trailing_zeros()).expect("below 32") })
    }

    /// The size of `1 << log2` bytes; `None` if that is out of bounds.
    #[must_use]
    pub fn from_log2(log2: u8) -> Option<Self> {
        1u32.checked_shl(u32::from(log2)).and_then(Self::from_bytes)
    }

    /// The binary logarithm of the size in bytes, 16 to 24.
    #[must_use]
    pub fn log2(self) -> u8 {
        self.log2
    }

    /// The size in bytes.
    #[must_use]
    pub fn bytes(self) -> u32 {
        1 << self.log2
    }

    /// The size in sectors of 512 bytes, 128 to 32,768.
    #[must_use]
    pub fn sectors(self) -> u16 {
        1 << (self.log2 - 9)
    }
}

/// A run of sectors inside a chunk: `start..start + count`, relative to the chunk, in units of 512 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Run {
    /// First sector.
    pub start: u16,
    /// Number of sectors, at least 1.
    pub count: u16,
}

impl Run {
    /// The first sector after the run.
    #[must_use]
    pub fn end(self) -> u16 {
        self.start + self.count
    }

    /// Offset of its first byte in the chunk.
    #[must_use]
    pub fn offset_bytes(self) -> u64 {
        u64::from(self.start) * SECTOR_BYTES
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len_bytes(self) -> u64 {
        u64::from(self.count) * SECTOR_BYTES
    }
}

/// The allocated sectors of one chunk, at least one, as ascending runs with gaps between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkExtents {
    size: ChunkSize,
    /// `None` if all sectors are allocated.
    runs: Option<Box<[Run]>>,
}

const KIND_FULL: u8 = 0;
const KIND_RUNS: u8 = 1;
const KIND_BITMAP: u8 = 2;

impl ChunkExtents {
    /// All sectors of a chunk.
    #[must_use]
    pub fn full(size: ChunkSize) -> Self {
        Self { size, runs: None }
    }

    /// The sectors of `runs`; adjacent runs are joined. `None` if there is no run, if a run is empty or lies outside
    /// the chunk, or if the runs are not in ascending order or overlap.
    #[must_use]
    pub fn from_runs(size: ChunkSize, runs: impl IntoIterator<Item = Run>) -> Option<Self> {
        let mut joined: Vec<Run> = Vec::new();
        for run in runs {
            if run.count == 0 || u32::from(run.start) + u32::from(run.count) > u32::from(size.sectors()) {
                return None;
            }
            match joined.last_mut() {
                Some(last) if run.start < last.end() => return None,
                Some(last) if run.start == last.end() => last.count += run.count,
                _ => joined.push(run),
            }
        }
        let full = joined.first()?.count == size.sectors();
        Some(Self { size, runs: (!full).then(|| joined.into_boxed_slice()) })
    }

    /// The chunk size.
    #[must_use]
    pub fn size(&self) -> ChunkSize {
        self.size
    }

    /// Whether all sectors of the chunk are allocated.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.runs.is_none()
    }

    /// The runs, ascending, with gaps between them.
    pub fn runs(&self) -> impl Iterator<Item = Run> + '_ {
        let whole = self.runs.is_none().then(|| Run { start: 0, count: self.size.sectors() });
        whole.into_iter().chain(self.runs.iter().flatten().copied())
    }

    /// How many sectors are allocated, at least 1.
    #[must_use]
    pub fn sectors(&self) -> u32 {
        self.runs().map(|run| u32::from(run.count)).sum()
    }

    /// How many bytes are allocated: the length of the chunk's plain content.
    #[must_use]
    pub fn len_bytes(&self) -> u32 {
        self.sectors() * 512
    }

    /// The first sector after the last run.
    #[must_use]
    pub fn end(&self) -> u16 {
        self.runs.as_ref().map_or(self.size.sectors(), |runs| runs.last().expect("never empty").end())
    }

    /// Whether every run starts and ends at a multiple of `sector_bytes`.
    #[must_use]
    pub(crate) fn is_aligned(&self, sector_bytes: u32) -> bool {
        let unit = u64::from(sector_bytes);
        self.runs().all(|run| run.offset_bytes() % unit == 0 && run.len_bytes() % unit == 0)
    }

    /// Appends the encoding of this set to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let Some(runs) = &self.runs else { return out.push(KIND_FULL) };
        if 2 + 4 * runs.len() <= self.bitmap_bytes() {
            out.push(KIND_RUNS);
            out.extend(u16::try_from(runs.len()).expect("fewer than a bitmap has bits").to_le_bytes());
            for run in runs {
                out.extend(run.start.to_le_bytes());
                out.extend(run.count.to_le_bytes());
            }
        } else {
            out.push(KIND_BITMAP);
            let from = out.len();
            out.resize(from + self.bitmap_bytes(), 0);
            for sector in runs.iter().flat_map(|run| run.start..run.end()) {
                out[from + usize::from(sector) / 8] |= 1 << (sector % 8);
            }
        }
    }

    /// Reads a set from `reader`. `Corrupt` if the bytes are not a set, or not the one valid encoding of it.
    pub fn decode(reader: &mut Reader<'_>, size: ChunkSize) -> Result<Self> {
        let before = reader.rest();
        let read = Self::read(reader, size)?
            .ok_or_else(|| Error::corrupt("the extents of a chunk are not in order"))?;
        // Encode the set again: if the result differs from the bytes read, these were not its one valid encoding.
        let mut canonical = Vec::with_capacity(before.len() - reader.remaining());
        read.encode(&mut canonical);
        if before[..before.len() - reader.remaining()] == canonical {
            Ok(read)
        } else {
            Err(Error::corrupt("the extents of a chunk are not in their shortest form"))
        }
    }

    fn read(reader: &mut Reader<'_>, size: ChunkSize) -> Result<Option<Self>> {
        let cut = |_| Error::corrupt("the extents of a chunk end early");
        match reader.u8().map_err(cut)? {
            KIND_FULL => Ok(Some(Self::full(size))),
            KIND_RUNS => {
                let count = usize::from(reader.u16().map_err(cut)?);
                let (runs, _) = reader.bytes(4 * count).map_err(cut)?.as_chunks::<4>();
                Ok(Self::from_runs(
                    size,
                    runs.iter().map(|&[a, b, c, d]| Run {
                        start: u16::from_le_bytes([a, b]),
                        count: u16::from_le_bytes([c, d]),
                    }),
                ))
            }
            KIND_BITMAP => {
                let bitmap = reader.bytes(usize::from(size.sectors()) / 8).map_err(cut)?;
                let set = |sector: &u16| bitmap[usize::from(*sector) / 8] & (1 << (sector % 8)) != 0;
                Ok(Self::from_runs(
                    size,
                    (0..size.sectors()).filter(set).map(|start| Run { start, count: 1 }),
                ))
            }
            kind => Err(Error::corrupt(format!("unknown form {kind} of the extents of a chunk"))),
        }
    }

    fn bitmap_bytes(&self) -> usize {
        usize::from(self.size.sectors()) / 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Chance;

    fn random(chance: &mut Chance, size: ChunkSize) -> Option<ChunkExtents> {
        let density = 1 + u32::try_from(chance.below(999_999)).unwrap();
        let sectors: Vec<u16> = (0..size.sectors()).filter(|_| chance.hits(density)).collect();
        ChunkExtents::from_runs(size, sectors.into_iter().map(|start| Run { start, count: 1 }))
    }

    #[test]
    fn every_set_survives_encoding_in_its_shortest_form() {
        for seed in 0..400 {
            let mut chance = Chance::from_seed(seed);
            let size = ChunkSize::from_log2(16 + u8::try_from(chance.below(4)).unwrap()).unwrap();
            let Some(extents) = random(&mut chance, size) else { continue };
            let mut bytes = Vec::new();
            extents.encode(&mut bytes);
            assert!(bytes.len() <= 1 + usize::from(size.sectors()) / 8, "seed {seed}");
            let mut reader = Reader::new(&bytes);
            assert_eq!(ChunkExtents::decode(&mut reader, size).unwrap(), extents, "seed {seed}");
            assert_eq!(reader.remaining(), 0);
            for cut in 0..bytes.len() {
                assert!(ChunkExtents::decode(&mut Reader::new(&bytes[..cut]), size).is_err(), "seed {seed}");
            }
        }
    }

    #[test]
    fn other_forms_of_a_set_are_refused() {
        let size = ChunkSize::from_log2(16).unwrap();
        let decode = |bytes: &[u8]| ChunkExtents::decode(&mut Reader::new(bytes), size);
        assert!(decode(&[KIND_FULL]).unwrap().is_full());
        let mut full_bitmap = vec![KIND_BITMAP];
        full_bitmap.extend([0xFF; 16]);
        let cases: [&[u8]; 8] = [
            &full_bitmap,
            &[KIND_RUNS, 1, 0, 0, 0, 128, 0],
            &[KIND_RUNS, 0, 0],
            &[KIND_RUNS, 1, 0, 127, 0, 2, 0],
            &[KIND_RUNS, 2, 0, 4, 0, 1, 0, 5, 0, 1, 0],
            &[KIND_RUNS, 2, 0, 4, 0, 4, 0, 6, 0, 3, 0],
            &[KIND_RUNS, 2, 0, 9, 0, 1, 0, 4, 0, 1, 0],
            &[3],
        ];
        for bytes in cases {
            assert!(decode(bytes).is_err(), "{bytes:?}");
        }
        assert!(decode(&[KIND_RUNS, 1, 0, 127, 0, 1, 0]).is_ok());
    }
}
