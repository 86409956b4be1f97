//! What clients read from the repository, and write to it.
//!
//! ```text
//! reach         which objects belong to which images
//! readings      versions that machines fetch now, and their leases
//! uploads       the writers of running uploads
//! publications  versions that a repeated request finds again
//! ```

pub(crate) mod publications;
pub(crate) mod reach;
pub(crate) mod readings;
pub(crate) mod uploads;
