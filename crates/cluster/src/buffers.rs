//! Memory that is used again. New memory costs a page fault for each 4 KiB, which is more than what is done with it.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

/// Where buffers begin, so that disks can read and write them without a copy.
pub(crate) const ALIGN: usize = 4096;

/// Buffers that wait to be used again.
#[derive(Debug, Clone)]
pub(crate) struct Buffers(Arc<Pool>);

#[derive(Debug)]
struct Pool {
    /// By their length.
    free: Mutex<BTreeMap<usize, Vec<Vec<u8>>>>,
    /// Most bytes that wait.
    bytes_max: usize,
}

impl Pool {
    fn waiting(free: &BTreeMap<usize, Vec<Vec<u8>>>) -> usize {
        free.iter().map(|(bytes, buffers)| bytes * buffers.len()).sum()
    }
}

impl Buffers {
    /// Buffers of which at most `bytes_max` bytes wait to be used again.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self(Arc::new(Pool { free: Mutex::default(), bytes_max }))
    }

    /// A buffer of `bytes` bytes that begins at a multiple of [`ALIGN`]. It holds zeros, or what was in it before.
    pub(crate) fn take(&self, bytes: usize) -> Buffer {
        // Few lengths, so that one that waits fits mostly.
        let whole = bytes.next_multiple_of((bytes.next_power_of_two() / 8).max(ALIGN)) + ALIGN;
        let waiting = self.0.free.lock().get_mut(&whole).and_then(Vec::pop);
        let memory = waiting.unwrap_or_else(|| vec![0; whole]);
        let from = memory.as_ptr().align_offset(ALIGN);
        Buffer { memory, from, bytes, pool: Arc::clone(&self.0) }
    }

    /// An empty buffer for at most `bytes` bytes.
    pub(crate) fn fill(&self, bytes: usize) -> Filling {
        Filling { buffer: self.take(bytes), filled: 0 }
    }
}

/// A buffer, which goes back to the others when it is dropped.
#[derive(Debug)]
pub(crate) struct Buffer {
    memory: Vec<u8>,
    from: usize,
    bytes: usize,
    pool: Arc<Pool>,
}

/// A buffer that is filled from its beginning.
#[derive(Debug)]
pub(crate) struct Filling {
    buffer: Buffer,
    filled: usize,
}

impl Filling {
    /// Puts `part` behind what is there; `None` if it does not fit.
    pub(crate) fn push(&mut self, part: &[u8]) -> Option<()> {
        self.buffer.get_mut(self.filled..self.filled + part.len())?.copy_from_slice(part);
        self.filled += part.len();
        Some(())
    }

    /// How many bytes were put there.
    pub(crate) fn len(&self) -> usize {
        self.filled
    }

    /// What was put there, to be shared.
    pub(crate) fn freeze(mut self) -> Bytes {
        self.buffer.bytes = self.filled;
        self.buffer.freeze()
    }
}

impl Buffer {
    /// What it holds, to be shared.
    pub(crate) fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.from..self.from + self.bytes]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.from..self.from + self.bytes]
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.memory);
        let mut free = self.pool.free.lock();
        if Pool::waiting(&free) + memory.len() <= self.pool.bytes_max {
            free.entry(memory.len()).or_default().push(memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_used_again_when_the_last_share_of_it_is_gone() {
        let buffers = Buffers::new(1 << 20);
        let mut first = buffers.fill(100_000);
        assert_eq!((first.buffer.len(), first.buffer.as_ptr().align_offset(ALIGN)), (100_000, 0));
        first.push(b"abc").unwrap();
        assert_eq!((first.push(&[0; 99_998]), first.len()), (None, 3));
        let place = first.buffer.as_ptr();
        let shared = first.freeze();
        let slice = shared.slice(1..);
        drop(shared);
        assert_ne!(buffers.take(100_000).as_ptr(), place, "somebody reads it");
        assert_eq!(slice, "bc");
        drop(slice);
        let all: Vec<_> = (0..2).map(|_| buffers.take(99_000)).collect();
        assert!(all.iter().any(|buffer| buffer.as_ptr() == place));
    }

    #[test]
    fn no_more_wait_than_may() {
        let buffers = Buffers::new(300_000);
        drop((0..4).map(|_| buffers.take(128 << 10)).collect::<Vec<_>>());
        assert_eq!(Pool::waiting(&buffers.0.free.lock()), 2 * ((128 << 10) + ALIGN));
        drop(buffers.take(400_000));
        assert_eq!(Pool::waiting(&buffers.0.free.lock()), 2 * ((128 << 10) + ALIGN));
    }
}
