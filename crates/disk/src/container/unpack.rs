//! Decompresses disks: gzip (RFC 1952), xz, zstd (RFC 8878) and bzip2, each also as several members one after the
//! other.
//!
//! A capture reads partition tables and allocation maps first, then the sectors that they name: it cannot work on a
//! stream. So a stream goes to a temporary file first, with holes for its zeros.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use base::{Error, ErrorKind, Result, is_zero};

use super::compression_of;
use crate::file::io_error;
use crate::source::Source;

/// Bytes that are read and decompressed at a time.
const PIECE_BYTES: usize = 256 << 10;
/// The size of holes in the temporary file: zeros of this length, at multiples of it, are not written.
const HOLE_BYTES: usize = 64 << 10;
/// Bytes at the start of a stream that tell whether and how it is compressed.
const FRONT_BYTES: usize = 16;

/// The ways of compression that this crate reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// RFC 1952.
    Gzip,
    /// The xz file format.
    Xz,
    /// RFC 8878.
    Zstd,
    /// The format of the program `bzip2`.
    Bzip2,
}

impl Compression {
    fn decoder<'a>(self, packed: Box<dyn BufRead + 'a>) -> std::io::Result<Box<dyn Read + 'a>> {
        Ok(match self {
            Self::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(packed)),
            Self::Xz => Box::new(liblzma::bufread::XzDecoder::new_multi_decoder(packed)),
            Self::Zstd => Box::new(zstd::stream::read::Decoder::with_buffer(packed)?),
            Self::Bzip2 => Box::new(bzip2::bufread::MultiBzDecoder::new(packed)),
        })
    }
}

/// Reads the stream `packed` to its end, decompresses it if it is compressed and `decompress` is set, and returns what
/// it held as a file without a name in the folder `scratch`, which takes no space for zeros. `name` is the stream's
/// name in messages. `Corrupt` if the compressed data are damaged or end early, `Full` if the folder has no room, `Io`.
pub fn unpack(packed: impl Read, name: &str, scratch: &Path, decompress: bool) -> Result<Source> {
    let unreadable = |error| Error::from_io(format!("read {name}"), error);
    let mut packed = BufReader::with_capacity(PIECE_BYTES, packed);
    let mut front = Vec::with_capacity(FRONT_BYTES);
    (&mut packed).take(FRONT_BYTES as u64).read_to_end(&mut front).map_err(unreadable)?;
    let compression = compression_of(&front).filter(|_| decompress);
    let whole = BufReader::with_capacity(PIECE_BYTES, front.as_slice().chain(packed));
    let mut plain: Box<dyn Read + '_> = match compression {
        Some(compression) => compression.decoder(Box::new(whole)).map_err(unreadable)?,
        None => Box::new(whole),
    };
    let broken = |error: std::io::Error| {
        // What comes from reading has a number of the system; what the decoders return for damaged data has none.
        if compression.is_none() || error.raw_os_error().is_some() {
            return unreadable(error);
        }
        Error::from_source(ErrorKind::Corrupt, format!("{name} is damaged, or ends early"), error)
    };
    let scratch = Scratch::new(scratch)?;
    let (mut piece, mut len) = (vec![0; PIECE_BYTES], 0);
    loop {
        let filled = fill(&mut plain, &mut piece).map_err(broken)?;
        scratch.write(&piece[..filled], len)?;
        len += filled as u64;
        if filled < piece.len() {
            break;
        }
    }
    scratch.finish(len, name)
}

/// Fills `piece`, and returns how much of it: less than all only at the end.
fn fill(from: &mut dyn Read, piece: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < piece.len() {
        match from.read(&mut piece[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// A temporary file without a name.
struct Scratch {
    file: File,
    folder: PathBuf,
}

impl Scratch {
    fn new(folder: &Path) -> Result<Self> {
        let file =
            tempfile::tempfile_in(folder).map_err(|e| io_error("make a temporary file in", folder, e))?;
        Ok(Self { file, folder: folder.to_owned() })
    }

    /// Writes `bytes` at `offset`, a multiple of `HOLE_BYTES`, and leaves holes for zeros.
    fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let failed = |e| io_error("write a temporary file in", &self.folder, e);
        for (at, part) in (offset..).step_by(HOLE_BYTES).zip(bytes.chunks(HOLE_BYTES)) {
            if !is_zero(part) {
                self.file.write_all_at(part, at).map_err(failed)?;
            }
        }
        Ok(())
    }

    fn finish(self, len: u64, name: &str) -> Result<Source> {
        let failed = |e| io_error("finish a temporary file in", &self.folder, e);
        self.file.set_len(len).map_err(failed)?;
        // A handle for reading alone: a source that somebody may write to is refused.
        let again = File::open(format!("/proc/self/fd/{}", self.file.as_raw_fd())).map_err(failed)?;
        drop(self.file);
        Source::of(again, Path::new(name))
    }
}
