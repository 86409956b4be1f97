//! A large room: thousands of receivers with equal links and random loss, but no other faults, to see how time and
//! control traffic grow. The state machines are the real ones, as in [`crate::run`]; the rest is simplified for
//! speed: blocks have no payload, a run of blocks is one event for all receivers, and the number of packets up to the
//! next loss is drawn at once.

mod class;
mod host;
mod rules;
mod world;

use base::{Duration, Instant};
use proto::multicast::SessionStatistics;

use crate::checkers::Violation;
use crate::scenario::OVERHEAD_BYTES;

/// The parameters of a room.
#[derive(Debug, Clone)]
pub struct Room {
    /// Seed of everything random.
    pub seed: u64,
    /// Number of receivers.
    pub receivers: usize,
    /// Payload of the image in bytes.
    pub image_bytes: u64,
    /// Maximum rate of the server, and rate of each receiver's port, on the wire.
    pub bits_per_second: u64,
    /// Rate with which the server starts.
    pub initial_bits_per_second: u64,
    /// Packets lost at random on each receiver's link in each direction, per million.
    pub loss_per_million: u32,
    /// Round trip between the server and a receiver.
    pub round_trip: Duration,
    /// Time over which the starts are spread evenly.
    pub starts_over: Duration,
    /// Number of receivers (the last ones) whose port has a tenth of the rate.
    pub slow: usize,
    /// Memory of a receiver for objects, in bytes.
    pub buffer_bytes: u64,
    /// All receivers must be done by then.
    pub deadline: Instant,
}

/// The result of a run.
#[derive(Debug)]
pub struct RoomOutcome {
    /// The broken rules.
    pub violations: Vec<Violation>,
    /// Time of each receiver from its start; `None` if it did not finish.
    pub took: Vec<Option<Duration>>,
    /// Reports that reached the server.
    pub control_packets: u64,
    /// Bytes of these reports on the wire.
    pub control_bytes: u64,
    /// Bytes that the server sent on the wire, including STATUS packets.
    pub data_bytes: u64,
    /// BLOCK packets that reached receivers, of which none had a use for them.
    pub blocks_useless: u64,
    /// Blocks of the image that were sent at least once.
    pub blocks_first: u64,
    /// Payload bytes that receivers had to fetch by unicast.
    pub unicast_bytes: u64,
    /// Statistics of the server.
    pub statistics: SessionStatistics,
    /// Packets passed to receivers.
    pub deliveries: u64,
    /// Packets of the server that were lost on their way to a receiver, at random or because of a full queue.
    pub losses: u64,
    /// Events handled.
    pub steps: u64,
}

impl Room {
    /// A room whose receivers all start at the same time.
    #[must_use]
    pub const fn new(
        receivers: usize,
        image_bytes: u64,
        bits_per_second: u64,
        loss_per_million: u32,
    ) -> Self {
        Self {
            seed: 1,
            receivers,
            image_bytes,
            bits_per_second,
            initial_bits_per_second: bits_per_second,
            loss_per_million,
            round_trip: Duration::from_millis(1),
            starts_over: Duration::ZERO,
            slow: 0,
            buffer_bytes: base::limits::RECEIVER_BUFFER_BYTES_DEFAULT,
            deadline: Instant(3_600_000_000_000),
        }
    }

    /// Lengths of objects like those of real sessions: a small one with the tree, and bundles of about four chunks.
    #[must_use]
    pub fn object_bytes(&self) -> Vec<u32> {
        const HEAD_BYTES: u64 = 40_000;
        const BUNDLE_BYTES: u64 = 360_000;
        let mut left = self.image_bytes;
        let mut objects = Vec::new();
        while left > 0 {
            let bytes = left.min(if objects.is_empty() { HEAD_BYTES } else { BUNDLE_BYTES });
            objects.push(bytes as u32);
            left -= bytes;
        }
        objects
    }

    /// Time in which the server can send the image once.
    #[must_use]
    pub fn transfer_time(&self) -> Duration {
        let headers = u64::from(OVERHEAD_BYTES) + 48;
        let blocks: u64 = self.object_bytes().iter().map(|&bytes| u64::from(bytes.div_ceil(1424))).sum();
        Duration::from_nanos((self.image_bytes + blocks * headers) * 8_000_000_000 / self.bits_per_second)
    }

    /// Runs the room to its end.
    #[must_use]
    pub fn run(&self) -> RoomOutcome {
        world::World::new(self).run()
    }
}

impl RoomOutcome {
    /// Time of the slowest receiver.
    #[must_use]
    pub fn last(&self) -> Option<Duration> {
        self.took.iter().copied().max_by_key(|took| took.unwrap_or(Duration::MAX)).flatten()
    }

    /// Time of the fastest receiver.
    #[must_use]
    pub fn first(&self) -> Option<Duration> {
        self.took.iter().copied().flatten().min()
    }

    /// Mean time of the receivers.
    #[must_use]
    pub fn mean(&self) -> Option<Duration> {
        let all: Option<Vec<Duration>> = self.took.iter().copied().collect();
        all.map(|all| all.iter().sum::<Duration>() / u32::try_from(all.len().max(1)).unwrap_or(u32::MAX))
    }

    /// Payload sent, as a multiple of the image.
    #[must_use]
    pub fn images(&self) -> f64 {
        self.statistics.bytes_sent as f64 / self.statistics.image_bytes as f64
    }
}
