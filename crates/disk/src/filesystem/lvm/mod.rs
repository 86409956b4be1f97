//! Looks into physical volumes of LVM2 (lib/format_text/layout.h and lib/label/label.c of LVM2): free are the extents
//! that no logical volume has, and what the filesystems in linear and striped logical volumes say is free.

mod config;
mod group;
mod mapped;

use base::limits::SECTOR_BYTES;
use base::{Error, ErrorKind, Extent, ExtentSet, Result};
use crc::{Algorithm, CRC_32_ISO_HDLC, Crc, Table};

use super::little_endian::{u32_at, u64_at};
use super::{Allocation, AllocationReader, Why, inspect_claimed, require};
use crate::Filesystem;
use crate::coverage::Coverage;
use crate::signature;
use crate::volume::{Volume, edges};
use group::{Group, Logical};
use mapped::Mapped;

/// The label is in one of the first four sectors.
const LABEL_SECTORS: u64 = 4;
/// Where the header of the physical volume is in the sector of the label.
const HEADER_AT: usize = 32;
/// The header of a metadata area.
const AREA_BYTES: usize = 512;
const AREA_MAGIC: &[u8] = b" LVM2 x[5A%r0N*>";
/// An area's text is not used.
const IGNORED: u32 = 1;
/// LVM itself makes areas of 1 MiB; their text has at most half of it.
const TEXT_BYTES_MAX: u64 = 16 << 20;

const ALGORITHM: Algorithm<u32> = Algorithm { xorout: 0, ..CRC_32_ISO_HDLC };
static CRC: Crc<u32, Table<1>> = Crc::<u32, Table<1>>::new(&ALGORITHM);
/// The value from which LVM starts checksums.
const CRC_START: u32 = 0xF597_A6CF;

/// Reads physical volumes of LVM2.
pub(super) struct Lvm;

/// The label of a physical volume.
struct Label {
    uuid: String,
    bytes: u64,
    /// Its metadata areas: offset and length in bytes.
    areas: Vec<(u64, u64)>,
}

impl Label {
    fn read(volume: &Volume) -> Result<Option<Self>> {
        for sector in 0..LABEL_SECTORS {
            let Some(bytes) = volume.peek(sector * SECTOR_BYTES, 512)? else { return Ok(None) };
            let is_label = bytes.starts_with(b"LABELONE")
                && u64_at(&bytes, 8) == sector
                && u32_at(&bytes, 16) == checksum(&bytes[20..])
                && u32_at(&bytes, 20) as usize == HEADER_AT
                && bytes[24..32] == *b"LVM2 001";
            if is_label {
                return Ok(Self::parse(&bytes));
            }
        }
        Ok(None)
    }

    fn parse(sector: &[u8]) -> Option<Self> {
        let uuid = std::str::from_utf8(&sector[HEADER_AT..HEADER_AT + 32]).ok()?.to_owned();
        let mut rest = sector[HEADER_AT + 40..].chunks_exact(16);
        let mut list = || {
            let pairs = rest.by_ref().map(|pair| (u64_at(pair, 0), u64_at(pair, 8)));
            pairs.take_while(|(offset, _)| *offset != 0).collect::<Vec<_>>()
        };
        let (_, areas) = (list(), list());
        Some(Self { uuid, bytes: u64_at(sector, HEADER_AT + 32), areas })
    }

    /// As `pvs` prints it.
    fn name(&self) -> Option<String> {
        let mut rest = self.uuid.is_ascii().then_some(&self.uuid[..])?;
        let mut parts = Vec::new();
        for len in [6, 4, 4, 4, 4, 4, 6] {
            let (part, after) = rest.split_at_checked(len)?;
            parts.push(part);
            rest = after;
        }
        Some(parts.join("-"))
    }

    /// The text of the volume group, which all areas that have one must agree on.
    fn text(&self, volume: &Volume) -> std::result::Result<String, Why> {
        let mut found: Option<Vec<u8>> = None;
        for area in &self.areas {
            let text = text_of(volume, *area)?;
            require(found.is_none() || text.is_none() || found == text, || {
                "its two copies of the metadata differ".to_owned()
            })?;
            found = found.or(text);
        }
        let text = found.ok_or_else(|| Why::Whole("it belongs to no volume group".to_owned()))?;
        String::from_utf8(text).map_err(|_| Why::Whole("its metadata is damaged".to_owned()))
    }
}

/// The text in a metadata area, if it has one.
fn text_of(volume: &Volume, (offset, len): (u64, u64)) -> std::result::Result<Option<Vec<u8>>, Why> {
    let damaged = || "its metadata is damaged".to_owned();
    let is_inside = offset.checked_add(len).is_some_and(|end| end <= volume.len_bytes());
    require(is_inside && len > AREA_BYTES as u64, damaged)?;
    let mut header = vec![0; AREA_BYTES];
    volume.read(&mut header, offset)?;
    let is_right = u32_at(&header, 0) == checksum(&header[4..])
        && header[4..20] == *AREA_MAGIC
        && (u32_at(&header, 20), u64_at(&header, 24), u64_at(&header, 32)) == (1, offset, len);
    require(is_right, damaged)?;
    let (at, bytes, sum, flags) =
        (u64_at(&header, 40), u64_at(&header, 48), u32_at(&header, 56), u32_at(&header, 60));
    if at == 0 || flags & IGNORED != 0 {
        return Ok(None);
    }
    require(u64_at(&header, 64) == 0, || "a change of its metadata did not end".to_owned())?;
    let head = AREA_BYTES as u64;
    let fits = (head..len).contains(&at) && bytes <= (len - head).min(TEXT_BYTES_MAX);
    require(fits, damaged)?;
    // The area is a ring behind its header.
    let before = bytes.min(len - at);
    let mut text = vec![0; usize::try_from(bytes).expect("at most 16 MiB")];
    let (front, back) = text.split_at_mut(usize::try_from(before).expect("at most 16 MiB"));
    volume.read(front, offset + at)?;
    volume.read(back, offset + head)?;
    require(checksum(&text) == sum, damaged)?;
    text.truncate(text.iter().position(|byte| *byte == 0).unwrap_or(text.len()));
    Ok(Some(text))
}

/// Adds the sectors of a logical volume that matter, in the physical volume. Returns why these are all of it, if they
/// are.
fn add(volume: &Volume, logical: &Logical, live: bool, used: &mut Coverage) -> Result<Option<String>> {
    let Some(mapped) = Mapped::new(*volume, logical) else {
        let has_some = add_all(logical, used) > 0;
        let why = match logical.is_elsewhere {
            true => "some of it is on another disk",
            false => "it is of a kind that is not looked into",
        };
        return Ok((has_some && !logical.is_part).then(|| why.to_owned()));
    };
    let inside = Volume::whole(&mapped);
    let claims = signature::find(&inside)?;
    if claims.iter().any(|claim| claim.kind == Lvm.family()) {
        add_all(logical, used);
        return Ok(Some("it holds a physical volume".to_owned()));
    }
    let contents = inspect_claimed(&inside, &claims, live)?;
    match contents.used {
        Ok(inner) => {
            let all = Extent::new(0, inside.sectors());
            let behind = Extent::between(contents.end_sectors, all.end());
            let runs = inner.runs().chain([behind]).chain(edges(all));
            runs.for_each(|run| mapped.place(run, used));
            Ok(None)
        }
        Err(why) => {
            add_all(logical, used);
            Ok(Some(why))
        }
    }
}

/// Adds all that a logical volume has here, and returns how many runs that are.
fn add_all(logical: &Logical, used: &mut Coverage) -> usize {
    logical.segments.iter().flat_map(group::Segment::places).map(|place| used.add(place)).count()
}

/// A logical volume that holds what its user wrote.
#[derive(Debug)]
pub(crate) struct LogicalVolume {
    pub(crate) name: String,
    /// The filesystem in it, if it is known.
    pub(crate) filesystem: Option<Filesystem>,
    /// Where its sectors lie in the physical volume, in their order; `None` if they lie in stripes.
    pub(crate) pieces: Option<Vec<Extent>>,
}

/// What a physical volume holds.
pub(crate) struct PhysicalVolume {
    /// The name of its volume group.
    pub(crate) group: String,
    /// The sectors that the group's extents have.
    pub(crate) extents: Extent,
    /// Those that logical volumes have, also such as are not looked into.
    pub(crate) used: ExtentSet,
    pub(crate) volumes: Vec<LogicalVolume>,
}

/// Looks into a physical volume. `Refused`, with the reason, if it can't be read; `Io`.
pub(crate) fn physical_volume(volume: &Volume) -> Result<PhysicalVolume> {
    let read = || -> std::result::Result<Group, Why> {
        let label = Label::read(volume)?.ok_or_else(|| Why::Whole("its label is damaged".to_owned()))?;
        Group::parse(&label.text(volume)?, &label.uuid, volume.sectors())
    };
    let group = read().map_err(|why| match why {
        Why::Failed(error) => error,
        Why::Whole(why) => Error::new(ErrorKind::Refused, format!("the physical volume of LVM: {why}")),
    })?;
    if group.physical_volumes > 1 {
        let text = format!("volume group `{}` is on {} disks", group.name, group.physical_volumes);
        return Err(Error::new(ErrorKind::Refused, text));
    }
    let describe = |logical: &Logical| -> Result<Option<LogicalVolume>> {
        let Some(mapped) = Mapped::new(*volume, logical) else { return Ok(None) };
        let filesystem = super::identify(&Volume::whole(&mapped))?;
        let is_linear = logical.segments.iter().all(|segment| segment.stripes.len() == 1);
        let pieces = is_linear.then(|| joined(logical.segments.iter().flat_map(group::Segment::places)));
        Ok(Some(LogicalVolume { name: logical.name.clone(), filesystem, pieces }))
    };
    let volumes = group.volumes.iter().filter_map(|logical| describe(logical).transpose());
    let volumes = volumes.collect::<Result<_>>()?;
    let all = group.volumes.iter().flat_map(|logical| &logical.segments);
    let used = all.flat_map(group::Segment::places).collect();
    Ok(PhysicalVolume { group: group.name, extents: group.extents, used, volumes })
}

/// The same pieces, where one that follows the one before is joined to it.
fn joined(pieces: impl Iterator<Item = Extent>) -> Vec<Extent> {
    let mut joined: Vec<Extent> = Vec::new();
    for piece in pieces {
        match joined.last_mut() {
            Some(last) if last.end() == piece.start => last.count += piece.count,
            _ => joined.push(piece),
        }
    }
    joined
}

impl AllocationReader for Lvm {
    fn family(&self) -> &'static str {
        "LVM2_member"
    }

    fn probe(&self, volume: &Volume) -> Result<Option<Filesystem>> {
        let filesystem = |label: Label| Filesystem {
            kind: "LVM2_member",
            uuid: label.name(),
            label: None,
            block_bytes: 512,
            understood: false,
        };
        Ok(Label::read(volume)?.map(filesystem))
    }

    fn end_bytes(&self, volume: &Volume) -> Result<Option<u64>> {
        Ok(Label::read(volume)?.map(|label| label.bytes))
    }

    fn allocated(&self, volume: &Volume, live: bool) -> std::result::Result<Allocation, Why> {
        let label = Label::read(volume)?.ok_or_else(|| Why::Whole("its label is damaged".to_owned()))?;
        require(label.bytes <= volume.len_bytes(), || {
            "it claims to be larger than its partition".to_owned()
        })?;
        let group = Group::parse(&label.text(volume)?, &label.uuid, volume.sectors())?;
        let mut used = Coverage::default();
        used.add(Extent::between(0, group.extents.start));
        for (offset, len) in &label.areas {
            used.add(Extent::between(offset / SECTOR_BYTES, (offset + len).div_ceil(SECTOR_BYTES)));
        }
        let mut doubts = Vec::new();
        for logical in &group.volumes {
            let why = add(volume, logical, live, &mut used)?;
            doubts
                .extend(why.map(|why| format!("logical volume `{}` is captured whole: {why}", logical.name)));
        }
        Ok(Allocation { used, end_sectors: group.extents.end(), doubts })
    }
}

fn checksum(bytes: &[u8]) -> u32 {
    let mut digest = CRC.digest_with_initial(CRC_START.reverse_bits());
    digest.update(bytes);
    digest.finalize()
}
