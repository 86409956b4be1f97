//! The sessions of a production site, replayed with a policy: seed 004 counted 4,178 server sessions with 18,998
//! clients in 81 days. 67 % of the clients ran concurrently with others for 90 to 100 % of their time. Of the servers
//! with maximal efficiency (the image divided by what was sent) 79.29 % had one client; those with several
//! concurrent clients had 0.53 on average.
//!
//! These are marginals, not sessions. Assumed, so that a replay with [`Kind::Frisbee`] shows about these marginals:
//!
//! - Sessions do not meet: each has a server of its own, as `frisbeed` has. So only starts within a session matter.
//! - The number of clients is 1 for a share of the sessions, otherwise 2 and more, geometrically distributed.
//! - The clients of a session start in one of three ways: at once; each some seconds after the one before
//!   (exponentially distributed); or so far apart that they hardly meet. The shares are the fields of [`Mix`].
//! - Image and machines are those of [`Setting::switch_assisted`]. (The site's own were older and mixed; the log of the
//!   one session that is shown has run times of 36 to 94 s for 709 MB.)
//! - A client of a multicast loses nothing: late starts alone explain the efficiency.

use base::{Chance, Duration, Instant};

use super::swp2p::BATCH_CHUNKS;
use super::{Kind, Outcome, Setting};

/// The distribution of the sessions.
#[derive(Debug, Clone)]
pub struct Mix {
    /// Seed of everything random.
    pub seed: u64,
    /// Number of sessions.
    pub sessions: u32,
    /// Sessions with one client, per thousand.
    pub alone_per_thousand: u32,
    /// Mean number of clients of the others.
    pub clients_mean: f64,
    /// Of the others, per thousand: those whose clients start at once.
    pub at_once_per_thousand: u32,
    /// And those whose clients start far apart.
    pub apart_per_thousand: u32,
    /// Mean time between starts of the remaining ones.
    pub gap: Duration,
    /// Mean time between starts of those far apart.
    pub far_gap: Duration,
}

/// The result of a replay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MixOutcome {
    /// Number of sessions.
    pub sessions: u32,
    /// Number of clients.
    pub clients: u64,
    /// Payload bytes that the servers sent.
    pub server_bytes: u64,
    /// Payload bytes that the clients lacked and received.
    pub received_bytes: u64,
    /// Share of the clients that ran concurrently with others for at least 90 % of their time.
    pub concurrent: f64,
    /// Of the sessions with an efficiency of at least 0.99, the share with one client.
    pub alone_of_efficient: f64,
    /// Mean efficiency of the sessions with several clients that are concurrent for at least 90 % on average.
    pub efficiency: f64,
    /// Mean run time of a client in seconds.
    pub mean_seconds: f64,
}

impl Mix {
    /// The production mix, with `sessions` of its 4,178 sessions.
    #[must_use]
    pub const fn production(sessions: u32) -> Self {
        Self {
            seed: 1,
            sessions,
            alone_per_thousand: 400,
            clients_mean: 6.91,
            at_once_per_thousand: 176,
            apart_per_thousand: 228,
            gap: Duration::from_millis(1600),
            far_gap: Duration::from_secs(30),
        }
    }

    /// The starts of each session's clients.
    #[must_use]
    pub fn draw(&self) -> Vec<Vec<Instant>> {
        let mut chance = Chance::from_seed(self.seed);
        (0..self.sessions).map(|_| self.session(&mut chance)).collect()
    }

    fn session(&self, chance: &mut Chance) -> Vec<Instant> {
        let mut hits = |per_thousand: u32| chance.hits(per_thousand * 1000);
        let (alone, way) = (hits(self.alone_per_thousand), hits(self.at_once_per_thousand));
        let apart = hits(self.apart_per_thousand * 1000 / (1000 - self.at_once_per_thousand));
        // Two, and one more as often as one more than the mean of the rest hits.
        let more_per_million = 1_000_000.0 * (1.0 - 1.0 / (self.clients_mean - 1.0));
        #[expect(clippy::cast_sign_loss, reason = "the mean is at least two")]
        let more_per_million = more_per_million as u32;
        let mut count = if alone { 1 } else { 2 };
        while !alone && chance.hits(more_per_million) {
            count += 1;
        }
        let mean = match (way, apart) {
            (true, _) => Duration::from_millis(1),
            (false, true) => self.far_gap,
            (false, false) => self.gap,
        };
        let mut at = Instant::ZERO;
        let mut next = |_| {
            let start = at;
            at = at + exponential(chance, mean);
            start
        };
        (0..count).map(&mut next).collect()
    }

    /// Replays all sessions with a policy.
    #[must_use]
    pub fn run(&self, kind: Kind) -> MixOutcome {
        let (mut clients, mut concurrent, mut seconds) = (0_u64, 0_u64, 0.0);
        let (mut sent, mut received) = (0, 0);
        let (mut efficient, mut efficient_alone) = (0_u64, 0_u64);
        let (mut shared, mut shared_sum) = (0_u64, 0.0);
        for (number, starts) in (0..).zip(self.draw()) {
            let count = starts.len();
            let setting = Setting { seed: self.seed + number, starts, ..Setting::switch_assisted(count) };
            let outcome = kind.run(&setting, BATCH_CHUNKS);
            let efficiency = 1.0 / outcome.images();
            let concurrency = concurrency(&outcome);
            let mean = concurrency.iter().sum::<f64>() / count as f64;
            clients += count as u64;
            concurrent += concurrency.iter().filter(|&&share| share >= 0.9).count() as u64;
            seconds += outcome.took.iter().flatten().map(|took| took.total.as_secs_f64()).sum::<f64>();
            // Policies may cut the image into chunks of another size.
            let chunk_bytes = u64::from(setting.chunks) * setting.chunk_bytes / u64::from(outcome.chunks);
            sent += outcome.tally.server_chunks * chunk_bytes;
            received += outcome.tally.fresh_chunks * chunk_bytes;
            if efficiency >= 0.99 {
                efficient += 1;
                efficient_alone += u64::from(count == 1);
            }
            if count > 1 && mean >= 0.9 {
                shared += 1;
                shared_sum += efficiency;
            }
        }
        MixOutcome {
            sessions: self.sessions,
            clients,
            server_bytes: sent,
            received_bytes: received,
            concurrent: concurrent as f64 / clients as f64,
            alone_of_efficient: efficient_alone as f64 / efficient as f64,
            efficiency: shared_sum / shared as f64,
            mean_seconds: seconds / clients as f64,
        }
    }
}

/// For each receiver the share of its run time in which another was running, from 0 to 1.
fn concurrency(outcome: &Outcome) -> Vec<f64> {
    let spans: Vec<(f64, f64)> = outcome
        .took
        .iter()
        .flatten()
        .map(|took| (took.started.as_secs_f64(), (took.started + took.total).as_secs_f64()))
        .collect();
    let mut order: Vec<usize> = (0..spans.len()).collect();
    order.sort_by(|&one, &other| spans[one].0.total_cmp(&spans[other].0));
    let share = |of: usize| {
        let (begin, end) = spans[of];
        let (mut covered, mut until) = (0.0, begin);
        for &(other_begin, other_end) in
            order.iter().filter(|&&other| other != of).map(|&other| &spans[other])
        {
            let (from, to) = (other_begin.max(until), other_end.min(end));
            covered += (to - from).max(0.0);
            until = until.max(to);
        }
        covered / (end - begin)
    };
    (0..spans.len()).map(share).collect()
}

/// A time from an exponential distribution.
fn exponential(chance: &mut Chance, mean: Duration) -> Duration {
    let uniform = (chance.below(1 << 53) + 1) as f64 / (1_u64 << 53) as f64;
    mean.mul_f64(-uniform.ln())
}
