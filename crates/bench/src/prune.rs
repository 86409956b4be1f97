//! Figure of the time of `diskcast prune` on a repository of a million objects in a folder, nine in ten of which are
//! garbage.

use base::Chance;
use bytes::Bytes;
use image::{ObjectKind, ObjectRef, ObjectSink as _};
use store::{Location, Repository, Stamp, Writer};

use crate::context::{Context, json_line, timed};
use crate::figure::{Bar, Figure};
use crate::{Group, Result, load};

pub(crate) const GROUP: Group = Group {
    figures: &[
        (
            "versions.prune_1m",
            "seconds that a prune takes of a folder with 1,000,000 objects to delete; at most 600",
        ),
        ("versions.prune_memory", "peak MiB of that prune; shown"),
    ],
    measure,
};

/// Number of garbage objects.
const GARBAGE: u64 = 1_000_000;
/// Bytes of each garbage object.
const OBJECT_BYTES: usize = 96;

/// Makes a repository with one version of the system disk, and with garbage as interrupted captures leave it.
fn fill(context: &Context) -> Result<std::path::PathBuf> {
    let (disk, folder) = (load::system_disk(context)?, context.folder()?);
    timed(context.diskcast(&folder).arg("capture").arg(&disk).arg("bench"))?;
    let repository = Repository::open(&Location::Folder(folder.clone()))?;
    let stamp = Stamp { created: "2026-11-21T00:00:00Z".to_owned(), creator: "bench".to_owned() };
    let writer = Writer::begin(&repository, &stamp)?;
    let mut chance = Chance::from_seed(1);
    for _ in 0..GARBAGE {
        let mut bytes = vec![0; OBJECT_BYTES];
        chance.fill(&mut bytes);
        writer.put(&ObjectRef::of(ObjectKind::Chunk, &bytes), Bytes::from(bytes))?;
    }
    drop(writer);
    repository.flush()?;
    Ok(folder)
}

#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn measure(context: &Context) -> Result<Vec<Figure>> {
    let folder = fill(context)?;
    let usage = timed(context.diskcast(&folder).arg("prune"))?;
    let pruned = json_line(&usage.output, "pruned")?;
    if pruned["freed_objects"].as_u64().is_none_or(|freed| freed < GARBAGE) {
        return Err(format!("the prune left garbage: {pruned}").into());
    }
    timed(context.diskcast(&folder).args(["verify", "bench"]))?;
    let workload = format!("{GARBAGE} objects of no version, one version of the system disk");
    let sink = "folder of the local disk";
    let memory = usage.peak_bytes as f64 / f64::from(1 << 20);
    Ok(vec![
        Figure::new("versions.prune_1m", &[usage.seconds], "s", Bar::AtMost(600.0))
            .on(&workload, sink)
            .with(pruned),
        Figure::new("versions.prune_memory", &[memory], "MiB", Bar::Shown).on(&workload, sink),
    ])
}
