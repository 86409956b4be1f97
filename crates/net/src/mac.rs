//! Addresses of Ethernet.

use std::fmt;
use std::str::FromStr;

use base::{Error, ErrorKind};

/// The address of a network card, or of a port of a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Mac(pub [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl Mac {
    /// `52-54-00-12-34-56`, as in names of files.
    #[must_use]
    pub(crate) fn hyphenated(self) -> String {
        self.to_string().replace(':', "-")
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
            let words = format!("`{text}` is not the address of a network card, such as 52:54:00:12:34:56");
            Error::new(ErrorKind::Invalid, words)
        })
    }
}
