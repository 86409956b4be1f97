//! Figures of independent writers of one image: several handles of one repository, as separate processes would have.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Instant;

use base::Chance;
use lab::{Engine, Gateway};
use serde_json::json;
use store::{ImageName, Location, Repository, Setting, Shape};

use crate::context::{Context, said};
use crate::figure::{Bar, Figure, median};
use crate::threads::each;
use crate::versions::stamp;
use crate::{Group, Result, s3};

pub(crate) const GROUP: Group = Group {
    figures: &[(
        "versions.retries_apart",
        "lost races a write, 32 writers through 4 or 32 handles, on a folder and on S3, the worst of these; at most 3",
    )],
    measure,
};

const WRITERS: u64 = 32;
/// Number of writes of each writer: once, all at the same moment; or repeatedly.
const WRITES: [u64; 2] = [1, 8];
const HANDLES: [u64; 3] = [1, 4, 32];
const ROUNDS: usize = 3;
const WRITE_BYTES: usize = 256 << 10;
const SIZE_BYTES: u64 = 1 << 40;

#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn measure(context: &Context) -> Result<Vec<Figure>> {
    let gateway = Gateway::start(Engine::VersityGw, &context.scratch)?;
    let far = s3::setting(&gateway)?;
    let (mut rows, mut worst) = (vec![], vec![f64::NEG_INFINITY]);
    for (place, setting) in [("folder", Setting::default()), ("S3", far)] {
        for (handles, writes) in
            HANDLES.into_iter().flat_map(|handles| WRITES.map(|writes| (handles, writes)))
        {
            let (mut lost, mut rates) = (vec![], vec![]);
            for round in 0..ROUNDS {
                let location = match place {
                    "S3" => format!("s3://images/{handles}-{writes}-{round}").parse()?,
                    _ => Location::Folder(context.folder()?.join("repository")),
                };
                said(std::process::Command::new("sync").arg("-f").arg(&context.scratch))?;
                let (seconds, races) = write_all(&location, &setting, handles, writes)?;
                lost.push(f64::from(races) / (WRITERS * writes) as f64);
                rates.push((WRITERS * writes) as f64 / seconds);
            }
            rows.push(json!({
                "place": place, "handles": handles, "writes a writer": writes, "lost races a write": median(&lost),
                "lost races a writer": median(&lost) * writes as f64, "writes/s": median(&rates),
            }));
            if handles > 1 && median(&lost) > median(&worst) {
                worst = lost;
            }
        }
    }
    Ok(vec![
        Figure::new("versions.retries_apart", &worst, "races", Bar::AtMost(3.0))
            .on(
                &format!("{WRITERS} writers of one image, {} KiB of random bytes a write", WRITE_BYTES >> 10),
                "repository in a folder of the local disk, durable, or in versitygw 1.8.0 on it",
            )
            .with(json!(rows)),
    ])
}

/// Runs all writers; returns the seconds that they took and the number of lost races.
fn write_all(location: &Location, setting: &Setting, handles: u64, writes: u64) -> Result<(f64, u32)> {
    let name: ImageName = "shared".parse()?;
    let first = Repository::create_with(location, setting)?;
    first.blob(&name).create(&Shape { size_bytes: SIZE_BYTES, ..Shape::default() }, &stamp())?;
    let handles =
        (0..handles).map(|_| Repository::open_with(location, setting)).collect::<base::Result<Vec<_>>>()?;
    let writers: Vec<(u64, &Repository)> = (0..WRITERS).zip(handles.iter().cycle()).collect();
    let races = AtomicU32::new(0);
    let start = Instant::now();
    each(&writers, writers.len(), |&(seed, repository)| {
        let mut chance = Chance::from_seed(seed);
        let mut bytes = vec![0; WRITE_BYTES];
        for _ in 0..writes {
            chance.fill(&mut bytes);
            let offset = chance.below(SIZE_BYTES / WRITE_BYTES as u64) * WRITE_BYTES as u64;
            races.fetch_add(repository.blob(&name).write(offset, &bytes, &stamp())?.retries, Relaxed);
        }
        base::Result::Ok(())
    })?;
    Ok((start.elapsed().as_secs_f64(), races.into_inner()))
}
