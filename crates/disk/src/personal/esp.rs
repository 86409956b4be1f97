//! The EFI system partition, by mtools: no kernel driver for FAT is needed.

use std::collections::BTreeMap;
use std::path::Path;

use base::{Error, ErrorKind, Result};

use super::parts::{Disk, Done};
use crate::Partition;
use crate::grow::Slot;
use crate::scratch::private_folder;
use crate::tools::run;

/// Types of the partition: GPT, and MBR.
const TYPES: [&str; 2] = ["c12a7328-f81f-11d2-ba4b-00a0c93ec93b", "ef"];
/// The loaders that firmware looks for, by architecture: the suffix of a vendor's loader, and the name.
const FALLBACKS: &[(&str, &str)] =
    &[("x64", "BOOTX64.EFI"), ("aa64", "BOOTAA64.EFI"), ("ia32", "BOOTIA32.EFI")];
/// Loaders of vendors, best first, and what each needs beside it.
const LOADERS: &[(&str, &[&str])] = &[("shim", &["grub", "mm"]), ("grub", &[]), ("systemd-boot", &[])];

/// In the refusal of a disk without one.
pub(super) const NONE: &str = "the disk has no EFI system partition";

/// Whether `slot` is an EFI system partition with FAT.
pub(super) fn is_slot(slot: &Slot) -> bool {
    TYPES.contains(&slot.type_id.as_str()) && slot.kind.as_deref() == Some("vfat")
}

/// Whether `partition` is an EFI system partition with FAT.
pub(super) fn is_one(partition: &Partition) -> bool {
    let kind = partition.filesystem.as_ref().map(|found| found.kind);
    TYPES.contains(&partition.type_id.as_str()) && kind == Some("vfat")
}

/// Names in a folder; none if there is no such folder.
pub(super) fn list(device: &Path, folder: &str) -> Result<Vec<String>> {
    let told =
        found(run("mdir", &["-b", "-i"], &[device, Path::new(&at(folder))], None))?.unwrap_or_default();
    let names = told.lines().filter_map(|line| line.trim().trim_end_matches('/').rsplit('/').next());
    Ok(names.filter(|name| !name.is_empty()).map(str::to_owned).collect())
}

/// What a tool said; `None` if it did not find the file or folder.
fn found(said: Result<String>) -> Result<Option<String>> {
    match said {
        Err(error) if error.to_string().contains("not found") => Ok(None),
        said => said.map(Some),
    }
}

fn at(name: &str) -> String {
    format!("::/{name}")
}

/// What the folders of vendors below `EFI` hold.
pub(super) struct Loaders {
    pub(super) vendors: Vec<String>,
    /// The names in each of them, by its name in lower case.
    names: BTreeMap<String, Vec<String>>,
}

impl Loaders {
    /// What `device` holds.
    pub(super) fn find(device: &Path) -> Result<Self> {
        let vendors = list(device, "EFI")?;
        let names = vendors
            .iter()
            .map(|vendor| Ok((vendor.to_ascii_lowercase(), list(device, &format!("EFI/{vendor}"))?)));
        Ok(Self { names: names.collect::<Result<_>>()?, vendors })
    }

    /// Whether the folder of `vendor` has a file `name`; FAT knows no case.
    pub(super) fn has(&self, vendor: &str, name: &str) -> bool {
        let names = self.names.get(&vendor.to_ascii_lowercase());
        names.is_some_and(|names| names.iter().any(|found| found.eq_ignore_ascii_case(name)))
    }
}

/// Copies a vendor's loader to where firmware looks that knows of none. Does nothing where one is.
pub(super) fn ensure_loader(disk: &Disk<'_>, done: &mut Done) -> Result<()> {
    let Some(partition) = disk.map.partitions.iter().find(|partition| is_one(partition)) else {
        return Err(Error::new(ErrorKind::Refused, NONE));
    };
    let device = disk.attach(partition)?;
    let path = device.path();
    let loaders = Loaders::find(path)?;
    let vendors = &loaders.vendors;
    let has = |vendor: &str, name: &str| loaders.has(vendor, name);
    let mut known = false;
    for (suffix, fallback) in FALLBACKS {
        if has("BOOT", fallback) {
            known = true;
            continue;
        }
        let found = LOADERS.iter().find_map(|(loader, beside)| {
            let name = format!("{loader}{suffix}.efi");
            let vendor = vendors.iter().find(|vendor| has(vendor, &name))?;
            Some((vendor, name, *beside))
        });
        let Some((vendor, name, beside)) = found else { continue };
        if !vendors.iter().any(|name| name.eq_ignore_ascii_case("BOOT")) {
            run("mmd", &["-i"], &[path, Path::new(&at("EFI/BOOT"))], None)?;
        }
        copy(path, &format!("EFI/{vendor}/{name}"), &format!("EFI/BOOT/{fallback}"))?;
        for other in beside.iter().map(|other| format!("{other}{suffix}.efi")) {
            if has(vendor, &other) {
                copy(path, &format!("EFI/{vendor}/{other}"), &format!("EFI/BOOT/{other}"))?;
            }
        }
        done.push(format!("EFI/BOOT/{fallback} from {vendor}"));
        known = true;
    }
    device.end()?;
    if known {
        return Ok(());
    }
    Err(Error::new(ErrorKind::NotFound, "the EFI system partition holds no loader that is known"))
}

fn copy(device: &Path, from: &str, to: &str) -> Result<()> {
    let folder = private_folder(None).map_err(|error| Error::from_io("make a temporary folder", error))?;
    let file = folder.path().join("loader");
    run("mcopy", &["-n", "-i"], &[device, Path::new(&at(from)), &file], None)?;
    run("mcopy", &["-o", "-i"], &[device, &file, Path::new(&at(to))], None).map(drop)
}
