//! Starts that differ: spread over one transfer, all at once, one after the other, and one late.

use std::path::Path;
use std::time::Duration;

use serde_json::json;

use super::{Done, RUNS, SINK, fetch, most};
use crate::context::Context;
use crate::figure::{Bar, Figure, median};
use crate::transfer::{Load, library};
use crate::{Group, Result};

const HOSTS: u32 = 16;
const RATE: u64 = 200_000_000;
const MEBIBYTES: u64 = 128;

pub(super) const SKEW: Group = Group {
    figures: &[
        (
            "peers.skew",
            "a host's own time over its time alone, 16 starts over one transfer time, the most; at most 1.15",
        ),
        ("peers.skew_bytes", "images that the server sent, 16 starts over one transfer time; at most 1.10"),
    ],
    measure: skew,
};

pub(super) const TOGETHER: Group = Group {
    figures: &[("peers.together", "images that the server sent, 16 hosts at once; at most 1.03")],
    measure: together,
};

pub(super) const SEQUENCE: Group = Group {
    figures: &[(
        "peers.sequence",
        "images that the server sent to ten hosts, each of which starts when the one before still serves; \
         at most 1.2",
    )],
    measure: sequence,
};

pub(super) const LATE: Group = Group {
    figures: &[(
        "peers.late",
        "images that the server sent to a host and one that joins when 90 % are through; at most 1.15",
    )],
    measure: late,
};

/// The median time of a host that is alone, in seconds.
fn alone(context: &Context, repo: &Path, load: &Load) -> Result<f64> {
    let mut times = vec![];
    for _ in 0..RUNS {
        times.push(most(&fetch(context, repo, load, (1, RATE), 0, |_| Duration::ZERO)?.own()));
    }
    Ok(median(&times))
}

/// Starts of `hosts` hosts, `gap` times the time alone between each two.
fn runs(context: &Context, hosts: u32, gap: f64, serve_for: f64) -> Result<(Vec<Done>, Load, f64)> {
    let (repo, mut loads) = library(context, &[MEBIBYTES], false)?;
    let mut load = loads.remove(0);
    let alone = alone(context, &repo, &load)?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some seconds")]
    let serve_for = (alone * serve_for).ceil() as u64;
    let mut all = vec![];
    for _ in 0..RUNS {
        let after = |host: u32| Duration::from_secs_f64(alone * gap * f64::from(host - 1));
        all.push(fetch(context, &repo, &load, (hosts, RATE), serve_for, after)?);
    }
    if serve_for > 0 {
        load.words += &format!("; fetch --serve-for {serve_for}s");
    }
    Ok((all, load, alone))
}

fn images(all: &[Done]) -> Vec<f64> {
    all.iter().map(Done::images).collect()
}

fn rows(all: &[Done], load: &Load, alone: f64) -> serde_json::Value {
    json!(all.iter().map(|done| done.row(load, alone)).collect::<Vec<_>>())
}

fn workload(load: &Load) -> String {
    format!("200 Mbit/s, {}", load.words)
}

fn skew(context: &Context) -> Result<Vec<Figure>> {
    let (all, load, alone) = runs(context, HOSTS, 1.0 / f64::from(HOSTS), 2.0)?;
    let ratios: Vec<f64> = all.iter().map(|done| most(&done.own()) / alone).collect();
    Ok(vec![
        Figure::new("peers.skew", &ratios, "ratio", Bar::AtMost(1.15))
            .on(&workload(&load), SINK)
            .with(rows(&all, &load, alone)),
        Figure::new("peers.skew_bytes", &images(&all), "images", Bar::AtMost(1.10))
            .on(&workload(&load), SINK),
    ])
}

fn together(context: &Context) -> Result<Vec<Figure>> {
    let (all, load, alone) = runs(context, HOSTS, 0.0, 0.0)?;
    let figure = Figure::new("peers.together", &images(&all), "images", Bar::AtMost(1.03));
    Ok(vec![figure.on(&workload(&load), SINK).with(rows(&all, &load, alone))])
}

fn sequence(context: &Context) -> Result<Vec<Figure>> {
    let (all, load, alone) = runs(context, 10, 1.15, 2.0)?;
    let figure = Figure::new("peers.sequence", &images(&all), "images", Bar::AtMost(1.2));
    Ok(vec![figure.on(&workload(&load), SINK).with(rows(&all, &load, alone))])
}

fn late(context: &Context) -> Result<Vec<Figure>> {
    let (all, load, alone) = runs(context, 2, 0.9, 2.0)?;
    let figure = Figure::new("peers.late", &images(&all), "images", Bar::AtMost(1.15));
    Ok(vec![figure.on(&workload(&load), SINK).with(rows(&all, &load, alone))])
}
