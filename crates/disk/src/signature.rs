//! Signatures: which formats claim a volume, by magic bytes at fixed places. A claim means that some program may take
//! the volume for its own; callers decide whether it does.

mod check;
mod table;

use base::{Extent, Result};

use crate::ReadAt;
use crate::volume::Volume;
use table::{Place, Signature};

/// A signature that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The format, usually with the name that `blkid` uses. All ext filesystems are `ext`; a master boot record is
    /// `mbr`.
    pub kind: &'static str,
    /// Where the magic bytes stand, in bytes from the start of the volume.
    pub offset: u64,
    /// How many there are.
    pub len: u64,
    /// Whether it is a partition table.
    pub is_table: bool,
    /// Whether it is a copy that no program uses if the first one is missing.
    pub is_copy: bool,
}

impl Claim {
    /// Its name for messages.
    pub(crate) fn describe(&self) -> String {
        if self.is_table { format!("a {} partition table", self.kind) } else { self.kind.to_owned() }
    }
}

/// All signatures in the part of `disk` at `extent`, treated as a volume. The extent lies inside the disk. `Io` if the
/// disk fails.
pub fn claims(disk: &dyn ReadAt, extent: Extent) -> Result<Vec<Claim>> {
    find(&Volume::new(disk, extent))
}

/// All signatures in `volume`.
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
    /// The offset in a volume of `len` bytes, if the volume is long enough.
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

    /// Every row that stands for itself is found where it should be, alone.
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

    /// Ends are rounded down, each in its own unit.
    #[test]
    fn places_from_the_end() {
        let len = (10 << 20) + 5 * 512;
        assert_eq!(Place::End { unit: 65_536, before: 65_536 }.offset(len), Some((10 << 20) - 65_536));
        assert_eq!(Place::End { unit: 4096, before: 8192 }.offset(len), Some((10 << 20) - 8192));
        assert_eq!(Place::End { unit: 512, before: 512 }.offset(len), Some(len - 512));
        assert_eq!(Place::End { unit: 65_536, before: 65_536 }.offset(60_000), None);
    }
}
