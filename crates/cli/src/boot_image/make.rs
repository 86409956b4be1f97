//! The steps by which a boot image is made.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::json;

use super::files::{KERNEL, SYSTEM, copy_entry, walk, write};
use super::tree::{Tree, Wanted};
use super::{archive, iso, loaders, modules, programs, unified};
use crate::exit::{Exit, Failure, Result};

/// The first process of a machine, how it finds the network, and what its DHCP client calls.
const INIT: &str = include_str!("../../../../integrations/initramfs/init");
const NETWORK: &str = include_str!("../../../../integrations/initramfs/network");
const ADDRESS: &str = include_str!("../../../../integrations/initramfs/address");

/// Says what the boot image is made of.
const ABOUT: &str = "boot-image.json";

/// What was made.
pub(crate) struct Made {
    /// The release of the kernel, `6.1.0-18-amd64`.
    pub release: String,
    /// Lengths of the two files that machines load, in bytes.
    pub kernel_bytes: u64,
    pub system_bytes: u64,
}

/// Makes the boot files in `out`, which has them all or none. `tell` gets each step.
pub(crate) fn make(out: &Path, wanted: &Wanted, tell: impl Fn(&str)) -> Result<Made> {
    fs::create_dir_all(out)
        .map_err(|e| base::Error::from_io(format!("make the folder `{}`", out.display()), e))?;
    let signed = out.join(net::netboot::unified::FOLDER);
    if wanted.unified.is_none() && signed.exists() {
        let text = format!("`{}` has a signed image, which machines would go on to boot", signed.display());
        let hint = "give --secure-boot-key and what belongs to it again, or remove that folder";
        return Err(Failure::new(Exit::Refused, text).hint(hint));
    }
    let work = tempfile::Builder::new().prefix(".diskcast-boot-").tempdir_in(out)?;
    tell("unpacking packages of Debian");
    let tree = Tree::unpack(work.path().join("tree"), wanted)?;
    let system = work.path().join("system");
    tell("choosing modules of the kernel");
    let release = modules::copy(&tree, &system)?;
    tell("choosing programs");
    programs::copy(&tree, &system)?;
    copy_firmware(&tree, &system, wanted)?;
    write(&system.join("init"), INIT, true)?;
    write(&system.join("usr/share/diskcast/network"), NETWORK, false)?;
    write(&system.join("usr/share/diskcast/address"), ADDRESS, true)?;
    let done = work.path().join("done");
    fs::create_dir_all(&done)?;
    tell("packing the system in memory");
    archive::pack(&system, &done.join(SYSTEM), wanted.level)?;
    let kernel = tree.path(&format!("boot/vmlinuz-{release}"));
    fs::copy(&kernel, done.join(KERNEL))?;
    loaders::copy(&tree, &done)?;
    tell("making the ISO image");
    iso::make(&tree, &kernel, work.path(), &done)?;
    if let Some(unified) = &wanted.unified {
        tell("signing the unified kernel image");
        unified::make(&tree, &release, unified, work.path(), &done)?;
    }
    let bytes = |name: &str| fs::metadata(done.join(name)).map(|found| found.len());
    let made = Made { kernel_bytes: bytes(KERNEL)?, system_bytes: bytes(SYSTEM)?, release };
    let about = json!({
        "kernel": made.release, "kernel_bytes": made.kernel_bytes, "system_bytes": made.system_bytes,
        "diskcast": env!("CARGO_PKG_VERSION"),
    });
    write(&done.join(ABOUT), &format!("{about:#}\n"), false)?;
    if signed.exists() {
        fs::remove_dir_all(&signed)?;
    }
    publish(&done, out)?;
    Ok(made)
}

/// The version of diskcast that made the boot image in `folder`; `None` if there is none.
pub(crate) fn made_by(folder: &Path) -> Result<Option<String>> {
    let path = folder.join(ABOUT);
    let about = match fs::read(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        read => read.map_err(|error| base::Error::from_io(format!("read `{}`", path.display()), error))?,
    };
    let about: serde_json::Value = serde_json::from_slice(&about).unwrap_or_default();
    Ok(Some(about["diskcast"].as_str().unwrap_or("of another kind").to_owned()))
}

/// Moves the files below `done` to their places below `out`.
fn publish(done: &Path, out: &Path) -> Result<()> {
    for entry in walk(done)? {
        let inside = entry.strip_prefix(done).expect("it was found there");
        let to = out.join(inside);
        if entry.is_dir() {
            fs::create_dir_all(&to)?;
        } else {
            fs::set_permissions(&entry, fs::Permissions::from_mode(0o644))?;
            fs::rename(&entry, &to)?;
        }
    }
    Ok(())
}

fn copy_firmware(tree: &Tree, system: &Path, wanted: &Wanted) -> Result<()> {
    if wanted.firmware.is_empty() {
        return Ok(());
    }
    let from = tree.first(&["lib/firmware", "usr/lib/firmware"]).ok_or_else(|| {
        let text = format!("the packages {} hold no firmware", wanted.firmware.join(", "));
        Failure::new(Exit::NotFound, text)
    })?;
    for entry in walk(&from)? {
        let to = system.join("lib/firmware").join(entry.strip_prefix(&from).expect("it was found there"));
        copy_entry(&entry, &to)?;
    }
    Ok(())
}
