//! What is done on a host: commands for a shell there, by ssh.

use std::process::Command;

use super::own;
use super::place::{Place, quoted};
use super::settings::{Repository, Settings, address};
use super::volume::{SHELL, either};
use crate::exit::{Exit, Failure, Result};

/// Runs `script` on `host`, and returns what it prints.
pub(super) fn run(settings: &Settings, host: &str, script: &str, input: &[u8]) -> Result<String> {
    let mut command = shell(settings, host, script);
    let output = own::with_input(&mut command, input)
        .map_err(|error| base::Error::from_io("run ssh".to_owned(), error))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let last = stderr.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it gives no reason");
    let away = output.status.code() == Some(255);
    let what = if away { "can't be reached" } else { "it failed there" };
    Err(Failure::new(Exit::Failed, format!("host {host}: {what}: {last}")))
}

/// The command for `script`, of which the first failure is the end.
pub(super) fn shell(settings: &Settings, host: &str, script: &str) -> Command {
    settings.ssh().shell(&address(host), &format!("sh -c {}", quoted(&format!("set -e{SHELL}{script}"))))
}

/// What a capture reads.
pub(super) enum What<'a> {
    /// The file as it is.
    File,
    /// The same, while the number of the process that reads it is in another file.
    Process(&'a str),
    /// `PATH.save`, which these commands make of it.
    Copy(&'a str),
}

/// Captures the file at `place`, of the format `format`, as a new version of `image`.
pub(super) fn capture(
    settings: &Settings,
    repository: &Repository,
    (place, format): (&Place, &str),
    image: &str,
    what: &What<'_>,
) -> Result<Saved> {
    let (before, file) = match what {
        What::File => ("exec".to_owned(), place.path.clone()),
        What::Process(id) => (format!("echo $$ >{id}\nexec"), place.path.clone()),
        What::Copy(commands) => (format!("{commands}\n"), format!("{}.save", place.path)),
    };
    // What a machine wrote must not choose what is read: a raw disk may begin like a file of another format.
    let how = if format == "raw" { "--format raw" } else { "--backing" };
    let script = format!(
        "{before} {} --json --yes capture {file} {image} {how} --to {} --token-file -",
        settings.program(),
        quoted(&repository.server),
    );
    let token = repository.token()?;
    let records = own::finish(shell(settings, &place.host, &script), token.as_bytes());
    let records = records.map_err(|failure| failure.context(format!("save {place}")))?;
    let record = own::record(&records, "captured")?;
    match (record["number"].as_u64(), record["encoded_bytes"].as_u64()) {
        (Some(number), encoded) => Ok(Saved { number, encoded_bytes: encoded.unwrap_or(0) }),
        _ => Err(Failure::new(Exit::Failed, "the capture has no number")),
    }
}

/// A version that a host has sent.
pub(super) struct Saved {
    pub number: u64,
    /// Bytes of its chunks.
    pub encoded_bytes: u64,
}

/// Commands that make `PATH.save` of `path` at one moment, while `domain` runs, and remove it at the end. The machine
/// stands still meanwhile, and goes on in every case.
pub(super) fn still_copy(settings: &Settings, path: &str, domain: Option<&str>) -> String {
    let file = format!("cp --reflink=auto --sparse=always {path} {path}.save");
    let volume = format!("ln -s \"$v-save\" {path}.save\nmake_snapshot \"$v\" \"$v-save\"");
    let copy = either(path, &volume, &file);
    let remove = format!("drop_copy {path}.save");
    let rest = match domain {
        None => format!("trap '{remove}' EXIT\n{copy}"),
        // A machine that stands still has given all that it wrote to its file.
        Some(domain) => while_suspended(settings, domain, &copy, &remove),
    };
    // What a script left that was killed may lead to a snapshot of the user.
    format!("rm -f {path}.save\n{rest}")
}

/// Commands that run while `domain` is suspended. It goes on in every case; `last` is done at the end.
pub(super) fn while_suspended(settings: &Settings, domain: &str, commands: &str, last: &str) -> String {
    let virsh = &settings.virsh;
    format!(
        "trap '{virsh} resume {domain} >&2 || true; {last}' EXIT\n{virsh} suspend {domain} >&2\n{commands}\n\
         {virsh} resume {domain} >&2\ntrap '{last}' EXIT\n"
    )
}
