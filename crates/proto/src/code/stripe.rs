//! The same code over long units: `k` data units and `m` parity units make a stripe, of which any `k` restore the rest.
//!
//! Units are coded in tiles: tile `t` of parity unit `row` is symbol `row` of the tiles `t` of all data units. So what
//! is computed at once stays in the first-level cache, however long units are, and a part of a unit can be restored
//! from the same part of the others.

use fearless_simd::Level;

use super::kernel::Sums;
use super::{CODE_BLOCKS_MAX, CODE_ROWS_MAX, Held, Inverse, column};

/// Bytes of a tile; units have whole tiles.
pub(super) const TILE_BYTES: usize = 4096;

/// Writes the parity units of a stripe: unit `row` of `parity` is the one of this row. All units are equally long.
///
/// # Panics
/// If units differ in length, or have no whole tiles, or if there are too many: the caller controls that.
pub fn encode_stripe(data: &[&[u8]], parity: &mut [&mut [u8]]) {
    encode_by(Level::new(), data, parity);
}

pub(super) fn encode_by(level: Level, data: &[&[u8]], parity: &mut [&mut [u8]]) {
    let bytes = data.first().map_or(0, |unit| unit.len());
    check(bytes, data.iter().map(|unit| unit.len()).chain(parity.iter().map(|unit| unit.len())));
    assert!(data.len() <= CODE_BLOCKS_MAX as usize && parity.len() <= CODE_ROWS_MAX as usize);
    let rows: Vec<u16> = (0u16..).take(parity.len()).collect();
    let columns: Vec<Vec<u16>> = (0u16..).take(data.len()).map(|block| elements(&rows, block)).collect();
    let mut sums = Sums::new(TILE_BYTES, rows.len());
    for tile in tiles(bytes) {
        sums.clear();
        for (unit, elements) in data.iter().zip(&columns) {
            sums.add(level, 0, unit[tile.clone()].split_at(TILE_BYTES / 2), elements);
        }
        for (row, unit) in parity.iter_mut().enumerate() {
            sums.get(row, &mut unit[tile.clone()]);
        }
    }
}

/// Restores data units. `data` has each unit of the stripe by its number, `None` for those that are missing; each unit
/// of `parity` has its row; `missing` gets the missing ones in order of their numbers.
///
/// # Panics
/// As [`encode_stripe`], and if there are fewer parity units than missing ones, or two of the same row.
pub fn recover_stripe(data: &[Option<&[u8]>], parity: &[(u16, &[u8])], missing: &mut [&mut [u8]]) {
    recover_by(Level::new(), data, parity, missing);
}

pub(super) fn recover_by(
    level: Level,
    data: &[Option<&[u8]>],
    parity: &[(u16, &[u8])],
    missing: &mut [&mut [u8]],
) {
    let lost: Vec<u16> =
        (0u16..).zip(data).filter(|(_, unit)| unit.is_none()).map(|(block, _)| block).collect();
    assert_eq!(lost.len(), missing.len(), "units are missing, and have a place");
    if lost.is_empty() {
        return;
    }
    assert!(lost.len() <= parity.len() && data.len() <= CODE_BLOCKS_MAX as usize);
    let parity = &parity[..lost.len()];
    let held: Vec<Held> =
        parity.iter().zip(&lost).map(|((row, _), block)| Held { row: *row, block: *block }).collect();
    let rows: Vec<u16> = held.iter().map(|held| held.row).collect();
    assert!((1..rows.len()).all(|at| !rows[at..].contains(&rows[at - 1])), "a row is there twice");
    assert!(rows.iter().all(|row| u32::from(*row) < CODE_ROWS_MAX));
    let bytes = missing.first().map_or(0, |unit| unit.len());
    let lengths = data.iter().flatten().map(|unit| unit.len());
    check(
        bytes,
        lengths.chain(parity.iter().map(|(_, unit)| unit.len())).chain(missing.iter().map(|m| m.len())),
    );

    let present: Vec<(&[u8], Vec<u16>)> =
        (0u16..).zip(data).filter_map(|(block, unit)| Some(((*unit)?, elements(&rows, block)))).collect();
    let inverse = Inverse::of(&held);
    let columns: Vec<Vec<u16>> = (0..held.len())
        .map(|symbol| {
            let mut elements = Vec::new();
            inverse.column(symbol, 0..held.len(), &mut elements);
            elements
        })
        .collect();
    let (mut short, mut sums) = (Sums::new(TILE_BYTES, held.len()), Sums::new(TILE_BYTES, held.len()));
    for tile in tiles(bytes) {
        for (symbol, (_, unit)) in parity.iter().enumerate() {
            short.set(symbol, &unit[tile.clone()]);
        }
        for (unit, elements) in &present {
            short.add(level, 0, unit[tile.clone()].split_at(TILE_BYTES / 2), elements);
        }
        sums.clear();
        for (symbol, elements) in columns.iter().enumerate() {
            sums.add(level, 0, short.halves(symbol), elements);
        }
        for (index, unit) in missing.iter_mut().enumerate() {
            sums.get(index, &mut unit[tile.clone()]);
        }
    }
}

fn elements(rows: &[u16], block: u16) -> Vec<u16> {
    let mut elements = Vec::new();
    column(rows, block, &mut elements);
    elements
}

fn tiles(bytes: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    (0..bytes / TILE_BYTES).map(|tile| tile * TILE_BYTES..(tile + 1) * TILE_BYTES)
}

fn check(bytes: usize, mut all: impl Iterator<Item = usize>) {
    assert!(bytes.is_multiple_of(TILE_BYTES), "units of {bytes} bytes");
    assert!(all.all(|len| len == bytes), "units of different lengths");
}
