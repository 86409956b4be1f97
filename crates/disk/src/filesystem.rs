//! Filesystems: which one a volume holds, and which of its sectors matter. One file per filesystem; a new one is a
//! type that implements [`AllocationReader`] and a line in [`READERS`].

mod ext;
mod fat;
mod known;
mod swap;

use base::Extent;

use crate::coverage::Coverage;
use crate::volume::Volume;
use crate::{Error, ErrorKind, Filesystem, Result};

/// Reads the allocation map of one family of filesystems.
trait AllocationReader: Sync {
    /// What the volume holds, if it is of this family, be it sound or not. `Io` only.
    fn probe(&self, volume: &Volume) -> Result<Option<Filesystem>>;

    /// Which sectors matter. Errs towards allocated: whatever is not surely free is in the map, and a filesystem that
    /// is dirty, inconsistent or of a kind not known in every part is [`Why::Whole`].
    fn allocated(&self, volume: &Volume) -> std::result::Result<Allocation, Why>;
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

/// What `volume` holds, by its signatures alone.
pub(crate) fn identify(volume: &Volume) -> Result<Vec<Filesystem>> {
    let mut found = known::probe(volume)?;
    for reader in READERS {
        found.extend(reader.probe(volume)?);
    }
    Ok(found)
}

/// Looks into `volume`. `Io` if the disk fails; whatever else is wrong is a reason to take the volume whole.
pub(crate) fn inspect(volume: &Volume) -> Result<Contents> {
    let whole = |filesystem, why| Contents { filesystem, used: Err(why), end_sectors: volume.sectors() };
    let mut found = identify(volume)?;
    if found.len() > 1 {
        let kinds: Vec<_> = found.iter().map(|filesystem| filesystem.kind).collect();
        return Ok(whole(None, format!("it bears the signatures of {}", kinds.join(" and "))));
    }
    let Some(mut filesystem) = found.pop() else {
        return Ok(whole(None, "it holds no filesystem that is known".to_owned()));
    };
    for reader in READERS {
        if reader.probe(volume)?.is_none() {
            continue;
        }
        return match reader.allocated(volume) {
            Ok(Allocation { used, end_sectors }) => {
                filesystem.understood = true;
                Ok(Contents { filesystem: Some(filesystem), used: Ok(used), end_sectors })
            }
            Err(Why::Whole(why)) => Ok(whole(Some(filesystem), why)),
            Err(Why::Failed(error)) => Err(error),
        };
    }
    let why = format!("the free space of {} is not known", filesystem.kind);
    Ok(whole(Some(filesystem), why))
}

/// `count` units of `unit_sectors` sectors, from unit `start` on, as sectors. The caller has checked that they lie in
/// the volume.
fn units(start: u64, count: u64, unit_sectors: u64) -> Extent {
    Extent::new(start * unit_sectors, count * unit_sectors)
}
