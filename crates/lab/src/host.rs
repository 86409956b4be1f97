//! A host of the star: its addresses, and how to run commands and threads in it.

use std::fs::File;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::Command;
use std::thread::JoinHandle;

use base::{Error, ErrorKind, Result};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Length in bits of the network part of [`Host::ipv4`].
pub(crate) const IPV4_PREFIX_BITS: u32 = 16;
/// Length in bits of the network part of [`Host::ipv6`].
pub(crate) const IPV6_PREFIX_BITS: u32 = 64;

/// A host of a star. It is only a name: the lab ends when its [`crate::Star`] is dropped.
#[derive(Debug, Clone)]
pub struct Host {
    index: u32,
    namespace: String,
    ipv4: Ipv4Addr,
}

impl Host {
    pub(crate) fn new(index: u32, namespace: String) -> Self {
        let [_, _, high, low] = (index + 1).to_be_bytes();
        Self::at(index, namespace, Ipv4Addr::new(10, 77, high, low))
    }

    pub(crate) fn at(index: u32, namespace: String, ipv4: Ipv4Addr) -> Self {
        Self { index, namespace, ipv4 }
    }

    /// Its index in the star, from 0. Host 0 is the server by convention; [`crate::StarOptions::loss_per_million`] does
    /// not apply to it.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The name of its network namespace, for `ip netns`.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The address of its `eth0`, in 10.77.0.0/16 unless it is behind a router.
    #[must_use]
    pub fn ipv4(&self) -> Ipv4Addr {
        self.ipv4
    }

    /// The address of its `eth0`, in fd77::/64; a host behind a router has none.
    #[must_use]
    pub fn ipv6(&self) -> Ipv6Addr {
        Ipv6Addr::from((0xfd77_u128 << 112) + u128::from(self.index + 1))
    }

    /// A command that runs `program` in this host. Dropping the lab kills every process that still runs there.
    #[must_use]
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace, program]);
        command
    }

    /// Runs `work` on a new thread of this process, inside the network of this host. `/sys` is still the machine's.
    ///
    /// # Errors
    /// `Io` if the lab no longer exists.
    pub fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<JoinHandle<T>> {
        run_in(&self.namespace, work)
    }
}

/// Runs `work` on a new thread inside a network namespace. `Io` if the namespace does not exist.
pub(crate) fn run_in<T: Send + 'static>(
    namespace: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>> {
    let namespace = Namespace::open(namespace)?;
    Ok(std::thread::spawn(move || {
        namespace.enter();
        work()
    }))
}

/// An open network namespace.
#[derive(Debug)]
pub(crate) struct Namespace(File);

impl Namespace {
    /// Opens the namespace of this name. `Io` if it does not exist.
    pub(crate) fn open(name: &str) -> Result<Self> {
        let path = Path::new("/run/netns").join(name);
        let fault = |e| Error::from_source(ErrorKind::Io, format!("enter namespace `{}`", path.display()), e);
        File::open(&path).map(Self).map_err(fault)
    }

    /// Moves the calling thread into it. Only for threads that the lab started itself.
    pub(crate) fn enter(&self) {
        // The file is open and root may enter its namespace, so this cannot fail.
        move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))
            .expect("root enters its namespaces");
    }
}
