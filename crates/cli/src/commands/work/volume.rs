//! Makes a target a snapshot of a logical volume that has the image, and fetches the image first if the host lacks it.

use std::path::Path;

use base::{Digest, Subject};
use daemon::image_cache::{About, FoundVolume, ImageCache, KeptVolume, There};
use disk::ReadAt as _;
use disk::logical_volume::LogicalVolume;
use net::api::{HostJob, Put};
use net::clock::Stop;
use serde_json::{Value, json};

use super::copy::{LOOK, root, there};
use super::speaker::Speaker;
use crate::args::Keeping;
use crate::exit::{Exit, Failure, Result};

/// Does `job`. Returns the name of what is in the image, and a report.
pub(super) fn make(
    job: &HostJob,
    keeping: &Keeping,
    (stop, speaker): (&Stop, &Speaker),
    fetch: impl Fn(&HostJob) -> Result<(String, Value)>,
) -> Result<(String, Value)> {
    let target = Path::new(&job.target);
    let volume = LogicalVolume::at(target).ok_or_else(|| {
        Failure::new(Exit::Usage, format!("`{}` is not a logical volume", job.target))
            .hint("a snapshot is /dev/GROUP/NAME, and lies in the volume group of its image")
    })?;
    if job.size_bytes.is_some() {
        return Err(Failure::new(Exit::Usage, "a snapshot is as long as its image"));
    }
    // Before the image is fetched for nothing.
    if target.exists() && there(job) == There::Nothing {
        let text = format!("`{}` exists: a snapshot is a new logical volume", job.target);
        return Err(Failure::new(Exit::Refused, text));
    }
    let kept = ImageCache::open(&keeping.folder()?)?;
    let (base, report) = base(&kept, job, (root(job)?, &volume.group), (stop, speaker), fetch)?;
    speaker.doing("makes the snapshot");
    with_room(&kept, &volume.group, || Ok(base.snapshot(&volume, there(job))?))?;
    Ok((job.put.root.clone(), report))
}

/// The image in the volume group. Who comes while another job fetches it waits for that.
fn base(
    kept: &ImageCache,
    job: &HostJob,
    (root, group): (Digest, &str),
    (stop, speaker): (&Stop, &Speaker),
    fetch: impl Fn(&HostJob) -> Result<(String, Value)>,
) -> Result<(KeptVolume, Value)> {
    let key = ImageCache::key(root);
    loop {
        match kept.find_volume(&key, group)? {
            FoundVolume::Here(base) => return Ok((base, json!({ "kept": true }))),
            FoundVolume::Busy => {
                speaker.doing("waits for the image, which another job fetches");
                if !stop.pause(LOOK) {
                    return Err(Failure::new(Exit::Interrupted, "it was called off"));
                }
            }
            FoundVolume::Missing(filling) => {
                let path = filling.path();
                let target = path.to_string_lossy().into_owned();
                let fill = || {
                    let options = if path.exists() { Vec::new() } else { vec!["--create-volume".to_owned()] };
                    let put = Put { options, written: None, after: None, ..job.put.clone() };
                    fetch(&HostJob { target: target.clone(), put, resume: true, ..job.clone() })
                };
                let (found, report) = with_room(kept, group, fill)?;
                if found != job.put.root {
                    return Err(Failure::new(Exit::Verification, "the server sent another version"));
                }
                let about = About {
                    reference: job.put.reference.clone(),
                    size_bytes: disk::open_source(&path)?.geometry().size_bytes,
                    sector_bytes: 512,
                };
                return Ok((filling.complete(&about)?, report));
            }
        }
    }
}

/// Does something that needs room in a volume group: if there is none, images go that nothing needs, those first that
/// were used least recently.
fn with_room<T>(kept: &ImageCache, group: &str, mut act: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match act() {
            Err(failure) if failure.subject == Some(Subject::VolumeGroup) => {
                if kept.drop_volume(group)?.is_none() {
                    return Err(failure);
                }
            }
            done => return done,
        }
    }
}
