//! Objects with copies in several slots: which copy is kept, and which ones are garbage although a version needs the
//! object. formats/repository.md, "Pruning".

use base::limits::OBJECT_BYTES_MAX;
use base::{Digest, ErrorKind, Result};
use image::ObjectRef;

use crate::layout;
use crate::lease::epoch::Candidate;
use crate::lease::filter::Filter;
use crate::repository::Repository;

/// The copies of one object that are candidates: all of them if no version needs the object. Otherwise all but the
/// first that is correct and not in doubt; none if there is no such copy.
pub(super) fn spare<'c>(
    repository: &Repository,
    copies: &'c [Candidate],
    is_live: bool,
    doubted: &Filter,
) -> impl Iterator<Item = &'c Candidate> {
    let kept = if is_live && copies.len() > 1 { first_kept(repository, copies, doubted) } else { None };
    let are_spare = !is_live || kept.is_some();
    copies.iter().filter(move |copy| are_spare && kept.is_none_or(|kept| kept.slot != copy.slot))
}

/// Whether the object of `copy` has a correct copy that no prune deletes. `condemned` holds the copies that may be
/// deleted.
pub(super) fn has_other(repository: &Repository, copy: &Candidate, condemned: &Filter) -> bool {
    let others: Vec<_> = (0..layout::SLOTS).map(|slot| Candidate { slot, ..copy.clone() }).collect();
    first_kept(repository, &others, condemned).is_some()
}

fn first_kept<'c>(
    repository: &Repository,
    copies: &'c [Candidate],
    condemned: &Filter,
) -> Option<&'c Candidate> {
    let stays = |copy: &Candidate| !condemned.contains(&copy.digest, copy.slot);
    copies.iter().find(|copy| stays(copy) && is_good(repository, copy))
}

/// Stores the object of `copy` again in a slot that is not condemned; durable after the next flush. `false` if the
/// copy is damaged or no slot is free; `true` if `copy` does not exist any more.
pub(super) fn store_elsewhere(repository: &Repository, copy: &Candidate, condemned: &Filter) -> Result<bool> {
    let bytes = match repository.backend.read(&copy.path(), u64::from(OBJECT_BYTES_MAX)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(true),
        bytes => bytes?,
    };
    let free = (0..layout::SLOTS).find(|&slot| !condemned.contains(&copy.digest, slot));
    let (true, Some(slot)) = (Digest::of(&bytes) == copy.digest, free) else { return Ok(false) };
    repository.put_in(&ObjectRef::of(copy.kind, &bytes), slot, bytes)?;
    Ok(true)
}

/// Whether the bytes of `copy` have its digest. A copy that can't be read is not correct.
fn is_good(repository: &Repository, copy: &Candidate) -> bool {
    let bytes = repository.backend.read(&copy.path(), u64::from(OBJECT_BYTES_MAX));
    bytes.is_ok_and(|bytes| Digest::of(&bytes) == copy.digest)
}
