//! The machine that boots, as its network card and its firmware name themselves.

use std::fmt;
use std::str::FromStr;

use base::{Error, ErrorKind};

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

/// The address of a network card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for Mac {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let parts: Vec<&str> = text.split([':', '-']).collect();
        let byte = |part: &&str| if part.len() == 2 { u8::from_str_radix(part, 16).ok() } else { None };
        let bytes =
            parts.iter().map(byte).collect::<Option<Vec<u8>>>().and_then(|bytes| bytes.try_into().ok());
        bytes.map(Self).ok_or_else(|| {
            let words = format!("`{text}` is no address of a network card, such as 52:54:00:12:34:56");
            Error::new(ErrorKind::Invalid, words)
        })
    }
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
