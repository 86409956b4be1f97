//! Simulates a cloud in virtual time: machines that all start from one image at the same time and are then all
//! committed at the same time, each with the real `mirror::machine`, over the ports of a switch. It repeats the
//! experiments of the system that docs/measurements.md calls seed 003: boot, checkpoint, suspend and resume.
//!
//! Assumptions: the switch can serve all ports at full rate; a port sends and receives one object after the other at
//! its rate; nothing is lost. Objects are spread evenly over the storage nodes by their digest. Local media take a
//! fixed time for each request. A guest computes for the same time between any two reads.

mod boot;
mod machine;
mod network;
mod world;

use base::Duration;

pub use boot::{Boot, Touch};

/// How a machine gets the content that it reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// On demand, when it reads it.
    Demand,
    /// On demand, with prefetch from the boot profile.
    Profile,
    /// The content of the boot profile is multicast once to all machines.
    Multicast,
    /// Everything is local before it starts.
    Here,
}

/// The parameters of a cloud.
#[derive(Debug, Clone)]
pub struct Cloud {
    /// Seed of everything random.
    pub seed: u64,
    /// Number of machines, which start within [`Self::starts_over`].
    pub machines: usize,
    /// Number of storage nodes, each with a port of its own. One stands for a single server.
    pub storage: usize,
    /// Number of copies of each object: 1 for no further copies.
    pub replicas: usize,
    /// Rate of every port, in each direction.
    pub bits_per_second: u64,
    /// Round trip between two ports.
    pub round_trip: Duration,
    /// How machines get their content.
    pub way: Way,
    /// Total time that a guest computes during its boot.
    pub computes: Duration,
    /// Time over which the starts are spread.
    pub starts_over: Duration,
    /// Number of chunks that each machine has read and partly overwritten before it is committed.
    pub dirty_chunks: usize,
    /// Length of the object of each of these chunks.
    pub dirty_object_bytes: u64,
    /// Number of further chunks that it has written completely, with random bytes.
    pub random_chunks: usize,
}

impl Cloud {
    /// The network of seed 003: 1 Gbit/s, 50 storage nodes, 0.2 ms. A boot computes for 10 s. The written data is as
    /// measured after a boot and a small job (8 MiB in chunks of 256 KiB), and a file of 1 MiB.
    #[must_use]
    pub fn new(machines: usize, way: Way) -> Self {
        Self {
            seed: 1,
            machines,
            storage: 50,
            replicas: 1,
            bits_per_second: 1_000_000_000,
            round_trip: Duration::from_micros(200),
            way,
            computes: Duration::from_secs(10),
            starts_over: Duration::from_millis(100),
            dirty_chunks: 32,
            dirty_object_bytes: 92_600,
            random_chunks: 4,
        }
    }

    /// Runs the cloud with machines that read `boot`.
    #[must_use]
    pub fn run(&self, boot: &Boot) -> CloudOutcome {
        world::World::new(self, boot).run()
    }

    /// Time that `bytes` take on a link, with their headers.
    #[must_use]
    pub fn link_time(&self, bytes: u64) -> Duration {
        network::wire_time(bytes, self.bits_per_second)
    }
}

/// The result of a run.
#[derive(Debug, Default)]
pub struct CloudOutcome {
    /// Boot time of each machine.
    pub booted: Vec<Duration>,
    /// Time from the first start to the end of the last boot.
    pub all_booted: Duration,
    /// Bytes that the storage sent during the boots; multicast counts once.
    pub boot_bytes: u64,
    /// Time of each machine's commit; all begin at the same time.
    pub committed: Vec<Duration>,
    /// Bytes sent to storage for the commits, including copies.
    pub commit_bytes: u64,
    /// The longest time that a guest's write waited for a commit to freeze.
    pub frozen: Duration,
    /// Number of events.
    pub steps: u64,
}

impl CloudOutcome {
    /// Mean boot time.
    #[must_use]
    pub fn mean_boot(&self) -> Duration {
        let count = u32::try_from(self.booted.len()).expect("few machines").max(1);
        self.booted.iter().sum::<Duration>() / count
    }

    /// Time from the begin of all commits to the end of the last one.
    #[must_use]
    pub fn all_committed(&self) -> Duration {
        self.committed.iter().max().copied().unwrap_or_default()
    }
}
