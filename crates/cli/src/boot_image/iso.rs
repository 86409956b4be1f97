//! The ISO image of the same kernel and system: for firmware that boots by HTTP, for USB sticks, for discs, and for a
//! board's virtual media. BIOS and UEFI start from it, with Secure Boot, too.
//!
//! Sources: El Torito 1.0 (BIOS and UEFI), the manual of `xorrisofs` (a disk image of MBR and GPT at the same time),
//! GRUB's manual ("Making a GRUB bootable CD-ROM").

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use net::netboot::iso;

use super::files::{KERNEL, SYSTEM, walk};
use super::tree::{Tree, said};
use crate::exit::Result;

/// What UEFI reads, on a FAT filesystem: Debian's loaders. This GRUB looks for its settings on the medium.
const UEFI_FILES: &[(&str, &str)] = &[
    ("usr/lib/shim/shimx64.efi.signed", "BOOTX64.EFI"),
    ("usr/lib/grub/x86_64-efi-signed/gcdx64.efi.signed", "grubx64.efi"),
    ("usr/lib/shim/mmx64.efi.signed", "mmx64.efi"),
];
/// Where the modules of GRUB for BIOS lie.
const BIOS_MODULES: &str = "usr/lib/grub/i386-pc";
/// By this file the signed GRUB finds its medium.
const MEDIUM: &str = ".disk/info";
/// What GRUB for BIOS needs to load a kernel from the medium.
const MODULES: &[&str] = &[
    "biosdisk",
    "boot",
    "configfile",
    "echo",
    "halt",
    "iso9660",
    "linux",
    "ls",
    "minicmd",
    "normal",
    "part_gpt",
    "part_msdos",
    "reboot",
    "search",
    "serial",
    "sleep",
    "terminal",
    "test",
];
/// Length of the FAT filesystem in KiB: what UEFI reads, and some more.
const FAT_KIB: &str = "8192";
/// Its number, which is the same each time.
const FAT_NUMBER: &str = "d15cca57";

/// Makes the image in `done`, which has the kernel and the system already: the kernel `source` of the tree. `work` is a
/// folder for what it is made of.
pub(super) fn make(tree: &Tree, source: &Path, work: &Path, done: &Path) -> Result<()> {
    let (content, fat) = (work.join("iso"), work.join("uefi.img"));
    // One time for everything: that of the kernel, so that the same packages give the same image.
    let kernel = fs::metadata(source)?;
    let time = kernel.mtime().to_string();
    let run = |command: &mut Command, package: &str| {
        said(command.env("SOURCE_DATE_EPOCH", &time).env("TZ", "UTC"), package).map(drop)
    };

    let mut make = tree.program("sbin/mkfs.fat", "mkfs.fat");
    make.args(["--invariant", "-i", FAT_NUMBER, "-n", "DISKCAST", "-C"]).arg(&fat).arg(FAT_KIB);
    run(&mut make, "dosfstools")?;
    let tool = |name: &str| {
        let mut command = tree.program("usr/bin/mtools", name);
        command.arg("-i").arg(&fat);
        command
    };
    let mut folders = tool("mmd");
    folders.args(["::/EFI", "::/EFI/BOOT"]);
    run(&mut folders, "mtools")?;
    for (from, to) in UEFI_FILES {
        let mut copy = tool("mcopy");
        copy.arg("-m").arg(tree.path(from)).arg(format!("::/EFI/BOOT/{to}"));
        run(&mut copy, "mtools")?;
    }

    let grub = content.join("boot/grub");
    fs::create_dir_all(&grub)?;
    fs::create_dir_all(content.join(".disk"))?;
    fs::write(content.join(MEDIUM), "diskcast\n")?;
    fs::write(grub.join("grub.cfg"), iso::settings("")?)?;
    for name in [KERNEL, SYSTEM] {
        fs::hard_link(done.join(name), content.join("boot").join(name))?;
    }
    let mut bios = tree.program("usr/bin/grub-mkimage", "grub-mkimage");
    bios.args(["--format=i386-pc-eltorito", "--prefix=/boot/grub", "--directory"])
        .arg(tree.path(BIOS_MODULES));
    bios.arg("--output").arg(grub.join("bios.img")).args(MODULES);
    run(&mut bios, "grub-common")?;
    for entry in walk(&content)? {
        if entry.is_file() {
            File::options().append(true).open(&entry)?.set_modified(kernel.modified()?)?;
        }
    }

    let mut pack = tree.program("usr/bin/xorriso", "xorriso");
    pack.args([
        "-as",
        "mkisofs",
        "-quiet",
        "-r",
        "-V",
        disk::find::BOOT_MEDIUM,
        "--sort-weight",
        "1",
        "/boot/grub",
    ]);
    pack.arg("--grub2-mbr").arg(tree.path(BIOS_MODULES).join("boot_hybrid.img"));
    pack.args(["-partition_offset", "16", "-append_partition", "2", "0xef"]).arg(&fat);
    pack.args(["-appended_part_as_gpt", "-c", "boot/boot.cat", "-b", "boot/grub/bios.img", "-no-emul-boot"]);
    pack.args(["-boot-load-size", "4", "-boot-info-table", "--grub2-boot-info", "-eltorito-alt-boot", "-e"]);
    pack.args(["--interval:appended_partition_2:all::", "-no-emul-boot", "-o"]).arg(done.join(iso::NAME));
    run(pack.arg(&content), "xorriso")?;
    // It can be served: its settings are where a server looks for them.
    iso::Iso::of(fs::read(done.join(iso::NAME))?.into())?;
    Ok(())
}
