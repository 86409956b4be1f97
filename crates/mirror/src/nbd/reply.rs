//! Encodes the replies of the transmission phase: simple replies, and the chunks of structured replies.

use crate::nbd::context::Context;
use crate::nbd::request::{Code, Cookie};
use crate::nbd::wire::{CHUNK_MAGIC, SIMPLE_REPLY_MAGIC, chunk};

/// Length in bytes of a simple reply without its data.
pub(super) const SIMPLE_BYTES: usize = 16;
/// Length in bytes of the head of a data chunk.
pub(super) const DATA_BYTES: usize = CHUNK_BYTES + 8;
/// Length in bytes of the head that all chunks have.
const CHUNK_BYTES: usize = 20;
/// Maximum length in bytes of an error's text, by the protocol.
const WORDS_BYTES_MAX: usize = 4096;

/// A reply without data. For a successful read, the data follows it.
#[must_use]
pub(super) fn simple(cookie: Cookie, code: Option<Code>) -> [u8; SIMPLE_BYTES] {
    let mut bytes = [0; SIMPLE_BYTES];
    bytes[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    bytes[4..8].copy_from_slice(&code.map_or(0, |code| code as u32).to_be_bytes());
    bytes[8..].copy_from_slice(&cookie.0.to_be_bytes());
    bytes
}

/// The head of a chunk with `data_bytes` bytes from `offset` of the disk. `last` if no other chunk of the reply
/// follows.
#[must_use]
pub(super) fn data(cookie: Cookie, offset: u64, data_bytes: u32, last: bool) -> [u8; DATA_BYTES] {
    let mut bytes = [0; DATA_BYTES];
    bytes[..CHUNK_BYTES].copy_from_slice(&head(chunk::OFFSET_DATA, cookie, data_bytes + 8, last));
    bytes[CHUNK_BYTES..].copy_from_slice(&offset.to_be_bytes());
    bytes
}

/// Appends a chunk which says that `hole_bytes` bytes from `offset` of the disk are zeros.
pub(super) fn hole(into: &mut Vec<u8>, cookie: Cookie, offset: u64, hole_bytes: u32, last: bool) {
    into.extend(head(chunk::OFFSET_HOLE, cookie, 12, last));
    into.extend(offset.to_be_bytes());
    into.extend(hole_bytes.to_be_bytes());
}

/// Appends a chunk with the block status of `context`: length in bytes and flags of each run.
pub(super) fn status(into: &mut Vec<u8>, cookie: Cookie, context: Context, runs: &[(u32, u32)], last: bool) {
    let length = u32::try_from(4 + 8 * runs.len()).expect("runs are few");
    into.extend(head(chunk::BLOCK_STATUS, cookie, length, last));
    into.extend(context.id().to_be_bytes());
    for (bytes, flags) in runs {
        into.extend(bytes.to_be_bytes());
        into.extend(flags.to_be_bytes());
    }
}

/// Appends the last chunk of a structured reply: an error, with `words` as text for people.
pub(super) fn error(into: &mut Vec<u8>, cookie: Cookie, code: Code, words: &str) {
    let words = &words[..words.floor_char_boundary(WORDS_BYTES_MAX)];
    let length = u16::try_from(words.len()).expect("at most 4096");
    into.extend(head(chunk::ERROR, cookie, 6 + u32::from(length), true));
    into.extend((code as u32).to_be_bytes());
    into.extend(length.to_be_bytes());
    into.extend(words.as_bytes());
}

fn head(kind: u16, cookie: Cookie, length: u32, last: bool) -> [u8; CHUNK_BYTES] {
    let mut bytes = [0; CHUNK_BYTES];
    bytes[..4].copy_from_slice(&CHUNK_MAGIC.to_be_bytes());
    bytes[4..6].copy_from_slice(&if last { chunk::DONE } else { 0 }.to_be_bytes());
    bytes[6..8].copy_from_slice(&kind.to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.0.to_be_bytes());
    bytes[16..].copy_from_slice(&length.to_be_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const COOKIE: Cookie = Cookie(0x0102_0304_0506_0708);

    #[test]
    fn replies_have_the_bytes_of_the_protocol() {
        let failed = [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 5, 1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(simple(COOKIE, Some(Code::Io)), failed);
        let before = [0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 2, 8];
        assert_eq!(data(COOKIE, 512, 512, true)[..20], before);
        let mut bytes = Vec::new();
        hole(&mut bytes, COOKIE, 1 << 20, 4096, false);
        assert_eq!(bytes[4..8], [0, 0, 0, 2]);
        assert_eq!(bytes[16..], [0, 0, 0, 12, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0x10, 0]);
    }

    #[test]
    fn long_words_are_cut_between_letters() {
        let mut bytes = Vec::new();
        error(&mut bytes, COOKIE, Code::NoSpace, &"ä".repeat(4000));
        assert_eq!(bytes.len(), 20 + 6 + 4096);
        bytes.clear();
        error(&mut bytes, COOKIE, Code::NoSpace, &format!("x{}", "ä".repeat(4000)));
        assert_eq!((bytes.len(), &bytes[24..26]), (20 + 6 + 4095, &4095u16.to_be_bytes()[..]));
    }
}
