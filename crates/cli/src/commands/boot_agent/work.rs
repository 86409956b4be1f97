//! The work of a job: other commands of this program do it, and show their progress on this machine's console.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use net::api::{After, Work};
use net::token::{Fingerprint, JoinToken, Secret};
use tempfile::NamedTempFile;

use crate::commands::job_log::{Log, cut};
use crate::exit::{Exit, Failure, Result};

/// The rule for the disk of a job that names none: there must be just one.
const ONLY_DISK: &str = "disk:size=>=0";

/// What a job says, besides its work.
pub(super) struct Job<'a> {
    pub server: &'a str,
    pub fingerprint: Option<Fingerprint>,
    pub disk: Option<String>,
    pub secret: Option<Secret>,
    /// The machine's name.
    pub name: Option<String>,
}

impl Job<'_> {
    /// Does `work`.
    pub(super) fn run(&self, work: &Work, log: &mut Log) -> Result<()> {
        match work {
            Work::Install { reference, after } => self.install(reference, *after, log),
            Work::Capture { image } => {
                let disk = self.disk()?;
                let token = self.token()?;
                let mut command = Command::new("diskcast");
                command.args(["--yes", "capture"]).arg(disk).arg(image).args(["--to", self.server]);
                said(command.arg("--token-file").arg(token.path()), log)
            }
            Work::Wipe => self.wipe(log),
            Work::Shell => Ok(()),
            Work::Put(_) => {
                let text = "this machine booted from the network: the job is for its own system";
                Err(Failure::new(Exit::Refused, text))
            }
        }
    }

    fn rule(&self) -> &str {
        self.disk.as_deref().unwrap_or(ONLY_DISK)
    }

    /// The disk that the job means. `Refused` if it means several or none.
    fn disk(&self) -> Result<PathBuf> {
        let rule = self.rule();
        match rule.strip_prefix(disk::find::PREFIX) {
            Some(hints) => Ok(disk::find::find(&disk::find::Hints::parse(hints)?)?),
            None => Ok(rule.into()),
        }
    }

    /// A file with the token of the job. Whoever reads it can use it.
    fn token(&self) -> Result<NamedTempFile> {
        let secret = self.secret.clone().ok_or_else(|| Failure::new(Exit::Failed, "the job has no token"))?;
        // For its owner alone (`tempfile`).
        let mut file = NamedTempFile::new()?;
        file.write_all(JoinToken { fingerprint: self.fingerprint, secret }.to_string().as_bytes())?;
        Ok(file)
    }

    fn install(&self, reference: &str, after: After, log: &mut Log) -> Result<()> {
        let token = self.token()?;
        let mut command = Command::new("diskcast");
        command
            .args(["--yes", "fetch", self.server, reference, self.rule(), "--token-file"])
            .arg(token.path())
            // It starts from the disk at once: others are told that it leaves.
            .args(["--serve-for", "0"]);
        if after.own {
            command.arg("--new-identity");
            if after.accept_stale_ids {
                command.arg("--accept-stale-ids");
            }
            if let Some(name) = &self.name {
                command.args(["--hostname", name]);
            }
        }
        if after.grow {
            command.arg("--grow");
        }
        said(&mut command, log)?;
        // The disk is right. What its firmware thinks of it only makes the next start slower.
        let mut enter = Command::new("diskcast");
        enter.args(["--yes", "personalize"]).arg(self.disk()?).arg("--boot-entry");
        if let Err(failure) = said(&mut enter, log) {
            log.add(&format!("the firmware got no entry for the disk: {}", failure.message));
        }
        Ok(())
    }

    /// Erases the disk: its signatures first, so that a machine that fails in between starts from nothing by halves.
    /// Both programs refuse a disk that is in use.
    fn wipe(&self, log: &mut Log) -> Result<()> {
        let disk = OsString::from(self.disk()?);
        said(Command::new("wipefs").arg("--all").arg(&disk), log)?;
        said(Command::new("blkdiscard").args(["--zeroout", "--verbose"]).arg(&disk), log)
    }
}

/// Runs a command whose words go to the console and into `log`. Fails with what it said last of an error.
fn said(command: &mut Command, log: &mut Log) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| base::Error::from_io(format!("run `{name}`"), error))?;
    let (mut words, mut last) = (String::new(), String::new());
    for line in BufReader::new(child.stderr.take().expect("it is piped")).lines() {
        let line = line?;
        writeln!(std::io::stderr(), "{line}")?;
        log.add(&line);
        if let Some(error) = line.strip_prefix("error: ") {
            words = error.to_owned();
        } else if line.starts_with("hint: ") && !words.is_empty() {
            words = format!("{words}; {line}");
        } else if !line.trim().is_empty() {
            last = line;
        }
    }
    if child.wait()?.success() {
        return Ok(());
    }
    let mut words = [words, last, format!("`{name}` ended without a word")]
        .into_iter()
        .find(|words| !words.is_empty())
        .expect("the last one is not empty");
    cut(&mut words);
    Err(Failure::new(Exit::Failed, words))
}
