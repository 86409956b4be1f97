//! In place of `fast`, in a build without the feature `ebpf`.

use std::convert::Infallible;
use std::net::SocketAddr;

use base::{Error, ErrorKind, Result};

use super::agent::Agent;
use super::ports::Bridge;

/// There is none.
pub(super) struct Fast(Infallible);

impl Fast {
    /// `Unsupported`.
    pub(super) fn start(_server: SocketAddr, _bridge: &Bridge) -> Result<Self> {
        let why = "this build has no program for the kernel: it was made without the feature `ebpf`";
        Err(Error::new(ErrorKind::Unsupported, why))
    }

    pub(super) fn apply(&mut self, agent: &mut Agent) {
        agent.take_changes();
        match self.0 {}
    }

    pub(super) fn renew(&mut self) -> bool {
        match self.0 {}
    }

    pub(super) fn look_at_ports(&mut self, _bridge: &Bridge) {
        match self.0 {}
    }

    pub(super) fn redirected(&self) -> u64 {
        match self.0 {}
    }
}
