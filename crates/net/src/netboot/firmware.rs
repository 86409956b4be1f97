//! The firmware of a machine that boots, as it names itself.

/// How a machine's firmware boots from the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Firmware {
    /// BIOS, by TFTP.
    Bios,
    /// UEFI for x86-64, by TFTP.
    Uefi,
    /// UEFI for x86-64, by HTTP.
    UefiHttp,
}

impl Firmware {
    /// The boot loader that it gets: its path below the folder of the boot files.
    #[must_use]
    pub fn loader(self) -> &'static str {
        match self {
            Self::Bios => "grub/bios.0",
            Self::Uefi | Self::UefiHttp => "shimx64.efi",
        }
    }
}
