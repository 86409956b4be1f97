//! Programs of this machine that drivers use.

use std::path::Path;
use std::process::{Command, Stdio};

use super::place::wrong;
use crate::exit::{Exit, Failure, Result};

/// Whether `path` is to be downloaded.
pub(super) fn is_url(path: &str) -> bool {
    path.starts_with("http://") || path.starts_with("https://")
}

/// The command, but for the file, that makes a filesystem in a file. Each says by another letter that a file is enough.
pub(super) fn make_filesystem(kind: &str) -> Result<Vec<String>> {
    let words = match kind {
        "ext2" | "ext3" | "ext4" | "ntfs" => format!("mkfs.{kind} -q -F"),
        "xfs" | "btrfs" => format!("mkfs.{kind} -q -f"),
        "vfat" | "fat" => "mkfs.vfat".to_owned(),
        "swap" => "mkswap".to_owned(),
        other => return Err(wrong(&format!("no filesystem `{other}` can be made"))),
    };
    Ok(words.split(' ').map(str::to_owned).collect())
}

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
