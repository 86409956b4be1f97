//! A cloud in virtual time: machines that all start from one image at once, each with the real `mirror::machine`, and
//! are committed all at once, over ports of a switch. The experiments of seed 003: boot, checkpoint, suspend and
//! resume.
//!
//! What is assumed, and not simulated: the switch bears all its ports at once; a port sends one thing after the other,
//! at its rate, and so it receives; nothing is lost. Objects lie on storage nodes by their digest, spread evenly. Local
//! media take a fixed time for each request. A guest computes for the same time between any two reads.

mod boot;
mod machine;
mod network;
mod world;

use base::Duration;

pub use boot::{Boot, Touch};

/// How a machine comes by what it reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// As it reads it.
    Demand,
    /// As it reads it, and what others read first ahead of that.
    Profile,
    /// What others read first comes by one multicast for all.
    Multicast,
    /// All of it is here before it starts.
    Here,
}

/// What is simulated.
#[derive(Debug, Clone)]
pub struct Cloud {
    /// For all chance in it.
    pub seed: u64,
    /// Machines that start within [`Self::starts_over`].
    pub machines: usize,
    /// Nodes that objects lie on, each with a port of its own. One is a single server.
    pub storage: usize,
    /// What each node keeps copies of: 1 for none but the first.
    pub replicas: usize,
    /// Of every port, each way.
    pub bits_per_second: u64,
    /// From port to port and back.
    pub round_trip: Duration,
    /// How it comes.
    pub way: Way,
    /// What a guest computes while it boots, all in all.
    pub computes: Duration,
    /// Over which time machines start.
    pub starts_over: Duration,
    /// Chunks that each machine has written when it is committed, of those that it read, in part.
    pub dirty_chunks: usize,
    /// Bytes of their objects.
    pub dirty_object_bytes: u64,
    /// Further chunks that it wrote as a whole, of random bytes.
    pub random_chunks: usize,
}

impl Cloud {
    /// The network of seed 003: 1 Gbit/s, 50 storage nodes, 0.2 ms. A boot computes for 10 s. What is written by then
    /// is what `facts/on-demand.md` measured after a boot and a small job (8 MiB in chunks of 256 KiB), and a file of 1
    /// MiB.
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

    /// Runs it on what a boot reads.
    #[must_use]
    pub fn run(&self, boot: &Boot) -> CloudOutcome {
        world::World::new(self, boot).run()
    }

    /// How long `bytes` are on a link, with their headers.
    #[must_use]
    pub fn link_time(&self, bytes: u64) -> Duration {
        network::wire_time(bytes, self.bits_per_second)
    }
}

/// What came of it.
#[derive(Debug, Default)]
pub struct CloudOutcome {
    /// How long each machine took to boot.
    pub booted: Vec<Duration>,
    /// From the first start to the last machine's end.
    pub all_booted: Duration,
    /// Bytes that storage and servers sent while machines booted, by multicast counted once.
    pub boot_bytes: u64,
    /// How long each machine's commit took, all of which begin at once.
    pub committed: Vec<Duration>,
    /// Bytes that machines sent to storage, copies included.
    pub commit_bytes: u64,
    /// The longest time that a guest's write waited for a commit to freeze.
    pub frozen: Duration,
    /// Events.
    pub steps: u64,
}

impl CloudOutcome {
    /// The mean of the times to boot.
    #[must_use]
    pub fn mean_boot(&self) -> Duration {
        let count = u32::try_from(self.booted.len()).expect("few machines").max(1);
        self.booted.iter().sum::<Duration>() / count
    }

    /// When the last commit was over, from when all began.
    #[must_use]
    pub fn all_committed(&self) -> Duration {
        self.committed.iter().max().copied().unwrap_or_default()
    }
}
