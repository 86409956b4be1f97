//! The hosts, the image and the machines of a run.

use base::{Chance, Duration, Instant};

use super::Outcome;
use super::policy::Policy;
use super::world::World;
use crate::fabric::{Line, Place, Topology};

/// Delay of a link, with the port before it.
const DELAY: Duration = Duration::from_micros(25);
/// Bytes that wait at a port; transfers do not use it.
const QUEUE_BYTES: u64 = 1 << 20;
const MEGABIT: u64 = 1_000_000;

/// How a receiver writes what it has received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    /// Time to decompress and write the whole image.
    pub writing: Duration,
    /// Whether it writes while it receives; otherwise only after the last chunk.
    pub overlaps: bool,
    /// Chunks that fit into its memory and are not written yet.
    pub memory_chunks: u32,
}

/// The hosts, the image and the machines of a run.
#[derive(Debug, Clone)]
pub struct Setting {
    /// Seed of everything random.
    pub seed: u64,
    /// What is connected.
    pub topology: Topology,
    /// The server.
    pub server: Place,
    /// The receivers.
    pub receivers: Vec<Place>,
    /// When each of them starts.
    pub starts: Vec<Instant>,
    /// Chunks of the image.
    pub chunks: u32,
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
    /// What each receiver is.
    pub machine: Machine,
    /// Time of a switch's processor for a message that is addressed to the switch.
    pub handling: Duration,
    /// Time of the server's processor for a message.
    pub server_handling: Duration,
    /// Chunks of a multicast that a receiver loses although they arrive, per million.
    pub misses_per_million: u32,
    /// Rate on the wire at which a server multicasts.
    pub cast_bits_per_second: u64,
}

impl Setting {
    /// The experiment of seed 004: receivers and a server on one switch, an image of 730 chunks of 1 MiB. One receiver
    /// alone takes 2.5 s to receive it and 8.5 s to decompress and write it.
    ///
    /// Assumed, since the seed does not say it: ports of 10 Gbit/s, of which a client can use 2.6 Gbit/s in each
    /// direction (that makes the 2.5 s). It writes after it has received: only then are the times of the two
    /// components a run time of 10 to 12 s, as the seed's sentences about start delays below 10 s and above 12 s need.
    /// Everything received fits into its memory (64 GB). The switch takes 200 µs for a message that its Python module
    /// lifts, on an Atom at 1.74 GHz.
    #[must_use]
    pub fn switch_assisted(receivers: usize) -> Self {
        const CLIENT: u64 = 2600 * MEGABIT;
        let mut topology = Topology::new();
        let line = |rate| Line::new(rate, DELAY, QUEUE_BYTES);
        let server = topology.add_host(Topology::top(), line(10_000 * MEGABIT), line(10_000 * MEGABIT));
        let mut add = |_| topology.add_host(Topology::top(), line(CLIENT), line(CLIENT));
        let receivers: Vec<Place> = (0..receivers).map(&mut add).collect();
        Self {
            seed: 1,
            topology,
            server,
            starts: vec![Instant::ZERO; receivers.len()],
            receivers,
            chunks: 730,
            chunk_bytes: 1 << 20,
            machine: Machine {
                writing: Duration::from_millis(8500),
                overlaps: false,
                memory_chunks: u32::MAX,
            },
            handling: Duration::from_micros(200),
            server_handling: Duration::ZERO,
            misses_per_million: 0,
            cast_bits_per_second: CLIENT,
        }
    }

    /// The experiment of the Frisbee paper's table 3: a network of 100 Mbit/s, a server limited to 70 Mbit/s, clients
    /// with 64 chunks of memory that decompress and write while they receive.
    ///
    /// Assumed: the small image has 200 chunks of 1 MiB and takes 33 s to write, the large one 560 and 93 s. The paper
    /// says that the disk is what limits, and that one client takes 33.8 and 94 s, but not the compressed sizes.
    #[must_use]
    pub fn frisbee(receivers: usize, large: bool) -> Self {
        let (chunks, writing) = if large { (560, 93) } else { (200, 33) };
        let mut topology = Topology::new();
        let line = Line::new(100 * MEGABIT, DELAY, QUEUE_BYTES);
        let server = topology.add_host(Topology::top(), line, line);
        let receivers: Vec<Place> =
            (0..receivers).map(|_| topology.add_host(Topology::top(), line, line)).collect();
        Self {
            topology,
            server,
            starts: vec![Instant::ZERO; receivers.len()],
            receivers,
            chunks,
            machine: Machine { writing: Duration::from_secs(writing), overlaps: true, memory_chunks: 64 },
            cast_bits_per_second: 70 * MEGABIT,
            ..Self::switch_assisted(0)
        }
    }

    /// A hall of racks, each with a switch, below one switch with the server: ports of 10 Gbit/s, uplinks of
    /// 40 Gbit/s, machines and image as in [`Self::switch_assisted`].
    #[must_use]
    pub fn racks(racks: usize, receivers: usize) -> Self {
        let mut topology = Topology::new();
        let line = |rate| Line::new(rate * MEGABIT, DELAY, QUEUE_BYTES);
        let server = topology.add_host(Topology::top(), line(10_000), line(10_000));
        let mut hosts = Vec::new();
        for rack in 0..racks {
            let switch = topology.add_switch(Topology::top(), line(40_000), line(40_000));
            let here = receivers * (rack + 1) / racks - receivers * rack / racks;
            hosts.extend((0..here).map(|_| topology.add_host(switch, line(10_000), line(10_000))));
        }
        Self {
            topology,
            server,
            starts: vec![Instant::ZERO; hosts.len()],
            receivers: hosts,
            ..Self::switch_assisted(0)
        }
    }

    /// A hall of racks with many receivers: ports of 1 Gbit/s, uplinks and server of 10 Gbit/s, an image of 2 GiB, and
    /// starts at random over the time that one receiver alone takes. Each goes on serving for as long.
    #[must_use]
    pub fn hall(racks: usize, receivers: usize, seed: u64) -> Self {
        const CHUNKS: u32 = 2048;
        let mut topology = Topology::new();
        let line = |rate| Line::new(rate * MEGABIT, DELAY, QUEUE_BYTES);
        let server = topology.add_host(Topology::top(), line(10_000), line(10_000));
        let mut hosts = Vec::new();
        for rack in 0..racks {
            let switch = topology.add_switch(Topology::top(), line(10_000), line(10_000));
            let here = receivers * (rack + 1) / racks - receivers * rack / racks;
            hosts.extend((0..here).map(|_| topology.add_host(switch, line(1000), line(1000))));
        }
        let transfer = Duration::from_millis(18_250);
        let mut chance = Chance::from_seed(seed);
        let nanos = u64::try_from(transfer.as_nanos()).unwrap_or(u64::MAX);
        let start = |_: &Place| Instant::ZERO + Duration::from_nanos(chance.below(nanos));
        Self {
            seed,
            topology,
            server,
            starts: hosts.iter().map(start).collect(),
            receivers: hosts,
            chunks: CHUNKS,
            machine: Machine { writing: transfer, overlaps: false, memory_chunks: u32::MAX },
            cast_bits_per_second: 990 * MEGABIT,
            ..Self::switch_assisted(0)
        }
    }

    /// The test system of seed 001 (chapter 3), with an image of `chunks` chunks of 1 MiB: a frontend with a link of
    /// 10 Gbit/s; hosts with 1 Gbit/s, half of them at its switch and half at another one, behind a link of 10 Gbit/s.
    ///
    /// Assumed: hosts start at random within a second, which is what a deployment by ssh may take beyond its transfer;
    /// each goes on serving for as long as one image takes, and its disk is as fast as its link.
    #[must_use]
    pub fn thesis(receivers: usize, chunks: u32, seed: u64) -> Self {
        let mut topology = Topology::new();
        let line = |rate| Line::new(rate * MEGABIT, DELAY, QUEUE_BYTES);
        let server = topology.add_host(Topology::top(), line(10_000), line(10_000));
        let far = topology.add_switch(Topology::top(), line(10_000), line(10_000));
        let mut add = |number: usize| {
            let switch = if number.is_multiple_of(2) { Topology::top() } else { far };
            topology.add_host(switch, line(1000), line(1000))
        };
        let receivers: Vec<Place> = (0..receivers).map(&mut add).collect();
        let chunk_bytes = 1 << 20;
        let transfer = line(1000).time(u64::from(chunks) * chunk_bytes);
        let setting = Self {
            seed,
            topology,
            server,
            starts: vec![Instant::ZERO; receivers.len()],
            receivers,
            chunks,
            chunk_bytes,
            machine: Machine { writing: transfer, overlaps: false, memory_chunks: u32::MAX },
            cast_bits_per_second: 990 * MEGABIT,
            ..Self::switch_assisted(0)
        };
        setting.start_every(Duration::ZERO, Duration::from_secs(1))
    }

    /// The receivers start one after the other, `delay` apart, each later by up to `within`.
    pub(super) fn start_every(mut self, delay: Duration, within: Duration) -> Self {
        let mut chance = Chance::from_seed(self.seed);
        let nanos = u64::try_from(within.as_nanos()).unwrap_or(u64::MAX);
        for (number, start) in self.starts.iter_mut().enumerate() {
            let late = Duration::from_nanos(chance.below(nanos.saturating_add(1)));
            *start = Instant::ZERO + delay * number as u32 + late;
        }
        self
    }

    /// Cuts each chunk into `pieces`.
    pub(super) fn cut(mut self, pieces: u32) -> Self {
        self.chunks *= pieces;
        self.chunk_bytes = self.chunk_bytes.div_ceil(pieces.into());
        self.machine.memory_chunks = self.machine.memory_chunks.saturating_mul(pieces);
        self
    }

    /// Time that a chunk takes to be written.
    pub(super) fn chunk_writing(&self) -> Duration {
        self.machine.writing / self.chunks.max(1)
    }

    /// Runs the receivers until they have all left.
    #[must_use]
    pub fn run<P: Policy>(&self, policy: P) -> Outcome {
        World::new(self, policy).run()
    }
}
