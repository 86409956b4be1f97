//! Runs this program for a part of the work, and takes what it says.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::exit::{Exit, Failure, Result};

/// Runs it with `arguments` and `--json` here. Returns its records.
pub(super) fn run(arguments: &[&str]) -> Result<Vec<Value>> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--json", "--yes"]).args(arguments);
    finish(command, b"")
}

/// Runs `command`, which is this program with `--json`, here or on a host, with `input`.
pub(super) fn finish(mut command: Command, input: &[u8]) -> Result<Vec<Value>> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = with_input(&mut command, input)
        .map_err(|error| base::Error::from_io(format!("run `{name}`"), error))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let records: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    match output.status.success() {
        true => Ok(records),
        false => Err(failure(&records, &output)),
    }
}

/// Runs `command` to its end.
pub(super) fn with_input(command: &mut Command, input: &[u8]) -> std::io::Result<Output> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let mut stdin = child.stdin.take().expect("it is piped");
    std::thread::scope(|scope| {
        // A program that ends early says why.
        scope.spawn(move || drop(stdin.write_all(input)));
        child.wait_with_output()
    })
}

fn failure(records: &[Value], output: &Output) -> Failure {
    let stderr = String::from_utf8_lossy(&output.stderr);
    let mut said =
        records.iter().cloned().chain(stderr.lines().filter_map(|line| serde_json::from_str(line).ok()));
    let error = said.rfind(|record| record["type"] == "error");
    let Some(error) = error else {
        let last = stderr.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
        return Failure::new(Exit::Failed, format!("{}: {last}", output.status));
    };
    Failure::of_record(&error)
}

/// The record of a kind.
pub(super) fn record<'a>(records: &'a [Value], kind: &str) -> Result<&'a Value> {
    let found = records.iter().find(|record| record["type"] == kind);
    found.ok_or_else(|| Failure::new(Exit::Failed, format!("diskcast said nothing of `{kind}`")))
}
