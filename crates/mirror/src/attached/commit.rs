//! A commit of a running disk: what was dirty at one moment becomes a version, while the disk is written on.

use std::ops::Range;

use base::limits::SECTOR_BYTES;
use image::Manifest;
use store::{Changes, Content, ImageName, Reference, Repository, Stamp};

use super::Mirror;
use super::local::bytes_of;
use crate::core::{Done, Failure, Io, Request};
use crate::{Error, ErrorKind, Result};

/// What came of a commit.
#[derive(Debug, Clone)]
pub struct Commit {
    /// The version, which is the disk's base now.
    pub manifest: Manifest,
    /// Bytes of the disk that it took.
    pub dirty_bytes: u64,
    /// Bytes that were sent to the repository.
    pub stored_bytes: u64,
}

impl Mirror {
    /// Makes what was written since the base a version of `image`, from one moment: every write that was over when this began
    /// is in it, and none that begins after it returned. Writes go on meanwhile. The disk is based on the new version
    /// then. If `image` does not exist it begins as a clone of the base. `None` if nothing was written.
    ///
    /// # Errors
    /// `Refused` if `image` has a newer version than the base, or another commit is under way; `NotFound` if the base is not
    /// in `repository`; those of the repository. The disk is as before then, and runs on.
    pub fn commit(
        &self,
        repository: &Repository,
        image: &ImageName,
        stamp: &Stamp,
    ) -> Result<Option<Commit>> {
        self.shared.request(Request::Freeze, &mut |_| Done::Failed(Failure::Local))?;
        let ranges: Vec<Range<u64>> = {
            let state = self.shared.lock();
            let frozen = state.core.held().frozen.iter();
            frozen.map(|run| run.start * SECTOR_BYTES..run.end * SECTOR_BYTES).collect()
        };
        let published = match ranges.is_empty() {
            true => Ok(None),
            false => self.publish(repository, image, &ranges, stamp).map(Some),
        };
        let is_base = matches!(published, Ok(Some(_)));
        if let Ok(Some(commit)) = &published {
            self.shared.lock().next = Some(commit.manifest.clone());
        }
        let thawed =
            self.shared.request(Request::Thaw { published: is_base }, &mut |_| Done::Failed(Failure::Local));
        self.shared.local.drop_side();
        let commit = published?;
        thawed.map(|()| commit)
    }

    fn publish(
        &self,
        repository: &Repository,
        image: &ImageName,
        ranges: &[Range<u64>],
        stamp: &Stamp,
    ) -> Result<Commit> {
        let failed = |error: store::Error| {
            let kind = match error.kind() {
                store::ErrorKind::NotFound => ErrorKind::NotFound,
                store::ErrorKind::Exists | store::ErrorKind::Refused => ErrorKind::Refused,
                store::ErrorKind::Corrupt => ErrorKind::Corrupt,
                store::ErrorKind::Full => ErrorKind::Full,
                store::ErrorKind::Invalid => ErrorKind::Invalid,
                store::ErrorKind::Unsupported => ErrorKind::Unsupported,
                store::ErrorKind::Io | store::ErrorKind::Revoked => ErrorKind::Io,
            };
            Error::from_source(kind, format!("commit the disk to `{image}`"), error)
        };
        let base = self.base();
        let name: ImageName = base.image.parse().map_err(failed)?;
        let reference = Reference::Version(name, base.number);
        let found = repository.resolve(&reference).map_err(failed)?;
        if found.root != base.root {
            let text = format!("`{reference}` of this repository is not what the disk began as");
            return Err(Error::new(ErrorKind::Refused, text));
        }
        let blob = repository.blob(image);
        let expected = match base.image == image.as_str() {
            true => base.number,
            false => blob.clone_from(&reference, stamp).map_err(failed)?.number,
        };
        let changes = Changes { written: ranges, content: &Frozen(self), freed: &[] };
        let done = blob.commit(&changes, Some(expected), stamp).map_err(failed)?;
        let dirty_bytes = ranges.iter().map(|range| range.end - range.start).sum();
        Ok(Commit { manifest: done.manifest, dirty_bytes, stored_bytes: done.stored_bytes })
    }

    fn read_frozen(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let range = offset / SECTOR_BYTES..(offset + into.len() as u64) / SECTOR_BYTES;
        let start = range.start;
        self.shared.request(Request::ReadFrozen(range), &mut |task| {
            let Io::ReadFrozen { aside, here } = task else { return Done::Failed(Failure::Local) };
            let place = |part: &Range<u64>| {
                let (offset, bytes) = bytes_of(&(part.start - start..part.end - start));
                let at = |byte: u64| usize::try_from(byte).expect("inside the buffer");
                at(offset)..at(offset + bytes)
            };
            let copied =
                aside.iter().all(|part| self.shared.local.read_side(part, &mut into[place(part)]).is_ok());
            let read = here.iter().all(|part| self.read_data(part, &mut into[place(part)]).is_ok());
            if copied && read { Done::Well } else { Done::Failed(Failure::Local) }
        })
    }
}

/// What is frozen, as the repository asks for it.
struct Frozen<'a>(&'a Mirror);

impl Content for Frozen<'_> {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> std::io::Result<()> {
        self.0.read_frozen(offset, into).map_err(std::io::Error::other)
    }
}
