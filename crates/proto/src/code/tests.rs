//! Tests the code against its definition, and with wrong arguments.

use super::field::product;
use super::stripe::TILE_BYTES;
use super::*;
use base::Chance;

/// All instruction sets that this machine can run: all must compute the same symbols.
fn levels() -> Vec<Level> {
    let best = Level::new();
    let mut levels = vec![best, Level::baseline()];
    #[cfg(target_arch = "x86_64")]
    levels
        .extend([best.as_avx2().map(Level::Avx2), best.as_sse4_2().map(Level::Sse4_2)].into_iter().flatten());
    levels
}

fn element(row: u16, block: u16) -> u16 {
    let mut elements = Vec::new();
    column(&[row], block, &mut elements);
    elements[0]
}

fn bytes(chance: &mut Chance, count: usize) -> Vec<u8> {
    (0..count).map(|_| u8::try_from(chance.below(256)).expect("a byte")).collect()
}

fn number(chance: &mut Chance, below: u64) -> u16 {
    u16::try_from(chance.below(below)).expect("below 65536")
}

fn shuffled(chance: &mut Chance, count: u16) -> Vec<u16> {
    let mut all: Vec<u16> = (0..count).collect();
    for at in (1..all.len()).rev() {
        all.swap(at, usize::try_from(chance.below(at as u64 + 1)).expect("an index"));
    }
    all
}

/// One symbol, computed by the definition.
fn by_definition(object: &[u8], block_bytes: usize, row: u16) -> Vec<u8> {
    let half = block_bytes / 2;
    let mut symbol = vec![0; block_bytes];
    for (block, bytes) in (0u16..).zip(object.chunks(block_bytes)) {
        let byte = |at: usize| bytes.get(at).copied().unwrap_or(0);
        for at in 0..half {
            let term = product(element(row, block), u16::from_le_bytes([byte(at), byte(half + at)]));
            let [low, high] = term.to_le_bytes();
            symbol[at] ^= low;
            symbol[half + at] ^= high;
        }
    }
    symbol
}

/// An object of random length, in blocks of some random size: `(object, padded, block_bytes, blocks)`.
fn object(chance: &mut Chance, blocks_max: u64) -> (Vec<u8>, Vec<u8>, usize, u16) {
    let block_bytes = 512 + 2 * usize::from(number(chance, 300));
    let blocks = 1 + number(chance, blocks_max);
    let cut = usize::from(number(chance, block_bytes as u64));
    let object = bytes(chance, usize::from(blocks) * block_bytes - cut);
    let mut padded = object.clone();
    padded.resize(usize::from(blocks) * block_bytes, 0);
    (object, padded, block_bytes, blocks)
}

#[test]
fn golden_elements_and_symbols() {
    // Computed by another implementation of the definition.
    let elements = [
        (0, 0, 1),
        (0, 1023, 1),
        (1, 0, 0xabc6),
        (1, 1, 0x8382),
        (2, 186, 0x3321),
        (67, 5, 0x5581),
        (4095, 1023, 0x590e),
        (64511, 1023, 0x1b4e),
    ];
    for (row, block, golden) in elements {
        assert_eq!(element(row, block), golden, "row {row}, block {block}");
    }
    let byte = |at: u32| u8::try_from((at * 167 + 13) % 251).expect("a byte");
    let object: Vec<u8> = (0..3 * 512 - 100).map(byte).collect();
    let symbols: [(u16, [u64; 3]); 4] = [
        (0, [0xe6ef_c4e5_eafb_fced, 0xfbfc_edf2_f3e8_f1f2, 0x69bc_ef57_a4e9_59a4]),
        (1, [0x40be_1ba3_ca26_8e4c, 0xc1bb_bef1_1988_4dec, 0x0c5e_e5c9_0816_2f37]),
        (2, [0x94d6_6318_2923_8abd, 0xb172_23f3_0541_012d, 0xb4f2_671d_2a27_5852]),
        (4095, [0x7561_6c40_7751_ddbf, 0x94ca_a15a_bfc0_c80a, 0x27d0_cade_fc14_947c]),
    ];
    for (row, golden) in symbols {
        let mut symbol = [0; 512];
        encode(&object, 512, row..row + 1, &mut symbol);
        let at = |at: usize| u64::from_be_bytes(symbol[at..at + 8].try_into().expect("eight bytes"));
        assert_eq!([at(0), at(256), at(504)], golden, "row {row}");
    }
}

#[test]
fn symbols_are_what_the_definition_says_on_all_processors() {
    for seed in 0..6 {
        let mut chance = Chance::from_seed(seed);
        let (object, _, block_bytes, _) = object(&mut chance, 40);
        let first = number(&mut chance, 64_000);
        let rows = first..first + 1 + number(&mut chance, 3);
        let expected: Vec<u8> =
            rows.clone().flat_map(|row| by_definition(&object, block_bytes, row)).collect();
        for level in levels() {
            let mut out = vec![0xaa; expected.len()];
            encode_by(level, &object, block_bytes, rows.clone(), &mut out);
            assert!(out == expected, "seed {seed}, {level:?}");
        }
    }
}

#[test]
fn any_blocks_and_symbols_as_many_as_blocks_give_the_object() {
    for seed in 0..60 {
        let mut chance = Chance::from_seed(seed);
        let (object, padded, block_bytes, blocks) =
            object(&mut chance, if seed % 10 == 0 { 200 } else { 30 });
        let lost = number(&mut chance, u64::from(blocks) + 1);
        let mut rows = shuffled(&mut chance, 2 * blocks);
        rows.truncate(usize::from(lost));
        let mut buffer = padded.clone();
        let mut held = Vec::new();
        let far = if seed % 3 == 0 { 60_000 } else { 0 };
        for (row, block) in rows.into_iter().map(|row| far + row).zip(shuffled(&mut chance, blocks)) {
            let place = usize::from(block) * block_bytes;
            encode(&object, block_bytes, row..row + 1, &mut buffer[place..place + block_bytes]);
            held.push(Held { row, block });
        }
        for level in levels() {
            let mut buffer = buffer.clone();
            recover_by(level, &mut buffer, block_bytes, &held).expect("a right call");
            assert!(
                buffer == padded,
                "seed {seed}, {level:?}: {lost} of {blocks} blocks of {block_bytes} bytes"
            );
        }
    }
}

#[test]
fn the_largest_object_and_the_largest_blocks() {
    for (blocks, block_bytes, lost) in [(CODE_BLOCKS_MAX as usize, 512, 40u16), (12, 8960, 12)] {
        let mut buffer = bytes(&mut Chance::from_seed(1), blocks * block_bytes);
        let object = buffer.clone();
        let mut symbols = vec![0; usize::from(lost) * block_bytes];
        let first = u16::try_from(CODE_ROWS_MAX).expect("16 bits") - lost;
        encode(&object, block_bytes, first..first + lost, &mut symbols);
        let mut held = Vec::new();
        for (index, symbol) in (0..lost).zip(symbols.chunks_exact(block_bytes)) {
            let block = u16::try_from(blocks).expect("16 bits") - 1 - index;
            buffer[usize::from(block) * block_bytes..][..block_bytes].copy_from_slice(symbol);
            held.push(Held { row: first + index, block });
        }
        recover(&mut buffer, block_bytes, &held).expect("a right call");
        assert!(buffer == object);
    }
}

#[test]
fn nothing_lost_is_nothing_done() {
    let mut buffer = vec![7; 1024];
    recover(&mut buffer, 512, &[]).expect("a right call");
    assert_eq!(buffer, [7; 1024]);
    encode(&buffer, 512, 5..5, &mut []);
    let mut symbol = [1; 512];
    encode(&[], 512, 5..6, &mut symbol);
    assert_eq!(symbol, [0; 512]);
}

#[test]
fn what_cannot_be_right_is_refused() {
    let held = |row, block| Held { row, block };
    let refused = |bytes: usize, block_bytes, held: &[Held]| {
        let mut buffer = vec![7; bytes];
        let error = recover(&mut buffer, block_bytes, held).expect_err("it cannot be right");
        assert!(buffer.iter().all(|byte| *byte == 7));
        error
    };
    assert_eq!(refused(1024, 0, &[]), Unusable::BlockBytes(0));
    assert_eq!(refused(1026, 513, &[]), Unusable::BlockBytes(513));
    assert_eq!(refused(9000, 9000, &[]), Unusable::BlockBytes(9000));
    assert_eq!(refused(0, 512, &[]), Unusable::BufferBytes(0));
    assert_eq!(refused(1000, 512, &[]), Unusable::BufferBytes(1000));
    assert_eq!(refused(1025 * 512, 512, &[]), Unusable::BufferBytes(1025 * 512));
    assert_eq!(refused(1024, 512, &[held(0, 2)]), Unusable::Block(2));
    assert_eq!(refused(1024, 512, &[held(0, 1), held(1, 1)]), Unusable::Block(1));
    assert_eq!(refused(1024, 512, &[held(9, 1), held(9, 0)]), Unusable::Row(9));
    assert_eq!(refused(1024, 512, &[held(64_512, 1)]), Unusable::Row(64_512));
    assert_eq!(refused(512, 512, &[held(0, 0), held(1, 65_535)]), Unusable::Block(65_535));
}

#[test]
fn no_call_of_recover_panics() {
    for seed in 0..300 {
        let mut chance = Chance::from_seed(seed);
        let block_bytes = 510 + usize::from(number(&mut chance, 8));
        let blocks = number(&mut chance, 5);
        let extra = if chance.hits(300_000) { 1 } else { 0 };
        let mut buffer = bytes(&mut chance, usize::from(blocks) * block_bytes + extra);
        let held: Vec<Held> = (0..chance.below(7))
            .map(|_| {
                let row = if chance.hits(900_000) { 20 } else { 65_536 };
                Held { row: number(&mut chance, row), block: number(&mut chance, 6) }
            })
            .collect();
        // The result is right or an error, also if the symbols are random bytes.
        let _ = recover(&mut buffer, block_bytes, &held);
    }
}

#[test]
fn stripes_are_restored_from_any_units_on_all_processors() {
    for seed in 0..40 {
        let mut chance = Chance::from_seed(seed);
        let (k, m) = (1 + number(&mut chance, 12), 1 + number(&mut chance, 4));
        let bytes_of_unit = TILE_BYTES * (1 + usize::from(number(&mut chance, 4)));
        let data: Vec<Vec<u8>> = (0..k).map(|_| bytes(&mut chance, bytes_of_unit)).collect();
        let units: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        let mut parity = vec![vec![0xaa; bytes_of_unit]; usize::from(m)];
        let mut places: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
        let level = levels()[usize::from(number(&mut chance, levels().len() as u64))];
        stripe::encode_by(level, &units, &mut places);
        // A tile of parity is what the definition says of the tiles of data.
        let tile = TILE_BYTES * usize::from(number(&mut chance, (bytes_of_unit / TILE_BYTES) as u64));
        let tiles: Vec<u8> = data.iter().flat_map(|unit| unit[tile..tile + TILE_BYTES].to_vec()).collect();
        for (row, unit) in (0..m).zip(&parity) {
            assert!(
                unit[tile..tile + TILE_BYTES] == by_definition(&tiles, TILE_BYTES, row),
                "seed {seed}, row {row}"
            );
        }
        // As many units as there is parity are lost: data or parity.
        let lost: Vec<u16> = shuffled(&mut chance, k + m)[..usize::from(m)].to_vec();
        let left: Vec<Option<&[u8]>> =
            (0..k).zip(&units).map(|(block, unit)| (!lost.contains(&block)).then_some(*unit)).collect();
        let rows: Vec<(u16, &[u8])> = (0..m)
            .zip(&parity)
            .filter(|(row, _)| !lost.contains(&(k + row)))
            .map(|(row, unit)| (row, unit.as_slice()))
            .collect();
        let mut restored = vec![vec![0; bytes_of_unit]; left.iter().filter(|unit| unit.is_none()).count()];
        let mut places: Vec<&mut [u8]> = restored.iter_mut().map(Vec::as_mut_slice).collect();
        stripe::recover_by(level, &left, &rows, &mut places);
        let wanted = (0..k).filter(|block| lost.contains(block)).map(|block| &data[usize::from(block)]);
        assert!(restored.iter().eq(wanted), "seed {seed}, {k} + {m} without {lost:?}");
    }
}
