//! Finds out which filesystem a volume holds and which of its sectors matter. There is one file per filesystem. To add
//! one, implement [`AllocationReader`] for a new type and add that to [`READERS`].

mod bitmap;
mod btrfs;
mod checksum;
mod exfat;
mod ext;
pub(crate) mod fat;
mod little_endian;
pub(crate) mod lvm;
mod ntfs;
mod swap;
mod xfs;

use base::{Error, ErrorKind, Extent, Result};

use crate::Filesystem;
use crate::coverage::Coverage;
use crate::signature::{self, Claim};
use crate::volume::Volume;

/// Reads the allocation map of one family of filesystems.
trait AllocationReader: Sync {
    /// The [`Claim::kind`] of its signatures.
    fn family(&self) -> &'static str;

    /// Describes the filesystem in `volume` if it is of this family, even if it is damaged. The only error is `Io`.
    fn probe(&self, volume: &Volume) -> Result<Option<Filesystem>>;

    /// The sectors that matter. Errs towards allocated: the map leaves out only sectors that are certainly free. A
    /// filesystem that was not unmounted cleanly, is inconsistent or has unknown features is [`Why::Whole`].
    /// `live`: something may write to it meanwhile. A filesystem without a mark for that is whole, too.
    fn allocated(&self, volume: &Volume, live: bool) -> std::result::Result<Allocation, Why>;

    /// Where the filesystem in `volume` ends by its own words, in bytes from its start; `None` if it has none of this
    /// family, or nobody asks. It may be damaged, and may claim more than the volume has. The only error is `Io`.
    fn end_bytes(&self, _: &Volume) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Whether `claim` does not contradict this family: it is the family's own signature, or a copy. An earlier
    /// filesystem may have left copies in free space, and no program uses a copy by itself.
    fn explains(&self, claim: &Claim) -> bool {
        claim.kind == self.family() || claim.is_copy
    }
}

/// All readers. Their order does not matter: a volume with signatures of two of them is captured whole.
static READERS: [&dyn AllocationReader; 8] =
    [&btrfs::Btrfs, &exfat::Exfat, &ext::Ext, &fat::Fat, &lvm::Lvm, &ntfs::Ntfs, &swap::Swap, &xfs::Xfs];

/// The sectors of a filesystem that matter, counted from the start of its volume.
struct Allocation {
    used: Coverage,
    /// Where the filesystem ends. The sectors from here to the end of the volume are not in `used`.
    end_sectors: u64,
    /// What of it is taken whole, and why.
    doubts: Vec<String>,
}

/// Why there is no allocation map.
#[derive(Debug)]
enum Why {
    /// The volume must be captured whole, for this reason.
    Whole(String),
    /// The disk failed.
    Failed(Error),
}

impl From<Error> for Why {
    fn from(error: Error) -> Self {
        // A structure that points out of the volume is damage to the filesystem, not to the disk.
        if error.kind() == ErrorKind::Malformed {
            Self::Whole(error.to_string())
        } else {
            Self::Failed(error)
        }
    }
}

impl From<base::wire::Truncated> for Why {
    fn from(truncated: base::wire::Truncated) -> Self {
        Self::Whole(truncated.to_string())
    }
}

/// Returns [`Why::Whole`] with the reason that `why` gives, unless `holds` is true.
fn require(holds: bool, why: impl FnOnce() -> String) -> std::result::Result<(), Why> {
    if holds { Ok(()) } else { Err(Why::Whole(why())) }
}

/// Why a filesystem is whole that may be written meanwhile: nothing in it tells whether it is.
fn unmarked() -> String {
    "it may be written meanwhile; --freeze keeps it still if it is mounted".to_owned()
}

/// The contents of a volume: its format, and which of its sectors matter.
pub(crate) struct Contents {
    /// The filesystem or other format, if known.
    pub(crate) filesystem: Option<Filesystem>,
    /// The sectors that matter, or the reason to capture the whole volume.
    pub(crate) used: std::result::Result<Coverage, String>,
    /// Where the filesystem ends, in sectors from the start of the volume. `used` has no sectors after this one.
    pub(crate) end_sectors: u64,
    /// What of it is taken whole, and why, where the rest is not.
    pub(crate) doubts: Vec<String>,
}

/// The filesystem or other format in `volume`, by its signatures; allocation maps are not read. If several formats
/// claim the volume, one that has a reader wins. `Io` if the disk fails.
pub(crate) fn identify(volume: &Volume) -> Result<Option<Filesystem>> {
    let claims = signature::find(volume)?;
    let read = reader_of(&claims).map_or(Ok(None), |reader| reader.probe(volume))?;
    Ok(read.or_else(|| claims.first().map(unread)))
}

/// Where the filesystem in `volume` ends by its own words, in bytes; `None` if that is not known. It may claim more
/// than the volume has. `Io` if the disk fails.
pub(crate) fn end_bytes(volume: &Volume) -> Result<Option<u64>> {
    let claims = signature::find(volume)?;
    reader_of(&claims).map_or(Ok(None), |reader| reader.end_bytes(volume))
}

/// Finds the format of `volume` and the sectors that matter. `Io` if the disk fails; any other problem is a reason to
/// capture the volume whole. `live`: something may write to it meanwhile.
pub(crate) fn inspect(volume: &Volume, live: bool) -> Result<Contents> {
    inspect_claimed(volume, &signature::find(volume)?, live)
}

/// As [`inspect`], with the signatures that were found.
fn inspect_claimed(volume: &Volume, claims: &[Claim], live: bool) -> Result<Contents> {
    let whole = |filesystem, why| Contents {
        filesystem,
        used: Err(why),
        end_sectors: volume.sectors(),
        doubts: Vec::new(),
    };
    let reader = reader_of(claims);
    let names = names(claims, reader);
    match (reader, &names[..]) {
        (_, []) => Ok(whole(None, "it holds no filesystem that is known".to_owned())),
        // No other known format claims the volume, so the reader's map may decide what is free.
        (Some(reader), [_]) => match (reader.probe(volume)?, reader.allocated(volume, live)) {
            (_, Err(Why::Failed(error))) => Err(error),
            (filesystem, Err(Why::Whole(why))) => Ok(whole(filesystem, why)),
            (filesystem, Ok(Allocation { used, end_sectors, doubts })) => {
                let filesystem = filesystem.map(|found| Filesystem { understood: true, ..found });
                Ok(Contents { filesystem, used: Ok(used), end_sectors, doubts })
            }
        },
        (None, [name]) => {
            let is_table = claims.iter().any(|claim| claim.is_table);
            let why = match &name[..] {
                _ if is_table => format!("it holds {name}"),
                "crypto_LUKS" | "BitLocker" => {
                    "it is encrypted: what is free in it cannot be seen".to_owned()
                }
                _ => format!("the free space of {name} is not known"),
            };
            Ok(whole(claims.first().map(unread), why))
        }
        (_, names) => Ok(whole(None, format!("it has the signatures of {}", names.join(" and ")))),
    }
}

/// The first reader whose family is the kind of one of `claims`, rather one that is not the claim of a copy: an earlier
/// filesystem may have left that.
fn reader_of(claims: &[Claim]) -> Option<&'static dyn AllocationReader> {
    let with = |copies: bool| {
        let claims_it = |family| claims.iter().any(|claim| claim.kind == family && claim.is_copy == copies);
        READERS.into_iter().find(|reader| claims_it(reader.family()))
    };
    with(false).or_else(|| with(true))
}

/// The names of the formats in `claims`, each once: first the family of `reader`, then each claim that it does not
/// explain.
fn names(claims: &[Claim], reader: Option<&dyn AllocationReader>) -> Vec<String> {
    let mut names: Vec<String> = reader.map(|reader| reader.family().to_owned()).into_iter().collect();
    for claim in claims.iter().filter(|claim| reader.is_none_or(|reader| !reader.explains(claim))) {
        let name = claim.describe();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// A format that no reader supports: only its name is known.
fn unread(claim: &Claim) -> Filesystem {
    Filesystem { kind: claim.kind, uuid: None, label: None, block_bytes: 0, understood: false }
}

/// The sectors of `count` units from unit `start` on; a unit has `unit_sectors` sectors. The caller has checked that
/// the units lie in the volume.
fn units(start: u64, count: u64, unit_sectors: u64) -> Extent {
    Extent::new(start * unit_sectors, count * unit_sectors)
}
