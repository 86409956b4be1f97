//! The boot loaders: Debian's, which firmware with Secure Boot accepts, and GRUB for BIOS.

use std::fs;
use std::path::Path;

use super::tree::{Tree, said};
use crate::exit::Result;

/// What each file is made of. The signed GRUB looks for its settings in `/grub` of the server that it came from.
const FILES: &[(&str, &str)] = &[
    ("usr/lib/shim/shimx64.efi.signed", "shimx64.efi"),
    ("usr/lib/shim/mmx64.efi.signed", "mmx64.efi"),
    ("usr/lib/grub/x86_64-efi-signed/grubnetx64.efi.signed", "grubx64.efi"),
];
/// Where the modules of GRUB for BIOS lie.
const BIOS_MODULES: &str = "usr/lib/grub/i386-pc";
/// What it needs to load a kernel, or to start from the disk.
const MODULES: &[&str] = &[
    "biosdisk",
    "boot",
    "chain",
    "configfile",
    "echo",
    "halt",
    "http",
    "linux",
    "ls",
    "minicmd",
    "net",
    "normal",
    "part_gpt",
    "part_msdos",
    "pxe",
    "reboot",
    "regexp",
    "serial",
    "sleep",
    "terminal",
    "test",
    "tftp",
];

/// Copies and makes the loaders in the folder `done`.
pub(super) fn copy(tree: &Tree, done: &Path) -> Result<()> {
    for (from, to) in FILES {
        let failed = |error| base::Error::from_io(format!("copy `{from}`"), error);
        fs::copy(tree.path(from), done.join(to)).map_err(failed)?;
    }
    let mut make = tree.program("usr/bin/grub-mkimage", "grub-mkimage");
    make.args(["--format=i386-pc-pxe", "--prefix=(pxe)/grub"])
        .arg("--directory")
        .arg(tree.path(BIOS_MODULES));
    make.arg("--output").arg(done.join(net::netboot::Firmware::Bios.loader())).args(MODULES);
    said(&mut make, "grub-common").map(drop)
}
