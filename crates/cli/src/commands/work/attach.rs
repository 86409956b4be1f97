//! The target becomes an attached disk, in a process of its own that stays when the deployment has ended.

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use daemon::attached::{Answer, Request, Settings, Status, ask, discard, exists};
use daemon::private_file::{make_folder, write_private};
use net::api::HostJob;
use net::clock::Stop;
use serde_json::{Value, json};

use super::options;
use super::speaker::Speaker;
use crate::args::DisksFolder;
use crate::commands::disks::folder_of;
use crate::exit::{Exit, Failure, Result};

/// In the disk's folder: what its process says.
const LOG: &str = "attach.log";
/// In the disk's folder: the token for its server.
const TOKEN: &str = "token";
/// How often it is looked whether the disk is there.
const LOOK: Duration = Duration::from_millis(20);

/// Attaches the version of `job` as the disk that is its target. Returns the name of what is in the version, and a
/// report.
pub(super) fn make(
    job: &HostJob,
    server: &str,
    place: &DisksFolder,
    (stop, speaker): (&Stop, &Speaker),
) -> Result<(String, Value)> {
    let folder = folder_of(place, &job.target)?;
    let kept = Settings::load(&folder)?;
    let is_it = kept.as_ref().is_some_and(|kept| kept.image == job.put.reference);
    match (status(&folder), kept) {
        // An earlier attempt has come so far.
        (Some(status), _) if is_it && job.resume => return Ok(done(job, &status)),
        (Some(_), _) => {
            let text = format!("there is a disk `{}`, and it runs", job.target);
            return Err(
                Failure::new(Exit::Refused, text).hint(format!("`diskcast detach {}` ends it", job.target))
            );
        }
        // Of one that is complete and was not changed nothing is lost.
        (None, Some(kept)) if exists(&folder) && !(is_it && job.resume) => discard(&folder, &kept, false)?,
        _ => {}
    }
    make_folder(&folder)?;
    let token = folder.join(TOKEN);
    write_private(&token, &job.token)?;
    speaker.doing("attaches the disk");
    let log = folder.join(LOG);
    let mut child = start(job, server, &folder, (&token, &log))?;
    loop {
        let ended = child.try_wait()?;
        if let Some(status) = status(&folder) {
            return Ok(done(job, &status));
        }
        match ended {
            // It was only to be prepared.
            Some(status) if status.success() => return Ok((job.put.root.clone(), Value::Null)),
            Some(status) => return Err(why(&log, &format!("`diskcast attach` ended: {status}"))),
            None => {}
        }
        if !stop.pause(LOOK) {
            let _ = child.kill();
            let _ = child.wait();
            return Err(Failure::new(Exit::Interrupted, "it was called off"));
        }
    }
}

fn start(job: &HostJob, server: &str, folder: &Path, (token, log): (&Path, &PathBuf)) -> Result<Child> {
    let log = File::options().append(true).create(true).open(log)?;
    let all = folder.parent().unwrap_or(folder);
    let mut command = Command::new(std::env::current_exe()?);
    command.args(options::attach(&job.put, &job.target, server));
    command.arg("--token-file").arg(token).arg("--folder").arg(all).args(&job.put.options);
    // Not one that ssh ends with it.
    command.process_group(0).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    command.spawn().map_err(|error| base::Error::from_io("run `diskcast attach`", error).into())
}

fn status(folder: &Path) -> Option<Box<Status>> {
    match ask(folder, &Request::Status, &mut |_| {}) {
        Ok(Answer::Status(status)) => Some(status),
        _ => None,
    }
}

fn done(job: &HostJob, status: &Status) -> (String, Value) {
    let report =
        json!({ "disk": status.name, "image": status.image, "number": status.number, "nbd": status.nbd });
    (job.put.root.clone(), report)
}

/// What the log says of a process that has ended.
fn why(log: &Path, ended: &str) -> Failure {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let records = text.lines().rev().map_while(|line| serde_json::from_str::<Value>(line).ok());
    let error = records.into_iter().find(|record| record["type"] == "error");
    error.map_or_else(|| Failure::new(Exit::Failed, ended), |record| Failure::of_record(&record))
}
