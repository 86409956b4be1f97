//! Figures of a large image with many versions, in a folder and on S3: time and memory of opening, listing, reading
//! and committing as the number of versions grows.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use base::Chance;
use lab::{Engine, Gateway};
use serde_json::{Value, json};
use store::{ImageName, Location, Reference, Repository, Setting};

use crate::context::{Context, timed};
use crate::figure::{Bar, Figure, median};
use crate::versions::{self, SIZE_BYTES, stamp};
use crate::{Group, Result, s3};

pub(crate) const GROUP: Group = Group {
    figures: &[
        (
            "versions.scale_recent",
            "ms to open and find the newest of 10,000 versions, folder or S3; shown, with growth",
        ),
        ("versions.scale_list", "ms to list the newest 100 of them; shown, with growth"),
        ("versions.scale_read", "ms to open and read 1 MiB of the newest; shown, with growth"),
        ("versions.scale_commit", "ms to open and commit 4 KiB; shown, with growth"),
        (
            "versions.scale_memory",
            "MiB, peak of a process that lists, compares, clones or commits there; shown",
        ),
    ],
    measure,
};

/// Numbers of versions at which the times are measured.
const STAGES: [u64; 3] = [10, 1_000, 10_000];
const RUNS: usize = 5;
/// The operations measured at each stage, as in [`GROUP`].
const WORK: [&str; 4] = ["recent", "list", "read", "commit"];

/// Where the repository is.
struct Place<'a> {
    name: &'a str,
    location: Location,
    setting: Setting,
    variables: Vec<(&'static str, String)>,
}

fn measure(context: &Context) -> Result<Vec<Figure>> {
    let gateway = Gateway::start(Engine::VersityGw, &context.scratch)?;
    let places = [
        Place {
            name: "folder",
            location: Location::Folder(context.folder()?.join("repository")),
            setting: Setting::default(),
            variables: Vec::new(),
        },
        Place {
            name: "S3",
            location: "s3://images/scale".parse()?,
            setting: s3::setting(&gateway)?,
            variables: Gateway::variables(gateway.address()).into(),
        },
    ];
    let (mut rows, mut last, mut peaks) = (vec![], [const { Vec::new() }; WORK.len()], vec![]);
    for place in &places {
        rows.extend(grow(place, &mut last)?);
        peaks.extend(memory(context, place)?);
    }
    let workload = format!("64 TiB, 10,000,000 chunks of data, up to {} versions", STAGES[2]);
    let sink = "repository in a folder of the local disk, or in versitygw 1.8.0 on it; the slower of both";
    let mut figures: Vec<_> = WORK
        .iter()
        .zip(last)
        .map(|(work, runs)| {
            Figure::new(&format!("versions.scale_{work}"), &runs, "ms", Bar::Shown).on(&workload, sink)
        })
        .collect();
    figures[0].details = json!(rows);
    let highest: f64 = peaks.iter().filter_map(|row: &Value| row["peak MiB"].as_f64()).fold(0.0, f64::max);
    figures.push(
        Figure::new("versions.scale_memory", &[highest], "MiB", Bar::Shown)
            .on(&workload, "VmHWM of a process for each command, the highest")
            .with(json!(peaks)),
    );
    Ok(figures)
}

/// Makes the image and measures at each stage; returns a row for each. Replaces runs in `last` by those of the last
/// stage if these are slower.
fn grow(place: &Place<'_>, last: &mut [Vec<f64>; WORK.len()]) -> Result<Vec<Value>> {
    let name: ImageName = "large".parse()?;
    let made = Repository::create_with(&place.location, &place.setting)?;
    versions::begin_large(&made, &name)?;
    let (mut rows, mut count) = (vec![], 2);
    for stage in STAGES {
        versions::write_on(&made, &name, count..stage)?;
        count = stage + RUNS as u64;
        let taken = times(place, &name, stage)?;
        let mut row = json!({ "place": place.name, "versions": stage });
        for (work, runs) in WORK.iter().zip(&taken) {
            row[format!("{work} ms")] = json!(median(runs));
        }
        rows.push(row);
        if stage == STAGES[2] {
            for (last, runs) in last.iter_mut().zip(taken) {
                if last.is_empty() || median(last) < median(&runs) {
                    *last = runs;
                }
            }
        }
    }
    Ok(rows)
}

/// Measures each operation in milliseconds, with a new handle each time. Makes [`RUNS`] versions.
fn times(place: &Place<'_>, name: &ImageName, seed: u64) -> Result<[Vec<f64>; WORK.len()]> {
    let mut taken = [const { Vec::new() }; WORK.len()];
    let mut chance = Chance::from_seed(seed);
    let mut bytes = vec![0; 1 << 20];
    for _ in 0..RUNS {
        for (work, runs) in WORK.iter().zip(&mut taken) {
            // Within the first of the ten runs of a million chunks.
            let offset = chance.below(SIZE_BYTES >> 10) / 4096 * 4096;
            let start = Instant::now();
            let repository = Repository::open_with(&place.location, &place.setting)?;
            match *work {
                "recent" => drop(repository.blob(name).recent()?),
                "list" => repository.log(name, None)?.take(100).try_for_each(|version| version.map(drop))?,
                "read" => repository.snapshot(&Reference::Newest(name.clone()))?.read(offset, &mut bytes)?,
                _ => drop(repository.blob(name).write(offset, &bytes[..4096], &stamp())?),
            }
            runs.push(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    Ok(taken)
}

/// The peak memory of processes that work on the image, a row for each.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn memory(context: &Context, place: &Place<'_>) -> Result<Vec<Value>> {
    let piece = context.folder()?.join("piece");
    std::fs::write(&piece, [7; 4096])?;
    let piece = piece.display();
    let commands = [
        "images".to_owned(),
        "log large".to_owned(),
        format!("diff large@{} large --summary", STAGES[1]),
        "clone large copy".to_owned(),
        format!("commit large {piece} --at 1G"),
    ];
    let mut rows = Vec::new();
    for words in commands {
        let repo = place.location.to_string();
        let mut command: Command = context.diskcast(Path::new(&repo));
        command.env("DISKCAST_CACHE", "off").envs(place.variables.iter().cloned());
        let usage = timed(command.args(words.split_whitespace()))?;
        rows.push(json!({
            "place": place.name, "command": words.replace(&piece.to_string(), "PIECE"),
            "peak MiB": usage.peak_bytes as f64 / f64::from(1 << 20), "seconds": usage.seconds,
        }));
    }
    Ok(rows)
}
