//! All records except objects: where they are stored, and whether they are intact. Records that control writers and
//! prunes are checked just like versions.

use base::limits::MANIFEST_BYTES_MAX;
use base::{Error, ErrorKind, Result};
use object_store::path::Path;

use crate::backend::capabilities;
use crate::layout;
use crate::lease;
use crate::lease::epoch::{Epoch, PartName, read_part};
use crate::names::{ImageName, TagName};
use crate::parallel::parallel;
use crate::record;
use crate::record::mend::mend;
use crate::repository::Repository;

/// Records that are checked together.
const WINDOW_RECORDS: usize = 1024;

/// A record, as its path names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Name {
    Format,
    Version(ImageName, u64),
    Tombstone(ImageName, u64),
    Floor(ImageName, u64),
    Move(ImageName, TagName, u64),
    CutOver(ImageName, u64),
    Reservation(ImageName, u64),
    Profile(ImageName, u64),
    Capabilities(u64),
    /// Epoch, lease and entry.
    Entry(u64, u64, u64),
    Begin(u64),
    End(u64),
    Part(PartName),
}

impl Name {
    /// The record that belongs at `path`; `None` if that is not a path of this format.
    pub(crate) fn at(path: &Path) -> Option<Self> {
        let parts: Vec<_> = path.parts().collect();
        let parts: Vec<_> = parts.iter().map(AsRef::as_ref).collect();
        let number = |text: &str| text.parse::<u64>().ok();
        let name = match parts[..] {
            [layout::FORMAT] => Self::Format,
            ["versions", image, last] => Self::Version(image.parse().ok()?, number(last)?),
            ["removed", image, last] => Self::Tombstone(image.parse().ok()?, number(last)?),
            ["floors", image, last] => Self::Floor(image.parse().ok()?, number(last)?),
            ["tags", image, tag, last] => Self::Move(image.parse().ok()?, tag.parse().ok()?, number(last)?),
            ["cut-overs", image, last] => Self::CutOver(image.parse().ok()?, number(last)?),
            ["appends", image, last] => Self::Reservation(image.parse().ok()?, number(last)?),
            ["profiles", image, last] => Self::Profile(image.parse().ok()?, number(last)?),
            ["probes", last] => Self::Capabilities(number(last)?),
            ["leases", epoch, last] => {
                let (lease, entry) = last.split_once('.')?;
                Self::Entry(number(epoch)?, number(lease)?, number(entry)?)
            }
            ["prunes", prune, "begin"] => Self::Begin(number(prune)?),
            ["prunes", prune, "end"] => Self::End(number(prune)?),
            ["candidates", epoch, lease, part] => {
                Self::Part(PartName::of(number(epoch)?, number(lease)?, number(part)?))
            }
            _ => return None,
        };
        (name.path() == *path).then_some(name)
    }

    pub(crate) fn path(&self) -> Path {
        match self {
            Self::Format => layout::format(),
            Self::Version(image, number) => layout::version(image, *number),
            Self::Tombstone(image, number) => layout::removed(image, *number),
            Self::Floor(image, number) => layout::floor(image, *number),
            Self::Move(image, tag, number) => layout::tag_record(image, tag, *number),
            Self::CutOver(image, number) => layout::cut_over(image, *number),
            Self::Reservation(image, number) => layout::append(image, *number),
            Self::Profile(image, number) => layout::profile(image, *number),
            Self::Capabilities(number) => layout::capabilities(*number),
            Self::Entry(epoch, lease, entry) => layout::lease_entry(*epoch, *lease, *entry),
            Self::Begin(number) => layout::prune_begin(*number),
            Self::End(number) => layout::prune_end(*number),
            Self::Part(part) => part.path(),
        }
    }

    /// Whether an encrypted repository encrypts this record.
    fn is_encrypted(&self) -> bool {
        !matches!(self, Self::Format | Self::Capabilities(_) | Self::Part(_))
    }
}

impl Repository {
    /// Calls `damaged` for each record that has changed since it was written, with the error, even if readers can
    /// still repair and use it. Returns the number of files between the records that are not records.
    pub(crate) fn each_damaged(&self, damaged: &(dyn Fn(&Name, &Error) + Sync)) -> Result<u64> {
        let (mut window, mut strangers) = (vec![Name::Format], 0);
        let look = |window: &mut Vec<Name>| {
            parallel(
                window,
                || (),
                |(), name| {
                    if let Err(error) = self.check(name) {
                        damaged(name, &error);
                    }
                },
            );
            window.clear();
        };
        for folder in layout::record_folders() {
            self.backend.each_path(&folder, &mut |path| {
                match Name::at(&path) {
                    Some(name) => window.push(name),
                    None => strangers += u64::from(!path.prefix_matches(&layout::scratch_folder())),
                }
                if window.len() >= WINDOW_RECORDS {
                    look(&mut window);
                }
            })?;
        }
        look(&mut window);
        Ok(strangers)
    }

    /// Checks a record, if it exists.
    fn check(&self, name: &Name) -> Result<()> {
        let path = name.path();
        let whole = self.read_whole(name).and_then(|()| {
            // Readers can repair one bit, but not more.
            match mend(&self.backend.read(&path, u64::from(MANIFEST_BYTES_MAX))?) {
                Some(_) => Err(Error::new(
                    ErrorKind::Corrupt,
                    format!("`{path}` is damaged: one bit of it changed, and it is read as it was before"),
                )),
                None => Ok(()),
            }
        });
        match whole {
            // It was deleted after it was listed.
            Err(error) if error.kind() == ErrorKind::NotFound && self.backend.size(&path)?.is_none() => {
                Ok(())
            }
            // A removed version is recognized by its number, so damage to its manifest does not matter.
            Err(error) => match name {
                Name::Version(image, number) if self.is_gone(image, *number)? && !self.is_mended(&path) => {
                    Ok(())
                }
                _ => Err(error),
            },
            Ok(()) => Ok(()),
        }
    }

    /// Whether the version was removed: it has a tombstone or is below a floor.
    fn is_gone(&self, image: &ImageName, number: u64) -> Result<bool> {
        Ok(self.is_removed(image, number)? || number <= self.floor(image)?)
    }

    /// Whether exactly one bit of the record at `path` has changed.
    fn is_mended(&self, path: &Path) -> bool {
        self.backend.read(path, u64::from(MANIFEST_BYTES_MAX)).is_ok_and(|bytes| mend(&bytes).is_some())
    }

    /// Reads a record in the same way as its users do.
    pub(crate) fn read_whole(&self, name: &Name) -> Result<()> {
        if self.is_locked() && name.is_encrypted() {
            return self.check_sealed(name);
        }
        match name {
            Name::Format => self.check_format(),
            Name::Version(image, number) => self.read_manifest(image, *number).map(drop),
            Name::Tombstone(image, number) => self.check_tombstone(image, *number),
            Name::Floor(image, number) => self.check_floor(image, *number),
            Name::Move(image, tag, number) => self.move_of(image, tag, *number).map(drop),
            Name::CutOver(image, number) => self.check_cut_over(image, *number),
            Name::Reservation(image, number) => self.blob(image).check_reservation(*number),
            Name::Profile(image, number) => self.check_profile(image, *number),
            Name::Capabilities(number) => capabilities::read(&self.backend, *number).map(drop),
            Name::Entry(epoch, lease, entry) => lease::read(self, *epoch, *lease, *entry).map(drop),
            Name::Begin(number) => Epoch::of(self, *number).map(drop),
            Name::End(number) => Epoch { number: *number, begin: None }.end(self).map(drop),
            Name::Part(part) => read_part(self, part).map(drop),
        }
    }

    /// Checks what is possible without the key: the digest of an encrypted record.
    fn check_sealed(&self, name: &Name) -> Result<()> {
        if let Name::Version(image, number) = name {
            return self.check_manifest(image, *number);
        }
        let path = name.path();
        let bytes = self.backend.read_record(&path, u64::from(MANIFEST_BYTES_MAX))?;
        match name {
            Name::Entry(..) if !bytes.starts_with(b"{") => {
                let checked = image::cipher::check_sealed_manifest(&bytes);
                checked.map(drop).map_err(|error| error.within(format!("read `{path}`")))
            }
            _ => record::check_enclosed(path.as_ref(), &bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_strangers_have_none() {
        let (image, tag): (ImageName, TagName) = ("debian".parse().unwrap(), "stable".parse().unwrap());
        for name in [
            Name::Format,
            Name::Version(image.clone(), 1),
            Name::Tombstone(image.clone(), u64::MAX),
            Name::Floor(image.clone(), 5),
            Name::Move(image.clone(), tag, 2),
            Name::CutOver(image.clone(), 6),
            Name::Reservation(image.clone(), 3),
            Name::Profile(image, 4),
            Name::Capabilities(5),
            Name::Entry(0, 1, 2),
            Name::Begin(1),
            Name::End(2),
            Name::Part(PartName::of(0, 2, 3)),
        ] {
            assert_eq!(Name::at(&name.path()), Some(name.clone()), "{name:?}");
            for ending in ["x", ".damaged", "#1"] {
                assert_eq!(Name::at(&Path::from(format!("{}{ending}", name.path()))), None);
            }
        }
        for stranger in ["versions/debian/7", "probes/scratch/1", "leases/0/1.1", "other", "prunes/x/begin"] {
            assert_eq!(Name::at(&Path::from(stranger)), None, "{stranger}");
        }
    }
}
