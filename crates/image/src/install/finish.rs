//! The last steps of an install, after the content is durable: moves the backup of a GPT to the end of a larger target,
//! and erases old signatures that are still there.

use std::sync::atomic::Ordering;

use base::{Error, ErrorKind, Extent, Result};
use disk::{backup_gpt, stale};

use super::old::Old;
use super::options::InstallOptions;
use super::shared::Shared;

/// How many signatures an error message lists at most.
const SHOWN: usize = 8;

/// Moves the backup of the GPT, unless `keep_gpt`. Then erases old signatures once more, unless `keep_signatures`, now
/// also in partitions that the target's new table has and the manifest lacks. `Verification` if one is still there
/// afterwards; `Io` if the target fails.
pub(super) fn finalize(shared: &Shared, options: &InstallOptions) -> Result<()> {
    let moved = if options.keep_gpt { None } else { move_backup(shared)? };
    shared.counters.moved_gpt.store(moved.is_some(), Ordering::Relaxed);
    if options.keep_signatures {
        return Ok(());
    }
    let target = &*shared.target;
    let mut old = Old::on(&shared.catalogue, target.geometry().size_bytes)?;
    // The new backup lies in free space and looks like the signature of an old GPT.
    old.spare(moved);
    let partitions =
        stale::partitions(target).map_err(|e| e.within("read the partition table that was written"))?;
    partitions.into_iter().for_each(|(number, extent)| old.add(number, extent));
    // Erase again: sectors that were discarded since then may return older bytes, with other signatures.
    let count = old.erase(target)?;
    shared.counters.erased.fetch_add(count, Ordering::Relaxed);
    if options.verify { check(&old, shared) } else { Ok(()) }
}

/// Moves the backup of the GPT, if the image is of a whole disk, and returns its new sectors.
fn move_backup(shared: &Shared) -> Result<Option<Extent>> {
    let layout = &shared.plan.layout;
    if !shared.catalogue.is_whole_disk() {
        return Ok(None);
    }
    backup_gpt::move_to_end(&*shared.target, layout.logical_sector_bytes, layout.size_bytes())
        .map_err(|e| e.within("move the backup of the GPT to the end of the target"))
}

/// Reads the target back and returns `Verification` if it still has old signatures.
fn check(old: &Old, shared: &Shared) -> Result<()> {
    let left = old.find(|buf, offset| shared.target.read_back_at(buf, offset).map(drop))?;
    if left.is_empty() {
        return Ok(());
    }
    let shown: Vec<_> =
        left.iter().take(SHOWN).map(|one| format!("{} at {}", one.kind, one.offset)).collect();
    let (count, name, shown) = (left.len(), shared.target.name(), shown.join(", "));
    let text = format!("`{name}` still has {count} signatures that were erased: {shown}");
    Err(Error::new(ErrorKind::Verification, text))
}
