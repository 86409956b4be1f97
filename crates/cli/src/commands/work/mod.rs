//! `diskcast work`: does on this host what a program elsewhere says. formats/deploy.md.

mod attach;
mod child;
mod copy;
mod member;
mod options;
mod speaker;
mod token;
mod volume;

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::IpAddr;
use std::sync::Arc;

use net::api::{GO, HostJob, HostWord, MemberJob, WORK_FORMAT};

use self::child::Work;
pub(crate) use self::member::CALLED_OFF;
pub(crate) use self::options::check as check_options;
use self::speaker::Speaker;
use crate::args::{DisksFolder, Keeping};
use crate::exit::{Exit, Failure, Result};

/// Longest job, in bytes.
const JOB_BYTES_MAX: u64 = 1 << 20;

/// Do on this host what `diskcast deploy` says
///
/// Reads a job from standard input, as one line of JSON, and tells on standard output how far it is. The end of
/// standard input calls the job off. `diskcast deploy` starts this by ssh.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ssh lab-07 diskcast work < job.json
  diskcast work --kept /srv/images < job.json")]
pub(crate) struct Args {
    #[command(flatten)]
    pub keeping: Keeping,
    #[command(flatten)]
    pub place: DisksFolder,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut line = String::new();
    // One buffer for all of it: what comes behind the first line may be in it already.
    let mut input = BufReader::new(std::io::stdin());
    input.by_ref().take(JOB_BYTES_MAX).read_line(&mut line)?;
    if let Ok(job @ MemberJob { format: WORK_FORMAT, .. }) = serde_json::from_str(&line) {
        return member::run(&job, &args.place, input);
    }
    let work = Arc::new(Work::default());
    let spoken = Arc::clone(&work);
    let speaker = Speaker::start(move || spoken.call_off())?;
    let watched = Arc::clone(&work);
    std::thread::Builder::new().name("input".into()).spawn(move || {
        for line in input.split(b'\n').map_while(std::result::Result::ok) {
            if line == GO.as_bytes() {
                watched.go();
            }
        }
        watched.call_off();
    })?;
    let done =
        parse(&line).and_then(|job| work.run(&job, &server(&job)?, (&args.keeping, &args.place), &speaker));
    let word = match done {
        Ok((root, report)) => HostWord::Ready { root, report },
        Err(failure) => {
            HostWord::Failed { exit: failure.exit as u8, message: failure.message, hint: failure.hint }
        }
    };
    speaker.end(&word);
    match word {
        HostWord::Failed { exit, .. } => std::process::exit(exit.into()),
        _ => Ok(()),
    }
}

fn parse(line: &str) -> Result<HostJob> {
    let wrong = |why: String| {
        Failure::new(Exit::Usage, format!("standard input has no job: {why}"))
            .hint("`diskcast deploy` starts this program; deploy and host need the same version of it")
    };
    let job: HostJob = serde_json::from_str(line).map_err(|error| wrong(error.to_string()))?;
    match job.format {
        WORK_FORMAT => Ok(job),
        other => Err(wrong(format!("it has format {other}, this program knows {WORK_FORMAT}"))),
    }
}

/// The URL of the server: a host that was reached by ssh knows from where.
fn server(job: &HostJob) -> Result<String> {
    let connection = std::env::var("SSH_CONNECTION").unwrap_or_default();
    let here: Option<IpAddr> = connection.split(' ').next().and_then(|address| address.parse().ok());
    job.server_from(here).ok_or_else(|| {
        Failure::new(Exit::Failed, "ssh does not say from where this host was reached (SSH_CONNECTION)")
            .hint("give `diskcast deploy` the address of its machine: --advertise ADDRESS")
    })
}
