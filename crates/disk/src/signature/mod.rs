//! Finds signatures: the magic bytes, at known places, of the formats that a volume may have. A signature that is found
//! is a *claim*: some program may accept the volume as its format. The callers decide which claim is right.

mod check;
mod table;

use base::{Extent, Result};

use crate::ReadAt;
use crate::volume::Volume;
use table::{Place, Signature};

/// A signature that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The format that claims the volume, in most cases by the name that `blkid` has for it. All ext filesystems are
    /// `ext`; a master boot record is `mbr`.
    pub kind: &'static str,
    /// Offset of the magic bytes, from the start of the volume.
    pub offset: u64,
    /// Number of magic bytes; 0 if the format has none and only its fields tell (an Atari partition table).
    pub len: u64,
    /// Whether the format is a partition table.
    pub is_table: bool,
    /// Whether it is a copy of the first signature, and no program uses the copy if the first is missing.
    pub is_copy: bool,
}

impl Claim {
    /// The name of the format for messages.
    pub(crate) fn describe(&self) -> String {
        if self.is_table { format!("a {} partition table", self.kind) } else { self.kind.to_owned() }
    }
}

/// All signatures in the part of `disk` at `extent`. Offsets count from the start of `extent`, as if it were a disk of
/// its own. Panics if `extent` passes the end of the disk. `Io` if the disk fails.
pub fn claims(disk: &dyn ReadAt, extent: Extent) -> Result<Vec<Claim>> {
    find(&Volume::new(disk, extent))
}

/// All signatures in `volume`: formats first, then partition tables. `Io` if the disk fails.
pub(crate) fn find(volume: &Volume) -> Result<Vec<Claim>> {
    let mut found = Vec::new();
    for signature in table::FORMATS {
        signature.find(volume, false, &mut found)?;
    }
    for signature in table::TABLES {
        signature.find(volume, true, &mut found)?;
    }
    Ok(found)
}

impl Signature {
    fn find(&self, volume: &Volume, is_table: bool, found: &mut Vec<Claim>) -> Result<()> {
        let len = self.magic.len();
        for place in self.places {
            // One read covers all repetitions of the magic.
            let span = (self.repeat - 1) * self.step_bytes + len;
            let Some(start) = place.offset(volume.len_bytes()) else { continue };
            let Some(bytes) = volume.peek(start, span)? else { continue };
            for at in (0..self.repeat).map(|index| index * self.step_bytes) {
                let offset = start + at as u64;
                if bytes[at..at + len] == *self.magic && (self.check)(volume, offset)? {
                    let is_copy = self.is_copy;
                    found.push(Claim { kind: self.kind, offset, len: len as u64, is_table, is_copy });
                }
            }
        }
        Ok(())
    }
}

impl Place {
    /// The offset in a volume of `len` bytes; `None` if the volume is shorter than the distance from its end.
    fn offset(self, len: u64) -> Option<u64> {
        match self {
            Self::Start(offset) => Some(offset),
            Self::End { unit, before } => (len / unit * unit).checked_sub(before),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::MemoryDisk;

    /// Every signature that needs no other fields is found at each of its places, and no other signature is.
    #[test]
    fn finds_each_signature_at_each_place() {
        const LEN: usize = (5 << 20) + 512;
        let disk = MemoryDisk::new(vec![0; LEN]);
        let whole = Extent::new(0, LEN as u64 / 512);
        for signature in table::FORMATS.iter().chain(table::TABLES) {
            let at = signature.places.iter().filter_map(|place| place.offset(LEN as u64));
            for offset in at.filter(|offset| *offset < LEN as u64) {
                crate::WriteAt::write_all_at(&disk, signature.magic, offset).unwrap();
                let found = claims(&disk, whole).unwrap();
                let here = found.iter().any(|claim| claim.offset == offset && claim.kind == signature.kind);
                let checked = (signature.check)(&Volume::whole(&disk), offset).unwrap();
                assert_eq!(here, checked, "{} at {offset}", signature.kind);
                let others: Vec<_> = found.iter().filter(|claim| claim.kind != signature.kind).collect();
                assert!(others.is_empty(), "{} at {offset}, but also {others:?}", signature.kind);
                crate::WriteAt::write_zeroes(&disk, offset, signature.magic.len() as u64).unwrap();
            }
        }
    }

    #[test]
    fn short_volumes_have_no_claims() {
        for sectors in 0..40 {
            let disk = MemoryDisk::new(vec![0; sectors * 512]);
            assert_eq!(claims(&disk, Extent::new(0, sectors as u64)).unwrap(), []);
        }
    }

    /// The length of the volume is rounded down to the unit of the place.
    #[test]
    fn places_from_the_end() {
        let len = (10 << 20) + 5 * 512;
        assert_eq!(Place::End { unit: 65_536, before: 65_536 }.offset(len), Some((10 << 20) - 65_536));
        assert_eq!(Place::End { unit: 4096, before: 8192 }.offset(len), Some((10 << 20) - 8192));
        assert_eq!(Place::End { unit: 512, before: 512 }.offset(len), Some(len - 512));
        assert_eq!(Place::End { unit: 65_536, before: 65_536 }.offset(60_000), None);
    }
}
