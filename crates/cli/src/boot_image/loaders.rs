//! The boot loaders that firmware gets by TFTP: Debian's, which Secure Boot accepts, and iPXE.

use std::fs;
use std::path::Path;

use net::netboot::Firmware;

use super::tree::Tree;
use crate::exit::Result;

/// What each file is made of. The signed GRUB looks for its settings in `/grub` of the server that it came from.
const FILES: &[(&str, &str)] = &[
    ("usr/lib/shim/shimx64.efi.signed", Firmware::SIGNED_LOADER),
    ("usr/lib/shim/mmx64.efi.signed", "mmx64.efi"),
    ("usr/lib/grub/x86_64-efi-signed/grubnetx64.efi.signed", "grubx64.efi"),
    ("usr/lib/ipxe/snponly.efi", Firmware::UEFI_LOADER),
    ("usr/lib/ipxe/undionly.kpxe", Firmware::BIOS_LOADER),
];

/// Copies the loaders into the folder `done`.
pub(super) fn copy(tree: &Tree, done: &Path) -> Result<()> {
    for (from, to) in FILES {
        let failed = |error| base::Error::from_io(format!("copy `{from}`"), error);
        fs::copy(tree.path(from), done.join(to)).map_err(failed)?;
    }
    Ok(())
}
