//! Images in place: made, cloned, written, appended to, committed to and read by requests that carry the bytes
//! themselves. `formats/api.md`, "Images in place".
//!
//! A request carries about 16 MiB at most. What is longer goes in several, one after the other, and each makes a
//! version; whoever expects a version at the beginning expects what the last request made from the second on.

use std::ops::Range;

use base::limits::OBJECT_BYTES_MAX;
use base::{Error, ErrorKind, Result};
use bytes::Bytes;

use super::failure::read_at_most;
use super::{Body, Client};
use crate::api::{self, CloneRequest, CreateRequest, LogEntry, Written};
use crate::pieces::{HEADER_BYTES, Pieces};

/// Most bytes that one request brings or gets, of content or of pieces.
const REQUEST_BYTES_MAX: usize = OBJECT_BYTES_MAX as usize;
/// A body with less room than this goes as it is.
const ROOM_MIN: usize = 64 << 10;
/// What is cut is cut at a multiple of this, so that few chunks are written in two halves.
const CUT_BYTES: u64 = 1 << 20;

/// Reads what is written to the image from an offset of it on.
pub type ReadContent<'a> = dyn FnMut(u64, &mut [u8]) -> std::io::Result<()> + 'a;

/// What a commit changes: ranges of bytes of the image, none over another.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// They are written.
    pub written: Vec<Range<u64>>,
    /// They become free.
    pub freed: Vec<Range<u64>>,
}

impl Client {
    /// Makes an empty image.
    ///
    /// # Errors
    /// `Exists`; `Invalid` if it can't have this shape; as [`Self::images`].
    pub fn create(&self, image: &str, request: &CreateRequest) -> Result<Written> {
        let body = serde_json::to_vec(request).expect("a request is plain data");
        self.make(reqwest::Method::POST, &api::path::image(image), "application/json", body.into())
    }

    /// Makes an image that begins as the version `from` of another.
    ///
    /// # Errors
    /// `Exists`, `NotFound`; as [`Self::images`].
    pub fn clone_image(&self, image: &str, from: &str) -> Result<Written> {
        let body = serde_json::to_vec(&CloneRequest { from: from.to_owned() }).expect("plain data");
        self.make(reqwest::Method::POST, &api::path::clone_of(image), "application/json", body.into())
    }

    /// The newest version of an image.
    ///
    /// # Errors
    /// `NotFound`; as [`Self::images`].
    pub fn recent(&self, image: &str) -> Result<LogEntry> {
        self.json(reqwest::Method::GET, &api::path::image(image), Body::None)
    }

    /// Fills `into` with the bytes of a version from `offset` on, and says which version that is. All of them are of
    /// one version, also where `reference` does not name one.
    ///
    /// # Errors
    /// `NotFound`; `Refused` behind the image's end; as [`Self::images`].
    pub fn read(&self, reference: &str, offset: u64, into: &mut [u8]) -> Result<String> {
        let (mut version, mut at) = (reference.to_owned(), offset);
        // Once at least: also who wants nothing learns which version that is.
        let mut parts = into.chunks_mut(REQUEST_BYTES_MAX);
        let mut part = parts.next().unwrap_or_default();
        loop {
            version = self.read_once(&version, at, part)?;
            at += part.len() as u64;
            match parts.next() {
                Some(next) => part = next,
                None => return Ok(version),
            }
        }
    }

    fn read_once(&self, reference: &str, offset: u64, into: &mut [u8]) -> Result<String> {
        let path = api::path::content(reference, offset, into.len());
        let (version, bytes) = self.attempts(&format!("GET {path}"), |limit| {
            let response = self.once(&reqwest::Method::GET, &path, &Body::None, limit)?;
            let version = response.headers().get(api::VERSION_HEADER).and_then(|name| name.to_str().ok());
            let version = version.map(str::to_owned);
            Ok((version, read_at_most(response, into.len() as u64)?))
        })?;
        match version {
            Some(version) if bytes.len() == into.len() => {
                into.copy_from_slice(&bytes);
                Ok(version)
            }
            _ => Err(Error::new(
                ErrorKind::Corrupt,
                format!("GET {path}: the answer is not what was asked for"),
            )),
        }
    }

    /// Writes `bytes` at `offset`. The answer is of the last version that was made, with the sums of all.
    ///
    /// # Errors
    /// `NotFound`; `Refused` behind the image's end, or if `expect` is not the newest version; as [`Self::images`].
    pub fn write(&self, image: &str, offset: u64, bytes: Bytes, expect: Option<u64>) -> Result<Written> {
        let mut all = Sum::new(expect);
        for range in cut(&(offset..offset.saturating_add(bytes.len() as u64)), REQUEST_BYTES_MAX) {
            let path = api::path::content_at(image, range.start, all.expect);
            let part = bytes.slice(index(range.start - offset)..index(range.end - offset));
            all.add(self.make(reqwest::Method::PUT, &path, api::OBJECT_TYPE, part)?);
        }
        all.done(image)
    }

    /// Writes the first `bytes` bytes of `content`, whose offsets count from the first byte that is appended, behind
    /// the image's end, in one piece, whatever others append meanwhile; the answer says where.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` unless they are whole logical sectors; as [`Self::images`].
    pub fn append(&self, image: &str, bytes: u64, content: &mut ReadContent<'_>) -> Result<Written> {
        let first = cut(&(0..bytes), REQUEST_BYTES_MAX).next().unwrap_or_default();
        let mut body = vec![0; index(first.end)];
        content(0, &mut body).map_err(|error| unread(0, error))?;
        let path = api::path::append(image, bytes);
        let begun = self.make(reqwest::Method::POST, &path, api::OBJECT_TYPE, body.into())?;
        let (Some(place), true) = (begun.offset, first.end < bytes) else { return Ok(begun) };
        let rest = place + first.end..place + bytes;
        let rest = Changes { written: vec![rest], ..Changes::default() };
        let mut content_there = |offset: u64, into: &mut [u8]| content(offset - place, into);
        let mut all = Sum::new(None);
        all.add(begun);
        all.add(self.commit(image, &rest, &mut content_there, None)?);
        Ok(Written { offset: Some(place), ..all.done(image)? })
    }

    /// Writes and frees `changes`, `content` where it is written.
    ///
    /// # Errors
    /// `Invalid` if ranges overlap or there are none; as [`Self::write`].
    pub fn commit(
        &self,
        image: &str,
        changes: &Changes,
        content: &mut ReadContent<'_>,
        expect: Option<u64>,
    ) -> Result<Written> {
        let written = changes.written.iter().map(|range| (range, true));
        let mut pieces: Vec<(&Range<u64>, bool)> =
            written.chain(changes.freed.iter().map(|range| (range, false))).collect();
        pieces.retain(|(range, _)| !range.is_empty());
        pieces.sort_unstable_by_key(|(range, _)| range.start);
        if pieces.windows(2).any(|two| two[0].0.end > two[1].0.start) {
            return Err(Error::new(ErrorKind::Invalid, format!("commit to `{image}`: ranges overlap")));
        }
        let (mut all, mut body) = (Sum::new(expect), Vec::new());
        for (range, written) in pieces {
            let mut rest = range.clone();
            while !rest.is_empty() {
                let room = REQUEST_BYTES_MAX - body.len();
                if room < ROOM_MIN {
                    all.add(self.commit_once(image, std::mem::take(&mut body), all.expect)?);
                    continue;
                }
                if !written {
                    Pieces::push_freed(&mut body, &rest);
                    break;
                }
                let part = cut(&rest, room - HEADER_BYTES).next().expect("the rest is not empty");
                let length = u32::try_from(part.end - part.start).expect("a part fits a request");
                Pieces::begin_written(&mut body, part.start, length);
                let from = body.len();
                body.resize(from + length as usize, 0);
                content(part.start, &mut body[from..]).map_err(|error| unread(part.start, error))?;
                rest.start = part.end;
            }
        }
        if !body.is_empty() {
            all.add(self.commit_once(image, body, all.expect)?);
        }
        all.done(image)
    }

    fn commit_once(&self, image: &str, body: Vec<u8>, expect: Option<u64>) -> Result<Written> {
        let path = api::path::commit(image, expect);
        self.make(reqwest::Method::POST, &path, api::OBJECT_TYPE, body.into())
    }

    /// One request that makes a version, under a key of its own: repeating it is safe.
    fn make(&self, method: reqwest::Method, path: &str, kind: &'static str, body: Bytes) -> Result<Written> {
        self.json(method, path, Body::Keyed { kind, body, key: self.new_key() })
    }

    /// 32 hexadecimal digits that nobody else has drawn.
    pub(super) fn new_key(&self) -> String {
        let mut chance = self.chance.lock();
        format!("{:016x}{:016x}", chance.u64(), chance.u64())
    }
}

/// What several requests came to.
struct Sum {
    /// The version that the next one must find.
    expect: Option<u64>,
    made: Option<Written>,
}

impl Sum {
    fn new(expect: Option<u64>) -> Self {
        Self { expect, made: None }
    }

    fn add(&mut self, made: Written) {
        self.expect = self.expect.map(|_| made.number);
        let before = self.made.take();
        let (retries, merged_chunks, stored_bytes) =
            before.map_or((0, 0, 0), |made| (made.retries, made.merged_chunks, made.stored_bytes));
        self.made = Some(Written {
            retries: made.retries + retries,
            merged_chunks: made.merged_chunks + merged_chunks,
            stored_bytes: made.stored_bytes + stored_bytes,
            ..made
        });
    }

    fn done(self, image: &str) -> Result<Written> {
        self.made.ok_or_else(|| Error::new(ErrorKind::Invalid, format!("nothing to write to `{image}`")))
    }
}

/// `range` in parts of at most `room` bytes, which is more than [`CUT_BYTES`] or takes all.
fn cut(range: &Range<u64>, room: usize) -> impl Iterator<Item = Range<u64>> + use<> {
    let mut rest = range.clone();
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let most = rest.end.min(rest.start.saturating_add(room as u64));
        let cut = most / CUT_BYTES * CUT_BYTES;
        let end = if most == rest.end || cut <= rest.start { most } else { cut };
        let part = rest.start..end;
        rest.start = end;
        Some(part)
    })
}

fn unread(offset: u64, error: std::io::Error) -> Error {
    Error::from_source(ErrorKind::Io, format!("read what is sent, at offset {offset}"), error)
}

fn index(bytes: u64) -> usize {
    usize::try_from(bytes).expect("it is below a length in memory")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_whole_and_cut_at_multiples() {
        let mib = CUT_BYTES;
        let parts = |range: Range<u64>, room: u64| cut(&range, index(room)).collect::<Vec<_>>();
        assert_eq!(parts(5..5, mib), []);
        assert_eq!(parts(5..5 * mib, 2 * mib + 7), [5..2 * mib, 2 * mib..4 * mib, 4 * mib..5 * mib]);
        assert_eq!(parts(3 * mib..3 * mib + 9, 8), [3 * mib..3 * mib + 8, 3 * mib + 8..3 * mib + 9]);
        assert!(parts(1..9, 100).into_iter().eq(std::iter::once(1..9)));
    }
}
