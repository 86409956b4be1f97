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

    /// What the volume holds, if it is of this family, be it sound or not. `Io` only.
    fn probe(&self, volume: &Volume) -> Result<Option<Filesystem>>;

    /// Which sectors matter. Errs towards allocated: whatever is not surely free is in the map, and a filesystem that
    /// is dirty, inconsistent or of a kind not known in every part is [`Why::Whole`].
    fn allocated(&self, volume: &Volume) -> std::result::Result<Allocation, Why>;

    /// Whether `claim` is no other claim to a volume of this family. A filesystem whose map was checked outlives
    /// what an earlier one left in its free space, as long as no program takes that for more than a leftover.
    fn explains(&self, claim: &Claim) -> bool {
        claim.kind == self.family() || claim.is_copy
    }
}

/// All readers. Their order is of no account: a volume that two of them claim is taken whole.
static READERS: [&dyn AllocationReader; 3] = [&ext::Ext, &fat::Fat, &swap::Swap];

/// The sectors of a filesystem that matter, counted from the start of its volume.
struct Allocation {
    used: Coverage,
    /// Where the filesystem ends. What lies behind, up to the end of the volume, is judged by its contents.
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

/// `Err(Whole)` with the reason that `why` gives, unless `holds`.
fn require(holds: bool, why: impl FnOnce() -> String) -> std::result::Result<(), Why> {
    if holds { Ok(()) } else { Err(Why::Whole(why())) }
}

/// What a volume holds and which of its sectors matter.
pub(crate) struct Contents {
    /// The filesystem or other format, if known.
    pub(crate) filesystem: Option<Filesystem>,
    /// What matters, or why all of it does.
    pub(crate) used: std::result::Result<Coverage, String>,
    /// Where the filesystem ends, in sectors from the start of the volume: what is behind is not in `used`.
    pub(crate) end_sectors: u64,
}

/// What `volume` holds, by its signatures alone: the first of what claims it.
pub(crate) fn identify(volume: &Volume) -> Result<Option<Filesystem>> {
    let claims = signature::find(volume)?;
    let read = reader_of(&claims).map_or(Ok(None), |reader| reader.probe(volume))?;
    Ok(read.or_else(|| claims.first().map(unread)))
}

/// Looks into `volume`. `Io` if the disk fails; whatever else is wrong is a reason to take the volume whole.
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

/// The names of those that claim a volume, each once, without what `reader` explains besides its own.
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

/// What is known of a format that no reader reads.
fn unread(claim: &Claim) -> Filesystem {
    Filesystem { kind: claim.kind, uuid: None, label: None, block_bytes: 0, understood: false }
}

/// `count` units of `unit_sectors` sectors, from unit `start` on, as sectors. The caller has checked that they lie in
/// the volume.
fn units(start: u64, count: u64, unit_sectors: u64) -> Extent {
    Extent::new(start * unit_sectors, count * unit_sectors)
}
