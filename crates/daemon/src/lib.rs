//! The services of diskcast: `diskcast serve`, which offers all images of a repository from one process, and
//! `diskcast attach`.
//!
//! The server sends lists, manifests and objects by HTTP with TLS. Multicast sessions start with their first client
//! and end after their last one. formats/api.md specifies the API. This crate prints nothing and reads no environment
//! variables.
//!
//! [`attached`] is the second service: it serves one disk to the machine that uses it, while the disk's image is
//! still being fetched.

mod api;
pub mod attached;
pub mod auth;
mod clock;
pub mod cluster_parts;
pub mod event;
mod files;
mod fleet;
mod hosts;
pub mod image_cache;
mod limits;
mod listener;
pub mod metrics;
mod netboot;
pub mod private_file;
mod problem;
mod repository;
mod serve;
pub mod sessions;
pub mod state;
mod swarms;

pub use files::PublicImages;
pub use netboot::{DhcpSettings, NetbootSettings};
pub use serve::{ServeOptions, Server, serve};
pub use sessions::groups::MulticastOptions;
pub use swarms::{Places, number_of as place_number};

/// Held by tests that start programs, and by those that lock files: until a new process runs its program, it has all
/// files of this one open, and with them their locks.
#[cfg(test)]
static STARTS: parking_lot::Mutex<()> = parking_lot::Mutex::new(());
