//! One receiver: its seeker, its connections, what it holds and what it has told.

use std::collections::{HashMap, VecDeque};

use base::{Duration, Instant};
use proto::peer::{Availability, MemberId, Seeker, SeekerConfig};

use super::Grant;
use super::uploads::Uploads;
use crate::peers::Setting;

/// Bytes of objects under way, and of one request.
const WINDOW_BYTES: u64 = 6 << 20;
const REQUEST_BYTES: u64 = 1 << 20;
/// Bounds of the number of objects under way.
const WINDOW_OBJECTS: std::ops::RangeInclusive<u64> = 8..=160;
/// Most members that send at the same time.
const FAN_IN: usize = 4;
/// Most objects that a receiver fetches from the server at the same time, beside a multicast and without.
const BESIDE_AT_ONCE: usize = 2;
const AT_ONCE: usize = 8;
/// Shortest time between two reports of a member, and the part of it for each member of its swarm.
const REPORT: Duration = Duration::from_millis(50);
const REPORT_PER_MEMBER: Duration = Duration::from_micros(200);
/// A member reports after this time, even if nothing has changed.
const REPORT_AT_LEAST: Duration = Duration::from_secs(2);

/// The state of a receiver.
#[derive(Debug)]
pub(super) struct Member {
    /// Once it asks others.
    pub(super) seeker: Option<Seeker>,
    pub(super) rank: u32,
    /// What it waits for in the multicast.
    pub(super) casting: Option<Availability>,
    /// What it holds for others.
    pub(super) held: Availability,
    /// Next object that a report tells about, and how much was held when the last one began.
    pub(super) told: Option<(u32, u32)>,
    pub(super) reported: Instant,
    pub(super) interval: Duration,
    pub(super) uploads: Uploads,
    /// The numbers of its connections to others.
    pub(super) connections: HashMap<MemberId, u64>,
    pub(super) connected: u64,
    /// Objects that the server is to be asked for, and how many it was.
    pub(super) orders: VecDeque<u32>,
    pub(super) ordered: Vec<u32>,
    pub(super) at_once: usize,
    /// Others lacked what nobody held, too, when the redirector last said so.
    pub(super) is_crowded: bool,
    /// When it is woken for its seeker.
    pub(super) wakes: Option<Instant>,
    pub(super) window: u32,
    request: u32,
    /// Whether its memory is smaller than the image.
    pub(super) bounded: bool,
}

impl Member {
    pub(super) fn new(setting: &Setting) -> Self {
        let window =
            (WINDOW_BYTES / setting.chunk_bytes).clamp(*WINDOW_OBJECTS.start(), *WINDOW_OBJECTS.end());
        Self {
            seeker: None,
            rank: 0,
            casting: None,
            held: Availability::none(setting.chunks),
            told: None,
            reported: Instant::ZERO,
            interval: REPORT,
            uploads: Uploads::default(),
            connections: HashMap::new(),
            connected: 0,
            orders: VecDeque::new(),
            ordered: Vec::new(),
            at_once: AT_ONCE,
            is_crowded: false,
            wakes: None,
            window: (window as u32).min(setting.machine.memory_chunks / 2),
            request: (REQUEST_BYTES / setting.chunk_bytes).max(2) as u32,
            bounded: setting.machine.memory_chunks < setting.chunks,
        }
    }

    /// It has joined, and has what `has` says.
    pub(super) fn granted(&mut self, grant: &Grant, has: impl Fn(u32) -> bool) {
        self.rank = grant.rank;
        self.interval = REPORT + REPORT_PER_MEMBER * grant.members;
        if let Some(elsewhere) = &grant.elsewhere {
            let mut waits = Availability::none(self.held.objects());
            let chunks = 0..self.held.objects();
            chunks.filter(|&chunk| !elsewhere.has(chunk.into()) && !has(chunk)).for_each(|chunk| {
                waits.set(chunk.into(), true);
            });
            self.at_once = BESIDE_AT_ONCE;
            self.casting = Some(waits);
        }
    }

    /// Begins to ask others for what it lacks, as `has` says.
    pub(super) fn seek(&mut self, has: impl Fn(u32) -> bool) {
        let config = SeekerConfig {
            objects: self.held.objects(),
            rank: self.rank,
            window_objects: self.window,
            request_objects: self.request,
            fan_in: FAN_IN,
        };
        let mut seeker = Seeker::new(config);
        let lacked = (0..self.held.objects()).filter(|&chunk| !has(chunk));
        lacked.for_each(|chunk| seeker.want(chunk.into()));
        self.seeker = Some(seeker);
    }

    /// When it is to report next.
    pub(super) fn report_at(&self) -> Instant {
        match self.told {
            Some((0, held)) if held == self.held.count() => self.reported + REPORT_AT_LEAST,
            _ => self.reported + self.interval,
        }
    }
}
