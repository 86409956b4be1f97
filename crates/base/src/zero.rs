//! Zeros.

/// Whether all of `bytes` are zero. Stops in the first piece that has another byte.
#[must_use]
pub fn is_zero(bytes: &[u8]) -> bool {
    let (pieces, rest) = bytes.as_chunks::<64>();
    pieces.iter().all(|piece| *piece == [0; 64]) && rest.iter().all(|&byte| byte == 0)
}
