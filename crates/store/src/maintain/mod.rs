//! What keeps a repository whole and in order: verification, repair, copies, and what it holds.

pub(crate) mod copy;
mod findings;
pub(crate) mod rebuild;
pub(crate) mod records;
pub(crate) mod repair;
pub(crate) mod usage;
pub(crate) mod verify;
