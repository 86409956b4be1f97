//! The work of a job: `diskcast work` does it, as for a deployment by ssh.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use net::api::{HostJob, HostWord, JobProgress};
use net::clock::Stop;
use parking_lot::Mutex;

use crate::args::{DisksFolder, Keeping};
use crate::commands::job_log::Log;
use crate::exit::{Exit, Failure, Result};

/// Does `job`, and says how far it is. It is called off when `stop` is set.
pub(super) fn run(
    job: &HostJob,
    (keeping, place): (&Keeping, &DisksFolder),
    stop: &Stop,
    (progress, log): (&Mutex<Option<JobProgress>>, &mut Log),
) -> Result<()> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("work").args(keeping.arguments()?);
    if let Some(folder) = &place.folder {
        command.arg("--folder").arg(folder);
    }
    // Ctrl-C is for the agent, which calls the work off.
    command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|error| base::Error::from_io("run `diskcast work`", error))?;
    let mut line = serde_json::to_vec(job).expect("a job is plain data");
    line.push(b'\n');
    let mut stdin = child.stdin.take();
    // It is gone if that fails, and says why.
    let _ = stdin.as_mut().map(|stdin| stdin.write_all(&line));
    let (mut last, mut told) = (None, String::new());
    // It says something every two seconds.
    for line in BufReader::new(child.stdout.take().expect("it is piped")).lines() {
        if stop.is_stopped() {
            stdin = None;
        }
        let Ok(word) = serde_json::from_str(&line?) else { continue };
        match word {
            HostWord::Alive { doing } if doing != told => {
                log.add(&doing);
                told = doing;
            }
            HostWord::Alive { .. } | HostWord::Arrived { .. } => {}
            HostWord::Progress { step, done_bytes, total_bytes } => {
                *progress.lock() = Some(JobProgress { step, done_bytes, total_bytes });
            }
            HostWord::Ready { root, .. } if root == job.put.root => last = Some(Ok(())),
            HostWord::Ready { .. } => {
                last = Some(Err(Failure::new(Exit::Verification, "the server sent another version")));
            }
            HostWord::Failed { message, hint, exit } => {
                let failure = Failure::new(Exit::of_code(exit), message);
                last = Some(Err(if let Some(hint) = hint { failure.hint(hint) } else { failure }));
            }
        }
    }
    drop(stdin);
    let status = child.wait()?;
    last.unwrap_or_else(|| {
        Err(Failure::new(Exit::Failed, format!("`diskcast work` ended without a word: {status}")))
    })
}
