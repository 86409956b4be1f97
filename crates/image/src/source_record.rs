//! The record of the disk that an image was captured from, by which an install detects that its target is this disk.
//! `formats/image.md`, "Source".
//!
//! Serial numbers are private, so a manifest holds only digests of them. Each manifest has its own salt: two images
//! do not reveal that they came from one disk.

use base::{Digest, Extent};
use disk::Place;
use serde::{Deserialize, Serialize};

/// BLAKE3 context of the digests in `marks`.
const CONTEXT: &str = "diskcast image v1: a disk that was captured";

/// The disk or file that an image was captured from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceRecord {
    /// 32 random hexadecimal digits.
    pub salt: String,
    /// Digests of texts that identify the whole disk or file, 64 hexadecimal digits each. A disk that has one of
    /// these marks is the source.
    pub marks: Vec<String>,
    /// First sector of the image on that disk, in units of 512 bytes.
    pub start_sector: u64,
}

impl SourceRecord {
    /// The record of an image that holds the sectors `window` of `place`. `None` if nothing identifies the place. The
    /// caller draws a new random `salt` for each image.
    #[must_use]
    pub fn of(place: &Place, window: Extent, salt: [u8; 16]) -> Option<Self> {
        let salt = format!("{:032x}", u128::from_be_bytes(salt));
        let marks: Vec<_> = place.marks.iter().map(|mark| digest(&salt, mark)).collect();
        let start_sector = place.start_sector.checked_add(window.start)?;
        (!marks.is_empty()).then_some(Self { salt, marks, start_sector })
    }

    /// The record of an image that begins `sectors` later. `Corrupt` if no disk is that large.
    pub(crate) fn moved_by(&self, sectors: u64) -> base::Result<Self> {
        let start_sector = self.start_sector.checked_add(sectors);
        let start_sector =
            start_sector.ok_or_else(|| base::Error::corrupt("a source that begins nowhere"))?;
        Ok(Self { start_sector, ..self.clone() })
    }

    /// Whether the `sectors` sectors that begin at `place` overlap the `sectors` sectors that begin where the image
    /// was captured.
    #[must_use]
    pub fn meets(&self, place: &Place, sectors: u64) -> bool {
        let (here, there) = (self.start_sector, place.start_sector);
        let apart = here.max(there) - here.min(there);
        apart < sectors && place.marks.iter().any(|mark| self.marks.contains(&digest(&self.salt, mark)))
    }
}

fn digest(salt: &str, mark: &str) -> String {
    let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
    hasher.update(salt.as_bytes()).update(mark.as_bytes());
    Digest(*hasher.finalize().as_bytes()).to_hex()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(marks: &[&str], start_sector: u64) -> Place {
        Place { marks: marks.iter().map(|&mark| mark.to_owned()).collect(), start_sector }
    }

    #[test]
    fn a_disk_is_known_where_the_image_lay() {
        let window = Extent::new(100, 50);
        let record = SourceRecord::of(&place(&["disk a", "slot b"], 1000), window, [7; 16]).unwrap();
        let meets = |marks: &[&str], start| record.meets(&place(marks, start), window.count);
        assert!(meets(&["slot b"], 1100) && meets(&["slot c", "disk a"], 1149) && meets(&["disk a"], 1051));
        assert!(!meets(&["disk a"], 1150) && !meets(&["disk a"], 1050), "another partition");
        assert!(!meets(&["disk c", "slot c"], 1100) && !meets(&[], 1100), "another disk");
        let text = serde_json::to_string(&record).unwrap();
        assert!(!text.contains("disk a") && !text.contains("slot"), "{text}");
        let other = SourceRecord::of(&place(&["disk a"], 0), window, [8; 16]).unwrap();
        assert!(!record.marks.contains(&other.marks[0]), "two images do not tell that they are of one disk");
        assert_eq!(SourceRecord::of(&place(&[], 0), window, [7; 16]), None);
    }
}
