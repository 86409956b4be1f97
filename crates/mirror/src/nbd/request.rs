//! Parses requests of the transmission phase. 28 bytes from an untrusted client become a [`Request`] that lies
//! inside the disk, in whole sectors and without unknown flags, or a [`Refusal`] that says what to reply.

use base::wire::{Reader, Truncated};
use base::{Error, ErrorKind, Result};

use crate::nbd::wire::{REQUEST_MAGIC, command, command_flag, take_u16, take_u32, take_u64};
use crate::{Durability, Space};

/// Length in bytes of a request without its payload.
pub const REQUEST_BYTES: usize = 28;
/// Maximum number of bytes of one read or write, as advertised to clients. It is the protocol's own default.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;

/// The client's identifier of a request; the reply carries it too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cookie(pub u64);

/// What was negotiated on a connection, as far as requests depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Size of the disk in bytes.
    pub size_bytes: u64,
    /// Offsets and lengths are multiples of this, a power of two.
    pub sector_bytes: u32,
    /// The disk is read-only.
    pub read_only: bool,
    /// Replies are structured.
    pub structured: bool,
    /// Metadata contexts were chosen, so that block status may be asked.
    pub contexts: bool,
    /// `FAST_ZERO` was advertised.
    pub fast_zero: bool,
}

/// A range of bytes: at least one sector, and inside the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// Where it begins, in bytes.
    pub offset: u64,
    /// How long it is, in bytes.
    pub bytes: u32,
}

/// A command of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// At most [`PAYLOAD_BYTES_MAX`].
    Read {
        /// What to read.
        range: Range,
        /// The reply must be one chunk.
        whole: bool,
    },
    /// At most [`PAYLOAD_BYTES_MAX`], which follow the request.
    Write {
        /// What to write.
        range: Range,
        /// What the reply promises.
        durability: Durability,
    },
    /// No more requests will come.
    Disconnect,
    /// All completed writes must become durable.
    Flush,
    /// The content of the bytes is not needed any more.
    Discard {
        /// What to discard.
        range: Range,
        /// What the reply promises.
        durability: Durability,
    },
    /// The bytes will soon be read.
    Cache {
        /// What to fetch.
        range: Range,
    },
    /// The bytes become zeros.
    WriteZeroes {
        /// What to zero.
        range: Range,
        /// What happens to its space.
        space: Space,
        /// What the reply promises.
        durability: Durability,
    },
    /// Asks for the status of the bytes.
    Status {
        /// The range in question.
        range: Range,
        /// Only the first run is wanted.
        one: bool,
    },
}

/// A valid request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Its identifier.
    pub cookie: Cookie,
    /// Its command.
    pub command: Command,
}

/// A request that must be answered with an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// Its identifier.
    pub cookie: Cookie,
    /// The error in the reply.
    pub code: Code,
    /// The text in the reply.
    pub why: &'static str,
    /// This many bytes of payload follow the request and must be skipped.
    pub payload_bytes: u32,
}

/// Errors that replies carry, by the numbers of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Code {
    /// `NBD_EPERM`: read-only.
    NotPermitted = 1,
    /// `NBD_EIO`.
    Io = 5,
    /// `NBD_EINVAL`.
    Invalid = 22,
    /// `NBD_ENOSPC`.
    NoSpace = 28,
    /// `NBD_EOVERFLOW`: more than one chunk can hold.
    Overflow = 75,
    /// `NBD_ENOTSUP`.
    NotSupported = 95,
    /// `NBD_ESHUTDOWN`: the server or the disk ends.
    Shutdown = 108,
}

impl From<ErrorKind> for Code {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Invalid => Self::Invalid,
            ErrorKind::Full => Self::NoSpace,
            ErrorKind::Unsupported => Self::NotSupported,
            // `Refused` here means that the disk is closed: writes to a read-only disk are refused earlier.
            ErrorKind::Refused => Self::Shutdown,
            _ => Self::Io,
        }
    }
}

/// Parses a request. `Invalid` if these bytes are not a request at all: then the rest of the stream cannot be
/// understood either.
pub fn parse(bytes: &[u8; REQUEST_BYTES], rules: &Rules) -> Result<std::result::Result<Request, Refusal>> {
    let raw = Raw::take(bytes).expect("a request has all its fields");
    if raw.magic != REQUEST_MAGIC {
        let text = format!("an NBD client sent {:#010x} where a request begins", raw.magic);
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    let request = raw.judge(rules).map(|command| Request { cookie: raw.cookie, command });
    Ok(request.map_err(|(code, why)| Refusal {
        cookie: raw.cookie,
        code,
        why,
        payload_bytes: if raw.kind == command::WRITE { raw.bytes } else { 0 },
    }))
}

type Judged<T> = std::result::Result<T, (Code, &'static str)>;

/// The fields as received.
struct Raw {
    magic: u32,
    flags: u16,
    kind: u16,
    cookie: Cookie,
    offset: u64,
    bytes: u32,
}

impl Raw {
    fn take(bytes: &[u8; REQUEST_BYTES]) -> std::result::Result<Self, Truncated> {
        let reader = &mut Reader::new(bytes);
        Ok(Self {
            magic: take_u32(reader)?,
            flags: take_u16(reader)?,
            kind: take_u16(reader)?,
            cookie: Cookie(take_u64(reader)?),
            offset: take_u64(reader)?,
            bytes: take_u32(reader)?,
        })
    }

    fn judge(&self, rules: &Rules) -> Judged<Command> {
        self.check_flags(rules)?;
        let durability = if self.has(command_flag::FUA) { Durability::Durable } else { Durability::Cached };
        Ok(match self.kind {
            command::READ => self.read(rules)?,
            command::WRITE => {
                Command::Write { range: self.payload(self.writable(rules, Code::NoSpace)?)?, durability }
            }
            command::DISC => Command::Disconnect,
            command::FLUSH => Command::Flush,
            // `Invalid` and not `NoSpace`, like QEMU's server and nbdkit: a discard needs no space, and for
            // `NoSpace` a QEMU client would stop its machine.
            command::TRIM => Command::Discard { range: self.writable(rules, Code::Invalid)?, durability },
            command::CACHE => Command::Cache { range: self.inside(rules, Code::Invalid)? },
            command::WRITE_ZEROES => {
                let space = if self.has(command_flag::NO_HOLE) { Space::Keep } else { Space::Free };
                Command::WriteZeroes { range: self.writable(rules, Code::NoSpace)?, space, durability }
            }
            command::BLOCK_STATUS if rules.contexts => {
                let one = self.has(command_flag::REQ_ONE);
                Command::Status { range: self.inside(rules, Code::Invalid)?, one }
            }
            command::BLOCK_STATUS => return Err((Code::Invalid, "no metadata context was chosen")),
            // This includes the command to resize: a disk keeps its size.
            _ => return Err((Code::Invalid, "an unknown command")),
        })
    }

    fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// A client may send FUA with every command. Any other flag is valid only where it has a meaning and was
    /// negotiated.
    fn check_flags(&self, rules: &Rules) -> Judged<()> {
        let own = match self.kind {
            command::READ if rules.structured => command_flag::DF,
            command::WRITE_ZEROES if rules.fast_zero => command_flag::NO_HOLE | command_flag::FAST_ZERO,
            command::WRITE_ZEROES => command_flag::NO_HOLE,
            command::BLOCK_STATUS => command_flag::REQ_ONE,
            _ => 0,
        };
        if self.flags & !(own | command_flag::FUA) == 0 {
            return Ok(());
        }
        Err((Code::Invalid, "a flag that this command does not have, or that was not negotiated"))
    }

    fn read(&self, rules: &Rules) -> Judged<Command> {
        let range = self.payload(self.inside(rules, Code::Invalid)?)?;
        Ok(Command::Read { range, whole: self.has(command_flag::DF) })
    }

    fn inside(&self, rules: &Rules, beyond: Code) -> Judged<Range> {
        let sector = u64::from(rules.sector_bytes);
        if self.bytes == 0
            || !self.offset.is_multiple_of(sector)
            || !u64::from(self.bytes).is_multiple_of(sector)
        {
            return Err((Code::Invalid, "offset and length must be whole sectors, at least one"));
        }
        let end = self.offset.checked_add(u64::from(self.bytes));
        if end.is_none_or(|end| end > rules.size_bytes) {
            return Err((beyond, "past the end of the disk"));
        }
        Ok(Range { offset: self.offset, bytes: self.bytes })
    }

    fn writable(&self, rules: &Rules, beyond: Code) -> Judged<Range> {
        if rules.read_only {
            return Err((Code::NotPermitted, "the disk is read-only"));
        }
        self.inside(rules, beyond)
    }

    fn payload(&self, range: Range) -> Judged<Range> {
        if range.bytes <= PAYLOAD_BYTES_MAX {
            return Ok(range);
        }
        Err((Code::Invalid, "longer than the largest block advertised"))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) const RULES: Rules = Rules {
        size_bytes: 1 << 30,
        sector_bytes: 512,
        read_only: false,
        structured: true,
        contexts: true,
        fast_zero: true,
    };

    /// A request as a client sends it.
    pub(crate) fn encode(kind: u16, flags: u16, offset: u64, bytes: u32) -> [u8; REQUEST_BYTES] {
        let fields = [
            &REQUEST_MAGIC.to_be_bytes()[..],
            &flags.to_be_bytes(),
            &kind.to_be_bytes(),
            &77u64.to_be_bytes(),
            &offset.to_be_bytes(),
            &bytes.to_be_bytes(),
        ];
        fields.concat().try_into().unwrap()
    }

    fn refused(rules: &Rules, kind: u16, flags: u16, offset: u64, bytes: u32) -> Code {
        parse(&encode(kind, flags, offset, bytes), rules).unwrap().unwrap_err().code
    }

    fn taken(kind: u16, flags: u16, offset: u64, bytes: u32) -> Command {
        let request = parse(&encode(kind, flags, offset, bytes), &RULES).unwrap().unwrap();
        assert_eq!(request.cookie, Cookie(77));
        request.command
    }

    #[test]
    fn requests_are_taken_apart() {
        let range = Range { offset: 4096, bytes: 512 };
        let durability = Durability::Durable;
        assert_eq!(taken(command::READ, command_flag::DF, 4096, 512), Command::Read { range, whole: true });
        assert_eq!(taken(command::WRITE, command_flag::FUA, 4096, 512), Command::Write { range, durability });
        assert_eq!(taken(command::FLUSH, 0, 0, 0), Command::Flush);
        assert_eq!(taken(command::DISC, 0, 0, 0), Command::Disconnect);
        assert_eq!(taken(command::CACHE, 0, 4096, 512), Command::Cache { range });
        let flags = command_flag::NO_HOLE | command_flag::FAST_ZERO;
        let keep = Command::WriteZeroes { range, space: Space::Keep, durability: Durability::Cached };
        assert_eq!(taken(command::WRITE_ZEROES, flags, 4096, 512), keep);
        let one = Command::Status { range, one: true };
        assert_eq!(taken(command::BLOCK_STATUS, command_flag::REQ_ONE, 4096, 512), one);
    }

    #[test]
    fn what_cannot_be_served_is_refused_by_its_number() {
        let plain = Rules { structured: false, contexts: false, fast_zero: false, ..RULES };
        let (read_only, large) = (Rules { read_only: true, ..RULES }, PAYLOAD_BYTES_MAX + 512);
        for (rules, kind, flags, offset, bytes, code) in [
            (&RULES, command::READ, 0, 1 << 30, 512, Code::Invalid),
            (&RULES, command::WRITE, 0, 1 << 30, 512, Code::NoSpace),
            (&RULES, command::WRITE, 0, u64::MAX - 511, 512, Code::NoSpace),
            (&RULES, command::WRITE_ZEROES, 0, 1 << 30, 512, Code::NoSpace),
            (&RULES, command::TRIM, 0, (1 << 30) - 512, 1024, Code::Invalid),
            (&RULES, command::TRIM, 0, u64::MAX - 511, 512, Code::Invalid),
            (&RULES, command::READ, 0, 0, 0, Code::Invalid),
            (&RULES, command::READ, 0, 256, 512, Code::Invalid),
            (&RULES, command::READ, 0, 0, 100, Code::Invalid),
            (&RULES, command::READ, 0, 0, large, Code::Invalid),
            (&RULES, command::WRITE, 0, 0, large, Code::Invalid),
            (&RULES, command::WRITE, command_flag::DF, 0, 512, Code::Invalid),
            (&RULES, command::READ, 1 << 9, 0, 512, Code::Invalid),
            (&RULES, 8, 0, 1 << 31, 0, Code::Invalid),
            (&plain, command::READ, command_flag::DF, 0, 512, Code::Invalid),
            (&plain, command::BLOCK_STATUS, 0, 0, 512, Code::Invalid),
            (&plain, command::WRITE_ZEROES, command_flag::FAST_ZERO, 0, 512, Code::Invalid),
            (&read_only, command::WRITE, 0, 0, 512, Code::NotPermitted),
            (&read_only, command::TRIM, 0, 0, 512, Code::NotPermitted),
            (&read_only, command::WRITE_ZEROES, 0, 0, 512, Code::NotPermitted),
        ] {
            assert_eq!(refused(rules, kind, flags, offset, bytes), code, "{kind} {flags} {offset} {bytes}");
        }
    }

    #[test]
    fn a_refused_write_tells_what_follows_it() {
        let write = encode(command::WRITE, 0, 1 << 30, 4096);
        assert_eq!(parse(&write, &RULES).unwrap().unwrap_err().payload_bytes, 4096);
        let read = encode(command::READ, 0, 1 << 30, 4096);
        assert_eq!(parse(&read, &RULES).unwrap().unwrap_err().payload_bytes, 0);
    }

    #[test]
    fn what_is_no_request_ends_the_connection() {
        let mut bytes = encode(command::READ, 0, 0, 512);
        bytes[0] ^= 1;
        assert_eq!(parse(&bytes, &RULES).unwrap_err().kind(), ErrorKind::Invalid);
    }
}
