//! The lab: a network of hosts around one switch (a star) or around a tree of switches, made of network namespaces on
//! one machine. Tests, the demo and benchmarks use it.
//!
//! Each host is a namespace with one interface, `eth0`. A veth pair connects it to the namespace of its switch, a Linux
//! bridge. Switch 0 is the root; every other switch hangs on one above it by an uplink, another veth pair. All hosts
//! are in one Ethernet, with one IPv4 and one IPv6 network. A link can have a rate, a buffer, a loss and a delay; one
//! with a delay is a pair of TAP devices.
//!
//! The lab does all this with the tools `ip`, `tc`, `nft` and `ethtool` (packages iproute2, nftables, ethtool). It
//! needs Linux and root, and changes nothing outside the namespaces that it creates.
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
//!
//! Two rooms behind a slow link: the server and hosts 1 and 2 in one, hosts 3 and 4 in the other.
//!
//! ```no_run
//! # fn main() -> base::Result<()> {
//! let rate_bits_per_second = Some(100_000_000);
//! let room = lab::SwitchOptions { hosts: vec![3, 4], rate_bits_per_second, ..Default::default() };
//! let star = lab::Star::build(&lab::StarOptions { hosts: 5, switches: vec![room], ..Default::default() })?;
//! println!("{} bytes to the far room", star.uplink_traffic(1)?.down.bytes);
//! # Ok(()) }
//! ```

pub mod bare;
pub mod boot;
mod cluster_faults;
mod cluster_site;
mod commit_seed;
mod delay;
mod etcd_certificates;
mod etcd_site;
mod fault;
mod gateway;
pub mod guest;
mod host;
mod link;
mod meter;
mod name;
mod permit;
mod sshd;
mod star;
mod switch;
mod tool;

pub use cluster_faults::ClusterFaults;
pub use cluster_site::ClusterSite;
pub use commit_seed::CommitSeeds;
pub use etcd_site::EtcdSite;
pub use gateway::{Engine, Gateway};
pub use host::Host;
pub use link::{Count, Traffic, UplinkTraffic};
pub use meter::{Meter, Sample};
pub use name::sweep;
pub use permit::Permit;
pub use sshd::Sshd;
pub use star::{Star, StarOptions};
pub use switch::SwitchOptions;
pub use tool::{available, available_or_skip, has_or_skip, unmount};
