//! A Debian machine that runs a script when it starts: for what this machine's kernel lacks, such as a device mapper.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use base::{Error, ErrorKind, Result};

use crate::boot::{Boot, BootOptions, Disk, Medium, until_login};

/// What every script begins with. It ends with `finish`; a command that fails switches the machine off.
const HEAD: &str = r#"#!/bin/bash
set -eEu
exec >/dev/ttyS0 2>&1
trap 'echo "line $LINENO failed: $BASH_COMMAND"; sync; poweroff -f' ERR
export DISKCAST_REPO=/srv/repo DISKCAST_STATE=/srv/state XDG_CACHE_HOME=/srv/cache DISKCAST_CONFIG=/dev/null
finish() { sync; echo "the guest is done"; exit; }
"#;
/// What `finish` says.
const LAST_WORDS: &str = "the guest is done";

/// Puts the program, the script and folders into the root filesystem of the disk.
const PREPARE: &str = r#"
set -e
system=$1 program=$2 script=$3
shift 3
root=$(mktemp -d)
mount -o loop,offset=$((264192 * 512)),sizelimit=$((3403776 * 512)) "$system" "$root"
trap 'umount "$root"; rmdir "$root"' EXIT
install -s -m 755 "$program" "$root/usr/local/bin/diskcast"
printf '%s' "$script" >"$root/srv/guest"
chmod 755 "$root/srv/guest"
for folder; do cp -r "$folder" "$root/srv/"; done
printf '%s\n' '[Unit]' After=multi-user.target '[Service]' Type=oneshot ExecStart=/srv/guest \
    >"$root/etc/systemd/system/guest.service"
# It would hang up the line that the script writes to.
ln -s /dev/null "$root/etc/systemd/system/serial-getty@ttyS0.service"
ln -s ../guest.service "$root/etc/systemd/system/multi-user.target.wants/guest.service"
"#;

/// Has the machine of the disk `system`, which `tools/debian-disk.sh` made with its usual size, run `script` in bash
/// when it starts. It has `program` as `diskcast`, and copies of `folders` in `/srv`. Takes root.
///
/// # Errors
/// `Io` with the last words of the tools if they fail.
pub fn prepare(system: &Path, program: &Path, script: &str, folders: &[&Path]) -> Result<()> {
    let done = Command::new("bash")
        .args(["-c", PREPARE, "-"])
        .args([system, program])
        .arg(format!("{HEAD}{script}"))
        .args(folders)
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
        .output()
        .map_err(|error| Error::from_io("run bash", error))?;
    if done.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&done.stderr).trim().to_owned();
    Err(Error::new(ErrorKind::Io, format!("prepare `{}`: {words}", system.display())))
}

/// Starts the machine with `more_disks` until its script has called `finish`, then switches it off. What it wrote to
/// its own disk is lost.
///
/// # Errors
/// As [`until_login`]; `Io` also if a command of the script failed: the end of the console output says which.
pub fn run(system: &Path, more_disks: Vec<Disk>, timeout: Duration) -> Result<Boot> {
    let prompt = LAST_WORDS.to_owned();
    let options = BootOptions { prompt, timeout, processors: 2, more_disks, ..BootOptions::default() };
    until_login(Medium::File(system), &options)
}
