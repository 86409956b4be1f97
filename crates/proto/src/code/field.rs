//! The field of 65,536 elements in which symbols are made. Source: the documentation of [`super`].

use std::sync::LazyLock;

/// Terms of `x^8 + x^4 + x^3 + x + 1` below `x^8`: the polynomial of the small field (that of AES).
const SMALL_POLYNOMIAL: u8 = 0x1b;
/// `t^2 = t + TOWER`.
pub(super) const TOWER: u8 = 0x20;
/// A generator: its powers are all elements except 0. Only logarithms depend on it, no symbol does.
const GENERATOR: u16 = 0x108;
/// Number of elements except 0.
const ORDER: u32 = 65_535;

/// Product in the small field.
pub(super) const fn small_product(left: u8, right: u8) -> u8 {
    let (mut left, mut right, mut product) = (left, right, 0);
    while right != 0 {
        if right & 1 == 1 {
            product ^= left;
        }
        left = (left << 1) ^ (if left & 0x80 == 0 { 0 } else { SMALL_POLYNOMIAL });
        right >>= 1;
    }
    product
}

/// Product of two elements, by definition (slow).
pub(super) const fn product(left: u16, right: u16) -> u16 {
    let ([a, b], [c, d]) = (left.to_le_bytes(), right.to_le_bytes());
    let squares = small_product(b, d);
    let low = small_product(a, c) ^ small_product(TOWER, squares);
    u16::from_le_bytes([low, small_product(a, d) ^ small_product(b, c) ^ squares])
}

/// Multiplication by an element as a matrix over its two bytes: `low = low * low_low + high * high_low` and so on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Factors {
    pub low_low: u8,
    pub high_low: u8,
    pub low_high: u8,
    pub high_high: u8,
}

impl Factors {
    pub(super) fn of(element: u16) -> Self {
        let [low, high] = element.to_le_bytes();
        Self { low_low: low, high_low: TIMES_TOWER[usize::from(high)], low_high: high, high_high: low ^ high }
    }
}

static TIMES_TOWER: [u8; 256] = {
    let mut table = [0; 256];
    let (mut byte, mut at) = (0u8, 0);
    while at < 256 {
        table[at] = small_product(byte, TOWER);
        byte = byte.wrapping_add(1);
        at += 1;
    }
    table
};

/// Products of each byte with all bytes of which only the low or only the high four bits are set: tables for look-ups
/// by half a byte.
pub(super) static NIBBLES: [[[u8; 16]; 2]; 256] = {
    let mut table = [[[0; 16]; 2]; 256];
    let (mut byte, mut at) = (0u8, 0);
    while at < 256 {
        let (mut nibble, mut column) = (0u8, 0);
        while column < 16 {
            table[at][0][column] = small_product(byte, nibble);
            table[at][1][column] = small_product(byte, nibble << 4);
            nibble += 1;
            column += 1;
        }
        byte = byte.wrapping_add(1);
        at += 1;
    }
    table
};

/// Logarithms and powers, 384 KiB, computed at the first use.
pub(super) struct Logarithms {
    log: Box<[u16]>,
    /// Repeated once, so that the sum of two logarithms needs no reduction.
    power: Box<[u16]>,
}

static LOGARITHMS: LazyLock<Logarithms> = LazyLock::new(|| {
    let (mut log, mut power) = (vec![0; 1 << 16], vec![0; 2 * ORDER as usize]);
    let mut element = 1;
    for exponent in 0..u16::MAX {
        log[usize::from(element)] = exponent;
        power[usize::from(exponent)] = element;
        power[usize::from(exponent) + ORDER as usize] = element;
        element = product(element, GENERATOR);
    }
    Logarithms { log: log.into(), power: power.into() }
});

impl Logarithms {
    pub(super) fn get() -> &'static Self {
        &LOGARITHMS
    }

    /// Logarithm of an element that is not 0.
    pub(super) fn log(&self, element: u16) -> u32 {
        debug_assert_ne!(element, 0);
        u32::from(self.log[usize::from(element)])
    }

    /// The quotient of two elements given by their logarithms.
    pub(super) fn quotient(&self, over: u32, under: u32) -> u16 {
        self.power[(over + ORDER - under) as usize]
    }

    /// The logarithm of a product of many elements over a product of others, given by the sums of their logarithms.
    pub(super) fn ratio(over: u64, under: u64) -> u32 {
        let order = u64::from(ORDER);
        u32::try_from((over % order + order - under % order) % order).expect("below the order")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_a_field() {
        let logarithms = Logarithms::get();
        let mut seen = vec![false; 1 << 16];
        for element in &logarithms.power[..ORDER as usize] {
            assert!(!std::mem::replace(&mut seen[usize::from(*element)], true), "{element} comes twice");
        }
        assert!(!seen[0]);
        for (left, right) in [(1, 1), (2, 3), (0x100, 0x100), (0xffff, 0x8001), (1024, 5)] {
            let quotient = logarithms.quotient(logarithms.log(left), logarithms.log(right));
            assert_eq!(product(quotient, right), left);
        }
        assert_eq!(product(0x100, 0x100), 0x100 ^ u16::from(TOWER));
    }

    #[test]
    fn factors_and_nibbles_agree_with_the_product() {
        for (left, right) in [(0x1234u16, 0xfedcu16), (1, 0xffff), (0x8000, 0x8000), (0xa5, 0x5a00)] {
            let (factors, [low, high]) = (Factors::of(left), right.to_le_bytes());
            let by_nibbles = |factor: u8, byte: u8| {
                let [below, above] = &NIBBLES[usize::from(factor)];
                below[usize::from(byte & 15)] ^ above[usize::from(byte >> 4)]
            };
            let got = [
                by_nibbles(factors.low_low, low) ^ by_nibbles(factors.high_low, high),
                by_nibbles(factors.low_high, low) ^ by_nibbles(factors.high_high, high),
            ];
            assert_eq!(u16::from_le_bytes(got), product(left, right));
        }
    }
}
