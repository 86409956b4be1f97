//! The lab: a star of hosts in network namespaces around one switch, on one machine, for tests, demo and benchmarks.
//!
//! Each host is a namespace with one interface `eth0`. A veth pair leads to the namespace of the switch, a Linux
//! bridge. The tools `ip`, `tc`, `nft` and `ethtool` (iproute2, nftables, ethtool) do the work. The lab needs root and
//! Linux, and touches nothing outside the namespaces that it made.
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
