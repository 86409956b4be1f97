//! Maps of one bit for each unit of allocation, the lowest bit of a byte first.

/// The runs of ones among the first `count` bits. Each run is its first bit and the first bit after it.
pub(super) fn runs(bitmap: &[u8], count: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        let first = find(bitmap, at, count, true);
        at = find(bitmap, first, count, false);
        (first < at).then_some((first, at))
    })
}

/// Makes a bit 0.
pub(super) fn clear(bitmap: &mut [u8], bit: u64) {
    bitmap[usize::try_from(bit / 8).expect("in memory")] &= !(1 << (bit % 8));
}

/// The index of the first bit, from `from` on, that equals `wanted`; `count` if there is none.
pub(super) fn find(bitmap: &[u8], from: u64, count: u64, wanted: bool) -> u64 {
    let flip = if wanted { 0 } else { 0xFF };
    let mut at = from;
    while at < count {
        let index = usize::try_from(at / 8).expect("in memory");
        let rest = (bitmap[index] ^ flip) >> (at % 8);
        if rest != 0 {
            return (at + u64::from(rest.trailing_zeros())).min(count);
        }
        at = (at / 8 + 1) * 8;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_ones() {
        let all = |bitmap: &[u8], count| runs(bitmap, count).collect::<Vec<_>>();
        assert_eq!(all(&[0b1011_0001, 0xFF, 0x01], 24), [(0, 1), (4, 6), (7, 17)]);
        assert_eq!(all(&[0b1011_0001, 0xFF, 0x01], 12), [(0, 1), (4, 6), (7, 12)]);
        assert_eq!(all(&[0, 0], 16), []);
    }
}
