//! Tells from the journal ($LogFile) whether a volume was unmounted cleanly.

use super::super::{Why, require};
use super::record::fix;
use super::table::Stream;
use base::wire::{Reader, Truncated};

/// The journal begins with two restart pages of this length, or of the length that the first tells.
const PAGE_BYTES: usize = 4096;
/// Nobody uses the journal.
const NO_CLIENT: u16 = 0xFFFF;
const IS_CLEAN: u16 = 2;

/// What a restart page tells.
struct Restart {
    page_bytes: usize,
    newest: u64,
    is_clean: bool,
}

impl Restart {
    fn parse(bytes: &[u8]) -> Result<Self, Truncated> {
        let mut reader = Reader::new(bytes);
        reader.bytes(16)?;
        let page_bytes = usize::try_from(reader.u32()?).unwrap_or(usize::MAX);
        reader.u32()?;
        let at = usize::from(reader.u16()?);
        let mut area = Reader::new(bytes.get(at..).ok_or(Truncated)?);
        let newest = area.u64()?;
        let (_clients, _free, in_use, flags) = (area.u16()?, area.u16()?, area.u16()?, area.u16()?);
        Ok(Self { page_bytes, newest, is_clean: in_use == NO_CLIENT || flags & IS_CLEAN != 0 })
    }

    /// The restart page at `offset`; `None` if it is not whole.
    fn read(log: &Stream, offset: u64) -> Result<Option<Self>, Why> {
        let mut bytes = vec![0; PAGE_BYTES];
        log.read(&mut bytes, offset)?;
        let is_whole = bytes.starts_with(b"RSTR") && fix(&mut bytes);
        Ok(if is_whole { Self::parse(&bytes).ok() } else { None })
    }
}

/// Checks that nothing in the journal waits to be done.
pub(super) fn check(log: &Stream) -> Result<(), Why> {
    let mut first = vec![0; PAGE_BYTES];
    log.read(&mut first, 0)?;
    // An empty journal, as mkntfs and ntfs-3g leave it.
    if first.iter().all(|&byte| byte == 0xFF) {
        return Ok(());
    }
    let one = Restart::read(log, 0)?;
    let second_at = one.as_ref().map_or(PAGE_BYTES, |one| one.page_bytes);
    let other = Restart::read(log, second_at as u64)?;
    let newest = one.into_iter().chain(other).max_by_key(|page| page.newest);
    let newest = newest.ok_or_else(|| Why::Whole("its journal cannot be read".to_owned()))?;
    require(newest.page_bytes == PAGE_BYTES, || "its journal has pages of an unknown length".to_owned())?;
    require(newest.is_clean, || "it was not unmounted cleanly: its journal is not empty".to_owned())
}
