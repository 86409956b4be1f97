//! Makes a target a copy of an image that this host keeps, and fetches the image first if it does not.

use std::path::Path;
use std::time::Duration;

use base::Digest;
use daemon::image_cache::{About, Base, Found, ImageCache, MountedVersion, There};
use net::api::{Copies, HostJob, HostWord, Put};
use net::clock::Stop;
use serde_json::{Value, json};
use store::Reference;

use super::speaker::Speaker;
use crate::args::Keeping;
use crate::exit::{Exit, Failure, Result};

/// How often it is looked whether another program has fetched the image.
pub(super) const LOOK: Duration = Duration::from_millis(200);

/// Does `job`. Returns the name of what is in the image, and a report.
pub(super) fn make(
    job: &HostJob,
    copies: Copies,
    keeping: &Keeping,
    (stop, speaker): (&Stop, &Speaker),
    fetch: impl Fn(&HostJob) -> Result<(String, Value)>,
) -> Result<(String, Value)> {
    let (target, there) = (Path::new(&job.target), there(job));
    // Before the image is fetched for nothing.
    there.check(target)?;
    let root = root(job)?;
    let kept = ImageCache::open(&keeping.folder()?)?;
    let (base, report) = base(&kept, job, root, keeping, (stop, speaker), fetch)?;
    speaker.doing("makes the copy");
    match copies {
        Copies::Overlay => base.overlay(&kept, target, job.size_bytes, there)?,
        Copies::Share => base.share(target, job.size_bytes, there)?,
        Copies::Attach | Copies::Demand | Copies::Snapshot => unreachable!("such a disk needs no image here"),
    }
    Ok((job.put.root.clone(), report))
}

/// Does `job`, whose copy gets its content when that is read.
pub(super) fn on_demand(job: &HostJob, speaker: &Speaker) -> Result<(String, Value)> {
    let wrong = |what| Failure::new(Exit::Usage, format!("the job names {what}"));
    let folder = job.put.mount.as_deref().ok_or_else(|| wrong("no mount"))?;
    let Ok(Reference::Version(image, number)) = job.put.reference.parse() else {
        return Err(wrong("no version"));
    };
    speaker.doing("makes the copy");
    let found = MountedVersion::find(Path::new(folder), image.as_str(), number, root(job)?);
    let version = found.map_err(|error| {
        Failure::from(error)
            .hint(format!("`diskcast mount {folder} --from SERVER --share` on the host shows them"))
    })?;
    version.overlay(Path::new(&job.target), job.size_bytes, there(job))?;
    Ok((job.put.root.clone(), json!({ "on_demand": true })))
}

/// What may be at the target of `job`.
pub(super) fn there(job: &HostJob) -> There {
    match (job.replace, job.resume) {
        (true, _) => There::Anything,
        (_, true) => There::Same,
        _ => There::Nothing,
    }
}

/// The name of what is in the version.
pub(super) fn root(job: &HostJob) -> Result<Digest> {
    job.put.root.parse().map_err(|_| Failure::new(Exit::Usage, "the job names no content"))
}

/// The image, which is fetched if this host lacks it. Who comes meanwhile waits for the one fetch.
fn base(
    kept: &ImageCache,
    job: &HostJob,
    root: Digest,
    keeping: &Keeping,
    (stop, speaker): (&Stop, &Speaker),
    fetch: impl Fn(&HostJob) -> Result<(String, Value)>,
) -> Result<(Base, Value)> {
    let key = ImageCache::key(root);
    let mut told = false;
    loop {
        match kept.find(&key)? {
            Found::Here(base) => return Ok((base, json!({ "kept": true }))),
            Found::Busy => {
                if job.meets && !std::mem::replace(&mut told, true) {
                    speaker.say(&HostWord::Arrived { waits: false });
                }
                speaker.doing("waits for the image, which another job fetches");
                if !stop.pause(LOOK) {
                    return Err(Failure::new(Exit::Interrupted, "it was called off"));
                }
            }
            Found::Missing(filling) => {
                kept.clean(keeping.bounds())?;
                let part = filling.part();
                let put = Put { options: Vec::new(), written: None, after: None, ..job.put.clone() };
                let target = part.to_string_lossy().into_owned();
                let whole = HostJob { target, put, size_bytes: None, resume: true, ..job.clone() };
                let (found, report) = fetch(&whole)?;
                if found != job.put.root {
                    return Err(Failure::new(Exit::Verification, "the server sent another version"));
                }
                let about = About {
                    reference: job.put.reference.clone(),
                    size_bytes: std::fs::metadata(&part)?.len(),
                    sector_bytes: sector_bytes(&report),
                };
                let base = filling.complete(&about)?;
                // What was too much before, is now.
                kept.clean(keeping.bounds())?;
                return Ok((base, report));
            }
        }
    }
}

/// Sectors of the image: overlays are made for them.
fn sector_bytes(report: &Value) -> u32 {
    report["sector_bytes"].as_u64().and_then(|bytes| bytes.try_into().ok()).unwrap_or(512)
}
