//! The figure of durable puts into a folder: the repository compared with plain `object_store`, which flushes each
//! object.
//!
//! The rounds of both alternate, so that other load affects both alike. Before each round the disk is flushed, since
//! one `syncfs` waits for the writes of all processes.

use std::path::Path;
use std::time::Instant;

use base::Chance;
use bytes::Bytes;
use futures::executor::block_on;
use image::{ObjectKind, ObjectRef, ObjectSink as _};
use object_store::local::LocalFileSystem;
use object_store::{ObjectStoreExt as _, path};
use serde_json::json;
use store::{Location, Repository};

use crate::context::{Context, said};
use crate::figure::{Bar, Figure, median};
use crate::threads::each;
use crate::{Group, Result};

pub(crate) const GROUP: Group = Group {
    figures: &[(
        "versions.folder_put",
        "durable puts into a folder over object_store with fsync, the worse of 4 KiB, 90 KB and 1 MiB; at least 0.8",
    )],
    measure,
};

const THREADS: usize = 8;
const ROUNDS: u64 = 5;
/// Sizes of objects in bytes, and the number of objects in a round. 90 KB is the mean of chunks of system files.
const SIZES: [(usize, usize); 3] = [(4 << 10, 2000), (90_000, 2000), (1 << 20, 200)];

fn measure(context: &Context) -> Result<Vec<Figure>> {
    context.calm()?;
    let (mut rows, mut worst) = (vec![], (f64::INFINITY, vec![]));
    let mut peer_at_chunk = f64::NAN;
    for (object_bytes, count) in SIZES {
        let (mut ratios, mut own, mut peer) = (vec![], vec![], vec![]);
        for round in 0..ROUNDS {
            let objects = objects(round, count, object_bytes);
            #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
            let megabytes = (count * object_bytes) as f64 / 1e6;
            let theirs = megabytes / by_object_store(&fresh(context)?, &objects)?;
            let ours = megabytes / by_repository(&fresh(context)?, &objects)?;
            peer.push(theirs);
            own.push(ours);
            ratios.push(ours / theirs);
        }
        rows.push(json!({
            "object bytes": object_bytes, "objects": count, "repository MB/s": median(&own),
            "object_store with fsync MB/s": median(&peer), "ratio": median(&ratios),
        }));
        if object_bytes == 90_000 {
            peer_at_chunk = median(&peer);
        }
        if median(&ratios) < worst.0 {
            worst = (median(&ratios), ratios);
        }
    }
    Ok(vec![
        Figure::new("versions.folder_put", &worst.1, "ratio", Bar::AtLeast(0.8))
            .peer("object_store", "LocalFileSystem with fsync, 90 KB objects", peer_at_chunk, "MB/s")
            .on(
                "random objects of 4 KiB, 90 KB and 1 MiB by 8 threads",
                "a folder of the local disk, durable",
            )
            .with(json!(rows)),
    ])
}

/// Flushes the writes of all programs, then makes a new folder.
fn fresh(context: &Context) -> Result<std::path::PathBuf> {
    said(&mut std::process::Command::new("sync"))?;
    context.folder()
}

/// Incompressible objects, different in each round.
fn objects(round: u64, count: usize, object_bytes: usize) -> Vec<(ObjectRef, Bytes)> {
    let mut chance = Chance::from_seed(round);
    let make = |_| {
        let mut bytes = vec![0; object_bytes];
        chance.fill(&mut bytes);
        (ObjectRef::of(ObjectKind::Chunk, &bytes), Bytes::from(bytes))
    };
    (0..count).map(make).collect()
}

/// Seconds until all objects are durable, with plain `object_store`.
fn by_object_store(folder: &Path, objects: &[(ObjectRef, Bytes)]) -> Result<f64> {
    let store = LocalFileSystem::new_with_prefix(folder)?.with_fsync(true);
    let start = Instant::now();
    each(objects, THREADS, |(object, bytes)| {
        let hex = object.digest.to_hex();
        let path = path::Path::from_iter(["chunks", &hex[..2], &hex]);
        block_on(store.put(&path, bytes.clone().into())).map(drop)
    })?;
    Ok(start.elapsed().as_secs_f64())
}

/// Seconds until all objects are durable, with a repository.
fn by_repository(folder: &Path, objects: &[(ObjectRef, Bytes)]) -> Result<f64> {
    let repository = Repository::create(&Location::Folder(folder.to_owned()))?;
    let start = Instant::now();
    each(objects, THREADS, |(object, bytes)| repository.put(object, bytes.clone()))?;
    repository.flush()?;
    Ok(start.elapsed().as_secs_f64())
}
