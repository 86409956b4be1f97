//! Figures of an attached disk: a commit while it is written, and the first read of a chunk from a distant source. In
//! this process, by the library's interface, on folders; the distance is a source that waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use base::Chance;
use bytes::Bytes;
use image::{ObjectRef, ObjectSource};
use mirror::{CommitOptions, Durability, Mirror, MirrorOptions, Served, Source};
use serde_json::json;
use store::{ImageName, Location, Repository, Shape, Stamp};

use crate::context::Context;
use crate::figure::{Bar, Figure, median};
use crate::{Group, Result};

pub(crate) const GROUP: Group = Group {
    figures: &[
        ("mirror.commit_time", "s to commit 1 MiB contiguous of a running disk of 4 GiB; at most 0.3"),
        ("mirror.commit_bytes", "MiB that such a commit stores; at most 1.5"),
        ("mirror.commit_pause", "ms that a write of 4 KiB beside such a commit takes at most; at most 50"),
        (
            "mirror.first_touch",
            "ms that a cold random read of 4 KiB takes beyond its source's 10 ms, median; shown",
        ),
        (
            "mirror.first_stream",
            "MB/s of a cold sequential read from a source of 10 ms, one request at a time; shown",
        ),
    ],
    measure,
};

const MIB: usize = 1 << 20;
const SIZE_BYTES: u64 = 4 << 30;
/// Bytes of content at the start of the image.
const CONTENT_BYTES: usize = 128 * MIB;
const RUNS: usize = 9;
const WAY: Duration = Duration::from_millis(10);
const TOUCHES: u64 = 200;
const STREAM_BYTES: usize = 64 * MIB;

fn stamp() -> Stamp {
    Stamp { created: "2026-11-21T22:00:00Z".to_owned(), creator: "bench".to_owned() }
}

/// A repository with a delay of 10 ms.
struct Far(Arc<Repository>);

impl ObjectSource for Far {
    fn fetch(&self, object: &ObjectRef) -> base::Result<Bytes> {
        std::thread::sleep(WAY);
        self.0.fetch(object)
    }
}

fn measure(context: &Context) -> Result<Vec<Figure>> {
    let folder = context.folder()?;
    let repository = Arc::new(Repository::create(&Location::Folder(folder.join("repository")))?);
    let blob = repository.blob(&"disk".parse()?);
    blob.create(&Shape { size_bytes: SIZE_BYTES, ..Shape::default() }, &stamp())?;
    // Half of each page is random, so that it compresses like system files.
    let (mut chance, mut content) = (Chance::from_seed(1), vec![0; CONTENT_BYTES]);
    content.chunks_mut(4096).for_each(|page| chance.fill(&mut page[..2048]));
    blob.write(0, &content, &stamp())?;
    let manifest = repository.resolve(&"disk".parse()?)?;
    let attach = |name: &str, source: Source| {
        Mirror::create(&folder.join(name), &manifest, vec![source], &MirrorOptions::default())
    };
    let mut figures = commits(&attach("near", Source::repository(Arc::clone(&repository)))?, &repository)?;
    let far = || Source {
        name: "far".to_owned(),
        objects: Arc::new(Far(Arc::clone(&repository))),
        cipher: image::Cipher::None,
        at_once: 16,
    };
    figures.push(touches(&attach("touched", far())?)?);
    figures.push(stream(&attach("streamed", far())?)?);
    Ok(figures)
}

fn commits(mirror: &Mirror, repository: &Repository) -> Result<Vec<Figure>> {
    let image: ImageName = "machine".parse()?;
    let (mut times, mut stored, mut pauses) = (vec![], vec![], vec![]);
    let mut chance = Chance::from_seed(2);
    let mut bytes = vec![0; MIB];
    for _ in 0..RUNS {
        chance.fill(&mut bytes);
        let offset = chance.below((CONTENT_BYTES - MIB) as u64 / 4096) * 4096;
        mirror.write(offset, &bytes, Durability::Durable)?;
        let over = AtomicBool::new(false);
        let pause = std::thread::scope(|scope| -> Result<f64> {
            // A writer that repeatedly overwrites what is being committed.
            let writer = scope.spawn(|| {
                let mut longest = Duration::ZERO;
                for at in (0..256u64).cycle().take_while(|_| !over.load(Relaxed)) {
                    let begin = Instant::now();
                    if mirror.write(offset + at * 4096, &bytes[..4096], Durability::Cached).is_err() {
                        return f64::NAN;
                    }
                    longest = longest.max(begin.elapsed());
                }
                longest.as_secs_f64() * 1e3
            });
            let begin = Instant::now();
            let commit = mirror.commit(repository, &image, &CommitOptions::new(&stamp()));
            times.push(begin.elapsed().as_secs_f64());
            over.store(true, Relaxed);
            stored.push(commit?.ok_or("something was written")?.stored_bytes as f64 / MIB as f64);
            Ok(writer.join().unwrap_or(f64::NAN))
        })?;
        pauses.push(pause);
    }
    let (work, sink) = ("1 MiB of noise in 4 GiB, one thread writes over it meanwhile", "a folder, durable");
    Ok(vec![
        Figure::new("mirror.commit_time", &times, "s", Bar::AtMost(0.3)).on(work, sink),
        Figure::new("mirror.commit_bytes", &stored, "MiB", Bar::AtMost(1.5)).on(work, sink),
        Figure::new("mirror.commit_pause", &pauses, "ms", Bar::AtMost(50.0)).on(work, sink),
    ])
}

fn touches(mirror: &Mirror) -> Result<Figure> {
    let mut chance = Chance::from_seed(3);
    let mut times = vec![];
    // Fetches the nodes before the measurement.
    mirror.status(0, SIZE_BYTES, 1)?;
    for _ in 0..TOUCHES {
        let offset = chance.below(CONTENT_BYTES as u64 / 4096) * 4096;
        if mirror.read_now(offset, &mut [0; 4096])? {
            continue;
        }
        let begin = Instant::now();
        mirror.read(offset, &mut [0; 4096])?;
        times.push((begin.elapsed().as_secs_f64() - WAY.as_secs_f64()) * 1e3);
    }
    let mut sorted = times.clone();
    sorted.sort_by(f64::total_cmp);
    let p99 = sorted[sorted.len() * 99 / 100];
    Ok(Figure::new("mirror.first_touch", &[median(&times)], "ms", Bar::Shown)
        .on("4 KiB anywhere in 128 MiB, chunks of 256 KiB", "a folder")
        .with(json!({ "reads": times.len(), "p99 ms": p99 })))
}

fn stream(mirror: &Mirror) -> Result<Figure> {
    let mut piece = vec![0; 128 << 10];
    let begin = Instant::now();
    for at in 0..STREAM_BYTES / piece.len() {
        mirror.read((at * piece.len()) as u64, &mut piece)?;
    }
    let rate = STREAM_BYTES as f64 / 1e6 / begin.elapsed().as_secs_f64();
    let counters = mirror.counters();
    Ok(Figure::new("mirror.first_stream", &[rate], "MB/s", Bar::Shown)
        .on("64 MiB in reads of 128 KiB", "a folder")
        .with(json!({
            "chunks waited for": counters.demanded_chunks,
            "unused": counters.prefetched_unused_bytes(),
            "prefetched": counters.prefetched_bytes,
        })))
}
