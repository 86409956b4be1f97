//! Finds what lies outside partitions and behind filesystems: boot loaders, keys, leftovers.

use base::Extent;
use base::limits::SECTOR_BYTES;

use crate::coverage::Coverage;
use crate::{ReadAt, Result};

/// What is looked at in one go, and taken whole if any of it is not zero: what is written there (a boot loader, most
/// often) has zeros inside that matter as well.
const PIECE_SECTORS: u64 = (1 << 20) / SECTOR_BYTES;

/// Adds to `coverage` the pieces of `area` that hold anything but zeros. Holes of sparse files are not read.
pub(crate) fn find_content(disk: &dyn ReadAt, area: Extent, coverage: &mut Coverage) -> Result<()> {
    let mut buf = Vec::new();
    let mut sector = area.start;
    while sector < area.end() {
        let data = disk.next_data(sector * SECTOR_BYTES) / SECTOR_BYTES;
        if data >= area.end() {
            break;
        }
        // A hole at the front of a piece belongs to it, too.
        let start = (data.max(sector) / PIECE_SECTORS * PIECE_SECTORS).max(area.start);
        let piece = Extent::between(start, (start + 1).next_multiple_of(PIECE_SECTORS).min(area.end()));
        buf.resize(usize::try_from(piece.len_bytes()).expect("at most a piece"), 0);
        disk.read_exact_at(&mut buf, piece.offset_bytes())?;
        if !is_zero(&buf) {
            coverage.add(piece);
        }
        sector = piece.end();
    }
    Ok(())
}

/// Whether all bytes are zeros.
fn is_zero(bytes: &[u8]) -> bool {
    let (words, tail) = bytes.as_chunks::<64>();
    words.iter().all(|word| *word == [0; 64]) && tail.iter().all(|&byte| byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::MemoryDisk;

    fn content(bytes: Vec<u8>, area: Extent) -> Vec<Extent> {
        let disk = MemoryDisk::new(bytes);
        let mut coverage = Coverage::default();
        find_content(&disk, area, &mut coverage).unwrap();
        coverage.into_set(1, area).runs().to_vec()
    }

    #[test]
    fn takes_pieces_that_hold_anything() {
        let mut bytes = vec![0; 5 << 20];
        let area = Extent::new(1, 10_000);
        assert_eq!(content(bytes.clone(), area), []);
        bytes[3 << 20] = 1;
        assert_eq!(content(bytes.clone(), area), [Extent::new(3 << 11, 1 << 11)]);
        // What lies outside the area is not its business; a piece is cut to the area.
        bytes[0] = 1;
        bytes[10_000 * 512] = 1;
        assert_eq!(content(bytes, area), [Extent::between(3 << 11, 10_001)]);
    }
}
