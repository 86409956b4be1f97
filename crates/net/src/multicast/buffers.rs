//! Buffers of the objects that a receiver assembles. A buffer is used again as soon as its object is dropped.
//!
//! A new buffer of some hundred KiB would cost more than copying the blocks into it: the kernel clears its pages, and
//! unmaps them later.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use proto::multicast::Slot;

/// Most bytes of unused buffers that are kept. The one used last is taken first: it may still be in the processor's
/// cache.
const UNUSED_BYTES_MAX: usize = 16 << 20;

/// Buffers by slot of the state machine.
#[derive(Default)]
pub(super) struct Buffers {
    slots: Vec<Vec<u8>>,
    unused: Arc<Unused>,
}

/// Buffers that are not in use.
#[derive(Default)]
struct Unused(Mutex<Shelf>);

#[derive(Default)]
struct Shelf {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
}

/// A buffer that is returned when the last reference to it is dropped.
struct Lent {
    buffer: Vec<u8>,
    len: usize,
    unused: Arc<Unused>,
}

impl Buffers {
    /// Provides a buffer of `padded` bytes for the object of `bytes` bytes in `slot`. Its content is arbitrary up to
    /// the object's end, and zero after it.
    pub(super) fn begin(&mut self, slot: Slot, bytes: u32, padded: u32) {
        let (index, bytes, padded) = (slot.0 as usize, bytes as usize, padded as usize);
        if index >= self.slots.len() {
            self.slots.resize_with(index + 1, Vec::new);
        }
        let mut buffer = self.unused.take();
        if buffer.capacity() < padded || buffer.capacity() / 2 > padded {
            // Its size is too different: the memory in use would not be what the machine counts.
            buffer = Vec::with_capacity(padded);
        }
        buffer.resize(padded, 0);
        buffer[bytes.min(padded)..].fill(0);
        self.slots[index] = buffer;
    }

    /// Copies a payload to its place, which the machine guarantees to be inside the buffer, and returns the place.
    pub(super) fn place(&mut self, slot: Slot, offset: u32, payload: &[u8]) -> &mut [u8] {
        let place = &mut self.slots[slot.0 as usize][offset as usize..][..payload.len()];
        place.copy_from_slice(payload);
        place
    }

    /// The buffer of `slot`, for restoring missing blocks before [`Self::lend`].
    pub(super) fn of(&mut self, slot: Slot) -> &mut [u8] {
        self.slots.get_mut(slot.0 as usize).map(Vec::as_mut_slice).unwrap_or_default()
    }

    /// Removes the buffer from `slot`, and returns its first `len` bytes.
    pub(super) fn lend(&mut self, slot: Slot, len: u32) -> Bytes {
        let buffer = self.take(slot);
        let len = buffer.len().min(len as usize);
        Bytes::from_owner(Lent { buffer, len, unused: Arc::clone(&self.unused) })
    }

    /// Drops the content of `slot`.
    pub(super) fn drop(&mut self, slot: Slot) {
        let buffer = self.take(slot);
        self.unused.put(buffer);
    }

    fn take(&mut self, slot: Slot) -> Vec<u8> {
        self.slots.get_mut(slot.0 as usize).map(std::mem::take).unwrap_or_default()
    }
}

impl Unused {
    fn take(&self) -> Vec<u8> {
        let mut shelf = self.0.lock();
        let buffer = shelf.buffers.pop().unwrap_or_default();
        shelf.bytes -= buffer.capacity();
        buffer
    }

    fn put(&self, buffer: Vec<u8>) {
        let mut shelf = self.0.lock();
        if shelf.bytes + buffer.capacity() <= UNUSED_BYTES_MAX {
            shelf.bytes += buffer.capacity();
            shelf.buffers.push(buffer);
        }
    }
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.buffer[..self.len]
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.unused.put(std::mem::take(&mut self.buffer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_used_again_when_its_last_part_is_dropped() {
        let mut buffers = Buffers::default();
        let slot = Slot(1);
        buffers.begin(slot, 1000, 1024);
        buffers.place(slot, 0, &[7; 1000]);
        buffers.of(slot)[0] = 8;
        let at = buffers.of(slot).as_ptr();
        let object = buffers.lend(slot, 1000);
        let part = object.slice(900..);
        drop(object);
        buffers.begin(slot, 10, 512);
        assert_ne!(buffers.of(slot).as_ptr(), at, "a part of it is still held");
        assert_eq!(part[..], [7; 100]);
        drop(part);
        buffers.begin(Slot(0), 500, 512);
        assert_eq!(buffers.of(Slot(0)).as_ptr(), at);
        assert_eq!(buffers.of(Slot(0))[500..], [0; 12], "behind the object there are zeros");
        buffers.drop(Slot(0));
        assert!(buffers.of(Slot(0)).is_empty() && buffers.lend(Slot(9), 5).is_empty());
    }

    #[test]
    fn unused_buffers_are_bounded() {
        let mut buffers = Buffers::default();
        for slot in 0..40 {
            buffers.begin(Slot(slot), 1 << 20, 1 << 20);
        }
        (0..40).for_each(|slot| buffers.drop(Slot(slot)));
        assert!(buffers.unused.0.lock().bytes <= UNUSED_BYTES_MAX);
    }
}
