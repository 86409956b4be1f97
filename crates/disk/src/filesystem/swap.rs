//! Reads Linux swap space (include/linux/swap.h, `union swap_header`). Only the page with the header matters, unless
//! the space holds the image of a hibernated system.

use base::Result;
use base::wire::Reader;

use super::{Allocation, AllocationReader, Why, require, units};
use crate::coverage::Coverage;
use crate::signature::Claim;
use crate::volume::Volume;
use crate::{Filesystem, text};

/// The page sizes of Linux machines, in bytes. The signature is at the end of the first page, so its place depends on
/// the machine that made the swap space.
const PAGE_BYTES: [u64; 5] = [4096, 8192, 16_384, 32_768, 65_536];
/// Length of the signature, in bytes.
const SIGNATURE_BYTES: u64 = 10;
/// Offset of the header's fields in bytes, the same for every page size.
const HEADER_OFFSET: u64 = 1024;
/// Signatures that hibernation writes over that of the swap space (as in libblkid/src/superblocks/swap.c).
const HIBERNATED: [&[u8]; 5] =
    [b"S1SUSPEND", b"S2SUSPEND", b"ULSUSPEND", b"LINHIB0001", b"\xED\xC3\x02\xE9\x98\x56\xE5\x0C"];

/// Reads swap space.
pub(super) struct Swap;

/// The header of a swap space.
struct Header {
    page_bytes: u64,
    hibernated: bool,
    /// Whether the signature is the first one, `SWAP-SPACE`, which Linux no longer accepts.
    old: bool,
    version: u32,
    last_page: u32,
    uuid: Option<String>,
    label: Option<String>,
}

impl Header {
    fn read(volume: &Volume) -> Result<Option<Self>> {
        for page_bytes in PAGE_BYTES {
            let signature_offset = page_bytes - SIGNATURE_BYTES;
            let Some(signature) = volume.peek(signature_offset, 10)? else { return Ok(None) };
            let hibernated = HIBERNATED.iter().any(|name| signature.starts_with(name));
            let old = signature == *b"SWAP-SPACE";
            if hibernated || old || signature == *b"SWAPSPACE2" {
                let fields = volume.peek(HEADER_OFFSET, 44)?.unwrap_or_default();
                return Ok(Self::parse(&fields, page_bytes, hibernated, old).ok());
            }
        }
        Ok(None)
    }

    fn parse(
        fields: &[u8],
        page_bytes: u64,
        hibernated: bool,
        old: bool,
    ) -> std::result::Result<Self, base::wire::Truncated> {
        let mut reader = Reader::new(fields);
        let (version, last_page, _bad_pages) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let uuid = text::some_uuid(&reader.array()?);
        let label = text::label(reader.bytes(16)?);
        Ok(Self { page_bytes, hibernated, old, version, last_page, uuid, label })
    }
}

impl AllocationReader for Swap {
    fn family(&self) -> &'static str {
        "swap"
    }

    fn probe(&self, volume: &Volume) -> Result<Option<Filesystem>> {
        let filesystem = |header: Header| Filesystem {
            kind: "swap",
            uuid: header.uuid,
            label: header.label,
            block_bytes: u32::try_from(header.page_bytes).expect("a page size"),
            understood: false,
        };
        Ok(Header::read(volume)?.map(filesystem))
    }

    fn end_bytes(&self, volume: &Volume) -> Result<Option<u64>> {
        Ok(Header::read(volume)?.map(|found| (u64::from(found.last_page) + 1) * found.page_bytes))
    }

    fn allocated(&self, volume: &Volume, _: bool) -> std::result::Result<Allocation, Why> {
        let header = Header::read(volume)?.ok_or_else(|| Why::Whole("it has no swap header".to_owned()))?;
        require(!header.hibernated, || "a hibernated system sleeps in this swap space".to_owned())?;
        require(!header.old && header.version == 1, || "its swap header has an unknown version".to_owned())?;
        let pages = u64::from(header.last_page) + 1;
        let fits = header.last_page > 0 && pages * header.page_bytes <= volume.len_bytes();
        require(fits, || "its swap header claims more pages than there are".to_owned())?;
        let page_sectors = header.page_bytes / 512;
        let mut used = Coverage::default();
        used.add(units(0, 1, page_sectors));
        Ok(Allocation { used, end_sectors: pages * page_sectors, doubts: Vec::new() })
    }

    /// Nothing confirms that a swap header is valid: it has no checksum, and there is no map to compare it with. So any
    /// other signature, even a copy, may be the right one.
    fn explains(&self, claim: &Claim) -> bool {
        claim.kind == self.family()
    }
}

#[cfg(test)]
mod tests {
    use base::Extent;

    use super::*;
    use crate::device::MemoryDisk;

    /// A swap space as mkswap makes it on a machine with these pages.
    fn swap(page_bytes: usize, pages: u32, signature: &[u8]) -> MemoryDisk {
        let mut bytes = vec![0x5A; page_bytes * pages as usize];
        bytes[1024..1028].copy_from_slice(&1u32.to_le_bytes());
        bytes[1028..1032].copy_from_slice(&(pages - 1).to_le_bytes());
        bytes[1032..1068].fill(0);
        bytes[page_bytes - 10..page_bytes - 10 + signature.len()].copy_from_slice(signature);
        MemoryDisk::new(bytes)
    }

    #[test]
    fn keeps_the_header_page_of_every_page_size() {
        for page_bytes in [4096, 16_384, 65_536] {
            let disk = swap(page_bytes, 10, b"SWAPSPACE2");
            let volume = Volume::whole(&disk);
            assert_eq!(Swap.probe(&volume).unwrap().unwrap().block_bytes as usize, page_bytes);
            let used = Swap.allocated(&volume, false).ok().unwrap().used;
            let set = used.into_set(1, Extent::new(0, volume.sectors()));
            assert_eq!(set.runs(), [Extent::new(0, page_bytes as u64 / 512)]);
        }
    }

    #[test]
    fn hibernated_old_or_cut_is_taken_whole() {
        let why = |disk: &MemoryDisk| match Swap.allocated(&Volume::whole(disk), false) {
            Err(Why::Whole(why)) => why,
            _ => panic!("understood"),
        };
        for signature in HIBERNATED {
            assert_eq!(why(&swap(4096, 10, signature)), "a hibernated system sleeps in this swap space");
        }
        assert!(why(&swap(4096, 10, b"SWAP-SPACE")).contains("version"));
        let cut = MemoryDisk::new(swap(4096, 10, b"SWAPSPACE2").contents()[..9 * 4096].to_vec());
        assert!(why(&cut).contains("more pages than there are"));
    }
}
