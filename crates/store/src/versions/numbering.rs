//! Numbers of records: each is one above the highest that was used. formats/repository.md, "Versions".

use base::{Error, ErrorKind, Result};

use crate::names::ImageName;

/// Most races for a number that one writer loses before it gives up. Another writer succeeds in each of them.
pub(crate) const RACES_MAX: u32 = 1000;

/// The number after `highest`. `Refused` on overflow: a foreign file may have the highest possible number.
pub(crate) fn next(highest: u64, what: &ImageName) -> Result<u64> {
    highest
        .checked_add(1)
        .ok_or_else(|| Error::new(ErrorKind::Refused, format!("`{what}` has used up all numbers")))
}
