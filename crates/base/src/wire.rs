//! Reads little-endian records with checked bounds. All parsers of stored and received bytes use it.

/// Reads the fields of a record, first to last. A field that does not fit the remaining bytes is an error and consumes
/// nothing.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

/// The record ends before the end of the field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Truncated;

impl std::fmt::Display for Truncated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("record ends before its last field")
    }
}

impl std::error::Error for Truncated {}

macro_rules! take_le {
    ($($name:ident $type:ty),*) => {$(
        /// Reads the next field, a little-endian number.
        pub fn $name(&mut self) -> Result<$type, Truncated> {
            let (field, rest) = self.rest.split_first_chunk().ok_or(Truncated)?;
            self.rest = rest;
            Ok(<$type>::from_le_bytes(*field))
        }
    )*};
}

impl<'a> Reader<'a> {
    /// Creates a reader at the start of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    take_le!(u8 u8, u16 u16, u32 u32, u64 u64);

    /// Reads the next `count` bytes.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], Truncated> {
        let (field, rest) = self.rest.split_at_checked(count).ok_or(Truncated)?;
        self.rest = rest;
        Ok(field)
    }

    /// Reads the next `N` bytes as an array.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Truncated> {
        let (field, rest) = self.rest.split_first_chunk().ok_or(Truncated)?;
        self.rest = rest;
        Ok(*field)
    }

    /// The bytes that have not been read. Does not consume them.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The number of bytes that have not been read.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_reads_past_the_end() {
        let mut reader = Reader::new(&[1, 2, 0, 9, 9]);
        assert_eq!(reader.u8(), Ok(1));
        assert_eq!(reader.u16(), Ok(2));
        assert_eq!(reader.u32(), Err(Truncated));
        assert_eq!(reader.array::<2>(), Ok([9, 9]));
        assert_eq!(reader.u8(), Err(Truncated));
        assert_eq!(reader.remaining(), 0);
    }
}
