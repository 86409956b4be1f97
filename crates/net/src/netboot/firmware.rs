//! The firmware of a machine that boots, as it names itself.

use std::net::Ipv4Addr;

use crate::mac::Mac;

/// What decides which loader firmware gets.
#[derive(Debug, Clone, Copy)]
pub struct Offer {
    /// Our address.
    pub address: Ipv4Addr,
    /// Whether we give addresses.
    pub gives_addresses: bool,
    /// What UEFI loads of a unified kernel image, if there is one.
    pub unified: Option<&'static str>,
}

/// How a machine's firmware boots from the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Firmware {
    /// BIOS, by TFTP.
    Bios,
    /// UEFI for x86-64, by TFTP. Where we give addresses it gets Debian's signed loaders, if there is no unified image.
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

    /// Whether it loads all at once, or nothing: what it loads asks nobody what to do.
    #[must_use]
    pub(super) fn loads_at_once(self, has_unified: bool) -> bool {
        match self {
            Self::UefiHttp => true,
            Self::Uefi => has_unified,
            Self::Bios | Self::Ipxe => false,
        }
    }

    /// What the machine with the card `mac` loads: a path below the folder of the boot files, or the address of a file
    /// on the server.
    #[must_use]
    pub fn loader(self, mac: Mac, offer: Offer) -> String {
        let Offer { address, gives_addresses, unified } = offer;
        // iPXE would write colons in another way.
        let card = mac.hyphenated();
        match (self, unified) {
            (Self::Uefi, Some(file)) => return file.to_owned(),
            (Self::UefiHttp, Some(file)) => return format!("http://{address}/{file}"),
            _ => {}
        }
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
