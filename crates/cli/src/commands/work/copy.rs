//! Makes a target a copy of an image that this host keeps, and fetches the image first if it does not.

use std::path::Path;
use std::time::Duration;

use base::Digest;
use daemon::kept::{About, Base, Found, KeptImages, There};
use net::api::{Copies, HostJob, HostWord, Put};
use net::clock::Stop;
use serde_json::{Value, json};

use super::speaker::Speaker;
use crate::args::Keeping;
use crate::exit::{Exit, Failure, Result};

/// How often it is looked whether another program has fetched the image.
const LOOK: Duration = Duration::from_millis(200);

/// Does `job`. Returns the name of what is in the image, and a report.
pub(super) fn make(
    job: &HostJob,
    copies: Copies,
    keeping: &Keeping,
    (stop, speaker): (&Stop, &Speaker),
    fetch: impl Fn(&HostJob) -> Result<(String, Value)>,
) -> Result<(String, Value)> {
    let target = Path::new(&job.target);
    let there = match (job.replace, job.resume) {
        (true, _) => There::Anything,
        (_, true) => There::Same,
        _ => There::Nothing,
    };
    // Before the image is fetched for nothing.
    there.check(target)?;
    let root: Digest =
        job.put.root.parse().map_err(|_| Failure::new(Exit::Usage, "the job names no content"))?;
    let kept = KeptImages::open(&keeping.folder()?)?;
    let (base, report) = base(&kept, job, root, keeping, (stop, speaker), fetch)?;
    speaker.doing("makes the copy");
    match copies {
        Copies::Overlay => base.overlay(&kept, target, job.size_bytes, there)?,
        Copies::Share => base.share(target, job.size_bytes, there)?,
        Copies::Attach => unreachable!("such a disk needs no image here"),
    }
    Ok((job.put.root.clone(), report))
}

/// The image, which is fetched if this host lacks it. Who comes meanwhile waits for the one fetch.
fn base(
    kept: &KeptImages,
    job: &HostJob,
    root: Digest,
    keeping: &Keeping,
    (stop, speaker): (&Stop, &Speaker),
    fetch: impl Fn(&HostJob) -> Result<(String, Value)>,
) -> Result<(Base, Value)> {
    let key = KeptImages::key(root);
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
