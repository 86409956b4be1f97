//! Aligned buffers, for direct I/O (`O_DIRECT`) with a device.

/// Alignment of every buffer in bytes: the strictest that `O_DIRECT` asks for.
const ALIGNMENT: usize = 4096;

/// A buffer whose address in memory is a multiple of 4096.
#[derive(Debug)]
pub struct AlignedBuffer {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBuffer {
    /// A buffer of `len` bytes, all zeros.
    #[must_use]
    pub fn new(len: usize) -> Self {
        let bytes = vec![0; len + ALIGNMENT];
        let start = bytes.as_ptr().align_offset(ALIGNMENT);
        assert!(start < ALIGNMENT, "pointers to bytes can be aligned");
        Self { bytes, start, len }
    }

    /// The first `len` bytes.
    ///
    /// # Panics
    /// If the buffer is shorter than `len`.
    pub fn front(&mut self, len: usize) -> &mut [u8] {
        assert!(len <= self.len);
        &mut self.bytes[self.start..self.start + len]
    }
}
