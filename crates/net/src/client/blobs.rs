//! Images in place: requests that create, clone, write, append to, commit to and read images, with the bytes in their
//! bodies. Specified in `formats/api.md`, "Images in place".
//!
//! A request carries at most about 16 MiB. Longer content is sent by several requests, one after the other, each of
//! which makes a version. If the caller expects a certain version, the first request expects that version, and each
//! later one the version that the request before it made.

use std::ops::Range;

use base::limits::OBJECT_BYTES_MAX;
use base::{Error, ErrorKind, Result};
use bytes::Bytes;

use super::{Body, Client};
use crate::api::{self, CloneRequest, CreateRequest, LogEntry, Written};
use crate::pieces::{HEADER_BYTES, Pieces};

/// Most bytes of content or of pieces in one request or answer.
const REQUEST_BYTES_MAX: usize = OBJECT_BYTES_MAX as usize;
/// A commit's body with less room than this is sent.
const ROOM_MIN: usize = 64 << 10;
/// Longer content is cut at multiples of this, so that few chunks are written in two parts.
const CUT_BYTES: u64 = 1 << 20;

/// Reads the content to be written, from the given offset in the image.
pub type ReadContent<'a> = dyn FnMut(u64, &mut [u8]) -> std::io::Result<()> + 'a;

/// The changes of a commit: ranges of bytes of the image that do not overlap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Ranges to be written.
    pub written: Vec<Range<u64>>,
    /// Ranges that become free.
    pub freed: Vec<Range<u64>>,
}

impl Client {
    /// Creates an empty image.
    ///
    /// # Errors
    /// `Exists`; `Invalid` if the parameters are not allowed; as [`Self::images`].
    pub fn create(&self, image: &str, request: &CreateRequest) -> Result<Written> {
        let body = serde_json::to_vec(request).expect("a request is plain data");
        self.make(reqwest::Method::POST, &api::path::image(image), "application/json", body.into())
    }

    /// Creates an image whose first version equals version `from` of another image.
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

    /// Fills `into` with the bytes of a version from `offset` on, and returns the name of that version. All bytes are
    /// from one version, even if `reference` does not name one.
    ///
    /// # Errors
    /// `NotFound`; `Refused` beyond the image's end; as [`Self::images`].
    pub fn read(&self, reference: &str, offset: u64, into: &mut [u8]) -> Result<String> {
        let (mut version, mut at) = (reference.to_owned(), offset);
        // At least one request: the caller learns the version even if it reads no bytes.
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
            Ok((version, self.read_body(response, into.len() as u64)?))
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

    /// Writes `bytes` at `offset`. The answer has the last version that was made, and the sums over all requests.
    ///
    /// # Errors
    /// `NotFound`; `Refused` beyond the image's end, or if `expect` is not the newest version; as [`Self::images`].
    pub fn write(&self, image: &str, offset: u64, bytes: Bytes, expect: Option<u64>) -> Result<Written> {
        let mut all = Sum::new(expect);
        for range in cut(&(offset..offset.saturating_add(bytes.len() as u64)), REQUEST_BYTES_MAX) {
            let path = api::path::content_at(image, range.start, all.expect);
            let part = bytes.slice(index(range.start - offset)..index(range.end - offset));
            all.add(self.make(reqwest::Method::PUT, &path, api::OBJECT_TYPE, part)?);
        }
        all.done(image)
    }

    /// Appends the first `bytes` bytes of `content`, whose offsets count from the first appended byte. The appended
    /// bytes are contiguous, even if other clients append at the same time; the answer says where they are.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` unless `bytes` is a multiple of the logical sector; as [`Self::images`].
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

    /// Writes and frees the ranges of `changes`; `content` provides the bytes to write.
    ///
    /// # Errors
    /// `Invalid` if ranges overlap or none is given; as [`Self::write`].
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

    /// Sends one request that makes a version, under a new idempotency key, so repetitions are safe.
    fn make(&self, method: reqwest::Method, path: &str, kind: &'static str, body: Bytes) -> Result<Written> {
        self.json(method, path, Body::Keyed { kind, body, key: self.new_key() })
    }

    /// A random key of 32 hexadecimal digits.
    pub(super) fn new_key(&self) -> String {
        let mut chance = self.chance.lock();
        format!("{:016x}{:016x}", chance.u64(), chance.u64())
    }
}

/// The sum of several answers.
struct Sum {
    /// The version that the next request must find, if the caller expects one.
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

/// Cuts `range` into parts of at most `room` bytes, at multiples of [`CUT_BYTES`] if possible.
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
