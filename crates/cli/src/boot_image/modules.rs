//! The kernel's modules that a machine needs until its disk is installed.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::Path;

use super::files::copy_entry;
use super::tree::{Tree, said};
use crate::exit::{Exit, Failure, Result};

/// Folders of modules, below `kernel/`: disks and what they hang on, wired network cards, filesystems with
/// their checksums, keyboards.
const FOLDERS: &[&str] = &[
    "arch/x86/crypto/crc32-pclmul.ko",
    "arch/x86/crypto/crc32c-intel.ko",
    "crypto",
    "drivers/acpi",
    "drivers/ata",
    "drivers/block",
    "drivers/cdrom",
    "drivers/char/hw_random",
    "drivers/dca",
    "drivers/dax",
    "drivers/hid/hid-generic.ko",
    "drivers/hid/hid.ko",
    "drivers/hid/usbhid",
    "drivers/hv",
    "drivers/input/keyboard",
    "drivers/input/serio",
    "drivers/md",
    "drivers/message",
    "drivers/mmc",
    "drivers/net/ethernet",
    "drivers/net/fjes",
    "drivers/net/hyperv",
    "drivers/net/mdio",
    "drivers/net/net_failover.ko",
    "drivers/net/phy",
    "drivers/net/usb",
    "drivers/net/virtio_net.ko",
    "drivers/net/vmxnet3",
    "drivers/net/xen-netfront.ko",
    "drivers/nvdimm",
    "drivers/nvme/host",
    "drivers/pci",
    "drivers/phy",
    "drivers/pinctrl",
    "drivers/ptp",
    "drivers/scsi",
    "drivers/thunderbolt",
    "drivers/ufs",
    "drivers/usb/common",
    "drivers/usb/core",
    "drivers/usb/dwc3",
    "drivers/usb/host",
    "drivers/usb/storage",
    "drivers/virtio",
    "drivers/xen",
    "fs/btrfs",
    "fs/efivarfs",
    "fs/exfat",
    "fs/ext4",
    "fs/fat",
    "fs/fuse",
    "fs/jbd2",
    "fs/mbcache.ko",
    "fs/nls",
    "fs/ntfs3",
    "fs/xfs",
    "net/ipv6",
    "net/packet",
];
/// What of them no machine boots from: chips for thousands of ports, and tests.
const WITHOUT: &[&str] = &[
    "drivers/block/drbd",
    "drivers/block/null_blk",
    "drivers/block/rbd.ko",
    "drivers/net/ethernet/mellanox/mlxsw",
    "drivers/net/ethernet/netronome",
    "drivers/scsi/scsi_debug.ko",
];

/// Copies the modules and what they need from `tree` to `system`. Returns the kernel's release.
pub(super) fn copy(tree: &Tree, system: &Path) -> Result<String> {
    let all = tree.path("lib/modules");
    let mut releases: Vec<String> = fs::read_dir(&all)?
        .map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()))
        .collect::<std::io::Result<_>>()?;
    releases.sort();
    let release =
        releases.pop().ok_or_else(|| Failure::new(Exit::NotFound, "the kernel's package has no modules"))?;
    index(tree, &tree.path(""), &release)?;
    let folder = all.join(&release);
    let text = fs::read_to_string(folder.join("modules.dep"))?;
    let needs: HashMap<&str, Vec<&str>> = text
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(module, needs)| (module, needs.split_whitespace().collect()))
        .collect();
    for module in chosen(&needs) {
        copy_entry(&folder.join(module), &system.join("lib/modules").join(&release).join(module))?;
    }
    for list in ["modules.builtin", "modules.builtin.modinfo", "modules.order"] {
        copy_entry(&folder.join(list), &system.join("lib/modules").join(&release).join(list))?;
    }
    index(tree, system, &release)?;
    Ok(release)
}

/// The modules of [`FOLDERS`], and all that they need. Paths begin with `kernel/`.
fn chosen<'a>(needs: &HashMap<&'a str, Vec<&'a str>>) -> BTreeSet<&'a str> {
    let lies_in = |module: &str, places: &[&str]| {
        let inside = module.strip_prefix("kernel/").unwrap_or(module);
        places.iter().any(|place| {
            inside.strip_prefix(place).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    };
    let wanted = |module: &&&str| lies_in(module, FOLDERS) && !lies_in(module, WITHOUT);
    let mut chosen: BTreeSet<&str> = needs.keys().filter(wanted).copied().collect();
    // `modules.dep` lists what a module needs in full, not only the next step.
    let more: Vec<&str> = chosen.iter().flat_map(|module| needs[module].iter().copied()).collect();
    chosen.extend(more);
    chosen
}

/// Has `depmod` write what needs what, and what fits which device.
fn index(tree: &Tree, root: &Path, release: &str) -> Result<()> {
    said(tree.program("bin/kmod", "depmod").arg("-b").arg(root).arg(release), "kmod").map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_module_needs_comes_with_it() {
        let needs = HashMap::from([
            ("kernel/drivers/net/ethernet/a.ko", vec!["kernel/drivers/infiniband/b.ko", "kernel/lib/c.ko"]),
            ("kernel/drivers/infiniband/b.ko", vec!["kernel/lib/c.ko"]),
            ("kernel/lib/c.ko", vec![]),
            ("kernel/drivers/net/wireless/d.ko", vec![]),
            ("kernel/drivers/scsi/scsi_debug.ko", vec![]),
            ("kernel/drivers/net/virtio_net.ko", vec![]),
        ]);
        let expected = [
            "kernel/drivers/infiniband/b.ko",
            "kernel/drivers/net/ethernet/a.ko",
            "kernel/drivers/net/virtio_net.ko",
            "kernel/lib/c.ko",
        ];
        assert_eq!(chosen(&needs).into_iter().collect::<Vec<_>>(), expected);
    }
}
