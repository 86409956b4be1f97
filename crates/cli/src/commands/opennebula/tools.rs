//! Programs of this machine that drivers use.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::exit::{Exit, Failure, Result};

/// Downloads `url`.
pub(super) fn download(url: &str, target: &Path) -> Result<()> {
    tool(Command::new("curl").args(["-fsSL", "--retry", "3", "-o"]).arg(target).args(["--", url])).map(drop)
}

/// Runs a tool to its end, and returns what it prints.
pub(super) fn tool(command: &mut Command) -> Result<Vec<u8>> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| base::Error::from_io(format!("run `{name}`"), error))?;
    match output.status.success() {
        true => Ok(output.stdout),
        false => {
            let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(Failure::new(Exit::Failed, format!("`{name}`: {text}")))
        }
    }
}
