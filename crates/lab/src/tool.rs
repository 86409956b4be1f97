//! Runs the command-line tools that the lab needs. If one fails, the error contains its output.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use base::{Error, ErrorKind, Result};

const TOOLS: &[&str] = &["ip", "tc", "nft", "ethtool"];

/// Checks that a lab can be built on this machine.
///
/// # Errors
/// `Unsupported`, with what is missing: root, or the name of a tool.
pub fn available() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Err(Error::new(ErrorKind::Unsupported, "a lab of network namespaces needs root"));
    }
    for tool in TOOLS {
        // Not every tool knows `-V`. Only a failure to start counts, not the exit status.
        let started = Command::new(tool).arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status();
        started.map_err(|e| Error::from_source(ErrorKind::Unsupported, format!("start `{tool}`"), e))?;
    }
    Ok(())
}

/// For tests that need a lab: whether one can be built. If not, prints the reason on stderr.
///
/// # Panics
/// If no lab can be built and `CI` is set: CI must not skip tests.
#[must_use]
#[expect(clippy::print_stderr, reason = "a test that leaves something out says so")]
pub fn available_or_skip() -> bool {
    let Err(why) = available() else { return true };
    let why = base::chain(&why);
    assert!(std::env::var_os("CI").is_none(), "CI needs the lab: {why}");
    eprintln!("left out: {why}");
    false
}

/// Whether `program` of the package `package` is here. If it is not, says so, or fails where `CI` is set.
///
/// # Panics
/// If it is missing where `CI` is set.
#[must_use]
#[expect(clippy::print_stderr, reason = "a test that leaves something out says so")]
pub fn has_or_skip(program: &str, package: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if command.status().is_ok() {
        return true;
    }
    assert!(std::env::var_os("CI").is_none(), "CI needs {package}: tools/install-dependencies.sh");
    eprintln!("left out: it needs the package {package}");
    false
}

/// The path of a program that the scripts in `tools` put into the build folder.
pub(crate) fn built(name: &str) -> PathBuf {
    let root =
        Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/lab lies two below the root");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    target.join("tools").join(name)
}

/// Runs a tool to its end and returns its standard output. `Io` with its standard error if it fails.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Result<String> {
    feed(program, arguments, "")
}

/// Unmounts the filesystem at `place`. A process that another thread has just started holds it until it runs its own
/// program; so one that is busy is tried again, for ten seconds.
///
/// # Errors
/// `Io` with the words of `umount`.
pub fn unmount(place: &Path) -> Result<()> {
    let once = || run("umount", &[&place.to_string_lossy()]).map(drop);
    for _ in 0..200 {
        match once() {
            Err(error) if error.to_string().contains("busy") => {
                std::thread::park_timeout(Duration::from_millis(50));
            }
            done => return done,
        }
    }
    once()
}

/// Like [`run`], with `input` on the tool's standard input.
pub(crate) fn feed(program: &str, arguments: &[&str], input: &str) -> Result<String> {
    let what = || format!("run `{program} {}`", arguments.join(" "));
    let io = |e| Error::from_source(ErrorKind::Io, what(), e);
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(io)?;
    let mut stdin = child.stdin.take().expect("stdin is piped");
    // A write error means that the tool has ended early. Its exit status and output below tell why.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    let output = child.wait_with_output().map_err(io)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Error::new(ErrorKind::Io, format!("{}: {}: {}", what(), output.status, said.trim())));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Like [`run`], for a tool that prints JSON.
pub(crate) fn query(program: &str, arguments: &[&str]) -> Result<serde_json::Value> {
    let text = run(program, arguments)?;
    serde_json::from_str(&text).map_err(|e| {
        Error::from_source(ErrorKind::Io, format!("read what `{program} {}` printed", arguments.join(" ")), e)
    })
}
