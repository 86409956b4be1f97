//! The work of a job: other commands of this program do it, and show their progress on this machine's console.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use base::units::{show_bytes, show_seconds};
use net::api::{After, JobProgress, Work};
use net::token::{Fingerprint, JoinToken, Secret};
use parking_lot::Mutex;
use serde_json::Value;
use tempfile::NamedTempFile;

use crate::commands::job_log::{Log, cut, progress_of};
use crate::exit::{Exit, Failure, Result};

/// The rule for the disk of a job that names none: there must be just one.
const ONLY_DISK: &str = "disk:size=>=0";
/// A disk is erased in pieces of this many bytes, so that one hears how far that is.
const WIPED_AT_ONCE: u64 = 1 << 30;
/// One in so many records of progress, which come each second, is shown on the console.
const RECORDS_A_LINE: u32 = 10;

/// How far a job is, as those hear who ask the server.
pub(super) type Far = Mutex<Option<JobProgress>>;

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
    /// Does `work`. How far an install is tells its fetch.
    pub(super) fn run(&self, work: &Work, far: &Far, log: &mut Log) -> Result<()> {
        match work {
            Work::Install { reference, after } => self.install(reference, *after, log),
            Work::Capture { image } => {
                let disk = self.disk()?;
                let token = self.token()?;
                let mut command = Command::new("diskcast");
                command.args(["--yes", "--json", "capture"]).arg(disk).arg(image).args(["--to", self.server]);
                told(command.arg("--token-file").arg(token.path()), far, log)
            }
            Work::Wipe => wipe(&self.disk()?, far, log),
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
}

/// Erases a disk: its signatures first, so that a machine that fails in between starts from nothing by halves. Both
/// programs refuse a disk that is in use.
fn wipe(disk: &Path, far: &Far, log: &mut Log) -> Result<()> {
    let of_disk = |error| base::Error::from_io(format!("look at {}", disk.display()), error);
    let size = File::open(disk).and_then(|mut disk| disk.seek(SeekFrom::End(0))).map_err(of_disk)?;
    said(Command::new("wipefs").arg("--all").arg(disk), log)?;
    let mut done = 0;
    while done < size {
        let bytes = WIPED_AT_ONCE.min(size - done);
        let piece = ["--offset".to_owned(), done.to_string(), "--length".to_owned(), bytes.to_string()];
        said(Command::new("blkdiscard").arg("--zeroout").args(piece).arg(disk), log)?;
        done += bytes;
        *far.lock() = Some(JobProgress { step: "wipe".to_owned(), done_bytes: done, total_bytes: size });
    }
    let erased = format!("{} of {} are zeros", show_bytes(done), disk.display());
    // All is done, also if the console takes nothing.
    let _ = writeln!(std::io::stderr(), "{erased}");
    log.add(&erased);
    Ok(())
}

/// The same as [`said`] for a command of this program with `--json`, which says how far it is on its standard output.
fn told(command: &mut Command, far: &Far, log: &mut Log) -> Result<()> {
    let (records, to) = std::io::pipe()?;
    command.stdout(to);
    std::thread::scope(|scope| {
        scope.spawn(|| listen(records, far));
        let done = said(command, log);
        // The last one that could write is this, and the thread waits for its end.
        command.stdout(Stdio::null());
        done
    })
}

/// Reads records until their end, and keeps how far the command is; a line of it goes to the console now and then.
fn listen(records: impl Read, far: &Far) {
    let mut seen = 0;
    for line in BufReader::new(records).lines().map_while(|line| line.ok()) {
        let Ok(record) = serde_json::from_str::<Value>(&line) else { continue };
        let Some(progress) = progress_of(&record) else { continue };
        seen += 1;
        if seen % RECORDS_A_LINE == 0 {
            let JobProgress { step, done_bytes, total_bytes } = &progress;
            let (done, total) = (show_bytes(*done_bytes), show_bytes(*total_bytes));
            let left = record["left_seconds"].as_u64().map(|left| format!(", {} left", show_seconds(left)));
            // A console that takes nothing must not stop the work.
            let _ = writeln!(std::io::stderr(), "{step}: {done} of {total}{}", left.unwrap_or_default());
        }
        *far.lock() = Some(progress);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_says_how_far_it_is_and_why_it_fails() {
        let (far, mut log) = (Far::default(), Log::default());
        let script = r#"
            echo '{"type":"progress","stage":"capture","bytes":7,"total_bytes":9}'
            echo 'no record'
            echo '{"type":"note","message":"one"}'
            echo 'warning: one' >&2
            echo 'error: the disk is gone' >&2
            exit 1"#;
        let failure = told(Command::new("sh").args(["-c", script]), &far, &mut log).unwrap_err();
        assert_eq!(failure.message, "the disk is gone");
        let expected = JobProgress { step: "capture".to_owned(), done_bytes: 7, total_bytes: 9 };
        assert_eq!(*far.lock(), Some(expected));
        assert_eq!(log.into_text().as_deref(), Some("warning: one\nerror: the disk is gone\n"));
    }
}
