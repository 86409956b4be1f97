//! What happens in a run, drawn from a seed.

use base::{Chance, Duration, Instant};

/// What a member is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Nature {
    Honest,
    /// It serves wrong bytes, this often per million.
    Liar(u32),
    Hostile(Malice),
}

/// What a hostile member does. It holds nothing, and claims to hold everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malice {
    /// It accepts connections, and sends nothing; otherwise it sends wrong bytes.
    pub(super) stalls: bool,
    /// It asks for everything all the time, so that others wait for it.
    pub(super) hoards: bool,
    /// It offers itself and what is not there, with the key that all members have.
    pub(super) forges: bool,
    /// It blames all others.
    pub(super) slanders: bool,
    /// It reports under many names.
    pub(super) floods: bool,
}

/// What becomes of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// Its power fails.
    Dies,
    /// It closes its connections and says so.
    Leaves,
    /// It sends nothing for this time.
    Stalls(Duration),
}

#[derive(Debug, Clone)]
pub(super) struct Someone {
    pub(super) nature: Nature,
    pub(super) starts: Instant,
    pub(super) place: u32,
    pub(super) fate: Option<(Instant, Fate)>,
}

/// One run.
#[derive(Debug, Clone)]
pub struct SwarmScenario {
    pub(super) seed: u64,
    pub(super) objects: u32,
    pub(super) members: Vec<Someone>,
    pub(super) window_objects: u32,
    pub(super) request_objects: u32,
    pub(super) fan_in: usize,
    /// Time of an object on a link.
    pub(super) object_time: Duration,
    pub(super) round_trip: Duration,
    /// Packets are later by up to this.
    pub(super) jitter: Duration,
    pub(super) lost_per_million: u32,
    pub(super) doubled_per_million: u32,
    /// Whether an agent on a switch redirects, too.
    pub(super) agent: bool,
    pub(super) members_max: usize,
    /// When the redirectors lose their tables.
    pub(super) restarts: Vec<Instant>,
}

impl SwarmScenario {
    /// A run with faults; every fourth has none.
    #[must_use]
    pub fn mixed(seed: u64) -> Self {
        let mut chance = Chance::from_seed(seed);
        let calm = chance.below(4) == 0;
        let objects = 20 + chance.below(300) as u32;
        let places = 1 + chance.below(3);
        let spread = [100, 1000, 4000][chance.below(3) as usize];
        let count = 2 + chance.below(10);
        let members = (0..count).map(|_| someone(&mut chance, calm, spread, places)).collect();
        let faults = if calm { 0 } else { chance.below(3) as u32 };
        let request_objects = 2 + chance.below(31) as u32;
        Self {
            seed,
            objects,
            members,
            window_objects: request_objects * 2 + chance.below(60) as u32,
            request_objects,
            fan_in: 1 + chance.below(4) as usize,
            object_time: Duration::from_micros(500 + chance.below(4500)),
            round_trip: Duration::from_micros(100 + chance.below(5000)),
            jitter: Duration::from_millis(if calm { 0 } else { chance.below(60) }),
            lost_per_million: faults * chance.below(150_000) as u32,
            doubled_per_million: faults * chance.below(100_000) as u32,
            agent: chance.below(3) == 0,
            members_max: if chance.below(3) == 0 { 8 } else { 64 },
            restarts: (0..faults).map(|_| at(chance.below(8000))).collect(),
        }
    }

    /// Whether nothing goes wrong.
    pub(super) fn is_calm(&self) -> bool {
        let natures =
            self.members.iter().all(|someone| someone.nature == Nature::Honest && someone.fate.is_none());
        natures
            && self.lost_per_million == 0
            && self.jitter.is_zero()
            && self.restarts.is_empty()
            && self.members_max > self.members.len()
    }
}

fn at(ms: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(ms)
}

fn someone(chance: &mut Chance, calm: bool, spread: u64, places: u64) -> Someone {
    let starts = at(chance.below(spread));
    let nature = match chance.below(if calm { 1 } else { 8 }) {
        6 => Nature::Liar([1_000_000, 50_000][chance.below(2) as usize]),
        7 => {
            let mut flag = || chance.below(2) == 0;
            Nature::Hostile(Malice {
                stalls: flag(),
                hoards: flag(),
                forges: flag(),
                slanders: flag(),
                floods: flag(),
            })
        }
        _ => Nature::Honest,
    };
    let fate = match chance.below(if calm { 1 } else { 8 }) {
        5 => Some(Fate::Dies),
        6 => Some(Fate::Leaves),
        7 => Some(Fate::Stalls(Duration::from_millis(chance.below(10_000)))),
        _ => None,
    };
    let fate = fate.map(|fate| (starts + Duration::from_millis(chance.below(4000)), fate));
    Someone { nature, starts, place: 1 + chance.below(places) as u32, fate }
}
