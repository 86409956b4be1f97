//! What one address, one connection or one session may take of the server.
//!
//! ```text
//! unicast_share  unicast to the receivers of sessions, while these send
//! address_share  unicast to all other addresses, meanwhile
//! paced          answers that the kernel sends at a rate
//! write_timeout  connections whose client reads nothing
//! per_address    counts by address, and by network of IPv6
//! bucket         bytes at a rate
//! ```

pub(crate) mod address_share;
mod bucket;
pub(crate) mod paced;
pub(crate) mod per_address;
pub(crate) mod unicast_share;
pub(crate) mod write_timeout;
