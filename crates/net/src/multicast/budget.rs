//! Divides a budget of bits per second among the sessions of a server by max-min fairness: no session gets more while
//! another one that could use it gets less.
//!
//! Each session finds its own rate (`proto`). Every few milliseconds it claims: it reports its rate, and gets its
//! ceiling. The sessions of one interface share the sum of their rates plus an eighth. So they reach equal parts
//! within moments, and together they find the capacity of the link. If the server has a total ceiling, all sessions
//! share that too.
//!
//! A session that has sent much less than its ceiling for half a second is *bound* by something else (its receivers,
//! their links, nothing to send). Then the others get what it does not use. Perhaps the others are what binds it, so
//! its part is offered to it again now and then. A single session without a total ceiling has no ceiling.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use proto::multicast::OwnShare;

use super::link::Link;

/// Time between two claims of a session that sends.
pub(crate) const CLAIM_INTERVAL: Duration = Duration::from_millis(10);
/// The value for no ceiling.
const UNLIMITED: u64 = u64::MAX;
/// The sessions of an interface may send one part in `HEADROOM_PARTS` more than they did.
const HEADROOM_PARTS: u64 = 8;
/// A falling rate is averaged over about this many claims. A rising rate counts at once, so that all sessions can
/// grow.
const SMOOTH_CLAIMS: u64 = 8;
/// A session above its part gives back one part in `RELEASE_PARTS` per claim, so that the others have time to take
/// it.
const RELEASE_PARTS: u64 = 32;
/// A session that sent less than five sixths of its ceiling for this many claims is bound. (If the link binds all
/// sessions, each sends eight ninths of its ceiling.)
const BOUND_CLAIMS: u32 = 50;
/// Unicast gets one part while multicast gets this many: together a sixteenth goes by unicast.
const MULTICAST_PARTS: u64 = 15;
/// A bound session keeps its rate, and one part in `GROWTH_PARTS` more.
const GROWTH_PARTS: u64 = 4;
/// A bound session is offered its full part again after this many claims.
const RETRY_CLAIMS: u32 = 2000;

/// What the sessions of a server may send together, in bits per second.
#[derive(Debug)]
pub struct Budget {
    ceiling: Option<u64>,
    floor: u64,
    claims: Mutex<Claims>,
    /// By the interface's index.
    links: Mutex<HashMap<u32, Link>>,
    /// Bytes of the server's answers by unicast while a session sent.
    answer_bytes: AtomicU64,
}

#[derive(Debug, Default)]
struct Claims {
    next: u64,
    by_session: HashMap<u64, Claim>,
}

/// The state of one session.
#[derive(Debug, Clone, Copy)]
struct Claim {
    /// The interface that it sends on.
    link: u32,
    /// Its smoothed rate; 0 if it has nothing to send.
    rate: u64,
    ceiling: u64,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It can probably use more. `short`: the number of claims in a row in which it used much less than its ceiling.
    Elastic { short: u32 },
    /// Something else binds it; it is offered more after `left` further claims.
    Bound { left: u32 },
}

/// A session's registration in the budget; dropping it ends the registration.
#[derive(Debug)]
pub struct Share {
    budget: Arc<Budget>,
    session: u64,
}

impl Budget {
    /// A budget of `ceiling` bits per second on the wire for all sessions together, or without a total ceiling. A
    /// session that has something to send gets at least `floor`, unless the ceiling is too low for that.
    #[must_use]
    pub fn new(ceiling: Option<u64>, floor: u64) -> Arc<Self> {
        let (claims, links, answer_bytes) = Default::default();
        Arc::new(Self { ceiling, floor, claims, links, answer_bytes })
    }

    /// The ceiling of all sessions together, in bits per second.
    #[must_use]
    pub fn ceiling(&self) -> Option<u64> {
        self.ceiling
    }

    /// The lowest ceiling of a session that has something to send, in bits per second, unless the total ceiling is
    /// too low.
    #[must_use]
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// The present rate of all sessions together, in bits per second; 0 if none has anything to send.
    #[must_use]
    pub fn rate(&self) -> u64 {
        self.lock().by_session.values().map(|claim| claim.rate).sum()
    }

    /// What the server may answer to receivers by unicast, in bits per second, while sessions send: a part of what they
    /// send, and more while that costs them nothing.
    #[must_use]
    pub fn answer_rate(&self) -> u64 {
        let links = self.links.lock();
        let times = links.values().filter_map(Link::answer_times).min().unwrap_or(1);
        (self.rate() / MULTICAST_PARTS).saturating_mul(times)
    }

    /// Counts `bytes` that the server sends as an answer by unicast.
    pub fn count_answer(&self, bytes: u64) {
        self.answer_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Registers a session on the interface with index `link`. It has nothing to send yet.
    #[must_use]
    pub fn register(self: &Arc<Self>, link: u32) -> Share {
        let mut claims = self.lock();
        let session = claims.next;
        claims.next += 1;
        let state = State::Elastic { short: 0 };
        claims.by_session.insert(session, Claim { link, rate: 0, ceiling: UNLIMITED, state });
        Share { budget: Arc::clone(self), session }
    }

    fn lock(&self) -> MutexGuard<'_, Claims> {
        self.claims.lock()
    }
}

impl Share {
    /// Reports the session's rate since the last call, in bits per second (0 if it has nothing to send), and returns
    /// its ceiling.
    pub fn claim(&self, rate: u64) -> u64 {
        let budget = &self.budget;
        let mut claims = budget.lock();
        let Some(mut claim) = claims.by_session.get(&self.session).copied() else { return UNLIMITED };
        claim.take(rate);
        let others = || claims.by_session.iter().filter(|(other, _)| **other != self.session);
        let of_all = budget.ceiling.map_or(UNLIMITED, |total| {
            fair_share(total, others().map(|(_, other)| other.wants(budget.floor)))
        });
        let beside =
            || others().map(|(_, other)| other).filter(|other| other.link == claim.link && other.rate > 0);
        let of_link = if rate > 0 && beside().next().is_some() {
            let sum = claim.rate + beside().map(|other| other.rate).sum::<u64>();
            let part =
                fair_share(sum + sum / HEADROOM_PARTS, beside().map(|other| other.wants(budget.floor)));
            let before = claim.ceiling.min(claim.rate + claim.rate / HEADROOM_PARTS);
            part.max(before - before / RELEASE_PARTS).max(budget.floor)
        } else {
            UNLIMITED
        };
        claim.ceiling = of_all.min(of_link).max(1);
        claims.by_session.insert(self.session, claim);
        claim.ceiling
    }
}

/// What a session is to take of its own interface, and to leave of it.
#[derive(Debug, Default)]
pub(super) struct OfLink {
    /// What it is to take; `None` if the interface is not known to be the limit, or nobody else uses it.
    pub(super) share: Option<OwnShare>,
    /// Bytes on the wire for which it is to leave room now: the server's answers by unicast.
    pub(super) due_bytes: u64,
}

impl Share {
    /// Counts `sent_bytes` that the session has sent since the last call, headers included, and returns its part of its
    /// own interface.
    pub(super) fn of_own_link(&self, sent_bytes: u64) -> OfLink {
        let (link, sessions) = {
            let claims = self.budget.lock();
            let Some(claim) = claims.by_session.get(&self.session) else { return OfLink::default() };
            let link = claim.link;
            let sends = |claim: &&Claim| claim.link == link && claim.rate > 0;
            (link, claims.by_session.values().filter(sends).count() as u64)
        };
        let (answer_bytes, allowed) =
            (self.budget.answer_bytes.load(Ordering::Relaxed), self.budget.answer_rate());
        let mut links = self.budget.links.lock();
        let state = links.entry(link).or_insert_with(|| Link::new(link));
        state.look(sent_bytes, answer_bytes, allowed);
        let share = state.share().map(|share| OwnShare { rate: share.rate / sessions.max(1), ..share });
        OfLink { share, due_bytes: state.due(answer_bytes) }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.lock().by_session.remove(&self.session);
    }
}

impl Claim {
    fn take(&mut self, rate: u64) {
        if rate == 0 || self.rate == 0 {
            (self.rate, self.state) = (rate, State::Elastic { short: 0 });
            return;
        }
        self.rate = rate.max(self.rate - self.rate / SMOOTH_CLAIMS + rate / SMOOTH_CLAIMS);
        let is_short = self.rate < self.ceiling / 6 * 5;
        self.state = match self.state {
            _ if !is_short => State::Elastic { short: 0 },
            State::Elastic { short } if short >= BOUND_CLAIMS => State::Bound { left: RETRY_CLAIMS },
            State::Elastic { short } => State::Elastic { short: short + 1 },
            State::Bound { left: 0 } => State::Elastic { short: 0 },
            State::Bound { left } => State::Bound { left: left - 1 },
        };
    }

    /// The rate that the session could use.
    fn wants(&self, floor: u64) -> u64 {
        match self.state {
            _ if self.rate == 0 => floor,
            State::Bound { .. } => (self.rate + self.rate / GROWTH_PARTS).max(floor),
            State::Elastic { .. } => UNLIMITED,
        }
    }
}

/// The part of `total` for one more session next to sessions that want `wants`: the smallest wants are met first, and
/// the rest is divided equally. It may be more than this session wants, so that it can grow at once; the others get
/// less with their next claims.
fn fair_share(total: u64, wants: impl Iterator<Item = u64>) -> u64 {
    let mut others: Vec<u64> = wants.collect();
    others.sort_unstable();
    let (mut left, mut claimants) = (total, others.len() as u64 + 1);
    for wants in others {
        if wants >= left / claimants {
            break;
        }
        left -= wants;
        claimants -= 1;
    }
    left / claimants
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TOTAL: u64 = 1_000_000_000;
    const FLOOR: u64 = 1_000_000;

    /// Simulates some seconds of claims of sessions that could send at `limits`; `rates` are their rates before and
    /// after.
    fn share_out(shares: &[Share], limits: &[u64], rates: &mut [u64]) {
        for _ in 0..400 {
            for ((share, &limit), rate) in shares.iter().zip(limits).zip(rates.iter_mut()) {
                let ceiling = share.claim((*rate).min(limit));
                // The rate's controller grows by a tenth between two claims.
                *rate = limit.min(*rate + *rate / 10).max(FLOOR.min(limit)).min(ceiling);
            }
        }
    }

    fn shared_out(shares: &[Share], limits: &[u64]) -> Vec<u64> {
        let mut rates = vec![FLOOR; shares.len()];
        share_out(shares, limits, &mut rates);
        rates
    }

    fn shares(count: u32, ceiling: Option<u64>) -> Vec<Share> {
        let budget = Budget::new(ceiling, FLOOR);
        // Each has its own link, so that only the total ceiling matters.
        (0..count).map(|link| budget.register(link)).collect()
    }

    fn is_near(rate: u64, to: u64) -> bool {
        rate.abs_diff(to) <= to / 50
    }

    #[test]
    fn sessions_that_can_use_it_get_equal_parts_of_a_ceiling() {
        assert_eq!(shared_out(&shares(1, Some(TOTAL)), &[u64::MAX]), [TOTAL]);
        assert_eq!(shared_out(&shares(4, Some(TOTAL)), &[u64::MAX; 4]), [TOTAL / 4; 4]);
        assert_eq!(shares(1, None)[0].claim(7), u64::MAX);
    }

    #[test]
    fn what_one_cannot_use_goes_to_the_others() {
        let rates = shared_out(&shares(3, Some(TOTAL)), &[80_000_000, u64::MAX, u64::MAX]);
        assert!(rates[0] == 80_000_000 && is_near(rates[1], 450_000_000) && is_near(rates[2], 450_000_000));
        let idle = shared_out(&shares(2, Some(TOTAL)), &[0, u64::MAX]);
        assert_eq!(idle[1], TOTAL - FLOOR, "who has nothing to send keeps the floor");
    }

    #[test]
    fn who_comes_back_or_leaves_is_noticed() {
        let mut shares = shares(2, Some(TOTAL));
        assert_eq!(shared_out(&shares, &[0, u64::MAX])[1], TOTAL - FLOOR);
        assert_eq!(shares[0].claim(FLOOR), TOTAL / 2, "it may begin with its part at once");
        assert_eq!(shared_out(&shares, &[u64::MAX; 2]), [TOTAL / 2; 2]);
        shares.pop();
        assert_eq!(shared_out(&shares, &[u64::MAX]), [TOTAL]);
    }

    /// Simulates sessions on one link that all cut their rates by a tenth when it is full, and otherwise grow by a
    /// fiftieth. Without the budget their shares would stay unequal.
    fn on_a_link(shares: &[Share], mut rates: Vec<u64>, most: &[u64], claims: u32) -> Vec<u64> {
        for _ in 0..claims {
            let is_full = rates.iter().sum::<u64>() > TOTAL;
            for (index, share) in shares.iter().enumerate() {
                let ceiling = share.claim(rates[index]);
                let next = if is_full { rates[index] / 10 * 9 } else { rates[index] + rates[index] / 50 };
                rates[index] = next.min(ceiling).min(most[index]);
            }
        }
        rates
    }

    #[test]
    fn sessions_of_one_link_come_to_equal_parts_without_any_ceiling() {
        let budget = Budget::new(None, FLOOR);
        let shares: Vec<_> = (0..4).map(|_| budget.register(2)).collect();
        let begin = vec![TOTAL / 2, TOTAL / 4, TOTAL / 8, TOTAL / 8];
        let rates = on_a_link(&shares, begin, &[u64::MAX; 4], 100);
        let (sum, squares) = rates.iter().fold((0f64, 0f64), |(sum, squares), &rate| {
            let rate = f64::from(u32::try_from(rate / 1000).unwrap());
            (sum + rate, squares + rate * rate)
        });
        assert!(sum * sum / 4.0 / squares > 0.97 && sum > 800_000.0, "{rates:?}");
    }

    #[test]
    fn a_session_bound_elsewhere_leaves_its_link_to_the_others() {
        let budget = Budget::new(None, FLOOR);
        let shares: Vec<_> = (0..2).map(|_| budget.register(2)).collect();
        let most = [u64::MAX, 50_000_000];
        let rates = on_a_link(&shares, vec![50_000_000; 2], &most, 600);
        assert!(rates[0] > 800_000_000 && rates[1] >= 45_000_000, "{rates:?}");
    }

    proptest! {
        #[test]
        fn the_ceiling_holds_and_nobody_gets_more_than_one_who_could_use_more(
            limits in prop::collection::vec(FLOOR..2 * TOTAL, 1..12),
        ) {
            let rates = shared_out(&shares(u32::try_from(limits.len()).unwrap(), Some(TOTAL)), &limits);
            let sum: u64 = rates.iter().sum();
            prop_assert!(sum <= TOTAL + TOTAL / 100, "{sum}");
            let wanted: u64 = limits.iter().sum();
            prop_assert!(sum >= wanted.min(TOTAL - TOTAL / 4), "{sum} of {wanted}");
            for (rate, limit) in rates.iter().zip(&limits) {
                let most = rates.iter().max().unwrap();
                prop_assert!(rate == limit || *rate >= most - most / 4, "{rates:?} of {limits:?}");
            }
        }
    }
}
