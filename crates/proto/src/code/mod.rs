//! The erasure code that repairs objects of `k` blocks: any `k` different blocks and symbols restore the object.
//!
//! # Definition
//!
//! - *Small field*: bytes; bit `i` is the coefficient of `x^i`; modulo `x^8 + x^4 + x^3 + x + 1` (that of AES).
//! - *Field*: 16-bit numbers `low + 256 * high`, which stand for `low + high * t` over the small field, modulo
//!   `t^2 + t + 0x20`. So sums are exclusive or, and `(a + b t)(c + d t) = (ac + 0x20 bd) + (ad + bc + bd) t`.
//! - *Elements of a block* of `n` bytes (`n` is even; an object's last block is padded with zeros): element `i`,
//!   `0 <= i < n / 2`, is `byte[i] + 256 * byte[n / 2 + i]`. A symbol is laid out alike.
//! - *Symbol* `row` is the sum over all blocks `b` of `matrix[row][b]` times the block, element by element, where
//!   `matrix[row][b] = ((1024 + 0) xor b) / ((1024 + row) xor b)`, `0 <= b < 1024`, `0 <= row < 64512`.
//!
//! This is a Cauchy matrix whose columns are scaled so that row 0 is all ones: symbol 0 is the exclusive or of the
//! blocks. Every square part of such a matrix has an inverse, so any symbols can be used. A symbol depends neither on
//! the other symbols nor on the number of blocks.
//!
//! # Choice
//!
//! Measured by `examples/code_rate.rs`; GB/s of plain bytes on one core (AMD EPYC 9005, 2.6 GHz), 187 blocks of 1424
//! bytes:
//!
//! | symbols | encode | recover | with AVX2 only | ISA-L 2.30 encode | reed-solomon-simd 3.1 encode, decode |
//! |--:|--:|--:|--:|--:|--:|
//! | 1 | 40.4 | 29.2 | 39.0, 28.4 | 54.7 | 24.1, 1.10 |
//! | 3 | 21.4 | 17.6 | 12.9, 11.1 | 27.3 | 14.2, 1.08 |
//! | 8 | 8.9 | 8.4 | 4.7, 4.4 | 10.4 | 11.5, 1.06 |
//! | 20 | 3.6 | 3.6 | 1.9, 1.8 | 4.1 | 8.5, 1.05 |
//! | 68 | 1.1 | 1.2 | 0.54, 0.53 | 1.2 | 5.2, 0.75 |
//!
//! ISA-L (with tables made for each object; AVX-512) is the reference, and this code is within a third of it. But
//! ISA-L has at most 256 blocks and symbols together, inverts a matrix of `k` rows (0.015 GB/s) unless the caller
//! does better, and is C. A code by Fourier transforms is faster for many symbols, but costs the same for one lost
//! block as for sixty, and most objects miss only a few. The multiplication that reed-solomon-simd exports would fit,
//! but reads its tables from 8 MiB of memory: 0.8 GB/s of sums, here 40 to 75. So matrix and loop are our own. For
//! registers we use the crate `fearless_simd`: it is maintained, has no dependencies, finds the processor's best
//! instructions at run time, and needs no `unsafe` here.

mod field;
mod kernel;
mod stripe;

use base::limits::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN};
use fearless_simd::Level;
use std::fmt;
use std::ops::Range;

use field::Logarithms;
use kernel::Sums;
pub use stripe::{encode_stripe, recover_stripe};

/// Most blocks of a coded object; longer objects are repaired by copies of blocks.
pub(crate) const CODE_BLOCKS_MAX: u32 = FIRST_ROW as u32;
/// The element of row 0. Blocks have the elements below it.
const FIRST_ROW: u16 = 1024;
/// Rows of the code, `0..CODE_ROWS_MAX`: as many as possible such that each row and each block has its own element.
pub(crate) const CODE_ROWS_MAX: u32 = (1 << 16) - CODE_BLOCKS_MAX;

/// A symbol that a receiver stores in the place of a missing block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Held {
    /// Row of the symbol, `0..CODE_ROWS_MAX`.
    pub row: u16,
    /// Index of the block in whose place it lies.
    pub block: u16,
}

/// Why [`recover`] cannot work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unusable {
    /// The length of blocks is odd or out of bounds.
    BlockBytes(usize),
    /// The buffer does not have `1..=CODE_BLOCKS_MAX` whole blocks.
    BufferBytes(usize),
    /// A row that is out of bounds, or held twice.
    Row(u16),
    /// A block that is out of bounds, or in whose place two symbols lie.
    Block(u16),
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BlockBytes(bytes) => write!(f, "a symbol cannot have {bytes} bytes"),
            Self::BufferBytes(bytes) => write!(f, "a buffer of {bytes} bytes is not a coded object"),
            Self::Row(row) => write!(f, "symbol {row} is out of bounds or held twice"),
            Self::Block(block) => write!(f, "block {block} is out of bounds or missing twice"),
        }
    }
}

impl std::error::Error for Unusable {}

/// Writes the symbols `rows` of `object` one after the other into `out` (`rows.len() * block_bytes` bytes). `object`
/// has its plain bytes, at most `CODE_BLOCKS_MAX` blocks; the last block counts as padded with zeros.
///
/// # Panics
/// If block length, rows or lengths break these conditions, which the caller controls.
pub fn encode(object: &[u8], block_bytes: usize, rows: Range<u16>, out: &mut [u8]) {
    encode_by(Level::new(), object, block_bytes, rows, out);
}

fn encode_by(level: Level, object: &[u8], block_bytes: usize, rows: Range<u16>, out: &mut [u8]) {
    assert!(fits(block_bytes), "blocks of {block_bytes} bytes");
    assert!(object.len().div_ceil(block_bytes) <= CODE_BLOCKS_MAX as usize, "{} bytes", object.len());
    assert!(u32::from(rows.end) <= CODE_ROWS_MAX, "rows {rows:?}");
    assert_eq!(out.len(), rows.len() * block_bytes);
    let blocks = object.chunks_exact(block_bytes);
    let mut last = blocks.remainder().to_vec();
    if !last.is_empty() {
        last.resize(block_bytes, 0);
    }
    let rows: Vec<u16> = rows.collect();
    let at_once = Sums::at_once(block_bytes).min(rows.len().max(1));
    let (mut sums, mut elements) = (Sums::new(block_bytes, at_once), Vec::new());
    for (rows, out) in rows.chunks(at_once).zip(out.chunks_mut(at_once * block_bytes)) {
        sums.clear();
        for (block, bytes) in (0u16..).zip(blocks.clone().chain(last.chunks(block_bytes))) {
            column(rows, block, &mut elements);
            sums.add(level, 0, bytes.split_at(block_bytes / 2), &elements);
        }
        for (index, symbol) in out.chunks_exact_mut(block_bytes).enumerate() {
            sums.get(index, symbol);
        }
    }
}

/// Restores the missing blocks of an object. The buffer has whole blocks (the last one padded with zeros); in the
/// place of each missing block lies the `held` symbol.
///
/// # Errors
/// If the sizes or `held` are impossible; then the buffer is unchanged. A forged block or symbol gives a wrong object
/// without an error: the caller verifies the object.
pub fn recover(buffer: &mut [u8], block_bytes: usize, held: &[Held]) -> Result<(), Unusable> {
    recover_by(Level::new(), buffer, block_bytes, held)
}

fn recover_by(level: Level, buffer: &mut [u8], block_bytes: usize, held: &[Held]) -> Result<(), Unusable> {
    let present = check(buffer.len(), block_bytes, held)?;
    let at_once = Sums::at_once(block_bytes).min(held.len().max(1));
    let rows: Vec<u16> = held.iter().map(|held| held.row).collect();
    let place = |block: u16| usize::from(block) * block_bytes..(usize::from(block) + 1) * block_bytes;

    // The part of each symbol that comes from the missing blocks: the symbol minus the present blocks' part.
    let mut short = Sums::new(block_bytes, held.len());
    for (index, held) in held.iter().enumerate() {
        short.set(index, &buffer[place(held.block)]);
    }
    let mut elements = Vec::new();
    for (group, rows) in rows.chunks(at_once).enumerate() {
        for block in &present {
            column(rows, *block, &mut elements);
            short.add(level, group * at_once, buffer[place(*block)].split_at(block_bytes / 2), &elements);
        }
    }

    // Multiplied by the inverse of their part of the matrix, these give the missing blocks.
    let inverse = Inverse::of(held);
    let mut sums = Sums::new(block_bytes, at_once);
    for (group, missing) in held.chunks(at_once).enumerate() {
        sums.clear();
        for symbol in 0..held.len() {
            inverse.column(symbol, group * at_once..group * at_once + missing.len(), &mut elements);
            sums.add(level, 0, short.halves(symbol), &elements);
        }
        for (index, missing) in missing.iter().enumerate() {
            sums.get(index, &mut buffer[place(missing.block)]);
        }
    }
    Ok(())
}

fn fits(block_bytes: usize) -> bool {
    (usize::from(BLOCK_BYTES_MIN)..=usize::from(BLOCK_BYTES_MAX)).contains(&block_bytes)
        && block_bytes.is_multiple_of(2)
}

/// Checks the arguments of [`recover`], and returns the blocks that are present.
fn check(buffer_bytes: usize, block_bytes: usize, held: &[Held]) -> Result<Vec<u16>, Unusable> {
    if !fits(block_bytes) {
        return Err(Unusable::BlockBytes(block_bytes));
    }
    let blocks = buffer_bytes / block_bytes;
    if !buffer_bytes.is_multiple_of(block_bytes) || !(1..=CODE_BLOCKS_MAX as usize).contains(&blocks) {
        return Err(Unusable::BufferBytes(buffer_bytes));
    }
    let mut missing = vec![false; blocks];
    for held in held {
        match missing.get_mut(usize::from(held.block)) {
            Some(missing) if !*missing => *missing = true,
            _ => return Err(Unusable::Block(held.block)),
        }
    }
    let mut rows: Vec<u16> = held.iter().map(|held| held.row).collect();
    rows.sort_unstable();
    if let Some(twice) = rows.windows(2).find(|rows| rows[0] == rows[1]) {
        return Err(Unusable::Row(twice[0]));
    }
    if let Some(last) = rows.last().filter(|row| u32::from(**row) >= CODE_ROWS_MAX) {
        return Err(Unusable::Row(*last));
    }
    Ok((0u16..).zip(missing).filter(|(_, missing)| !missing).map(|(block, _)| block).collect())
}

/// The element of row `row`. A block's element is its number, so rows begin after the largest one.
fn x(row: u16) -> u16 {
    FIRST_ROW + row
}

/// The elements of the matrix in the column of `block`, for all of `rows`.
fn column(rows: &[u16], block: u16, into: &mut Vec<u16>) {
    let logarithms = Logarithms::get();
    let first = logarithms.log(x(0) ^ block);
    into.clear();
    into.extend(rows.iter().map(|row| logarithms.quotient(first, logarithms.log(x(*row) ^ block))));
}

/// The inverse of that part of the matrix which has the rows of the held symbols and the columns of the missing
/// blocks. The inverse of a Cauchy matrix `1 / (x[i] + y[j])` is `u[i] * v[j] / (x[i] + y[j])`, so only logarithms
/// are stored.
struct Inverse {
    /// `(x[i], log u[i])` of each held symbol.
    symbols: Vec<(u16, u32)>,
    /// `(y[j], log v[j])` of each missing block; the factor that makes row 0 all ones is in `v`.
    blocks: Vec<(u16, u32)>,
}

impl Inverse {
    fn of(held: &[Held]) -> Self {
        let logarithms = Logarithms::get();
        let (xs, ys) = (held.iter().map(|held| x(held.row)), held.iter().map(|held| held.block));
        let log = |element: u16| if element == 0 { 0 } else { u64::from(logarithms.log(element)) };
        let scale = |own: u16, others: &mut dyn Iterator<Item = u16>, same: &mut dyn Iterator<Item = u16>| {
            let over = others.map(|other| log(own ^ other)).sum::<u64>();
            // The own element gives 0, whose logarithm is taken as 0 above.
            let under = same.map(|same| log(own ^ same)).sum::<u64>();
            Logarithms::ratio(over, under)
        };
        let symbols = xs.clone().map(|x| (x, scale(x, &mut ys.clone(), &mut xs.clone()))).collect();
        let blocks =
            ys.clone().map(|y| (y, scale(y, &mut xs.clone(), &mut ys.clone().chain([x(0)])))).collect();
        Self { symbols, blocks }
    }

    /// The factors by which symbol `symbol` is added to each of `blocks`.
    fn column(&self, symbol: usize, blocks: Range<usize>, into: &mut Vec<u16>) {
        let logarithms = Logarithms::get();
        let (x, u) = self.symbols[symbol];
        into.clear();
        into.extend(self.blocks[blocks].iter().map(|(y, v)| {
            logarithms.quotient(Logarithms::ratio(u64::from(u) + u64::from(*v), 0), logarithms.log(x ^ y))
        }));
    }
}

#[cfg(test)]
mod tests;
