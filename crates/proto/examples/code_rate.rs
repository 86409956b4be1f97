//! Measures the erasure code on one core: `cargo run --release -p diskcast-proto --example code_rate`. Prints GB/s of
//! an object's plain bytes (187 blocks of 1424 bytes), for making symbols and for recovering as many lost blocks.
#![expect(clippy::print_stdout, clippy::disallowed_methods, reason = "it measures and says so")]

use base::Chance;
use proto::code::{self, Held};
use std::time::Instant;

const BLOCKS: u16 = 187;
const BLOCK_BYTES: usize = 1424;

fn main() {
    let mut chance = Chance::from_seed(1);
    let mut object = vec![0; usize::from(BLOCKS) * BLOCK_BYTES];
    object.fill_with(|| chance.below(256).to_le_bytes()[0]);
    println!("symbols  encode GB/s  recover GB/s");
    for rows in [1u16, 3, 8, 20, 68, 187] {
        let mut symbols = vec![0; usize::from(rows) * BLOCK_BYTES];
        let encode = rate(&object, || code::encode(&object, BLOCK_BYTES, 0..rows, &mut symbols));
        // Every second block as far as there are any, so that the loss is not at one end.
        let step = if rows <= BLOCKS / 2 { 2 } else { 1 };
        let held: Vec<Held> = (0..rows).map(|row| Held { row, block: row * step }).collect();
        let mut broken = object.clone();
        for (held, symbol) in held.iter().zip(symbols.chunks_exact(BLOCK_BYTES)) {
            broken[usize::from(held.block) * BLOCK_BYTES..][..BLOCK_BYTES].copy_from_slice(symbol);
        }
        let mut buffer = broken.clone();
        let recover = rate(&object, || {
            buffer.copy_from_slice(&broken);
            code::recover(&mut buffer, BLOCK_BYTES, &held).expect("a right call");
        });
        assert_eq!(buffer, object);
        println!("{rows:>7}  {encode:>11.2}  {recover:>12.2}");
    }
}

/// GB/s of `object` in the best of three runs of about 0.1 s.
fn rate(object: &[u8], mut act: impl FnMut()) -> f64 {
    let mut best = 0f64;
    for _ in 0..3 {
        let (start, mut turns) = (Instant::now(), 0u32);
        while start.elapsed().as_millis() < 100 {
            act();
            turns += 1;
        }
        best = best.max(f64::from(turns) * object.len() as f64 / start.elapsed().as_secs_f64() / 1e9);
    }
    best
}
