//! A large room: thousands of receivers with equal links, random loss and nothing else that goes wrong, to see how time
//! and control traffic grow. The machines are those of [`crate::run`]; only what is around them is thinner: blocks have
//! no payload, a run of blocks is one event for all receivers, and what a receiver loses is drawn by skipping ahead.

mod class;
mod host;
mod rules;
mod world;

use base::{Duration, Instant};
use proto::multicast::SessionStatistics;

use crate::checkers::Violation;
use crate::scenario::OVERHEAD_BYTES;

/// What a run of a room depends on.
#[derive(Debug, Clone)]
pub struct Room {
    /// For all chance in it.
    pub seed: u64,
    /// Number of receivers.
    pub receivers: usize,
    /// Payload of the image in bytes.
    pub image_bytes: u64,
    /// The server's rate at most, and that of each receiver's port, on the wire.
    pub bits_per_second: u64,
    /// Where the server begins to look for its rate.
    pub initial_bits_per_second: u64,
    /// Lost at random, of a million, on each receiver's link, in each direction.
    pub loss_per_million: u32,
    /// From the server to a receiver and back.
    pub round_trip: Duration,
    /// Starts are spread evenly over this time.
    pub starts_over: Duration,
    /// The last so many receivers have a port that is a tenth as fast.
    pub slow: usize,
    /// A receiver's memory for objects.
    pub buffer_bytes: u64,
    /// Everybody has to be done by then.
    pub deadline: Instant,
}

/// What came of it.
#[derive(Debug)]
pub struct RoomOutcome {
    /// What must not be.
    pub violations: Vec<Violation>,
    /// How long each receiver took from its start; `None` if it was not done.
    pub took: Vec<Option<Duration>>,
    /// Reports that reached the server.
    pub control_packets: u64,
    /// Bytes in them on the wire.
    pub control_bytes: u64,
    /// Bytes on the wire from the server, STATUS included.
    pub data_bytes: u64,
    /// BLOCKs that no receiver had a use for, of those that reached any.
    pub blocks_useless: u64,
    /// Blocks of the image that went out at least once.
    pub blocks_first: u64,
    /// Payload that receivers had to fetch otherwise.
    pub unicast_bytes: u64,
    /// What the server counted.
    pub statistics: SessionStatistics,
    /// Packets handed to receivers.
    pub deliveries: u64,
    /// Packets of the server that were lost on their way to a receiver, at random or in a full queue.
    pub losses: u64,
    /// Events handled.
    pub steps: u64,
}

impl Room {
    /// A room of receivers that all start at once.
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

    /// Lengths of objects as sessions have them: a small one with the tree, and bundles of four stored objects.
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

    /// How long the server needs to send the image once.
    #[must_use]
    pub fn transfer_time(&self) -> Duration {
        let headers = u64::from(OVERHEAD_BYTES) + 48;
        let blocks: u64 = self.object_bytes().iter().map(|&bytes| u64::from(bytes.div_ceil(1424))).sum();
        Duration::from_nanos((self.image_bytes + blocks * headers) * 8_000_000_000 / self.bits_per_second)
    }

    /// Runs it to its end.
    #[must_use]
    pub fn run(&self) -> RoomOutcome {
        world::World::new(self).run()
    }
}

impl RoomOutcome {
    /// How long the last receiver took.
    #[must_use]
    pub fn last(&self) -> Option<Duration> {
        self.took.iter().copied().max_by_key(|took| took.unwrap_or(Duration::MAX)).flatten()
    }

    /// How long the first receiver took.
    #[must_use]
    pub fn first(&self) -> Option<Duration> {
        self.took.iter().copied().flatten().min()
    }

    /// How long a receiver took on average.
    #[must_use]
    pub fn mean(&self) -> Option<Duration> {
        let all: Option<Vec<Duration>> = self.took.iter().copied().collect();
        all.map(|all| all.iter().sum::<Duration>() / u32::try_from(all.len().max(1)).unwrap_or(u32::MAX))
    }

    /// Payload sent, in images.
    #[must_use]
    pub fn images(&self) -> f64 {
        self.statistics.bytes_sent as f64 / self.statistics.image_bytes as f64
    }
}
