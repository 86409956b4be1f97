//! Filesystems: which one a volume holds, and which of its sectors matter. One file per filesystem; a new one is a
//! type that implements [`AllocationReader`] and a line in [`READERS`].

mod ext;
mod fat;
mod swap;

use base::{Error, ErrorKind, Extent, Result};

use crate::Filesystem;
use crate::coverage::Coverage;
use crate::signature::{self, Claim};
use crate::volume::Volume;

/// Reads the allocation map of one family of filesystems.
trait AllocationReader: Sync {
    /// What its signatures are called ([`Claim::kind`]).
    fn family(&self) -> &'static str;

    /// The filesystem of the volume if it is of this family, valid or not. Fails with `Io` only.
    fn probe(&self, volume: &Volume) -> Result<Option<Filesystem>>;

    /// Which sectors matter. If in doubt, a sector is in the map. A filesystem that is dirty, inconsistent or has
    /// unknown features is [`Why::Whole`].
    fn allocated(&self, volume: &Volume) -> std::result::Result<Allocation, Why>;

    /// Whether `claim` does not contradict a volume of this family. Leftovers of an earlier filesystem may lie in the
    /// free space of a filesystem whose map was checked, if no program takes them for more than leftovers.
    fn explains(&self, claim: &Claim) -> bool {
        claim.kind == self.family() || claim.is_copy
    }
}

/// All readers. Their order does not matter: a volume that two of them claim is captured whole.
static READERS: [&dyn AllocationReader; 3] = [&ext::Ext, &fat::Fat, &swap::Swap];

/// The sectors of a filesystem that matter, counted from the start of its volume.
struct Allocation {
    used: Coverage,
    /// Where the filesystem ends. The rest of the volume counts as allocated.
    end_sectors: u64,
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
        // If a structure points outside the volume, the filesystem is damaged, not the disk.
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

/// `Err(Whole)` with the reason that `why` gives, unless `holds`.
fn require(holds: bool, why: impl FnOnce() -> String) -> std::result::Result<(), Why> {
    if holds { Ok(()) } else { Err(Why::Whole(why())) }
}

/// What a volume holds and which of its sectors matter.
pub(crate) struct Contents {
    /// The filesystem or other format, if known.
    pub(crate) filesystem: Option<Filesystem>,
    /// Which sectors matter, or why all of them do.
    pub(crate) used: std::result::Result<Coverage, String>,
    /// Where the filesystem ends, in sectors from the start of the volume: what follows is not in `used`.
    pub(crate) end_sectors: u64,
}

/// What `volume` holds according to its signatures: the first one that claims it.
pub(crate) fn identify(volume: &Volume) -> Result<Option<Filesystem>> {
    let claims = signature::find(volume)?;
    let read = reader_of(&claims).map_or(Ok(None), |reader| reader.probe(volume))?;
    Ok(read.or_else(|| claims.first().map(unread)))
}

/// Examines `volume`. `Io` if the disk fails; any other problem is a reason to capture the volume whole.
pub(crate) fn inspect(volume: &Volume) -> Result<Contents> {
    let whole = |filesystem, why| Contents { filesystem, used: Err(why), end_sectors: volume.sectors() };
    let claims = signature::find(volume)?;
    let reader = reader_of(&claims);
    let names = names(&claims, reader);
    match (reader, &names[..]) {
        (_, []) => Ok(whole(None, "it holds no filesystem that is known".to_owned())),
        (Some(reader), [_]) => match (reader.probe(volume)?, reader.allocated(volume)) {
            (_, Err(Why::Failed(error))) => Err(error),
            (filesystem, Err(Why::Whole(why))) => Ok(whole(filesystem, why)),
            (filesystem, Ok(Allocation { used, end_sectors })) => {
                let filesystem = filesystem.map(|found| Filesystem { understood: true, ..found });
                Ok(Contents { filesystem, used: Ok(used), end_sectors })
            }
        },
        (None, [name]) => {
            let is_table = claims.iter().any(|claim| claim.is_table);
            let why = if is_table {
                format!("it holds {name}")
            } else {
                format!("the free space of {name} is not known")
            };
            Ok(whole(claims.first().map(unread), why))
        }
        (_, names) => Ok(whole(None, format!("it bears the signatures of {}", names.join(" and ")))),
    }
}

/// The first reader that reads one of `claims`.
fn reader_of(claims: &[Claim]) -> Option<&'static dyn AllocationReader> {
    READERS.into_iter().find(|reader| claims.iter().any(|claim| claim.kind == reader.family()))
}

/// The names of the formats that claim a volume, each once, without those that `reader` explains besides its own.
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

/// What is known of a format that no reader can read.
fn unread(claim: &Claim) -> Filesystem {
    Filesystem { kind: claim.kind, uuid: None, label: None, block_bytes: 0, understood: false }
}

/// `count` units of `unit_sectors` sectors, from unit `start` on, as sectors. The caller has checked that they lie in
/// the volume.
fn units(start: u64, count: u64, unit_sectors: u64) -> Extent {
    Extent::new(start * unit_sectors, count * unit_sectors)
}
