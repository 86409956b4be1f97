//! The paths of all records: builds and parses every path of a repository.
//! formats/repository.md, "Layout".

use base::Digest;
use image::ObjectKind;
use object_store::path::{Path, PathPart};

use crate::names::{ImageName, TagName};

/// Digits of a number in a path; fixed, so that names sort like numbers.
const NUMBER_DIGITS: usize = 20;

pub(crate) const FORMAT: &str = "format";
const CHUNKS: &str = "chunks";
const NODES: &str = "nodes";
const VERSIONS: &str = "versions";
const REMOVED: &str = "removed";
const TAGS: &str = "tags";
const CUT_OVERS: &str = "cut-overs";
const FLOORS: &str = "floors";
const APPENDS: &str = "appends";
const PROFILES: &str = "profiles";
const PROBES: &str = "probes";
const SCRATCH: &str = "scratch";
const LEASES: &str = "leases";
const PRUNES: &str = "prunes";
const CANDIDATES: &str = "candidates";

/// Slots for copies of one object. Slots above 0 are for objects that are stored again while a prune may still delete
/// another copy.
pub(crate) const SLOTS: u8 = 8;

/// The folders of all records except objects and `format`.
pub(crate) fn record_folders() -> impl Iterator<Item = Path> {
    let folders =
        [VERSIONS, REMOVED, FLOORS, TAGS, CUT_OVERS, APPENDS, PROFILES, PROBES, LEASES, PRUNES, CANDIDATES];
    folders.into_iter().map(Path::from)
}

/// Whether `text`, of an error, names a record or an object of a repository by its path.
#[must_use]
pub fn names_a_path(text: &str) -> bool {
    let objects = [CHUNKS, NODES].map(Path::from);
    record_folders().chain(objects).any(|folder| text.contains(&format!("{folder}/")))
}

pub(crate) fn format() -> Path {
    Path::from(FORMAT)
}

fn folder_of(kind: ObjectKind) -> &'static str {
    match kind {
        ObjectKind::Chunk => CHUNKS,
        ObjectKind::Node => NODES,
    }
}

pub(crate) fn objects(kind: ObjectKind) -> Path {
    Path::from(folder_of(kind))
}

/// Path of the copy of an object in slot 0.
pub(crate) fn object(kind: ObjectKind, digest: &Digest) -> Path {
    object_in(kind, digest, 0)
}

/// Path of the copy of an object in `slot`.
pub(crate) fn object_in(kind: ObjectKind, digest: &Digest, slot: u8) -> Path {
    let hex = digest.to_hex();
    match slot {
        0 => Path::from_iter([folder_of(kind), &hex[..2], &hex]),
        _ => Path::from_iter([folder_of(kind), &hex[..2], &format!("{hex}.{slot}")]),
    }
}

pub(crate) fn versions() -> Path {
    Path::from(VERSIONS)
}

pub(crate) fn versions_of(image: &ImageName) -> Path {
    Path::from_iter([VERSIONS, image.as_str()])
}

pub(crate) fn version(image: &ImageName, number: u64) -> Path {
    numbered(versions_of(image), number)
}

pub(crate) fn all_removed() -> Path {
    Path::from(REMOVED)
}

pub(crate) fn removed_of(image: &ImageName) -> Path {
    Path::from_iter([REMOVED, image.as_str()])
}

pub(crate) fn removed(image: &ImageName, number: u64) -> Path {
    numbered(removed_of(image), number)
}

pub(crate) fn all_floors() -> Path {
    Path::from(FLOORS)
}

pub(crate) fn floors_of(image: &ImageName) -> Path {
    Path::from_iter([FLOORS, image.as_str()])
}

pub(crate) fn floor(image: &ImageName, number: u64) -> Path {
    numbered(floors_of(image), number)
}

pub(crate) fn tags_of(image: &ImageName) -> Path {
    Path::from_iter([TAGS, image.as_str()])
}

pub(crate) fn tag_records(image: &ImageName, tag: &TagName) -> Path {
    Path::from_iter([TAGS, image.as_str(), tag.as_str()])
}

pub(crate) fn tag_record(image: &ImageName, tag: &TagName, number: u64) -> Path {
    numbered(tag_records(image, tag), number)
}

pub(crate) fn cut_overs_of(image: &ImageName) -> Path {
    Path::from_iter([CUT_OVERS, image.as_str()])
}

pub(crate) fn cut_over(image: &ImageName, number: u64) -> Path {
    numbered(cut_overs_of(image), number)
}

pub(crate) fn all_appends() -> Path {
    Path::from(APPENDS)
}

pub(crate) fn appends_of(image: &ImageName) -> Path {
    Path::from_iter([APPENDS, image.as_str()])
}

pub(crate) fn append(image: &ImageName, number: u64) -> Path {
    numbered(appends_of(image), number)
}

pub(crate) fn all_profiles() -> Path {
    Path::from(PROFILES)
}

pub(crate) fn profiles_of(image: &ImageName) -> Path {
    Path::from_iter([PROFILES, image.as_str()])
}

pub(crate) fn profile(image: &ImageName, number: u64) -> Path {
    numbered(profiles_of(image), number)
}

pub(crate) fn probes() -> Path {
    Path::from(PROBES)
}

pub(crate) fn capabilities(number: u64) -> Path {
    numbered(probes(), number)
}

/// Folder for temporary records of capability tests.
pub(crate) fn scratch_folder() -> Path {
    Path::from_iter([PROBES, SCRATCH])
}

pub(crate) fn scratch(name: &str) -> Path {
    Path::from_iter([PROBES, SCRATCH, name])
}

pub(crate) fn prunes() -> Path {
    Path::from(PRUNES)
}

pub(crate) fn prune_begin(number: u64) -> Path {
    numbered(prunes(), number).join("begin")
}

pub(crate) fn prune_end(number: u64) -> Path {
    numbered(prunes(), number).join("end")
}

pub(crate) fn leases() -> Path {
    Path::from(LEASES)
}

pub(crate) fn lease_entry(epoch: u64, lease: u64, entry: u64) -> Path {
    let name = format!("{lease:0NUMBER_DIGITS$}.{entry:0NUMBER_DIGITS$}");
    numbered(leases(), epoch).join(PathPart::from(name))
}

pub(crate) fn candidates() -> Path {
    Path::from(CANDIDATES)
}

pub(crate) fn candidates_part(epoch: u64, lease: u64, part: u64) -> Path {
    numbered(numbered(numbered(candidates(), epoch), lease), part)
}

pub(crate) fn numbered(folder: Path, number: u64) -> Path {
    folder.join(PathPart::from(digits(number)))
}

fn digits(number: u64) -> String {
    format!("{number:0NUMBER_DIGITS$}")
}

/// Epoch and number of the lease whose entry is at `path`.
pub(crate) fn lease_of(path: &Path) -> Option<(u64, u64)> {
    let (lease, _) = path.filename()?.split_once('.')?;
    let number = lease.parse().ok().filter(|&number| digits(number) == lease)?;
    Some((epoch_of(path)?, number))
}

/// The epoch in a path below `leases` or `candidates`.
pub(crate) fn epoch_of(path: &Path) -> Option<u64> {
    let epoch = path.parts().nth(1)?;
    epoch.as_ref().parse().ok().filter(|&number| digits(number) == epoch.as_ref())
}

/// The number at the end of a numbered record's path; `None` if it does not have the form of one.
pub(crate) fn number_of(path: &Path) -> Option<u64> {
    number_named(path.filename()?)
}

/// The number that the name of a numbered record stands for.
pub(crate) fn number_named(name: &str) -> Option<u64> {
    let digits = name.len() == NUMBER_DIGITS && name.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| name.parse().ok()).flatten().filter(|&number| number > 0)
}

/// Digest and slot of the copy of an object at `path`; `None` if `path` is not that of an object of `kind`.
pub(crate) fn object_at(kind: ObjectKind, path: &Path) -> Option<(Digest, u8)> {
    let (digest, slot) = match path.filename()?.split_once('.') {
        None => (path.filename()?, 0),
        Some((digest, slot)) => (digest, slot.parse().ok().filter(|slot| (1..SLOTS).contains(slot))?),
    };
    let digest = digest.parse().ok()?;
    (object_in(kind, &digest, slot) == *path).then_some((digest, slot))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_read_back() {
        let image: ImageName = "debian".parse().unwrap();
        let path = version(&image, 7);
        assert_eq!(path.as_ref(), "versions/debian/00000000000000000007");
        assert_eq!(number_of(&path), Some(7));
        assert_eq!(number_of(&version(&image, u64::MAX)), Some(u64::MAX));
        let digest = Digest::of(b"x");
        for kind in [ObjectKind::Chunk, ObjectKind::Node] {
            for slot in 0..SLOTS {
                assert_eq!(object_at(kind, &object_in(kind, &digest, slot)), Some((digest, slot)));
            }
        }
    }

    #[test]
    fn strangers_are_no_records() {
        for name in ["7", "00000000000000000000", "0000000000000000007x", "99999999999999999999"] {
            assert_eq!(number_of(&Path::from_iter([VERSIONS, "debian", name])), None, "{name}");
        }
        let hex = Digest::of(b"x").to_hex();
        let upper = object(ObjectKind::Chunk, &Digest::of(b"x")).as_ref().to_uppercase();
        for path in [format!("chunks/{hex}"), format!("chunks/zz/{hex}"), "chunks/aa/x".to_owned(), upper] {
            assert_eq!(object_at(ObjectKind::Chunk, &Path::from(path.as_str())), None, "{path}");
        }
        assert_eq!(object_at(ObjectKind::Node, &object(ObjectKind::Chunk, &Digest::of(b"x"))), None);
        for slot in ["0", "8", "01", "+1", ""] {
            let path = Path::from(format!("chunks/{}/{hex}.{slot}", &hex[..2]));
            assert_eq!(object_at(ObjectKind::Chunk, &path), None, "{path}");
        }
    }

    #[test]
    fn epochs_read_back() {
        let entry = lease_entry(3, 7, 1);
        assert_eq!(entry.as_ref(), "leases/00000000000000000003/00000000000000000007.00000000000000000001");
        assert_eq!((epoch_of(&entry), lease_of(&entry)), (Some(3), Some((3, 7))));
        assert_eq!(epoch_of(&candidates_part(u64::MAX, 1, 2)), Some(u64::MAX));
        assert_eq!(epoch_of(&Path::from("leases/3/x")), None);
    }
}
