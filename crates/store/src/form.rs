//! Forms: a version as a file that others read, which is nowhere. Each read makes the bytes that it asks for, from the
//! chunks. The same version is always the same file, on every machine, so that digests of it can be kept.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use base::{Error, ErrorKind, Result};
use image::{Leaf, Manifest, Qcow2Layout};

use crate::edit::Snapshot;
use crate::names::Reference;
use crate::repository::Repository;

/// The formats in which a version can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FormKind {
    /// The bytes of the disk; free sectors are zeros.
    Raw,
    /// QCOW2, version 3, without backing file and without compression: it has the clusters with data alone.
    Qcow2,
}

impl fmt::Display for FormKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
        })
    }
}

impl FromStr for FormKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "raw" => Ok(Self::Raw),
            "qcow2" => Ok(Self::Qcow2),
            _ => {
                let text =
                    format!("`{}` is not a form of a version: expected raw or qcow2", text.escape_debug());
                Err(Error::new(ErrorKind::Invalid, text))
            }
        }
    }
}

/// A version in one format. Threads may share it. It needs memory for the chunks of a read, not for the disk.
#[derive(Debug)]
pub struct Form {
    snapshot: Snapshot<'static>,
    /// `None` if it is raw.
    qcow2: Option<Qcow2Layout>,
}

impl Repository {
    /// The version that `reference` names, as a file of format `kind`. Reads the whole tree once for a QCOW2.
    /// `NotFound` if the version does not exist or was removed; `Unsupported` if its disk is too large for the format;
    /// `Refused` if the repository is locked.
    pub fn form(&self, reference: &Reference, kind: FormKind) -> Result<Form> {
        let snapshot = self.snapshot(reference)?.into_owned();
        let qcow2 = match kind {
            FormKind::Raw => None,
            FormKind::Qcow2 => Some(Qcow2Layout::of(snapshot.layout(), snapshot.runs())?),
        };
        Ok(Form { snapshot, qcow2 })
    }
}

impl Form {
    /// The manifest of the version.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        self.snapshot.manifest()
    }

    /// Length of the file in bytes.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        match &self.qcow2 {
            None => self.snapshot.layout().size_bytes(),
            Some(qcow2) => qcow2.file_bytes(),
        }
    }

    /// Fills `into` with the bytes of the file from `offset` on. All chunks of one read are fetched and decoded in
    /// parallel, so reads of some MiB are the fastest. Errors are those of [`Snapshot::read`].
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let Some(qcow2) = &self.qcow2 else { return self.snapshot.read(offset, into) };
        if offset.checked_add(into.len() as u64).is_none_or(|end| end > qcow2.file_bytes()) {
            let text = format!("read {} bytes at {offset} of a file of {}", into.len(), qcow2.file_bytes());
            return Err(Error::new(ErrorKind::Refused, text));
        }
        let leaves = |range: Range<u64>| self.snapshot.runs_within(&range);
        self.snapshot.read_parts(qcow2.fill(self.snapshot.layout(), offset, into, leaves)?)
    }

    /// The ranges of the file that hold data, ascending, without those that touch; all else is zeros, and a copy may
    /// leave it out. Errors of reading the tree end it.
    pub fn data(&self) -> Box<dyn Iterator<Item = Result<Range<u64>>> + '_> {
        match &self.qcow2 {
            Some(qcow2) => Box::new(std::iter::once(Ok(0..qcow2.file_bytes()))),
            None => Box::new(self.raw_data()),
        }
    }

    fn raw_data(&self) -> impl Iterator<Item = Result<Range<u64>>> + '_ {
        let layout = *self.snapshot.layout();
        let ranges = self.snapshot.runs().flat_map(move |run| match run {
            Err(error) => vec![Err(error)],
            Ok(run) => match &run.leaf {
                Leaf::Data(extents, _) => layout
                    .extents_of(run.first, extents)
                    .map(|extent| Ok(extent.offset_bytes()..extent.offset_bytes() + extent.len_bytes()))
                    .collect(),
                Leaf::Free | Leaf::Zero(_) => Vec::new(),
            },
        });
        Joined { ranges: ranges.peekable() }
    }
}

/// Joins ranges that touch.
struct Joined<I: Iterator> {
    ranges: std::iter::Peekable<I>,
}

impl<I: Iterator<Item = Result<Range<u64>>>> Iterator for Joined<I> {
    type Item = Result<Range<u64>>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut joined = match self.ranges.next()? {
            Ok(range) => range,
            Err(error) => return Some(Err(error)),
        };
        let touches = |next: &I::Item, end: u64| next.as_ref().is_ok_and(|next| next.start == end);
        while let Some(Ok(next)) = self.ranges.next_if(|next| touches(next, joined.end)) {
            joined.end = next.end;
        }
        Some(Ok(joined))
    }
}
