//! Maintenance of a repository: verification, repair, copies between repositories, and disk usage.

pub(crate) mod copy;
mod findings;
pub(crate) mod rebuild;
pub(crate) mod records;
pub(crate) mod repair;
pub(crate) mod usage;
pub(crate) mod verify;
