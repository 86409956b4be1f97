//! Disks without an image, folders, and what is removed.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::commands::opennebula::host;
use crate::commands::opennebula::place::{Place, number, wrong};
use crate::commands::opennebula::settings::Settings;
use crate::commands::opennebula::tools::{download, is_url, make_filesystem};
use crate::commands::opennebula::vm::Machine;
use crate::commands::opennebula::volume::either;
use crate::exit::{Exit, Failure, Result};

/// What makes the disk with the files that a machine reads when it starts.
const ISO_PROGRAMS: &[(&str, &[&str])] =
    &[("xorriso", &["-as", "mkisofs"]), ("genisoimage", &[]), ("mkisofs", &[])];

/// An empty disk, or one with a filesystem.
pub(super) fn image(size: &str, format: &str, target: &str, machine: &str) -> Result<()> {
    let (target, size) = (Place::parse(target)?, number(size)?);
    let filesystem = match target.disk() {
        Some(disk) => Machine::ask(machine)?.disk(disk)?.filesystem.clone(),
        None => None,
    };
    let path = &target.path;
    let part = format!("{path}.part");
    let make = match filesystem.as_deref() {
        None => String::new(),
        Some(kind) => format!("{} {part} >&2\n", make_filesystem(kind)?.join(" ")),
    };
    let convert = match format {
        "raw" | "swap" | "fs" => format!("mv -f {part} {path}"),
        "qcow2" => format!(
            "qemu-img convert -f raw -O qcow2 {part} {path}.qcow2\nrm {part}\nmv -f {path}.qcow2 {path}"
        ),
        other => return Err(wrong(&format!("no disk of the format `{other}` can be made"))),
    };
    on_host(&target, &format!("truncate -s {size}M {part}\n{make}{convert}"))
}

/// A disk for swapping.
pub(super) fn swap(size: &str, target: &str) -> Result<()> {
    let (target, size) = (Place::parse(target)?, number(size)?);
    let path = &target.path;
    on_host(
        &target,
        &format!("truncate -s {size}M {path}.part\nmkswap {path}.part >&2\nmv -f {path}.part {path}"),
    )
}

/// Runs a script that makes a file in the machine's folder, and leaves no part of it.
fn on_host(target: &Place, script: &str) -> Result<()> {
    let (path, folder) = (&target.path, target.folder());
    let script = format!(
        "mkdir -p {folder}\nrm -f {path}.part {path}.qcow2\ntrap 'rm -f {path}.part {path}.qcow2' EXIT\n{script}"
    );
    host::run(&Settings::load()?, &target.host, &script, b"").map(drop)
}

/// The disk with the machine's own settings, which its system reads when it starts. Each of `parts` is a file, or
/// `FILE:NAME` for another name on it, or a URL.
pub(super) fn context(parts: &[&str], target: &str) -> Result<()> {
    let (settings, target) = (Settings::load()?, Place::parse(target)?);
    let folder = disk::private_folder(None)?;
    let files = folder.path().join("files");
    std::fs::create_dir(&files)?;
    for part in parts {
        add(part, &files)?;
    }
    let iso = folder.path().join("context.iso");
    make_iso(&files, &iso)?;
    let (path, home) = (&target.path, target.folder());
    let script =
        format!("mkdir -p {home}\ntrap 'rm -f {path}.part' EXIT\ncat >{path}.part\nmv -f {path}.part {path}");
    host::run(&settings, &target.host, &script, &std::fs::read(&iso)?).map(drop)
}

fn add(part: &str, files: &Path) -> Result<()> {
    let is_url = is_url(part);
    let (from, name) = match part.rsplit_once(':') {
        Some((from, name)) if !is_url => (from, name),
        _ => (part, part.rsplit('/').next().unwrap_or(part)),
    };
    if name.is_empty() || name.contains('/') || name.starts_with('.') {
        return Err(wrong(&format!("`{part}` has no name for a file")));
    }
    let target = files.join(name);
    if is_url {
        return download(from, &target);
    }
    std::fs::copy(from, &target).map_err(|error| base::Error::from_io(format!("copy `{from}`"), error))?;
    Ok(())
}

fn make_iso(files: &Path, iso: &Path) -> Result<()> {
    for (program, words) in ISO_PROGRAMS {
        let mut command = Command::new(program);
        command.args(*words).args(["-quiet", "-V", "CONTEXT", "-J", "-R", "-o"]).arg(iso).arg(files);
        match command.stdin(Stdio::null()).output() {
            Ok(output) if output.status.success() => return Ok(()),
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                return Err(Failure::new(Exit::Failed, format!("`{program}`: {text}")));
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(base::Error::from_io(format!("run `{program}`"), error).into()),
        }
    }
    Err(Failure::new(Exit::NotFound, "there is no program for ISO filesystems")
        .hint("install xorriso or genisoimage on this machine"))
}

/// Removes a disk or a machine's folder. It may be gone.
pub(super) fn delete(target: &str) -> Result<()> {
    let target = Place::parse(target)?;
    if !target.is_of_a_machine() {
        return Err(Failure::new(Exit::Refused, format!("`{target}` is not in a machine's folder"))
            .hint("nothing was removed"));
    }
    let path = &target.path;
    host::run(
        &Settings::load()?,
        &target.host,
        &format!(
            "drop_volumes {path} {path}/disk.* {path}/backup/disk.* {path}.part/disk.* {path}.gone/disk.*\n\
             rm -rf {path} {path}.snap {path}.part {path}.gone"
        ),
        b"",
    )
    .map(drop)
}

/// Lets a disk grow.
pub(super) fn resize(target: &str, size: &str, machine: &str) -> Result<()> {
    let (target, size) = (Place::parse(target)?, number(size)?);
    let (machine, format) = Machine::with_disk(&target, machine)?;
    let (settings, path) = (Settings::load()?, &target.path);
    if machine.grows_by_itself() {
        if settings.volume_group.is_some() {
            let refuse = "echo \"a volume grows while its machine is off\" >&2\nexit 1";
            host::run(&settings, &target.host, &either(path, refuse, ":"), b"")?;
        }
        return Ok(());
    }
    let volume = format!("grow_volume \"$v\" {}", u64::from(size) << 20);
    let file = format!("qemu-img resize -q -f {format} {path} {size}M");
    host::run(&settings, &target.host, &either(path, &volume, &file), b"").map(drop)
}
