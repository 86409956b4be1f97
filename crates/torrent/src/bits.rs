//! A set of pieces, in the order of a `bitfield` message (BEP 3): the first piece is the highest bit of the first byte.

/// A set of pieces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bits {
    bytes: Vec<u8>,
    len: u32,
    count: u32,
}

impl Bits {
    /// None of `len` pieces.
    #[must_use]
    pub fn none(len: u32) -> Self {
        Self { bytes: vec![0; len.div_ceil(8) as usize], len, count: 0 }
    }

    /// All of `len` pieces.
    #[must_use]
    pub fn all(len: u32) -> Self {
        let mut bits = Self { bytes: vec![0xFF; len.div_ceil(8) as usize], len, count: len };
        if let Some(last) = bits.bytes.last_mut() {
            *last <<= (8 - len % 8) % 8;
        }
        bits
    }

    /// The set that a message says, of `len` pieces. `None` if it has another length, or bits beyond the last piece.
    #[must_use]
    pub fn from_bytes(bytes: &[u8], len: u32) -> Option<Self> {
        let beyond = Self::all(len);
        let fits = bytes.len() == beyond.bytes.len()
            && bytes.iter().zip(&beyond.bytes).all(|(byte, allowed)| byte & !allowed == 0);
        let count = bytes.iter().map(|byte| byte.count_ones()).sum();
        fits.then(|| Self { bytes: bytes.to_vec(), len, count })
    }

    /// The bytes of the message.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How many pieces the torrent has.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether no piece is in the set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// How many pieces are in the set.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Whether all pieces are in the set.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.count == self.len
    }

    /// Whether `piece` is in the set; false beyond the last piece.
    #[must_use]
    pub fn has(&self, piece: u32) -> bool {
        piece < self.len && self.bytes[(piece / 8) as usize] & (0x80 >> (piece % 8)) != 0
    }

    /// Adds `piece`, which must be one. Returns whether it is new.
    pub fn insert(&mut self, piece: u32) -> bool {
        assert!(piece < self.len, "a torrent of {} pieces has no piece {piece}", self.len);
        let is_new = !self.has(piece);
        if is_new {
            self.bytes[(piece / 8) as usize] |= 0x80 >> (piece % 8);
            self.count += 1;
        }
        is_new
    }

    /// The pieces in the set, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.len).filter(|&piece| self.has(piece))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_lie_as_in_a_message() {
        let mut bits = Bits::none(10);
        assert!(bits.insert(0) && bits.insert(9) && !bits.insert(9));
        assert_eq!(bits.bytes(), [0x80, 0x40]);
        assert_eq!((bits.count(), bits.has(9), bits.has(10)), (2, true, false));
        assert_eq!(Bits::from_bytes(&[0x80, 0x40], 10), Some(bits));
        assert_eq!(Bits::from_bytes(&[0x80, 0x20], 10), None, "a bit beyond the last piece");
        assert_eq!(Bits::from_bytes(&[0x80], 10), None);
    }

    #[test]
    fn all_of_any_number() {
        for len in [1, 7, 8, 9, 16] {
            let all = Bits::all(len);
            assert!(all.is_full() && all.iter().eq(0..len));
            assert_eq!(Bits::from_bytes(all.bytes(), len), Some(all));
        }
    }
}
