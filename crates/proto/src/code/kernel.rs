//! The inner loop of the code: multiplies a block by several elements of the field, and adds each product to a sum.
//! It uses the x86 instructions for the small field if there are registers of 512 bits (Ice Lake, Zen 4), otherwise
//! look-ups by half a byte (SSE4.2, AVX2, NEON).

use fearless_simd::{Level, dispatch, prelude::*, u8x16};

use super::field::{Factors, NIBBLES};

/// Bytes of the widest register; halves of sums are padded to a multiple of it.
const LANE_BYTES: usize = 64;

/// The sums that are being computed. Each has the low bytes of its elements, then the high bytes, both padded with
/// zeros.
#[derive(Debug)]
pub(super) struct Sums {
    bytes: Vec<u8>,
    /// Offset of the first sum, such that no lane crosses a cache line (crossing costs a fifth of the total time).
    start: usize,
    half_bytes: usize,
    padded_half_bytes: usize,
}

impl Sums {
    /// `count` sums of blocks of `block_bytes` bytes, all zero.
    pub(super) fn new(block_bytes: usize, count: usize) -> Self {
        let half_bytes = block_bytes / 2;
        let padded_half_bytes = half_bytes.next_multiple_of(LANE_BYTES);
        let bytes = vec![0; count * 2 * padded_half_bytes + LANE_BYTES];
        let start = bytes.as_ptr().align_offset(LANE_BYTES).min(LANE_BYTES);
        Self { bytes, start, half_bytes, padded_half_bytes }
    }

    /// How many sums of this size can be computed at once without exceeding the first-level cache.
    pub(super) fn at_once(block_bytes: usize) -> usize {
        (CACHE_BYTES / (2 * (block_bytes / 2).next_multiple_of(LANE_BYTES))).clamp(4, 32)
    }

    pub(super) fn clear(&mut self) {
        self.bytes.fill(0);
    }

    /// Sets sum `index` to `block`.
    pub(super) fn set(&mut self, index: usize, block: &[u8]) {
        let (low, high) = block.split_at(self.half_bytes);
        let half = self.padded_half_bytes;
        let (sum_low, sum_high) = self.from(index)[..2 * half].split_at_mut(half);
        sum_low[..low.len()].copy_from_slice(low);
        sum_high[..high.len()].copy_from_slice(high);
    }

    /// Copies sum `index` into `block`.
    pub(super) fn get(&self, index: usize, block: &mut [u8]) {
        let (low, high) = self.halves(index);
        let (block_low, block_high) = block.split_at_mut(self.half_bytes);
        block_low.copy_from_slice(&low[..self.half_bytes]);
        block_high.copy_from_slice(&high[..self.half_bytes]);
    }

    /// Low and high bytes of sum `index`, padded.
    pub(super) fn halves(&self, index: usize) -> (&[u8], &[u8]) {
        let stride = 2 * self.padded_half_bytes;
        self.bytes[self.start + index * stride..][..stride].split_at(self.padded_half_bytes)
    }

    fn from(&mut self, index: usize) -> &mut [u8] {
        &mut self.bytes[self.start + index * 2 * self.padded_half_bytes..]
    }

    /// Adds the product of the block (given as low and high bytes) and `elements[i]` to sum `first + i`, for each
    /// `i`.
    pub(super) fn add(&mut self, level: Level, first: usize, (low, high): (&[u8], &[u8]), elements: &[u16]) {
        let stride = 2 * self.padded_half_bytes;
        let sums = &mut self.from(first)[..elements.len() * stride];
        let ((low, low_rest), (high, high_rest)) = (low.as_chunks(), high.as_chunks());
        let mut rest = [[0; LANE_BYTES]; 2];
        rest[0][..low_rest.len()].copy_from_slice(low_rest);
        rest[1][..high_rest.len()].copy_from_slice(high_rest);
        let [rest_low, rest_high] =
            rest.each_ref().map(|lane| &std::slice::from_ref(lane)[..usize::from(!low_rest.is_empty())]);
        let block = Block { low, high, rest_low, rest_high };
        #[cfg(target_arch = "x86_64")]
        if let Some(avx512) = level.as_avx512() {
            return add_avx512(avx512, sums, stride, block, elements);
        }
        dispatch!(level, simd => add_portable(simd, sums, stride, block, elements));
    }
}

/// Bytes of the sums that are computed at once: most of the 32 KiB of the smallest first-level caches.
const CACHE_BYTES: usize = 28 << 10;

type Lane = [u8; LANE_BYTES];

/// A block as two halves in whole lanes, and at most one last lane of each, padded with zeros.
#[derive(Clone, Copy)]
struct Block<'a> {
    low: &'a [Lane],
    high: &'a [Lane],
    rest_low: &'a [Lane],
    rest_high: &'a [Lane],
}

/// `(low, high, sum_low, sum_high)`, all of the same length.
type Lanes<'a> = (&'a [Lane], &'a [Lane], &'a mut [Lane], &'a mut [Lane]);

impl Block<'_> {
    /// The lanes of this block with those of `sum`; the last, shorter one separately.
    #[inline(always)]
    fn with<'a>(&'a self, sum: &'a mut [u8]) -> [Lanes<'a>; 2] {
        let (sum, _) = sum.as_chunks_mut();
        let (sum_low, sum_high) = sum.split_at_mut(sum.len() / 2);
        let (sum_low, sum_rest_low) = sum_low.split_at_mut(self.low.len());
        let (sum_high, sum_rest_high) = sum_high.split_at_mut(self.high.len());
        [
            (self.low, self.high, sum_low, sum_high),
            (self.rest_low, self.rest_high, sum_rest_low, sum_rest_high),
        ]
    }

    #[inline(always)]
    fn xor_into(self, sum: &mut [u8]) {
        for (low, high, sum_low, sum_high) in self.with(sum) {
            for (sum, lane) in sum_low.iter_mut().zip(low).chain(sum_high.iter_mut().zip(high)) {
                for (sum, byte) in sum.iter_mut().zip(lane) {
                    *sum ^= byte;
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
fearless_simd::kernel!(
    fn add_avx512(avx512: Avx512, sums: &mut [u8], stride: usize, block: Block<'_>, elements: &[u16]) {
        use core::arch::x86_64::{__m512i, _mm512_gf2p8mul_epi8, _mm512_set1_epi8, _mm512_xor_si512};
        use fearless_simd::u8x64;
        for (sum, element) in sums.chunks_exact_mut(stride).zip(elements) {
            if *element == 1 {
                block.xor_into(sum);
                continue;
            }
            let Factors { low_low, high_low, low_high, high_high } = Factors::of(*element);
            let low_low = _mm512_set1_epi8(low_low.cast_signed());
            let high_low = _mm512_set1_epi8(high_low.cast_signed());
            let low_high = _mm512_set1_epi8(low_high.cast_signed());
            let high_high = _mm512_set1_epi8(high_high.cast_signed());
            for (low, high, sum_low, sum_high) in block.with(sum) {
                for (((low, high), sum_low), sum_high) in low.iter().zip(high).zip(sum_low).zip(sum_high) {
                    let low: __m512i = u8x64::load_array_ref(avx512, low).into();
                    let high: __m512i = u8x64::load_array_ref(avx512, high).into();
                    let lows = _mm512_xor_si512(
                        _mm512_gf2p8mul_epi8(low, low_low),
                        _mm512_gf2p8mul_epi8(high, high_low),
                    );
                    let highs = _mm512_xor_si512(
                        _mm512_gf2p8mul_epi8(low, low_high),
                        _mm512_gf2p8mul_epi8(high, high_high),
                    );
                    let lows: u8x64<_> = lows.simd_into(avx512);
                    let highs: u8x64<_> = highs.simd_into(avx512);
                    (lows ^ u8x64::load_array_ref(avx512, sum_low)).store_slice(sum_low);
                    (highs ^ u8x64::load_array_ref(avx512, sum_high)).store_slice(sum_high);
                }
            }
        }
    }
);

/// The products of all bytes with one, as two tables of products of half a byte.
type Table<S> = (<S as Simd>::u8s, <S as Simd>::u8s);

#[inline(always)]
fn table<S: Simd>(simd: S, factor: u8) -> Table<S> {
    let [below, above] = &NIBBLES[usize::from(factor)];
    let (below, above) = (u8x16::load_array_ref(simd, below), u8x16::load_array_ref(simd, above));
    (S::u8s::block_splat(below), S::u8s::block_splat(above))
}

#[inline(always)]
fn look<S: Simd>((below, above): Table<S>, low: S::u8s, high: S::u8s) -> S::u8s {
    below.swizzle_dyn_within_blocks(low) ^ above.swizzle_dyn_within_blocks(high)
}

#[inline(always)]
fn add_portable<S: Simd>(simd: S, sums: &mut [u8], stride: usize, block: Block<'_>, elements: &[u16]) {
    let mask = S::u8s::splat(simd, 15);
    for (sum, element) in sums.chunks_exact_mut(stride).zip(elements) {
        if *element == 1 {
            block.xor_into(sum);
            continue;
        }
        let factors = Factors::of(*element);
        let (low_low, high_low) = (table(simd, factors.low_low), table(simd, factors.high_low));
        let (low_high, high_high) = (table(simd, factors.low_high), table(simd, factors.high_high));
        for (low, high, sum_low, sum_high) in block.with(sum) {
            let width = S::u8s::LEN;
            let pieces = low.as_flattened().chunks_exact(width).zip(high.as_flattened().chunks_exact(width));
            let sums_low = sum_low.as_flattened_mut().chunks_exact_mut(width);
            let sums_high = sum_high.as_flattened_mut().chunks_exact_mut(width);
            for (((low, high), sum_low), sum_high) in pieces.zip(sums_low).zip(sums_high) {
                let (low, high) = (S::u8s::from_slice(simd, low), S::u8s::from_slice(simd, high));
                let (low, low_above) = (low & mask, (low >> 4) & mask);
                let (high, high_above) = (high & mask, (high >> 4) & mask);
                let lows = look::<S>(low_low, low, low_above) ^ look::<S>(high_low, high, high_above);
                let highs = look::<S>(low_high, low, low_above) ^ look::<S>(high_high, high, high_above);
                (lows ^ S::u8s::from_slice(simd, sum_low)).store_slice(sum_low);
                (highs ^ S::u8s::from_slice(simd, sum_high)).store_slice(sum_high);
            }
        }
    }
}
