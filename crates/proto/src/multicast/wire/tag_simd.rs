//! Computes the tags of four packets of one length at once, in registers of 256 or 512 bits. The additions and
//! products for one packet depend on each other, so a core mostly waits; those of other packets fill the gaps.
//! Source: Alakuijala, Cox and Wassenberg, arXiv 1612.06257; github.com/google/highwayhash.

use fearless_simd::x86::{Avx2, Avx512};
use fearless_simd::{Level, prelude::*, u8x16, u8x32, u8x64, u32x16, u64x8};

use super::key::{AT_ONCE, Key, Tag};

/// Bytes that one step processes.
const STEP_BYTES: usize = 32;

/// The initial state, for two packets side by side.
const MUL0: [u64; 8] =
    twice([0xdbe6_d5d5_fe4c_ce2f, 0xa409_3822_299f_31d0, 0x1319_8a2e_0370_7344, 0x243f_6a88_85a3_08d3]);
/// See [`MUL0`].
const MUL1: [u64; 8] =
    twice([0x3bd3_9e10_cb0e_f593, 0xc0ac_f169_b5f1_8a8c, 0xbe54_66cf_34e9_0c6c, 0x4528_21e6_38d0_1377]);
/// The permutation of 16 bytes.
const ZIPPER: [u8; 16] = [3, 12, 2, 5, 14, 1, 15, 0, 11, 4, 10, 13, 9, 6, 8, 7];

const fn twice(words: [u64; 4]) -> [u64; 8] {
    let [a, b, c, d] = words;
    [a, b, c, d, a, b, c, d]
}

/// The tags of four packets (given without tags, all of one length); `None` if the processor has no such registers.
pub(in crate::multicast) fn tags(key: &Key, bodies: [&[u8]; AT_ONCE]) -> Option<[Tag; AT_ONCE]> {
    let level = Level::new();
    if let Some(simd) = level.as_avx512() {
        return Some(simd.vectorize(
            #[inline(always)]
            || hash(simd, key, bodies),
        ));
    }
    let simd = level.as_avx2()?;
    Some(simd.vectorize(
        #[inline(always)]
        || hash(simd, key, bodies),
    ))
}

/// The state of two packets, four words each, side by side.
#[derive(Clone, Copy)]
struct Pair<S: Simd> {
    simd: S,
    v0: u64x8<S>,
    v1: u64x8<S>,
    mul0: u64x8<S>,
    mul1: u64x8<S>,
}

impl<S: Products> Pair<S> {
    #[inline(always)]
    fn new(simd: S, key: &Key) -> Self {
        let key: u64x8<S> = u8x64::block_splat(u8x16::load_array_ref(simd, &key.0)).bitcast();
        let (mul0, mul1) = (u64x8::load_array_ref(simd, &MUL0), u64x8::load_array_ref(simd, &MUL1));
        Self { simd, v0: key ^ mul0, v1: swap_halves(key) ^ mul1, mul0, mul1 }
    }

    #[inline(always)]
    fn step(&mut self, words: u64x8<S>) {
        self.v1 += words + self.mul0;
        self.mul0 ^= self.simd.products(self.v1, self.v0 >> 32);
        self.v0 += self.mul1;
        self.mul1 ^= self.simd.products(self.v0, self.v1 >> 32);
        self.v0 += zipped(self.simd, self.v1);
        self.v1 += zipped(self.simd, self.v0);
    }

    /// Processes the last `len` bytes of each packet, fewer than one step takes.
    #[inline(always)]
    fn last_step(&mut self, words: u64x8<S>, len: u32) {
        self.v0 += u64::from(len) << 32 | u64::from(len);
        let halves: u32x16<S> = self.v1.bitcast();
        self.v1 = (halves << len | halves >> (32 - len)).bitcast();
        self.step(words);
    }

    #[inline(always)]
    fn finish(mut self) -> [Tag; 2] {
        for _ in 0..4 {
            let (first, second) = self.v0.split();
            let ((a, b), (c, d)) = (first.split(), second.split());
            let words = b.combine(a).combine(d.combine(c));
            self.step(swap_halves(words));
        }
        let sum: [u64; 8] = (self.v0 + self.v1 + self.mul0 + self.mul1).into();
        [sum[0].to_le_bytes(), sum[4].to_le_bytes()]
    }
}

/// Products of the low halves of words.
trait Products: Simd {
    /// All `b` are below 2^32.
    fn products(self, a: u64x8<Self>, b: u64x8<Self>) -> u64x8<Self>;
}

impl Products for Avx2 {
    /// The compiler sees that one product of three is enough.
    #[inline(always)]
    fn products(self, a: u64x8<Self>, b: u64x8<Self>) -> u64x8<Self> {
        (a & 0xffff_ffff) * b
    }
}

impl Products for Avx512 {
    #[inline(always)]
    fn products(self, a: u64x8<Self>, b: u64x8<Self>) -> u64x8<Self> {
        fearless_simd::kernel!(
            #[inline(always)]
            fn products(simd: Avx512, a: u64x8<Avx512>, b: u64x8<Avx512>) -> u64x8<Avx512> {
                core::arch::x86_64::_mm512_mul_epu32(a.into(), b.into()).simd_into(simd)
            }
        );
        products(self, a, b)
    }
}

#[inline(always)]
fn swap_halves<S: Simd>(words: u64x8<S>) -> u64x8<S> {
    words << 32 | words >> 32
}

#[inline(always)]
fn zipped<S: Simd>(simd: S, words: u64x8<S>) -> u64x8<S> {
    let bytes: u8x64<S> = words.bitcast();
    bytes.swizzle_dyn_within_blocks(u8x64::block_splat(u8x16::load_array_ref(simd, &ZIPPER))).bitcast()
}

#[inline(always)]
fn beside<S: Simd>(simd: S, first: &[u8; STEP_BYTES], second: &[u8; STEP_BYTES]) -> u64x8<S> {
    u8x32::load_array_ref(simd, first).combine(u8x32::load_array_ref(simd, second)).bitcast()
}

/// Four packets without tags, of one length.
#[inline(always)]
fn hash<S: Products>(simd: S, key: &Key, bodies: [&[u8]; AT_ONCE]) -> [Tag; AT_ONCE] {
    let [a, b, c, d] = bodies.map(<[u8]>::as_chunks::<STEP_BYTES>);
    let (mut front, mut back) = (Pair::new(simd, key), Pair::new(simd, key));
    for (((a, b), c), d) in a.0.iter().zip(b.0).zip(c.0).zip(d.0) {
        front.step(beside(simd, a, b));
        back.step(beside(simd, c, d));
    }
    if !a.1.is_empty() {
        let len = u32::try_from(a.1.len()).expect("less than a step");
        front.last_step(beside(simd, &padded(a.1), &padded(b.1)), len);
        back.last_step(beside(simd, &padded(c.1), &padded(d.1)), len);
    }
    let ([a, b], [c, d]) = (front.finish(), back.finish());
    [a, b, c, d]
}

/// The last 1 to 31 bytes, in the arrangement of a step.
#[inline(always)]
fn padded(bytes: &[u8]) -> [u8; STEP_BYTES] {
    let mut step = [0; STEP_BYTES];
    let whole = bytes.len() & !3;
    step[..whole].copy_from_slice(&bytes[..whole]);
    let rest = &bytes[whole..];
    if bytes.len() >= 16 {
        step[STEP_BYTES - 4..].copy_from_slice(&bytes[bytes.len() - 4..]);
    } else if let (Some(first), Some(last)) = (rest.first(), rest.last()) {
        (step[16], step[17], step[18]) = (*first, rest[rest.len() / 2], *last);
    }
    step
}
