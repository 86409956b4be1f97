//! The firmware of a machine that boots, as it names itself.

use std::net::Ipv4Addr;

use crate::mac::Mac;

/// How a machine's firmware boots from the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Firmware {
    /// BIOS, by TFTP.
    Bios,
    /// UEFI for x86-64, by TFTP. Where we give addresses it gets Debian's signed loaders.
    Uefi,
    /// UEFI for x86-64, by HTTP.
    UefiHttp,
    /// iPXE, on BIOS or UEFI, by HTTP.
    Ipxe,
}

impl Firmware {
    /// What BIOS loads: iPXE.
    pub const BIOS_LOADER: &str = "undionly.kpxe";
    /// What UEFI loads: iPXE.
    pub const UEFI_LOADER: &str = "snponly.efi";
    /// What UEFI loads with Secure Boot: Debian's shim, which loads GRUB. That GRUB asks the server that gave the
    /// address, whoever said where the loader is.
    pub const SIGNED_LOADER: &str = "shimx64.efi";

    /// What the machine with the card `mac` loads: a path below the folder of the boot files, or the address of a file
    /// on the server at `address`, which gives addresses or not.
    #[must_use]
    pub fn loader(self, mac: Mac, address: Ipv4Addr, gives_addresses: bool) -> String {
        // iPXE would write colons in another way.
        let card = mac.hyphenated();
        match self {
            Self::Bios => Self::BIOS_LOADER.to_owned(),
            Self::Uefi if gives_addresses => Self::SIGNED_LOADER.to_owned(),
            Self::Uefi => Self::UEFI_LOADER.to_owned(),
            // Debian's signed GRUB can't read by HTTP, so firmware loads all at once.
            Self::UefiHttp => format!("http://{address}/machine/{card}/{}", super::iso::NAME),
            Self::Ipxe => format!("http://{address}/machine/{card}/ipxe"),
        }
    }
}
