//! `diskcast serve` without its words: one process that offers all images of a repository.
//!
//! HTTP with TLS carries lists, manifests and any object by unicast; multicast sessions start with their first client
//! and end after their last. The API is specified in formats/api.md. Nothing here prints or reads the environment.
//!
//! [`attached`] is the other thing that runs as a service: one disk of a machine, served while its image arrives.

mod api;
pub mod attached;
pub mod authority;
mod boot_exchange;
mod clock;
pub mod event;
pub mod identity;
mod join;
mod listener;
pub mod metrics;
mod publications;
mod serve;
mod sessions;
pub mod state;
pub mod statistics;
mod token_uses;
pub mod tokens;
mod uploads;

pub use serve::{ServeOptions, Server, serve};
pub use sessions::MulticastOptions;
