//! The names in a mount, their inode numbers and attributes.
//!
//! ```text
//! /IMAGE/NUMBER      a version, read-only
//! /IMAGE/latest      a symbolic link to the newest version; tags are links as well
//! /_clones/NAME      a writable clone
//! /_control          takes commands; a read returns the last answer
//! /_status           the disks in use
//! ```
//!
//! Names of images begin with a letter or a digit, so they cannot collide with names that begin with `_`. A link is
//! resolved when a file is opened: an open file stays the same version, whatever `latest` becomes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base::{Digest, Error, ErrorKind, Result};
use fuser::{FileAttr, FileType, INodeNo};
use parking_lot::{Mutex, MutexGuard};
use store::{ImageName, Reference, TagName};

use super::disks::{DiskName, Disks};

const CONTROL: &str = "_control";
const STATUS: &str = "_status";
const CLONES: &str = "_clones";
const LATEST: &str = "latest";
/// The I/O size in bytes that programs are advised to use (`st_blksize`).
const BLOCK_BYTES: u32 = 128 << 10;

/// A place in the mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// `/`.
    Root,
    /// `/_control`.
    Control,
    /// `/_status`.
    Status,
    /// `/_clones`.
    Clones,
    /// `/IMAGE`.
    Image(ImageName),
    /// `/IMAGE/latest`, `/IMAGE/TAG`.
    Link(ImageName, Reference),
    /// A version or a clone.
    Disk(DiskName),
}

impl Place {
    /// Its inode number, which is the same in every mount.
    pub(super) fn number(&self) -> INodeNo {
        if *self == Self::Root {
            return INodeNo::ROOT;
        }
        let digest = Digest::of(format!("{self:?}").as_bytes());
        // 1 is the root's number and 0 is invalid; with bit 1 set it can be neither.
        INodeNo(u64::from_le_bytes(*digest.0.first_chunk().expect("a digest is longer")) | 2)
    }

    /// The type of file at this place.
    pub(super) fn kind(&self) -> FileType {
        match self {
            Self::Root | Self::Clones | Self::Image(_) => FileType::Directory,
            Self::Link(..) => FileType::Symlink,
            Self::Control | Self::Status | Self::Disk(_) => FileType::RegularFile,
        }
    }

    /// How long the kernel may cache an entry and its attributes. Versions never change, but may be removed.
    pub(super) fn lifetime(&self) -> Duration {
        match self {
            Self::Disk(DiskName::Version(..)) => Duration::from_secs(10),
            Self::Clones | Self::Image(_) | Self::Link(..) | Self::Disk(DiskName::Clone(_)) => {
                Duration::from_secs(1)
            }
            // No caching: a check whether the mount is alive must reach this process.
            Self::Root | Self::Control | Self::Status => Duration::ZERO,
        }
    }

    /// The place called `name` in this one, whether or not it exists. `NotFound` if the name is impossible here.
    pub(super) fn child(&self, name: &str) -> Result<Self> {
        let missing = || Error::new(ErrorKind::NotFound, format!("there is nothing called `{name}`"));
        match self {
            Self::Root => match name {
                CONTROL => Ok(Self::Control),
                STATUS => Ok(Self::Status),
                CLONES => Ok(Self::Clones),
                name => name.parse().map(Self::Image).map_err(|_| missing()),
            },
            Self::Clones => name.parse().map(|name| Self::Disk(DiskName::Clone(name))).map_err(|_| missing()),
            Self::Image(image) if name == LATEST => {
                Ok(Self::Link(image.clone(), Reference::Newest(image.clone())))
            }
            Self::Image(image) => match (number(name), name.parse::<TagName>()) {
                (Some(number), _) => Ok(Self::Disk(DiskName::Version(image.clone(), number))),
                (None, Ok(tag)) => Ok(Self::Link(image.clone(), Reference::Tagged(image.clone(), tag))),
                (None, Err(_)) => Err(missing()),
            },
            Self::Control | Self::Status | Self::Link(..) | Self::Disk(_) => Err(missing()),
        }
    }
}

/// The number of a version, from 1 and without leading zeros; `None` for other text.
fn number(name: &str) -> Option<u64> {
    name.parse().ok().filter(|number: &u64| *number > 0 && number.to_string() == name)
}

/// See the module.
pub(super) struct Names {
    disks: Arc<Disks>,
    /// The places that the kernel knows, with its number of lookups of each.
    known: Mutex<HashMap<INodeNo, (Place, u64)>>,
    owner: (u32, u32),
    since: SystemTime,
}

impl Names {
    /// All files belong to `owner` (user and group). `since` is the time of the mount.
    pub(super) fn new(disks: Arc<Disks>, owner: (u32, u32), since: SystemTime) -> Self {
        Self { disks, known: Mutex::default(), owner, since }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<INodeNo, (Place, u64)>> {
        self.known.lock()
    }

    /// The place of an inode number that the kernel knows. `NotFound` for others.
    pub(super) fn place(&self, number: INodeNo) -> Result<Place> {
        if number == INodeNo::ROOT {
            return Ok(Place::Root);
        }
        let found = self.known().get(&number).map(|(place, _)| place.clone());
        found.ok_or_else(|| Error::new(ErrorKind::NotFound, format!("nothing has the number {}", number.0)))
    }

    /// Counts one more lookup of a place by the kernel.
    pub(super) fn remember(&self, place: &Place) {
        self.known().entry(place.number()).or_insert_with(|| (place.clone(), 0)).1 += 1;
    }

    /// Handles a FORGET request: the kernel drops `times` of its lookups.
    pub(super) fn forget(&self, number: INodeNo, times: u64) {
        let mut known = self.known();
        if let Some((_, told)) = known.get_mut(&number) {
            *told = told.saturating_sub(times);
            if *told == 0 {
                known.remove(&number);
            }
        }
    }

    /// The entries of a folder. No content of a disk is fetched.
    pub(super) fn list(&self, place: &Place) -> Result<Vec<(String, Place)>> {
        let mut list = Vec::new();
        let mut add = |name: &str| {
            if let Ok(child) = place.child(name) {
                list.push((name.to_owned(), child));
            }
        };
        match place {
            Place::Root => {
                [CLONES, CONTROL, STATUS].into_iter().for_each(&mut add);
                self.disks.origin.images()?.iter().for_each(|image| add(image.as_str()));
            }
            Place::Clones => self.disks.clones().iter().for_each(|name| add(name.as_str())),
            Place::Image(image) => {
                self.disks.origin.versions(image)?.iter().for_each(|number| add(&number.to_string()));
                let tags = self.disks.origin.tags(image)?;
                let tags = tags.iter().map(TagName::as_str).filter(|tag| number(tag).is_none());
                tags.chain([LATEST]).for_each(add);
            }
            _ => {}
        }
        Ok(list)
    }

    /// The target of a link: the number of a version.
    pub(super) fn target(&self, reference: &Reference) -> Result<String> {
        Ok(self.disks.origin.resolve(reference)?.number.to_string())
    }

    /// The attributes of the file at a place. `NotFound` if there is none.
    pub(super) fn attributes(&self, place: &Place) -> Result<FileAttr> {
        let (size, allocated, perm, changed) = match place {
            Place::Root | Place::Clones => (0, 0, 0o500, self.since),
            Place::Image(image) => {
                self.disks.origin.versions(image)?;
                (0, 0, 0o500, self.since)
            }
            Place::Control => (0, 0, 0o600, self.since),
            Place::Status => (0, 0, 0o400, self.since),
            Place::Link(_, reference) => {
                let manifest = self.disks.origin.resolve(reference)?;
                (manifest.number.to_string().len() as u64, 0, 0o777, time_of(&manifest.created))
            }
            Place::Disk(DiskName::Version(image, number)) => {
                let manifest = self.disks.manifest(image, *number)?;
                let size = manifest.size_sectors * base::limits::SECTOR_BYTES;
                (size, manifest.statistics.allocated_bytes, 0o400, time_of(&manifest.created))
            }
            Place::Disk(DiskName::Clone(name)) => {
                let (size, allocated, changed) = self.disks.clone_file(name)?;
                (size, allocated, 0o600, changed)
            }
        };
        let is_folder = place.kind() == FileType::Directory;
        Ok(FileAttr {
            ino: place.number(),
            size,
            blocks: allocated.div_ceil(512),
            atime: changed,
            mtime: changed,
            ctime: changed,
            crtime: changed,
            kind: place.kind(),
            perm,
            nlink: if is_folder { 2 } else { 1 },
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            blksize: BLOCK_BYTES,
            flags: 0,
        })
    }
}

/// The time of an RFC 3339 date in UTC, as manifests have it; 1970 if it cannot be parsed.
fn time_of(text: &str) -> SystemTime {
    let number =
        |range: std::ops::Range<usize>| text.get(range).and_then(|digits| digits.parse::<i64>().ok());
    let fields = [0..4, 5..7, 8..10, 11..13, 14..16, 17..19].map(number);
    let [Some(year), Some(month), Some(day), Some(hour), Some(minute), Some(second)] = fields else {
        return SystemTime::UNIX_EPOCH;
    };
    // Years are counted from March, so that the leap day is the last day of its year.
    let (years, months) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = years * 365 + years / 4 - years / 100 + years / 400 + (153 * months + 2) / 5 + day - 719_469;
    let seconds = ((days * 24 + hour) * 60 + minute) * 60 + second;
    SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_to_places() {
        let image: ImageName = "debian".parse().unwrap();
        let folder = Place::Root.child("debian").unwrap();
        assert_eq!(folder, Place::Image(image.clone()));
        let version = folder.child("12").unwrap();
        assert_eq!(version, Place::Disk(DiskName::Version(image.clone(), 12)));
        assert_eq!(
            folder.child("latest").unwrap(),
            Place::Link(image.clone(), Reference::Newest(image.clone()))
        );
        assert!(matches!(folder.child("stable").unwrap(), Place::Link(_, Reference::Tagged(..))));
        // `012` is not the number of a version, but a tag may have this name.
        assert!(matches!(folder.child("012").unwrap(), Place::Link(..)));
        for (place, name) in [(&Place::Root, "_x"), (&folder, "A"), (&version, "x"), (&Place::Clones, "..")] {
            assert_eq!(place.child(name).unwrap_err().kind(), ErrorKind::NotFound);
        }
        assert_ne!(version.number(), folder.number());
    }

    #[test]
    fn dates_are_moments() {
        let seconds = |text| time_of(text).duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        assert_eq!(seconds("1970-01-01T00:00:00Z"), 0);
        assert_eq!(seconds("2000-02-29T12:00:01Z"), 951_825_601);
        assert_eq!(seconds("2026-11-22T00:00:00Z"), 1_795_305_600);
        assert_eq!(seconds("yesterday"), 0);
    }
}
