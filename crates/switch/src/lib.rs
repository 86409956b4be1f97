//! An agent on a switch that is a Linux bridge: it learns from the REPORTs that pass who holds what, and sends
//! REQUESTs to a member below, by the shortest way, before they reach the server. Sources: `formats/peer.md`, section
//! 3; seed 004.
//!
//! ```text
//! frame    control packets in Ethernet frames: reads them, changes where they go
//! filter   which frames the kernel lifts, and which it holds back
//! tap      the packet socket: copies of lifted frames; sends others
//! rules    the table of nftables that holds requests back while the agent lives
//! ports    the bridge and its ports
//! agent    what is done with a frame; who is heard where
//! driver   the thread around all this
//! fast     the same decision in the kernel, at the port (feature `ebpf`)
//! ```
//!
//! REPORTs and LEAVEs are copied to the agent and flow on untouched. REQUESTs are copied, and the originals are
//! dropped at the port while the agent lives: it sends each of them once, to a member or to the server. Nothing else
//! is looked at. When the agent ends, in whatever way, the kernel removes the rules.

mod agent;
mod driver;
#[cfg(feature = "ebpf")]
mod fast;
mod filter;
pub mod frame;
#[cfg(not(feature = "ebpf"))]
mod no_fast;
mod ports;
mod rules;
mod tap;

pub use agent::SwitchCounters;
pub use driver::{SwitchAgent, SwitchOptions, SwitchStatus};
#[cfg(feature = "ebpf")]
pub use fast::measure;
pub use ports::{Choice, Port};
