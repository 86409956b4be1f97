//! The services of diskcast: `diskcast serve`, which offers all images of a repository from one process, and
//! `diskcast attach`.
//!
//! The server sends lists, manifests and objects by HTTP with TLS. Multicast sessions start with their first client
//! and end after their last one. formats/api.md specifies the API. This crate prints nothing and reads no environment
//! variables.
//!
//! [`attached`] is the second service: it serves one disk to the machine that uses it, while the disk's image is
//! still being fetched.

mod address_share;
mod api;
pub mod attached;
pub mod authority;
mod boot_exchange;
mod claims;
mod clock;
pub mod cluster_parts;
pub mod etcd_files;
pub mod event;
mod files;
mod fleet;
mod groups;
mod hosts;
pub mod identity;
pub mod image_cache;
mod join;
mod listener;
pub mod metrics;
mod netboot;
mod paced;
mod pem;
mod per_address;
mod power;
pub mod private_file;
mod probes;
mod publications;
mod reach;
mod readings;
mod receivers;
mod serve;
mod session_places;
mod sessions;
pub mod state;
pub mod statistics;
mod suits;
mod swarms;
pub mod token_records;
mod token_uses;
pub mod tokens;
mod torrents;
mod unicast_share;
mod uploads;
mod write_timeout;

pub use files::PublicImages;
pub use groups::MulticastOptions;
pub use netboot::{DhcpSettings, NetbootSettings};
pub use serve::{ServeOptions, Server, serve};
pub use swarms::{Places, number_of as place_number};

/// Held by tests that start programs, and by those that lock files: until a new process runs its program, it has all
/// files of this one open, and with them their locks.
#[cfg(test)]
static STARTS: parking_lot::Mutex<()> = parking_lot::Mutex::new(());
