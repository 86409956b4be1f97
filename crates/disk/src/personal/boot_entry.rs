//! The disk's entry in this machine's firmware, by efibootmgr.
//!
//! Source: UEFI 2.10, chapter 3 (`Boot####`, `BootOrder`, `BootNext`); the manual of efibootmgr.

use std::path::Path;

use base::{Error, ErrorKind, Result};

use super::esp::{self, Loaders};
use super::parts::{Disk, Done};
use crate::tools::run;

/// Where the kernel shows that UEFI started it.
const FIRMWARE: &str = "/sys/firmware/efi/efivars";
/// How our entries are called.
const LABEL: &str = "diskcast: ";
/// Loaders of vendors, best first.
const LOADERS: &[&str] = &["shimx64.efi", "shim.efi", "grubx64.efi", "systemd-bootx64.efi"];
const WINDOWS: (&str, &str) = ("Microsoft/Boot", "bootmgfw.efi");
/// What every firmware looks for.
const FALLBACK: (&str, &str) = ("BOOT", "BOOTX64.EFI");

/// Whether UEFI started this machine.
pub(super) fn is_possible() -> bool {
    Path::new(FIRMWARE).is_dir()
}

/// Enters the disk: last in the order, if it was not there, and next for once. An older entry of ours is replaced.
/// Does nothing on a machine that UEFI did not start. `Refused` if the disk has no EFI system partition; `NotFound` if
/// that holds no loader.
pub(super) fn make(disk: &Disk<'_>, done: &mut Done) -> Result<()> {
    if !is_possible() {
        return Ok(());
    }
    let Some(partition) = disk.map.partitions.iter().find(|partition| esp::is_one(partition)) else {
        return Err(Error::new(ErrorKind::Refused, esp::NONE));
    };
    let device = disk.attach(partition)?;
    let loader = loader(device.path());
    device.end()?;
    let (vendor, name) = loader?;
    let before = Settings::parse(&run("efibootmgr", &[], &[], None)?);
    for number in &before.ours {
        run("efibootmgr", &["--quiet", "--delete-bootnum", "--bootnum", number], &[], None)?;
    }
    let (label, path) = (format!("{LABEL}{vendor}"), format!("\\EFI\\{vendor}\\{name}"));
    let part = partition.number.to_string();
    // Not first: a machine that asks the network first is to go on doing so.
    let words = ["--create-only", "--part", &part, "--label", &label, "--loader", &path, "--disk"];
    let after = Settings::parse(&run("efibootmgr", &words, &[disk.path], None)?);
    let number = after.ours.last().ok_or_else(|| {
        Error::new(ErrorKind::Io, "efibootmgr made an entry, and the firmware does not show it")
    })?;
    let order = before.order.iter().filter(|entry| !before.ours.contains(entry)).chain([number]);
    let order = order.map(String::as_str).collect::<Vec<_>>().join(",");
    run("efibootmgr", &["--quiet", "--bootorder", &order], &[], None)?;
    run("efibootmgr", &["--quiet", "--bootnext", number], &[], None)?;
    done.push(format!("boot entry {number}, {path}"));
    Ok(())
}

/// The folder and name of the loader in an EFI system partition.
fn loader(device: &Path) -> Result<(String, String)> {
    let loaders = Loaders::find(device)?;
    let is_vendor = |name: &&String| !name.eq_ignore_ascii_case(FALLBACK.0);
    for name in LOADERS {
        if let Some(vendor) =
            loaders.vendors.iter().filter(is_vendor).find(|vendor| loaders.has(vendor, name))
        {
            return Ok((vendor.clone(), (*name).to_owned()));
        }
    }
    // Windows keeps its loader one level deeper.
    let (folder, name) = WINDOWS;
    if esp::list(device, &format!("EFI/{folder}"))?.iter().any(|found| found.eq_ignore_ascii_case(name)) {
        return Ok((folder.replace('/', "\\"), name.to_owned()));
    }
    let (folder, name) = FALLBACK;
    if loaders.has(folder, name) {
        return Ok((folder.to_owned(), name.to_owned()));
    }
    Err(Error::new(ErrorKind::NotFound, "the EFI system partition holds no loader that is known"))
}

/// What `efibootmgr` shows.
#[derive(Debug, Default, PartialEq, Eq)]
struct Settings {
    /// Numbers of four hexadecimal digits.
    order: Vec<String>,
    ours: Vec<String>,
}

impl Settings {
    fn parse(text: &str) -> Self {
        let mut settings = Self::default();
        for line in text.lines() {
            if let Some(order) = line.strip_prefix("BootOrder: ") {
                settings.order = order.trim().split(',').map(str::to_owned).collect();
            } else if let Some(entry) = line.strip_prefix("Boot")
                && let Some((number, label)) = entry.split_at_checked(4)
                && label.trim_start_matches(['*', ' ']).starts_with(LABEL)
            {
                settings.ours.push(number.to_owned());
            }
        }
        settings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_efibootmgr_shows() {
        let text = "BootCurrent: 0002\nTimeout: 3 seconds\nBootOrder: 0002,0001,000A\n\
                    Boot0001* UEFI Misc Device\tPciRoot(0x0)\n\
                    Boot0002* UEFI PXEv4 (MAC:525400000007)\tPciRoot(0x0)\n\
                    Boot000A* diskcast: debian\tHD(1,GPT,…)/File(\\EFI\\debian\\shimx64.efi)\n";
        let settings = Settings::parse(text);
        assert_eq!(settings.order, ["0002", "0001", "000A"]);
        assert_eq!(settings.ours, ["000A"]);
    }
}
