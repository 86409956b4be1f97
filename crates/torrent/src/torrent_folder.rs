//! The folder in which a server keeps the digests of versions, so that each is read and hashed once.
//!
//! A file for each version and form, bencoded: what it is of, and its hybrid torrent without a tracker. Its name holds
//! the names of the torrent and of that for version 1 alone, so that looking for one of them opens one file.

use std::path::{Path, PathBuf};

use base::{Digest, Error, Result};

use crate::bencode::{Value, dictionary};
use crate::metainfo::{InfoHash, Metainfo};

const EXTENSION: &str = "torrent";

/// What a torrent is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Of {
    /// The version, as `image@number`.
    pub reference: String,
    /// Digest of its manifest.
    pub manifest: Digest,
    /// In which form it is a file, such as `raw`.
    pub form: String,
}

/// The folder.
#[derive(Debug, Clone)]
pub struct TorrentFolder {
    folder: PathBuf,
}

impl TorrentFolder {
    /// The folder at `path`, which is made if it is missing.
    ///
    /// # Errors
    /// `Io`.
    pub fn open(path: &Path) -> Result<Self> {
        let failed = |error| Error::from_io(format!("make the folder `{}`", path.display()), error);
        std::fs::create_dir_all(path).map_err(failed)?;
        Ok(Self { folder: path.to_owned() })
    }

    /// The hybrid torrent of a version, if it is here.
    ///
    /// # Errors
    /// `Io`. A damaged file counts as missing.
    pub fn of(&self, of: &Of) -> Result<Option<Metainfo>> {
        let begin = begin(of);
        let found = self.read(|name| name.starts_with(&begin))?;
        Ok(found.filter(|(known, _)| known == of).map(|(_, torrent)| torrent))
    }

    /// What the torrent of this name is of, and the torrent: hybrid, or for version 1 alone.
    ///
    /// # Errors
    /// `Io`. A damaged file counts as missing.
    pub fn named(&self, hash: &InfoHash) -> Result<Option<(Of, Metainfo)>> {
        let name = hash.to_string();
        let Some((of, torrent)) = self.read(|file| file.contains(&name))? else { return Ok(None) };
        let torrent = if torrent.info_hash() == *hash { torrent } else { torrent.v1() };
        Ok((torrent.info_hash() == *hash).then_some((of, torrent)))
    }

    /// Keeps the hybrid torrent of a version.
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub fn keep(&self, of: &Of, torrent: &Metainfo) -> Result<()> {
        let entries = dictionary([
            ("form", of.form.as_str().into()),
            ("manifest", of.manifest.0.to_vec().into()),
            ("reference", of.reference.as_str().into()),
            ("torrent", torrent.encode(None).into()),
        ]);
        let names = (torrent.info_hash(), torrent.v1().info_hash());
        let path = self.folder.join(format!("{}-{}-{}.{EXTENSION}", begin(of), names.0, names.1));
        let draft = path.with_extension(format!("draft-{}", std::process::id()));
        let written = std::fs::write(&draft, Value::from(entries).encode())
            .and_then(|()| std::fs::File::open(&draft)?.sync_all())
            .and_then(|()| std::fs::rename(&draft, &path));
        written.map_err(|error| Error::from_io(format!("keep `{}`", path.display()), error))
    }

    /// The first file that has a name like this and is not damaged.
    fn read(&self, is_meant: impl Fn(&str) -> bool) -> Result<Option<(Of, Metainfo)>> {
        let failed = |error| Error::from_io(format!("read the folder `{}`", self.folder.display()), error);
        for entry in std::fs::read_dir(&self.folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let name = path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            if path.extension().is_none_or(|extension| extension != EXTENSION) || !is_meant(&name) {
                continue;
            }
            let bytes = std::fs::read(&path).map_err(failed)?;
            if let Some(found) = parse(&bytes) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}

/// How the name of a file begins.
fn begin(of: &Of) -> String {
    format!("{}-{}", of.manifest.to_hex(), of.form)
}

fn parse(bytes: &[u8]) -> Option<(Of, Metainfo)> {
    let value = Value::decode(bytes).ok()?;
    let text = |key: &str| Some(std::str::from_utf8(value.get(key)?.bytes()?).ok()?.to_owned());
    let manifest = Digest(value.get("manifest")?.bytes()?.try_into().ok()?);
    let (torrent, _) = Metainfo::parse(value.get("torrent")?.bytes()?).ok()?;
    Some((Of { reference: text("reference")?, manifest, form: text("form")? }, torrent))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::{Hashes, PieceHash};
    use crate::metainfo::Kind;

    #[test]
    fn torrents_are_found_by_version_and_by_both_names() {
        let folder = tempfile::tempdir().unwrap();
        let kept = TorrentFolder::open(&folder.path().join("torrents")).unwrap();
        let of = Of { reference: "web@3".to_owned(), manifest: Digest([7; 32]), form: "raw".to_owned() };
        let pieces = vec![PieceHash { v1: [1; 20], v2: [2; 32] }];
        let hashes = Hashes { length: 9, piece_bytes: 1 << 18, pieces };
        let torrent = Metainfo::new("web@3.img", &hashes, Kind::Hybrid);
        assert_eq!(kept.of(&of).unwrap(), None);
        kept.keep(&of, &torrent).unwrap();
        assert_eq!(kept.of(&of).unwrap(), Some(torrent.clone()));
        assert_eq!(kept.of(&Of { form: "qcow2".to_owned(), ..of.clone() }).unwrap(), None);
        assert_eq!(kept.named(&torrent.info_hash()).unwrap(), Some((of.clone(), torrent.clone())));
        let v1 = torrent.v1();
        assert_eq!(kept.named(&v1.info_hash()).unwrap(), Some((of.clone(), v1)));
        assert_eq!(kept.named(&InfoHash([0; 20])).unwrap(), None);
        // A damaged file is as good as none, and is replaced.
        let path = std::fs::read_dir(folder.path().join("torrents")).unwrap().next().unwrap().unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        assert_eq!(kept.of(&of).unwrap(), None);
        kept.keep(&of, &torrent).unwrap();
        assert!(kept.of(&of).unwrap().is_some());
    }
}
