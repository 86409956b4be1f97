//! The lab: a network of hosts around one switch (a star), made of network namespaces on one machine. Tests, the demo
//! and benchmarks use it.
//!
//! Each host is a namespace with one interface, `eth0`. A veth pair connects it to the namespace of the switch, a Linux
//! bridge. The lab does all this with the tools `ip`, `tc`, `nft` and `ethtool` (packages iproute2, nftables, ethtool).
//! It needs Linux and root, and changes nothing outside the namespaces that it creates.
//!
//! ```no_run
//! # fn main() -> base::Result<()> {
//! let options = lab::StarOptions { hosts: 5, rate_bits_per_second: Some(1_000_000_000), ..Default::default() };
//! let star = lab::Star::build(&options)?;
//! let status = star.host(1).command("curl").arg(format!("http://{}:8080/", star.host(0).ipv4())).status();
//! star.cut(1)?;
//! println!("{:?}", star.traffic()?);
//! # Ok(()) }
//! ```

pub mod boot;
mod fault;
mod gateway;
mod host;
mod link;
mod meter;
mod name;
mod star;
mod tool;

pub use gateway::{Engine, Gateway};
pub use host::Host;
pub use link::{Count, Traffic};
pub use meter::{Meter, Sample};
pub use name::sweep;
pub use star::{Star, StarOptions};
pub use tool::{available, available_or_skip};
