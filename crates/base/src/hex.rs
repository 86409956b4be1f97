//! Hexadecimal text of short byte strings.

/// `bytes` as lower-case hexadecimal digits.
#[must_use]
pub fn encode(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Decodes `2 N` hexadecimal digits to `N` bytes; `None` if `text` is anything else.
#[must_use]
pub fn decode<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let nibble = |digit: u8| char::from(digit).to_digit(16);
        *byte = u8::try_from(nibble(pair[0])? * 16 + nibble(pair[1])?).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    #[test]
    fn round_trip() {
        assert_eq!(super::decode::<3>(&super::encode(&[0, 0xa5, 0xff])), Some([0, 0xa5, 0xff]));
        assert_eq!(super::decode::<3>("00a5f"), None);
        assert_eq!(super::decode::<1>("+1"), None);
        assert_eq!(super::decode::<1>("é"), None);
    }
}
