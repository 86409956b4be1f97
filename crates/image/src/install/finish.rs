//! The last steps of an install, after the content is durable: moves the backup of a GPT to the end of a larger target,
//! and erases the remaining signatures of earlier contents.

use std::sync::atomic::Ordering;

use base::{Error, ErrorKind, Extent, Result};
use disk::{backup_gpt, stale};

use super::old::{Old, is_whole_disk};
use super::options::InstallOptions;
use super::shared::Shared;

/// Most signatures that an error lists.
const SHOWN: usize = 8;

/// Moves the backup of the GPT, unless the options keep it; then searches for signatures again, also in partitions that
/// the target's table has and the manifest lacks. `Verification` if one cannot be erased.
pub(super) fn finalize(shared: &Shared, options: &InstallOptions) -> Result<()> {
    let moved = if options.keep_gpt { None } else { move_backup(shared)? };
    shared.counters.moved_gpt.store(moved.is_some(), Ordering::Relaxed);
    if options.keep_signatures {
        return Ok(());
    }
    let target = &*shared.target;
    let mut old = Old::on(&shared.catalogue, target.geometry().size_bytes)?;
    old.spare(moved);
    let partitions =
        stale::partitions(target).map_err(|e| e.within("read the partition table that was written"))?;
    partitions.into_iter().for_each(|(number, extent)| old.add(number, extent));
    // Sectors that were discarded meanwhile may show older bytes than those that were erased.
    let count = old.erase(target)?;
    shared.counters.erased.fetch_add(count, Ordering::Relaxed);
    if options.verify { check(&old, shared) } else { Ok(()) }
}

fn move_backup(shared: &Shared) -> Result<Option<Extent>> {
    let layout = &shared.plan.layout;
    if !is_whole_disk(&shared.catalogue) {
        return Ok(None);
    }
    backup_gpt::move_to_end(&*shared.target, layout.logical_sector_bytes, layout.size_bytes())
        .map_err(|e| e.within("move the backup of the GPT to the end of the target"))
}

/// Verifies that no signature is left.
fn check(old: &Old, shared: &Shared) -> Result<()> {
    let left = old.find(|buf, offset| shared.target.read_back_at(buf, offset).map(drop))?;
    if left.is_empty() {
        return Ok(());
    }
    let shown: Vec<_> =
        left.iter().take(SHOWN).map(|one| format!("{} at {}", one.kind, one.offset)).collect();
    let (count, name, shown) = (left.len(), shared.target.name(), shown.join(", "));
    let text = format!("`{name}` still bears {count} signatures that were erased: {shown}");
    Err(Error::new(ErrorKind::Verification, text))
}
