//! Parts of files that were read or received last. All blocks of a piece are asked for together, by several peers.

use std::collections::VecDeque;

use base::Result;
use bytes::Bytes;
use parking_lot::Mutex;

use crate::content::Content;
use crate::metainfo::{InfoHash, Metainfo};
use crate::wire::Block;

/// Unit of reads, in bytes: that of most chunks.
const PART_BYTES: u64 = 256 << 10;

/// A part of a file: the torrent, and the number of the part.
type Name = (InfoHash, u64);

/// See the module.
pub(super) struct Cache {
    /// The last used part first.
    parts: Mutex<VecDeque<(Name, Bytes)>>,
    parts_max: usize,
}

impl Cache {
    /// A cache of at most `bytes` bytes.
    pub(super) fn new(bytes: u64) -> Self {
        let parts_max = usize::try_from(bytes / PART_BYTES).unwrap_or(usize::MAX).max(1);
        Self { parts: Mutex::default(), parts_max }
    }

    /// The bytes of `block`, from memory only.
    pub(super) fn look(&self, torrent: &Metainfo, block: Block) -> Option<Bytes> {
        let start = torrent.piece_offset(block.piece) + u64::from(block.begin);
        let part = self.part((torrent.info_hash(), start / PART_BYTES))?;
        let from = usize::try_from(start % PART_BYTES).expect("inside a part");
        let range = from..from + block.len as usize;
        (range.end <= part.len()).then(|| part.slice(range))
    }

    /// The bytes of `block`, which lies in the file. Waits for the disk.
    ///
    /// # Errors
    /// Those of the content.
    pub(super) fn read(&self, torrent: &Metainfo, content: &dyn Content, block: Block) -> Result<Bytes> {
        let start = torrent.piece_offset(block.piece) + u64::from(block.begin);
        let end = start + u64::from(block.len);
        let mut bytes = Vec::with_capacity(block.len as usize);
        for number in start / PART_BYTES..=(end - 1) / PART_BYTES {
            let name = (torrent.info_hash(), number);
            let offset = number * PART_BYTES;
            let part = match self.part(name) {
                Some(part) => part,
                None => {
                    let len = PART_BYTES.min(torrent.length() - offset);
                    let mut part = vec![0; usize::try_from(len).expect("a part fits memory")];
                    content.read_at(offset, &mut part)?;
                    self.put(name, part.into())
                }
            };
            let (from, until) = (start.max(offset) - offset, (end - offset).min(PART_BYTES));
            let index = |at: u64| usize::try_from(at).expect("inside a part");
            let slice = part.slice(index(from)..index(until));
            if slice.len() == block.len as usize {
                return Ok(slice);
            }
            bytes.extend_from_slice(&slice);
        }
        Ok(bytes.into())
    }

    /// Keeps a piece that has just arrived, since others will ask for it.
    pub(super) fn keep(&self, torrent: &Metainfo, piece: u32, bytes: &Bytes) {
        let first = torrent.piece_offset(piece) / PART_BYTES;
        // A piece that is smaller than a part does not fill one.
        if u64::from(torrent.piece_bytes()) < PART_BYTES {
            return;
        }
        let step = usize::try_from(PART_BYTES).expect("a part fits memory");
        for (number, at) in (first..).zip((0..bytes.len()).step_by(step)) {
            self.put((torrent.info_hash(), number), bytes.slice(at..bytes.len().min(at + step)));
        }
    }

    fn part(&self, name: Name) -> Option<Bytes> {
        let mut parts = self.parts.lock();
        let at = parts.iter().position(|(known, _)| *known == name)?;
        // Moved to the front only from behind the middle, so that most looks change nothing.
        if at > parts.len() / 2
            && let Some(entry) = parts.remove(at)
        {
            parts.push_front(entry);
            return parts.front().map(|(_, part)| part.clone());
        }
        parts.get(at).map(|(_, part)| part.clone())
    }

    fn put(&self, name: Name, part: Bytes) -> Bytes {
        let mut parts = self.parts.lock();
        parts.push_front((name, part.clone()));
        parts.truncate(self.parts_max);
        part
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::hash::hash;
    use crate::hash::tests::Memory;
    use crate::metainfo::Kind;

    #[test]
    fn blocks_are_read_across_parts_and_from_memory() {
        let bytes: Vec<u8> = (0..600_000_u32).map(|at| (at / 7).to_le_bytes()[0]).collect();
        let content = Memory(Mutex::new(bytes.clone()));
        let torrent = Metainfo::new("a", &hash(&content, 1 << 19).unwrap(), Kind::V1);
        let cache = Cache::new(512 << 10);
        let block = Block { piece: 0, begin: (256 << 10) - 1000, len: 5000 };
        assert_eq!(cache.look(&torrent, block), None);
        let start = block.begin as usize;
        assert_eq!(cache.read(&torrent, &content, block).unwrap(), bytes[start..start + 5000]);
        content.0.lock().fill(0);
        let last = Block { piece: 0, begin: 256 << 10, len: 7 };
        assert_eq!(cache.look(&torrent, last).unwrap(), bytes[256 << 10..][..7], "from memory");
        let other = Block { piece: 1, begin: 75_712 - 7, len: 7 };
        assert_eq!(cache.read(&torrent, &content, other).unwrap(), [0; 7][..]);
        assert_eq!(cache.look(&torrent, Block { begin: 0, ..block }), None, "the oldest part made room");
        cache.keep(&torrent, 0, &Bytes::from(bytes[..1 << 19].to_vec()));
        assert_eq!(cache.look(&torrent, last).unwrap(), bytes[256 << 10..][..7]);
    }
}
