//! The budget that all sessions of a server share: one ceiling for what they send together, divided so that none gets more
//! while another that could use it gets less (max-min fairness).
//!
//! Each session finds its own rate (`proto`). Every few milliseconds it says what it sends and whether it has something
//! to send, and hears its ceiling. What one cannot use, because its receivers or their links are slower, or because
//! nobody lacks anything at the moment, goes to the others in equal parts. Without a ceiling for all there is none for
//! anybody.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often a session that sends says what it could use.
pub const CLAIM_INTERVAL: Duration = Duration::from_millis(10);
/// No ceiling.
const UNLIMITED: u64 = u64::MAX;
/// A session may grow by so much, as one part in so many, until it is asked again.
const GROWTH_PARTS: u64 = 4;

/// What the sessions of a server may send together.
#[derive(Debug)]
pub struct Budget {
    ceiling: Option<u64>,
    floor: u64,
    claims: Mutex<Claims>,
}

#[derive(Debug, Default)]
struct Claims {
    next: u64,
    by_session: HashMap<u64, Claim>,
}

/// What a session could use, and what it was given.
#[derive(Debug, Clone, Copy)]
struct Claim {
    wants: u64,
    ceiling: u64,
}

/// A session's part in the budget, until it is dropped.
#[derive(Debug)]
pub struct Share {
    budget: Arc<Budget>,
    session: u64,
}

impl Budget {
    /// At most `ceiling` bits per second on the wire for all sessions together, if there is to be one. A session that has
    /// something to send is not asked to make do with less than `floor`, unless the ceiling is too low for that.
    #[must_use]
    pub fn new(ceiling: Option<u64>, floor: u64) -> Arc<Self> {
        Arc::new(Self { ceiling, floor, claims: Mutex::default() })
    }

    /// The ceiling of all sessions together.
    #[must_use]
    pub fn ceiling(&self) -> Option<u64> {
        self.ceiling
    }

    /// What a session that has something to send is given at least, if the ceiling allows.
    #[must_use]
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// One more session, with nothing to send yet.
    #[must_use]
    pub fn register(self: &Arc<Self>) -> Share {
        let mut claims = self.lock();
        let session = claims.next;
        claims.next += 1;
        claims.by_session.insert(session, Claim { wants: self.floor, ceiling: UNLIMITED });
        Share { budget: Arc::clone(self), session }
    }

    fn lock(&self) -> MutexGuard<'_, Claims> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Share {
    /// Says that the session sends at `rate` bits per second (0 if it has nothing to send), and returns its ceiling.
    pub fn claim(&self, rate: u64) -> u64 {
        let Some(total) = self.budget.ceiling else { return UNLIMITED };
        let mut claims = self.budget.lock();
        let last = claims.by_session.get(&self.session).map_or(UNLIMITED, |claim| claim.ceiling);
        // Whoever comes near to its ceiling could use more; nobody knows how much.
        let wants = match rate {
            0 => self.budget.floor,
            _ if rate >= last - last / 8 => UNLIMITED,
            _ => (rate + rate / GROWTH_PARTS).max(self.budget.floor),
        };
        let ceiling = fair_share(total, claims.others(self.session)).max(1);
        claims.by_session.insert(self.session, Claim { wants, ceiling });
        ceiling
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.lock().by_session.remove(&self.session);
    }
}

impl Claims {
    fn others(&self, session: u64) -> impl Iterator<Item = u64> + '_ {
        self.by_session.iter().filter(move |(other, _)| **other != session).map(|(_, claim)| claim.wants)
    }
}

/// What one more may have of `total` beside `others` and what they want: the least wishes are met first, and what is left
/// is divided equally. It may be more than this one wants, so that it can grow at once; the others hear of it the next
/// time that they ask.
fn fair_share(total: u64, others: impl Iterator<Item = u64>) -> u64 {
    let mut others: Vec<u64> = others.collect();
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

    /// What sessions send that could send at `limits`, after some rounds of claims.
    fn settle(shares: &[Share], limits: &[u64]) -> Vec<u64> {
        let mut rates = vec![FLOOR; shares.len()];
        for _ in 0..60 {
            for ((share, &limit), rate) in shares.iter().zip(limits).zip(&mut rates) {
                let ceiling = share.claim((*rate).min(limit));
                // A controller doubles at most until it is asked again.
                *rate = limit.min(*rate * 2).max(FLOOR.min(limit)).min(ceiling);
            }
        }
        rates
    }

    fn shares(count: usize) -> Vec<Share> {
        let budget = Budget::new(Some(TOTAL), FLOOR);
        (0..count).map(|_| budget.register()).collect()
    }

    #[test]
    fn sessions_that_can_use_it_get_equal_parts_of_all() {
        assert_eq!(settle(&shares(1), &[u64::MAX]), [TOTAL]);
        assert_eq!(settle(&shares(4), &[u64::MAX; 4]), [TOTAL / 4; 4]);
        assert_eq!(Budget::new(None, FLOOR).register().claim(7), u64::MAX);
    }

    #[test]
    fn what_one_cannot_use_goes_to_the_others() {
        let rates = settle(&shares(3), &[80_000_000, u64::MAX, u64::MAX]);
        assert_eq!(
            rates,
            [80_000_000, 450_000_000, 450_000_000],
            "its part and a quarter more are kept for the first"
        );
        assert_eq!(
            settle(&shares(2), &[0, u64::MAX])[1],
            TOTAL - FLOOR,
            "who has nothing to send keeps the floor"
        );
    }

    #[test]
    fn who_comes_back_or_leaves_is_noticed() {
        let mut shares = shares(2);
        assert_eq!(settle(&shares, &[0, u64::MAX])[1], TOTAL - FLOOR);
        assert_eq!(shares[0].claim(FLOOR), TOTAL / 2, "it may begin with its part at once");
        assert_eq!(settle(&shares, &[u64::MAX; 2]), [TOTAL / 2; 2]);
        shares.pop();
        assert_eq!(settle(&shares, &[u64::MAX]), [TOTAL]);
    }

    proptest! {
        #[test]
        fn the_ceiling_holds_and_nobody_gets_more_than_one_who_could_use_more(
            limits in prop::collection::vec(FLOOR..2 * TOTAL, 1..12),
        ) {
            let rates = settle(&shares(limits.len()), &limits);
            let sum: u64 = rates.iter().sum();
            prop_assert!(sum <= TOTAL, "{sum}");
            let wanted: u64 = limits.iter().sum();
            prop_assert!(sum >= wanted.min(TOTAL - TOTAL / 5), "{sum} of {wanted}");
            for (rate, limit) in rates.iter().zip(&limits) {
                let most = rates.iter().max().unwrap();
                prop_assert!(rate == limit || *rate >= most - most / 4, "{rates:?} of {limits:?}");
            }
        }
    }
}
