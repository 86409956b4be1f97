//! Maintenance of a repository: verification, repair, copies between repositories, and disk usage.

pub(crate) mod copy;
pub(crate) mod elsewhere;
mod findings;
pub(crate) mod rebuild;
pub(crate) mod records;
pub(crate) mod repair;
mod trees;
pub(crate) mod usage;
pub(crate) mod verify;
