//! Floors: a floor is the number up to which all versions of an image are removed, so that their manifests and
//! tombstones can be deleted. formats/repository.md, "Versions" and "Pruning".

use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use object_store::path::Path;
use serde::{Deserialize, Serialize};

use crate::layout;
use crate::names::ImageName;
use crate::record::{self, RECORD_BYTES_MAX, Stamp};
use crate::repository::Repository;

const FLOOR: &str = "floor";

/// The body of a floor.
#[derive(Debug, Serialize, Deserialize)]
struct Floor {
    image: String,
    /// Number of the last removed version; also the name of the record.
    number: u64,
    created: String,
    creator: String,
    nonce: String,
}

impl Repository {
    /// The number up to which all versions of `image` are removed, even if records of them still exist; 0 if there is
    /// no floor.
    pub(crate) fn floor(&self, image: &ImageName) -> Result<u64> {
        Ok(self.newest_number(&layout::floors_of(image))?.unwrap_or(0))
    }

    /// `Corrupt` if the content of floor `number` of `image` is not valid. The floor still counts, by its name.
    pub(crate) fn check_floor(&self, image: &ImageName, number: u64) -> Result<()> {
        let path = layout::floor(image, number);
        let bytes = self.backend.read_record(&path, RECORD_BYTES_MAX)?;
        let bytes = record::decrypt(&self.cipher, path.as_ref(), bytes)?;
        let found: Floor = record::decode(FLOOR, path.as_ref(), &bytes)?;
        match (found.image.as_str(), found.number) == (image.as_str(), number) {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::Corrupt, format!("`{path}` is the floor of another image"))),
        }
    }

    /// Floor `number` of `image`, as it is stored.
    pub(crate) fn seal_floor(&self, image: &ImageName, number: u64, stamp: &Stamp) -> Result<Bytes> {
        let floor = Floor {
            image: image.to_string(),
            number,
            created: stamp.created.clone(),
            creator: stamp.creator.clone(),
            nonce: record::nonce()?,
        };
        record::encrypt(&self.cipher, record::encode(FLOOR, &floor))
    }

    /// Records that all versions of `image` up to `number` are removed, then deletes their records that are listed.
    /// Deletes nothing before a list shows the floor: after that, every list shows it or a higher one.
    pub(crate) fn raise_floor(&self, image: &ImageName, number: u64, stamp: &Stamp) -> Result<()> {
        if number > self.floor(image)? {
            let bytes = self.seal_floor(image, number, stamp)?;
            // If the record exists, another prune wrote the same.
            self.backend.create(&layout::floor(image, number), &bytes)?;
        }
        let shown = self.floor(image)?;
        // Manifests first: a manifest without its tombstone would make the version visible again.
        self.delete_up_to(&layout::versions_of(image), shown)?;
        self.delete_up_to(&layout::removed_of(image), shown)?;
        self.delete_up_to(&layout::floors_of(image), shown.saturating_sub(1))
    }

    /// Deletes the listed records in `folder` with numbers up to `last`, in ascending order.
    fn delete_up_to(&self, folder: &Path, last: u64) -> Result<()> {
        let numbers = self.numbers_in(folder)?;
        let paths: Vec<_> = numbers
            .into_iter()
            .take_while(|&number| number <= last)
            .map(|number| layout::numbered(folder.clone(), number))
            .collect();
        self.delete_all(&paths)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOLDEN: &str =
        include_str!("../../../../golden/repository/v1/floored/floors/debian/00000000000000000002");

    #[test]
    fn floors_are_still_written_as_they_were() {
        let floor: Floor = record::decode(FLOOR, "golden", GOLDEN.as_bytes()).unwrap();
        assert_eq!(record::encode(FLOOR, &floor), GOLDEN);
    }
}
