//! Runs the tools that the lab is made of. Errors contain the output of the tool.

use std::io::Write as _;
use std::process::{Command, Stdio};

use base::{Error, ErrorKind, Result};

const TOOLS: &[&str] = &["ip", "tc", "nft", "ethtool"];

/// Whether a lab can be built here.
///
/// # Errors
/// `Unsupported` with what is missing: root, or a tool.
pub fn available() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Err(Error::new(ErrorKind::Unsupported, "a lab of network namespaces needs root"));
    }
    for tool in TOOLS {
        // Version flags differ; only whether the tool can be started matters.
        let started = Command::new(tool).arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status();
        started.map_err(|e| Error::from_source(ErrorKind::Unsupported, format!("start `{tool}`"), e))?;
    }
    Ok(())
}

/// For tests that need a lab: false if none can be built here, with a note on stderr.
///
/// # Panics
/// If `CI` is set: there it is a failure if a lab cannot be built.
#[must_use]
#[expect(clippy::print_stderr, reason = "a test that leaves something out says so")]
pub fn available_or_skip() -> bool {
    let Err(why) = available() else { return true };
    let why = base::chain(&why);
    assert!(std::env::var_os("CI").is_none(), "CI needs the lab: {why}");
    eprintln!("left out: {why}");
    false
}

/// Runs a tool and returns its output.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Result<String> {
    feed(program, arguments, "")
}

/// Runs a tool with `input` on its standard input and returns its output.
pub(crate) fn feed(program: &str, arguments: &[&str], input: &str) -> Result<String> {
    let what = || format!("run `{program} {}`", arguments.join(" "));
    let io = |e| Error::from_source(ErrorKind::Io, what(), e);
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(io)?;
    let mut stdin = child.stdin.take().expect("stdin is piped");
    // A tool that stopped reading has failed; its status is reported below.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    let output = child.wait_with_output().map_err(io)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Error::new(ErrorKind::Io, format!("{}: {}: {}", what(), output.status, said.trim())));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a tool that prints JSON.
pub(crate) fn query(program: &str, arguments: &[&str]) -> Result<serde_json::Value> {
    let text = run(program, arguments)?;
    serde_json::from_str(&text).map_err(|e| {
        Error::from_source(ErrorKind::Io, format!("read what `{program} {}` printed", arguments.join(" ")), e)
    })
}
