//! The packets of TFTP, in network byte order.

use std::fmt::Write as _;

const READ: u16 = 1;
const WRITE: u16 = 2;
const DATA: u16 = 3;
const ACK: u16 = 4;
const ERROR: u16 = 5;
const OPTIONS_ACK: u16 = 6;

/// Longest request that is read, in bytes (RFC 2347 allows 512).
const REQUEST_BYTES_MAX: usize = 512;
/// Bytes of a block without the option `blksize`.
pub(super) const BLOCK_BYTES: u16 = 512;
/// Largest block of RFC 2348.
const BLOCK_BYTES_MAX: u16 = 65464;
const BLOCK_BYTES_MIN: u16 = 8;
/// A block that fits one Ethernet frame: larger ones would be cut into pieces, of which none may be lost.
const BLOCK_BYTES_ETHERNET: u16 = 1468;
/// Blocks before an acknowledgement, at most: as many as a slow switch holds for one port.
const WINDOW_MAX: u16 = 32;

/// Why a request or a transfer is refused (RFC 1350, appendix).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorCode {
    /// See the text of the packet.
    Other = 0,
    /// There is no such file.
    NotFound = 1,
    /// The server may not do that.
    Access = 2,
    /// Not a request that TFTP knows.
    Illegal = 4,
}

/// The packet that tells an error.
#[must_use]
pub fn error_packet(code: ErrorCode, text: &str) -> Vec<u8> {
    let mut packet = [ERROR.to_be_bytes(), (code as u16).to_be_bytes()].concat();
    packet.extend(text.bytes().filter(|byte| *byte != 0));
    packet.push(0);
    packet
}

/// What a client asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The name of the file, as it came.
    pub name: String,
    /// The block size that was agreed on, in bytes.
    pub(super) block_bytes: Option<u16>,
    /// Blocks before an acknowledgement.
    pub(super) window: Option<u16>,
    /// Seconds until the server sends again.
    pub(super) timeout_seconds: Option<u8>,
    /// Whether the client wants to know the size of the file.
    pub(super) wants_size: bool,
}

impl Request {
    /// The request in `packet`: to read, in any mode, since none changes our files. The error says what to answer.
    pub fn parse(packet: &[u8]) -> Result<Self, (ErrorCode, &'static str)> {
        let illegal = (ErrorCode::Illegal, "not a request of TFTP");
        let (code, rest) = packet.split_first_chunk().ok_or(illegal)?;
        match u16::from_be_bytes(*code) {
            READ => {}
            WRITE => return Err((ErrorCode::Access, "this server only sends files")),
            _ => return Err(illegal),
        }
        let texts = rest.strip_suffix(&[0]).filter(|_| packet.len() <= REQUEST_BYTES_MAX).ok_or(illegal)?;
        let mut texts = texts.split(|byte| *byte == 0).map(|text| std::str::from_utf8(text).ok());
        let mut text = || texts.next().flatten();
        let (name, _mode) = (text().ok_or(illegal)?, text().ok_or(illegal)?);
        let mut request = Self {
            name: name.to_owned(),
            block_bytes: None,
            window: None,
            timeout_seconds: None,
            wants_size: false,
        };
        while let (Some(option), Some(value)) = (text(), text()) {
            request.take(&option.to_ascii_lowercase(), value);
        }
        Ok(request)
    }

    /// Takes up an option. One that is not known, or has no sense, is left out of the answer (RFC 2347).
    fn take(&mut self, option: &str, value: &str) {
        let number = value.parse::<u32>().ok();
        let within = |min: u16, max: u16| {
            let number = number.filter(|number| *number >= u32::from(min))?;
            Some(u16::try_from(number).unwrap_or(u16::MAX).min(max))
        };
        match option {
            "blksize" => {
                self.block_bytes =
                    within(BLOCK_BYTES_MIN, BLOCK_BYTES_MAX).map(|bytes| bytes.min(BLOCK_BYTES_ETHERNET));
            }
            "windowsize" => self.window = within(1, WINDOW_MAX),
            // The value must be taken as it is, or not at all (RFC 2349).
            "timeout" => {
                self.timeout_seconds = number.and_then(|number| u8::try_from(number).ok()).filter(|s| *s > 0)
            }
            "tsize" => self.wants_size = true,
            _ => {}
        }
    }

    /// The answer to the options of a file of `bytes`; `None` if there are none.
    pub(super) fn options(&self, bytes: u64) -> Option<Vec<u8>> {
        let mut text = String::new();
        let mut add = |name: &str, value: u64| write!(text, "{name}\0{value}\0").expect("to memory");
        self.block_bytes.iter().for_each(|value| add("blksize", u64::from(*value)));
        self.window.iter().for_each(|value| add("windowsize", u64::from(*value)));
        self.timeout_seconds.iter().for_each(|value| add("timeout", u64::from(*value)));
        if self.wants_size {
            add("tsize", bytes);
        }
        (!text.is_empty()).then(|| [&OPTIONS_ACK.to_be_bytes(), text.as_bytes()].concat())
    }
}

/// What a client sends during a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reply {
    /// The low bits of the number of the last block that came in order.
    Ack(u16),
    /// The client has given up.
    Error,
}

impl Reply {
    pub(super) fn parse(packet: &[u8]) -> Option<Self> {
        let (code, rest) = packet.split_first_chunk()?;
        match u16::from_be_bytes(*code) {
            ACK => Some(Self::Ack(u16::from_be_bytes(*rest.first_chunk()?))),
            ERROR => Some(Self::Error),
            _ => None,
        }
    }
}

/// The header of block `number`.
pub(super) fn data_header(number: u64) -> [u8; 4] {
    let [high, low] = u16::to_be_bytes((number & 0xFFFF) as u16);
    let [first, second] = DATA.to_be_bytes();
    [first, second, high, low]
}
