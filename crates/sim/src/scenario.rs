//! A scenario: an image, a network, disks and faults, all drawn from one seed.

use base::{Chance, Duration, Instant};
use proto::multicast::RateConfig;

use crate::network::Link;

/// A fault that lasts for some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Packets from and to a receiver are lost at this rate.
    LossBurst {
        /// The receiver.
        host: usize,
        /// Lost packets per million.
        per_million: u32,
    },
    /// A receiver is disconnected from the network.
    Partition {
        /// The receiver.
        host: usize,
    },
    /// A receiver crashes; at the end of the fault it restarts with the content of its disk.
    Crash {
        /// The receiver.
        host: usize,
    },
    /// The server crashes; at the end of the fault it restarts with a new epoch.
    ServerCrash,
    /// A receiver's disk becomes slow.
    SlowDisk {
        /// The receiver.
        host: usize,
        /// Its rate.
        bytes_per_second: u64,
    },
    /// Packets to a receiver are duplicated, damaged and reordered.
    Disorder {
        /// The receiver.
        host: usize,
    },
    /// A member of the group sends a forged block, with a valid tag, to all receivers.
    Lie {
        /// The object of the block.
        object: u64,
    },
    /// An attacker without keys sends random packets to all receivers and to the server.
    Noise,
}

impl Fault {
    /// Whether the fault needs no attacker and no broken network: loss, partition, crash and restart, slow disk.
    #[must_use]
    pub const fn is_plain(self) -> bool {
        !matches!(self, Self::Disorder { .. } | Self::Lie { .. } | Self::Noise)
    }
}

/// A fault and its time.
#[derive(Debug, Clone, Copy)]
pub struct Event {
    /// When the fault begins.
    pub at: Instant,
    /// How long it lasts.
    pub lasts: Duration,
    /// The fault.
    pub fault: Fault,
}

/// What is wrong with a host from the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ailment {
    /// No packet to the group reaches it; its reports reach the server. It fetches by unicast after a while.
    Deaf,
    /// It is admitted this many times, and neither reports nor listens.
    Silent {
        /// Number of requests.
        admissions: u32,
    },
    /// It crashes this long after its start, for good.
    Dead {
        /// How long it runs.
        after: Duration,
    },
}

/// One receiver.
#[derive(Debug, Clone)]
pub struct Host {
    /// When it starts; receivers start at different times.
    pub starts: Instant,
    /// Its link.
    pub link: Link,
    /// Rate of its disk.
    pub disk_bytes_per_second: u64,
    /// Its memory for objects.
    pub buffer_bytes: u64,
    /// What is wrong with it, if anything.
    pub ailment: Option<Ailment>,
}

/// Everything that a run depends on.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// The seed that it was drawn from.
    pub seed: u64,
    /// Payload of a block in bytes.
    pub block_bytes: u16,
    /// Length of each object in bytes.
    pub object_bytes: Vec<u32>,
    /// Number of head objects, which are sent first.
    pub heads: u64,
    /// Maximum rate of the server.
    pub bits_per_second: u64,
    /// Its minimum rate.
    pub floor_bits_per_second: u64,
    /// Rate with which the server starts its search for the rate that the network can carry.
    pub initial_bits_per_second: u64,
    /// The server's memory for objects.
    pub cache_bytes: u64,
    /// Maximum time of a read from the repository.
    pub load_time_max: Duration,
    /// The receivers.
    pub hosts: Vec<Host>,
    /// The faults.
    pub events: Vec<Event>,
    /// Percentage of blocks that may be sent although no receiver lacks them, if that cannot be avoided.
    pub waste_percent: u64,
    /// Hosts that ail may make a healthy host take half as long again, and this much longer.
    pub slower_by: Duration,
    /// All receivers must be done by then.
    pub deadline: Instant,
}

impl Scenario {
    /// A scenario with different start times and at least five faults. Every other one has hosts that ail besides.
    #[must_use]
    pub fn mixed(seed: u64) -> Self {
        let mut scenario = Self::sound(seed);
        scenario.ail(&mut Chance::from_seed(seed ^ 0x6d69_7865_6400));
        scenario
    }

    /// [`Self::mixed`] without hosts that ail.
    fn sound(seed: u64) -> Self {
        let mut chance = Chance::from_seed(seed);
        let mut scenario = Self::calm_from(seed, &mut chance);
        let lasts = scenario.transfer_time();
        for host in &mut scenario.hosts {
            host.starts = Instant::ZERO + part(&mut chance, lasts);
            host.link.loss_per_million = pick(&mut chance, &[0, 0, 1000, 10_000, 30_000]);
            host.link.jitter = Duration::from_micros(pick(&mut chance, &[0, 0, 50, 1000]));
        }
        let count = 5 + chance.below(8);
        let mut servers_crash = 0;
        while scenario.events.iter().filter(|event| event.fault.is_plain()).count() as u64 != count {
            let fault = scenario.fault(&mut chance);
            servers_crash += u32::from(fault == Fault::ServerCrash);
            if fault != Fault::ServerCrash || servers_crash < 3 {
                let at = Instant::ZERO + part(&mut chance, lasts * 3 / 2);
                let lasts = Duration::from_millis(5) + part(&mut chance, Duration::from_millis(800));
                scenario.events.push(Event { at, lasts, fault });
            }
        }
        scenario.deadline = Instant::ZERO + lasts * 40 + Duration::from_secs(60);
        scenario
    }

    /// Like [`Self::mixed`], with some of these added: heavy loss on every link, starts spread evenly over one
    /// transfer, ports with a tenth of the server's rate, and objects as long as real sessions have.
    #[must_use]
    pub fn harsh(seed: u64) -> Self {
        let mut scenario = Self::sound(seed);
        let mut chance = Chance::from_seed(seed ^ 0x6861_7273_6800);
        if chance.hits(300_000) {
            scenario.lengthen(&mut chance);
        }
        let lasts = scenario.transfer_time();
        let hosts = scenario.hosts.len() as u32;
        let loss_per_million = pick(&mut chance, &[10_000, 100_000, 100_000, 300_000]);
        let (is_spread, slow) = (chance.hits(500_000), pick(&mut chance, &[0, 0, 1, 1, 2]));
        for (index, host) in (0..).zip(&mut scenario.hosts) {
            if chance.hits(700_000) {
                host.link.loss_per_million = loss_per_million;
            }
            if is_spread {
                host.starts = Instant::ZERO + lasts / hosts * index;
            }
            if index < slow {
                host.link.bits_per_second = scenario.bits_per_second / 10;
                host.link.queue_bytes = 8 << 10;
            }
        }
        // Small buffers refuse long objects; those are then sent again completely, also to receivers that already
        // have half of them.
        scenario.waste_percent = 5;
        scenario.deadline = Instant::ZERO + lasts * 80 + Duration::from_secs(60);
        scenario.ail(&mut Chance::from_seed(seed ^ 0x6861_7273_6801));
        scenario
    }

    /// A fast network without loss, two to six healthy hosts that start within 50 ms, and one to three hosts that are
    /// deaf, silent or dead, most of which start before the others.
    #[must_use]
    pub fn ailing(seed: u64) -> Self {
        let mut chance = Chance::from_seed(seed ^ 0x6169_6c69_6e67);
        let bits_per_second = pick(&mut chance, &[20_000_000, 100_000_000]);
        let image_bytes = bits_per_second / 8 * (1 + chance.below(3));
        let healthy = 2 + chance.below(5) as usize;
        let round_trip = Duration::from_micros(100 + chance.below(2000));
        let mut scenario = Self::plain(image_bytes, healthy, bits_per_second, round_trip);
        scenario.seed = seed;
        scenario.initial_bits_per_second = pick(&mut chance, &[bits_per_second / 4, bits_per_second * 5 / 2]);
        scenario.floor_bits_per_second = bits_per_second / 100;
        let late = pick(&mut chance, &[0, 2, 6, 9]);
        for host in &mut scenario.hosts {
            host.link.bits_per_second = bits_per_second;
            host.starts =
                Instant::ZERO + Duration::from_secs(late) + part(&mut chance, Duration::from_millis(50));
        }
        let sound = scenario.hosts[0].clone();
        scenario.add_ailing(&mut chance, &sound, Duration::from_secs(late + 1));
        scenario.waste_percent = 10;
        scenario
    }

    /// Gives half of the scenarios hosts that ail from the start. In the others the checkers see more: what is sent for
    /// a host that is dead or deaf is never useless.
    fn ail(&mut self, chance: &mut Chance) {
        // These images take 10 to 500 ms, so that 150 ms, for which those that are silent count, are much.
        self.slower_by = Duration::from_millis(300);
        if chance.hits(500_000) {
            let link = Link::new(Duration::from_millis(1), self.bits_per_second * 2, 256 << 10);
            let disk_bytes_per_second = self.bits_per_second / 2;
            let sound = Host { link, disk_bytes_per_second, ..self.hosts[0].clone() };
            let lasts = self.transfer_time();
            self.add_ailing(chance, &sound, lasts);
        }
    }

    /// Adds one to three hosts that are like `sound`, but deaf, silent or dead, and start within `over`.
    fn add_ailing(&mut self, chance: &mut Chance, sound: &Host, over: Duration) {
        for _ in 0..1 + chance.below(3) {
            let ailment = Some(match chance.below(3) {
                0 => Ailment::Deaf,
                1 => Ailment::Silent { admissions: 1 + chance.below(1000) as u32 },
                _ => Ailment::Dead { after: part(chance, Duration::from_secs(2)) },
            });
            let starts = Instant::ZERO + part(chance, over);
            self.hosts.push(Host { starts, ailment, ..sound.clone() });
        }
    }

    /// The same without the hosts that have an ailment.
    #[must_use]
    pub fn healthy(&self) -> Self {
        let mut scenario = self.clone();
        scenario.hosts.retain(|host| host.ailment.is_none());
        scenario
    }

    /// The image and receivers of [`Self::mixed`] without faults; all receivers start at the same time.
    #[must_use]
    pub fn calm(seed: u64) -> Self {
        Self::calm_from(seed, &mut Chance::from_seed(seed))
    }

    /// A fast network without faults: objects of the usual length of encoded chunks, full Ethernet packets, links
    /// twice as fast as the server, fast disks.
    #[must_use]
    pub fn plain(image_bytes: u64, hosts: usize, bits_per_second: u64, round_trip: Duration) -> Self {
        const OBJECT_BYTES: u64 = 90_000;
        let host = Host {
            starts: Instant::ZERO,
            link: Link::new(round_trip / 2, bits_per_second * 2, 256 << 10),
            disk_bytes_per_second: 4_000_000_000,
            buffer_bytes: 64 << 20,
            ailment: None,
        };
        let objects = image_bytes.div_ceil(OBJECT_BYTES);
        Self {
            seed: 1,
            block_bytes: 1424,
            object_bytes: vec![OBJECT_BYTES as u32; objects as usize],
            heads: objects.div_ceil(256),
            bits_per_second,
            floor_bits_per_second: bits_per_second / 10,
            initial_bits_per_second: bits_per_second,
            cache_bytes: 64 << 20,
            load_time_max: Duration::from_micros(200),
            hosts: vec![host; hosts],
            events: Vec::new(),
            waste_percent: 0,
            slower_by: Duration::ZERO,
            deadline: Instant::ZERO + Duration::from_secs(60),
        }
    }

    /// Limits of the server's rate.
    #[must_use]
    pub const fn rate(&self) -> RateConfig {
        let (initial, ceiling) = (self.initial_bits_per_second, self.bits_per_second);
        RateConfig { initial, floor: self.floor_bits_per_second, ceiling }
    }

    /// Time in which the server can send the image once.
    #[must_use]
    pub fn transfer_time(&self) -> Duration {
        let headers = 48 + OVERHEAD_BYTES;
        let per_block = u64::from(self.block_bytes) + u64::from(headers);
        let blocks: u64 = self
            .object_bytes
            .iter()
            .map(|&bytes| u64::from(bytes.div_ceil(self.block_bytes.into()).max(1)))
            .sum();
        Duration::from_nanos(blocks * per_block * 8_000_000_000 / self.bits_per_second)
    }

    fn calm_from(seed: u64, chance: &mut Chance) -> Self {
        let block_bytes = 512;
        let objects = 2 + chance.below(120);
        let blocks_max = 1 + chance.below(16);
        let longest = blocks_max * u64::from(block_bytes);
        let object_bytes: Vec<u32> = (0..objects).map(|_| chance.below(longest + 1) as u32).collect();
        let image_bytes: u64 = object_bytes.iter().map(|&bytes| u64::from(bytes)).sum();
        let bits_per_second = 2_000_000 << chance.below(5);
        let most = pick(chance, &[4, 8, 16, 32, 64, 64]);
        let hosts = 1 + chance.below(most);
        let hosts: Vec<Host> = (0..hosts)
            .map(|_| Host {
                starts: Instant::ZERO,
                link: Link::new(
                    Duration::from_micros(20 + chance.below(10_000)),
                    bits_per_second * 2,
                    256 << 10,
                ),
                disk_bytes_per_second: bits_per_second / 8 * (1 + chance.below(4)),
                buffer_bytes: longest * 2 + chance.below(image_bytes + 1),
                ailment: None,
            })
            .collect();
        Self {
            seed,
            block_bytes,
            heads: objects.div_ceil(20),
            bits_per_second,
            floor_bits_per_second: bits_per_second / 10,
            initial_bits_per_second: bits_per_second / 4,
            cache_bytes: longest * 4 + chance.below(image_bytes + 1),
            load_time_max: Duration::from_micros(chance.below(2000)),
            hosts,
            events: Vec::new(),
            object_bytes,
            waste_percent: 0,
            slower_by: Duration::ZERO,
            deadline: Instant::ZERO + Duration::from_secs(60),
        }
    }

    /// Makes a few objects 60 to 256 blocks long, and the buffers larger by two to four of these.
    fn lengthen(&mut self, chance: &mut Chance) {
        let longest = 256 * u32::from(self.block_bytes);
        for bytes in self.object_bytes.iter_mut().take(6) {
            *bytes = longest - chance.below(u64::from(longest) * 3 / 4) as u32;
        }
        self.cache_bytes += u64::from(longest) * 4;
        self.hosts.iter_mut().for_each(|host| host.buffer_bytes += u64::from(longest) * 2);
    }

    fn fault(&self, chance: &mut Chance) -> Fault {
        let host = chance.below(self.hosts.len() as u64) as usize;
        match chance.below(16) {
            0..=2 => Fault::LossBurst { host, per_million: pick(chance, &[50_000, 300_000, 1_000_000]) },
            3..=5 => Fault::Partition { host },
            6..=8 => Fault::Crash { host },
            9 => Fault::ServerCrash,
            10..=12 => {
                Fault::SlowDisk { host, bytes_per_second: self.bits_per_second / 8 / (2 + chance.below(20)) }
            }
            13 => Fault::Disorder { host },
            14 => Fault::Lie { object: chance.below(self.object_bytes.len() as u64) },
            _ => Fault::Noise,
        }
    }
}

/// Bytes that Ethernet, IP and UDP add to a packet.
pub(crate) const OVERHEAD_BYTES: u16 = 42;

fn pick<T: Copy>(chance: &mut Chance, from: &[T]) -> T {
    from[chance.below(from.len() as u64) as usize]
}

fn part(chance: &mut Chance, of: Duration) -> Duration {
    Duration::from_nanos(chance.below(of.as_nanos() as u64))
}
