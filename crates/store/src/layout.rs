//! Which record lies where: every path of a repository is made and read back here.
//! formats/repository.md, "Layout".

use base::Digest;
use image::ObjectKind;
use object_store::path::{Path, PathPart};

use crate::names::{ImageName, TagName};

/// Digits of a number in a path, so that names sort as numbers do.
const NUMBER_DIGITS: usize = 20;

pub(crate) const FORMAT: &str = "format";
const CHUNKS: &str = "chunks";
const NODES: &str = "nodes";
const VERSIONS: &str = "versions";
const REMOVED: &str = "removed";
const TAGS: &str = "tags";
const APPENDS: &str = "appends";
const PROBES: &str = "probes";
const SCRATCH: &str = "scratch";

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

pub(crate) fn object(kind: ObjectKind, digest: &Digest) -> Path {
    let hex = digest.to_hex();
    Path::from_iter([folder_of(kind), &hex[..2], &hex])
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

pub(crate) fn removed_of(image: &ImageName) -> Path {
    Path::from_iter([REMOVED, image.as_str()])
}

pub(crate) fn removed(image: &ImageName, number: u64) -> Path {
    numbered(removed_of(image), number)
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

pub(crate) fn appends_of(image: &ImageName) -> Path {
    Path::from_iter([APPENDS, image.as_str()])
}

pub(crate) fn append(image: &ImageName, number: u64) -> Path {
    numbered(appends_of(image), number)
}

pub(crate) fn probes() -> Path {
    Path::from(PROBES)
}

pub(crate) fn probe(number: u64) -> Path {
    numbered(probes(), number)
}

/// Where a probe of the store makes records that do not stay.
pub(crate) fn scratch_folder() -> Path {
    Path::from_iter([PROBES, SCRATCH])
}

pub(crate) fn scratch(name: &str) -> Path {
    Path::from_iter([PROBES, SCRATCH, name])
}

pub(crate) fn numbered(folder: Path, number: u64) -> Path {
    folder.join(PathPart::from(format!("{number:0NUMBER_DIGITS$}")))
}

/// The number that a numbered record's path ends in; `None` for anything that nobody here wrote.
pub(crate) fn number_of(path: &Path) -> Option<u64> {
    number_named(path.filename()?)
}

/// The number that the name of a numbered record is.
pub(crate) fn number_named(name: &str) -> Option<u64> {
    let digits = name.len() == NUMBER_DIGITS && name.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| name.parse().ok()).flatten().filter(|&number| number > 0)
}

/// The digest that an object's path ends in, if it lies where the object of `kind` and that digest belongs.
pub(crate) fn digest_of(kind: ObjectKind, path: &Path) -> Option<Digest> {
    let digest = path.filename()?.parse().ok()?;
    (object(kind, &digest) == *path).then_some(digest)
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
            assert_eq!(digest_of(kind, &object(kind, &digest)), Some(digest));
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
            assert_eq!(digest_of(ObjectKind::Chunk, &Path::from(path.as_str())), None, "{path}");
        }
        assert_eq!(digest_of(ObjectKind::Node, &object(ObjectKind::Chunk, &Digest::of(b"x"))), None);
    }
}
