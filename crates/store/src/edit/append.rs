//! Reserves space for appends: a create-only record reserves the range before any data is sent, so that appends never
//! overlap. formats/repository.md, "Appending".

use std::ops::Range;

use base::limits::{DISK_SECTORS_MAX, SECTOR_BYTES};
use base::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use super::blob::Blob;
use crate::backend::Created;
use crate::layout;
use crate::names::ImageName;
use crate::record::{self, RECORD_BYTES_MAX, Stamp};
use crate::repository::Repository;
use crate::versions::{RACES_MAX, next};

const APPEND: &str = "append";
/// Most reservations of one image that one prune deletes.
const OLD_MAX: u64 = 1 << 20;

/// The body of a reservation.
#[derive(Debug, Serialize, Deserialize)]
struct Reservation {
    image: String,
    /// Number of the reservation, from 1; also the name of the record.
    number: u64,
    /// Offset of the first byte in the image.
    offset: u64,
    bytes: u64,
    created: String,
    creator: String,
    nonce: String,
}

impl Blob<'_> {
    /// Reserves whole logical sectors for `bytes` bytes after the end of the image and after all other reservations;
    /// returns their range of bytes. `Invalid` if `bytes` is 0, `Refused` if the image would be too large.
    pub(super) fn reserve(&self, bytes: u64, stamp: &Stamp) -> Result<Range<u64>> {
        let (repository, image) = (self.repository, &self.image);
        for _ in 0..RACES_MAX {
            let Some(last) = repository.newest_number(&layout::appends_of(image))? else {
                // The first reservation is of nothing: only with a record before it can a writer tell that its number
                // was not used before.
                repository.newest_tip(image)?;
                self.create_reservation(1, 0, 0, stamp)?;
                continue;
            };
            // A prune may just have deleted it.
            let Some(before) = self.reservation_if_any(last)? else { continue };
            // Read the size after the reservations, so that the size includes every append whose reservation was not
            // found any more.
            let tip = repository.newest_tip(image)?;
            let unit = u64::from(tip.layout.logical_sector_bytes);
            if bytes == 0 {
                return Err(Error::new(ErrorKind::Invalid, format!("append nothing to `{image}`")));
            }
            let offset = (before.offset + before.bytes).max(tip.layout.size_bytes()).next_multiple_of(unit);
            // An image consists of whole sectors. The next append begins with one of its own.
            let end = offset.checked_add(bytes).and_then(|end| end.checked_next_multiple_of(unit));
            let Some(end) = end.filter(|end| end / SECTOR_BYTES <= DISK_SECTORS_MAX) else {
                let text = format!("append {bytes} bytes to `{image}`: it would be larger than any disk");
                return Err(Error::new(ErrorKind::Refused, text));
            };
            // If the reservation before was deleted, this number may have been used and deleted too, and later
            // appends may use the same space. Then try again. Prunes delete in ascending order, so a number is not
            // free again while the very record before it is there.
            if self.create_reservation(next(last, image)?, offset, end - offset, stamp)? == Created::Ours
                && self.reservation_if_any(last)?.is_some_and(|found| found.nonce == before.nonce)
            {
                return Ok(offset..end);
            }
        }
        Err(Error::new(ErrorKind::Io, format!("append to `{image}`: too many other writers append now")))
    }

    fn create_reservation(&self, number: u64, offset: u64, bytes: u64, stamp: &Stamp) -> Result<Created> {
        let record = Reservation {
            image: self.image.to_string(),
            number,
            offset,
            bytes,
            created: stamp.created.clone(),
            creator: stamp.creator.clone(),
            nonce: record::nonce()?,
        };
        let bytes = record::encrypt(self.repository.cipher(), record::encode(APPEND, &record))?;
        self.repository.backend.create(&layout::append(&self.image, number), &bytes)
    }

    fn reservation_if_any(&self, number: u64) -> Result<Option<Reservation>> {
        match self.reservation(number) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            read => read.map(Some),
        }
    }

    fn reservation(&self, number: u64) -> Result<Reservation> {
        let path = layout::append(&self.image, number);
        let bytes = self.repository.backend.read_record(&path, RECORD_BYTES_MAX)?;
        let bytes = record::decrypt(self.repository.cipher(), path.as_ref(), bytes)?;
        let found: Reservation = record::decode(APPEND, path.as_ref(), &bytes)?;
        let damaged = |what| Error::new(ErrorKind::Corrupt, format!("`{path}` is damaged: {what}"));
        if (found.image.as_str(), found.number) != (self.image.as_str(), number) {
            return Err(damaged("it is a reservation of another image or number"));
        }
        if found.offset.checked_add(found.bytes).is_none() {
            return Err(damaged("its end is out of range"));
        }
        Ok(found)
    }

    /// Reads reservation `number`. `Corrupt` if it is damaged.
    pub(crate) fn check_reservation(&self, number: u64) -> Result<()> {
        self.reservation(number).map(drop)
    }
}

impl Repository {
    /// Deletes all reservations except the newest two of each image in lists, in ascending order.
    pub(crate) fn forget_appends(&self) -> Result<()> {
        for image in self.backend.folders(&layout::all_appends())? {
            let Ok(image) = image.parse::<ImageName>() else { continue };
            let folder = layout::appends_of(&image);
            let listed = self.numbers_in(&folder)?;
            let (Some(&first), Some(&last)) = (listed.first(), listed.last()) else { continue };
            if last - first > OLD_MAX {
                // Some of these records are not from diskcast.
                continue;
            }
            // Delete all numbers in between, even if the list does not show some of them yet.
            let old: Vec<_> =
                (first..last.saturating_sub(1)).map(|number| layout::append(&image, number)).collect();
            self.delete_all(&old)?;
        }
        Ok(())
    }
}
