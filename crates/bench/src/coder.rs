//! Figure of the code of stripes: making parity and restoring two lost units, beside ISA-L (`coder.c`, compiled here
//! against the package libisal-dev), on one core, in turn.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use base::Chance;
use proto::code::{encode_stripe, recover_stripe};
use serde_json::json;

use crate::context::{Context, said};
use crate::figure::{Bar, Figure, median};
use crate::{Group, Result};

pub(crate) const GROUP: Group = Group {
    figures: &[(
        "cluster.coder",
        "8 + 2 units of 64 and 256 KiB, parity made and two units restored, over ISA-L, the worst of four; \
            at least 0.6",
    )],
    measure,
};

const SOURCE: &str = include_str!("coder.c");
const DATA: usize = 8;
const PARITY: usize = 2;
/// Units that are lost.
const LOST: [usize; 2] = [1, 5];
/// Lengths of units, in bytes.
const LENGTHS: [usize; 2] = [64 << 10, 256 << 10];
const ROUNDS: usize = 3;
const RUNS: usize = 5;
const SECONDS_OF_RUN: f64 = 0.1;

/// GB/s of data: parity made, and units restored.
type Rates = [f64; 2];

fn measure(context: &Context) -> Result<Vec<Figure>> {
    let folder = context.folder()?;
    let (source, program) = (folder.join("coder.c"), folder.join("coder"));
    std::fs::write(&source, SOURCE)?;
    said(Command::new("cc").args(["-O2", "-o"]).arg(&program).arg(&source).arg("-lisal"))?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours.push(LENGTHS.map(stripe_rates));
        theirs.push(isal_rates(&program)?);
    }
    let cells: Vec<(usize, usize)> =
        (0..LENGTHS.len()).flat_map(|length| [(length, 0), (length, 1)]).collect();
    let of = |rounds: &[[Rates; 2]], (length, what): (usize, usize)| {
        median(&rounds.iter().map(|round| round[length][what]).collect::<Vec<_>>())
    };
    let ratio = |cell: &(usize, usize)| of(&ours, *cell) / of(&theirs, *cell);
    let worst =
        cells.iter().copied().min_by(|one, other| ratio(one).total_cmp(&ratio(other))).unwrap_or((0, 0));
    let name = |(length, what): (usize, usize)| {
        format!("{} KiB, {}", LENGTHS[length] >> 10, ["encode", "restore two"][what])
    };
    let table: Vec<_> = cells
        .iter()
        .map(|cell| json!({ "cell": name(*cell), "diskcast": of(&ours, *cell), "isa_l": of(&theirs, *cell) }))
        .collect();
    Ok(vec![
        Figure::new("cluster.coder", &[ratio(&worst)], "ratio", Bar::AtLeast(0.6))
            .peer("diskcast", &name(worst), of(&ours, worst), "GB/s")
            .peer("ISA-L", &name(worst), of(&theirs, worst), "GB/s")
            .on("stripes of 8 data units and 2 parity units in memory, one core", "-")
            .with(json!({ "cells": table })),
    ])
}

fn isal_rates(program: &Path) -> Result<[Rates; 2]> {
    let printed = said(Command::new(program).args(LENGTHS.map(|bytes| bytes.to_string())))?;
    let mut lines = printed.lines().map(|line| -> Result<Rates> {
        let numbers: Vec<f64> = line.split(' ').map(str::parse).collect::<std::result::Result<_, _>>()?;
        Ok([numbers[1], numbers[2]])
    });
    let mut next = || lines.next().ok_or("a length is missing")?;
    Ok([next()?, next()?])
}

fn stripe_rates(bytes: usize) -> Rates {
    let mut chance = Chance::from_seed(1);
    let mut units = vec![vec![0; bytes]; DATA];
    units.iter_mut().for_each(|unit| chance.fill(unit));
    let mut parity = vec![vec![0; bytes]; PARITY];
    let data: Vec<&[u8]> = units.iter().map(Vec::as_slice).collect();
    let encode = rate(bytes * DATA, || {
        let mut places: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
        encode_stripe(&data, &mut places);
    });
    let left: Vec<Option<&[u8]>> =
        data.iter().enumerate().map(|(index, unit)| (!LOST.contains(&index)).then_some(*unit)).collect();
    let rows: Vec<(u16, &[u8])> = (0..).zip(parity.iter().map(Vec::as_slice)).collect();
    let mut restored = vec![vec![0; bytes]; PARITY];
    let decode = rate(bytes * DATA, || {
        let mut places: Vec<&mut [u8]> = restored.iter_mut().map(Vec::as_mut_slice).collect();
        recover_stripe(&left, &rows, &mut places);
    });
    assert!(
        LOST.iter().zip(&restored).all(|(index, unit)| unit == &units[*index]),
        "units come out as they were"
    );
    [encode, decode]
}

/// GB/s of the best run.
#[expect(clippy::cast_precision_loss, reason = "some thousand runs over some megabytes")]
fn rate(bytes: usize, mut act: impl FnMut()) -> f64 {
    let mut best = 0_f64;
    for _ in 0..RUNS {
        let (begin, mut turns) = (Instant::now(), 0_usize);
        while begin.elapsed().as_secs_f64() < SECONDS_OF_RUN {
            act();
            turns += 1;
        }
        best = best.max((turns * bytes) as f64 / begin.elapsed().as_secs_f64() / 1e9);
    }
    best
}
