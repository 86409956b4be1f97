//! The body of a commit over HTTP: pieces of an image that are written or become free. Specified in `formats/api.md`,
//! "Images in place".
//!
//! The pieces are concatenated, ascending, and do not overlap. Each begins with a `u64` offset and a `u32` length,
//! little endian. The bytes follow. If the length is 0, a `u64` follows instead: the number of bytes from the offset
//! on that become free.

use std::ops::Range;

use bytes::{Buf, Bytes};

/// Bytes of a written piece before its content.
pub const HEADER_BYTES: usize = 12;

/// The pieces of a commit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pieces {
    /// Written ranges of the image with their bytes, ascending.
    pub written: Vec<(Range<u64>, Bytes)>,
    /// Ranges of the image that become free, ascending.
    pub freed: Vec<Range<u64>>,
}

impl Pieces {
    /// Parses the body of a commit.
    ///
    /// # Errors
    /// Says what is wrong, as the end of a sentence that begins with "the pieces of a commit".
    pub fn parse(mut body: Bytes) -> Result<Self, &'static str> {
        let (mut pieces, mut end) = (Self::default(), None);
        while !body.is_empty() {
            if body.len() < HEADER_BYTES {
                return Err("end early");
            }
            let (offset, bytes) = (body.get_u64_le(), body.get_u32_le());
            if body.len() < if bytes == 0 { 8 } else { bytes as usize } {
                return Err("end early");
            }
            let length = if bytes == 0 { body.get_u64_le() } else { bytes.into() };
            if length == 0 || end.is_some_and(|end| offset < end) {
                return Err("do not ascend, or one is empty");
            }
            let behind = offset.checked_add(length).ok_or("exceed the largest offset")?;
            end = Some(behind);
            match bytes {
                0 => pieces.freed.push(offset..behind),
                _ => pieces.written.push((offset..behind, body.split_to(bytes as usize))),
            }
        }
        if end.is_none() { Err("are missing") } else { Ok(pieces) }
    }

    /// Appends the header of a piece of `bytes` bytes (at least 1) to be written at `offset`. The caller appends the
    /// bytes.
    pub fn begin_written(body: &mut Vec<u8>, offset: u64, bytes: u32) {
        assert!(bytes > 0, "a piece without bytes becomes free");
        body.extend(offset.to_le_bytes());
        body.extend(bytes.to_le_bytes());
    }

    /// Appends a piece that becomes free; `range` must not be empty.
    pub fn push_freed(body: &mut Vec<u8>, range: &Range<u64>) {
        body.extend(range.start.to_le_bytes());
        body.extend(0u32.to_le_bytes());
        body.extend((range.end - range.start).to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(written: &[(u64, &[u8])], freed: &[Range<u64>]) -> Bytes {
        let mut body = Vec::new();
        for (offset, bytes) in written {
            // Not by `begin_written`, since some of these bodies are invalid.
            body.extend(offset.to_le_bytes());
            body.extend(u32::try_from(bytes.len()).unwrap().to_le_bytes());
            body.extend_from_slice(bytes);
        }
        freed.iter().for_each(|range| Pieces::push_freed(&mut body, range));
        body.into()
    }

    #[test]
    fn pieces_come_as_they_went() {
        let mut sent = Vec::new();
        Pieces::begin_written(&mut sent, 5, 2);
        sent.extend(b"ab");
        Pieces::push_freed(&mut sent, &(7..1 << 40));
        let pieces = Pieces::parse(sent.into()).unwrap();
        assert_eq!(pieces.written, [(5..7, Bytes::from_static(b"ab"))]);
        assert!(pieces.freed.iter().eq([&(7..1 << 40)]));
    }

    #[test]
    fn hostile_pieces_are_refused() {
        let good = body(&[(5, b"ab")], std::slice::from_ref(&(7..9)));
        assert!(Pieces::parse(good.clone()).is_ok());
        for bad in [
            Bytes::new(),
            good.slice(..13),
            good.slice(..7),
            good.slice(..good.len() - 1),
            body(&[(u64::MAX, b"ab")], &[]),
            body(&[(5, b"ab"), (6, b"c")], &[]),
            body(&[(5, b"ab"), (1, b"c")], &[]),
            body(&[(5, b"ab")], std::slice::from_ref(&(6..9))),
            body(&[], std::slice::from_ref(&(6..6))),
            body(&[], &[6..9, 8..10]),
        ] {
            assert!(Pieces::parse(bad.clone()).is_err(), "{bad:?}");
        }
    }
}
