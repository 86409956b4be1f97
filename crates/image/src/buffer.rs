//! Aligned buffers, for direct reads from and writes to devices without a copy.

/// Alignment of every buffer in bytes: the largest that `O_DIRECT` requires.
const ALIGNMENT: usize = 4096;

/// A buffer whose first byte lies at a multiple of 4096.
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
    /// If the buffer has fewer.
    pub fn front(&mut self, len: usize) -> &mut [u8] {
        assert!(len <= self.len);
        &mut self.bytes[self.start..self.start + len]
    }
}
