//! Simulates the bandwidth of a cluster in virtual time: clients that read or write contents of their own at the same
//! time, striped over many devices (figure 5 of the paper that docs/measurements.md calls seed 002), or that boot from
//! one image (seed 003).
//!
//! What decides where bytes lie is the real code of `proto::cluster`: devices of a segment, holders of the index, the
//! machine that forms runs and appends them, the spans of a piece, and which runs a client keeps. The rest is a model:
//!
//! - Links send what is queued at their rate (`fabric::Flows`), with the headers of TCP over IPv4. Nothing is lost.
//! - The disk of a device reads and writes stripe units in turn for all that ask, at one rate: reading ahead and
//!   contiguous layout hide the ways of its head. What was read once stays in memory.
//! - A command takes a device a fixed time, and a durable answer one flush more. Processors take none.
//! - A client asks as many components at the same time as `cluster/src/client/fetch.rs` does.

mod client;
mod device;
mod image;
mod layout;
mod turns;
mod wiring;
mod world;

use base::Duration;
use proto::cluster::Width;

pub use image::Image;

/// What the clients do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// Each reads contents that were stored before.
    Read,
    /// Each stores contents, durably.
    Write,
    /// Each reads what the same boot touches of an image.
    Boot(Image),
}

/// What is connected to what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wiring {
    /// All on one switch that carries all ports at full rate.
    Switch,
    /// As in seed 002: ten devices share four links to a switch, which has clients, too, and four links to the rest.
    Shelves,
}

/// The parameters of a run.
#[derive(Debug, Clone)]
pub struct Striped {
    /// Seed of the choice of devices.
    pub seed: u64,
    /// Number of devices.
    pub devices: u32,
    /// Number of clients. All begin at the same time.
    pub clients: u32,
    /// Data and parity of the segments.
    pub width: Width,
    /// What they do.
    pub work: Work,
    /// Their network.
    pub wiring: Wiring,
    /// Rate of each device's and each client's link, in each direction.
    pub link_bits_per_second: u64,
    /// What the disk of a device reads or writes in a second.
    pub disk_bytes_per_second: u64,
    /// Length of the components of a full segment.
    pub component_bytes: u64,
    /// Contents of each client.
    pub contents: usize,
    /// Bytes of a content, at most 16 MiB.
    pub content_bytes: u64,
    /// Contents that a client reads or writes at the same time.
    pub at_once: usize,
}

impl Striped {
    /// The devices and clients of seed 002: links of 1 Gbit/s (section 3.1); ten devices give up to 400 MB/s (section
    /// 2). 8 + 2, as a cluster has it unless told otherwise, and 8 contents at the same time, as `cluster.get` reads.
    ///
    /// # Panics
    /// Never: 8 + 2 is a width.
    #[must_use]
    pub fn seed_002(work: Work, clients: u32, devices: u32) -> Self {
        Self {
            seed: 1,
            devices,
            clients,
            width: Width::new(8, 2).expect("it is a width"),
            work,
            wiring: Wiring::Shelves,
            link_bits_per_second: 1_000_000_000,
            disk_bytes_per_second: 40_000_000,
            component_bytes: 128 << 20,
            contents: 32,
            content_bytes: 16 << 20,
            at_once: 8,
        }
    }

    /// The machines and storage nodes of seed 003, on one switch: 150 and 50 there. Each reads the recorded boot, as an
    /// attached disk prefetches it: 16 objects at the same time, less a reserve of 4.
    #[must_use]
    pub fn seed_003(machines: u32) -> Self {
        let boot = Work::Boot(Image::recorded());
        Self { wiring: Wiring::Switch, at_once: 12, ..Self::seed_002(boot, machines, 50) }
    }

    /// Runs it.
    ///
    /// # Panics
    /// If there are too few devices for the width, or contents are too long.
    #[must_use]
    pub fn run(&self) -> StripedOutcome {
        world::World::new(self).run()
    }
}

/// The result of a run.
#[derive(Debug)]
pub struct StripedOutcome {
    /// When each client had done its work, in order of the clients.
    pub ended: Vec<Duration>,
    /// Bytes of contents that were read or written, without parity and directories.
    pub content_bytes: u64,
    /// Bytes of components that devices sent until then, also those that no client needed.
    pub sent_bytes: u64,
    /// The same, of the device that sent the most.
    pub most_sent_bytes: u64,
}

impl StripedOutcome {
    /// When the last client had done its work.
    #[must_use]
    pub fn last(&self) -> Duration {
        self.ended.iter().copied().max().unwrap_or_default()
    }

    /// Bytes of contents in a second, of all clients together, until the last had done its work.
    #[must_use]
    pub fn bytes_per_second(&self) -> f64 {
        self.content_bytes as f64 / self.last().as_secs_f64()
    }
}
