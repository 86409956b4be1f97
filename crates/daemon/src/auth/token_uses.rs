//! Counts the tokens that clients use and finds those that expire soon, for the log and the metrics. A client that
//! renews its token in time stops using the old one before it expires, so the tokens counted as ending belong to
//! clients that will stop working.

use std::collections::HashMap;

use net::token::WARNING_SECONDS;
use parking_lot::Mutex;

use crate::auth::authority::Claims;

/// Maximum number of remembered tokens; further ones are not reported.
const TOKENS_MAX: usize = 4096;
/// A token counts as in use for this many seconds after its last request.
const IN_USE_SECONDS: u64 = 3600;

/// Last use and expiry of each token. Times are seconds since 1970.
#[derive(Default)]
pub(crate) struct TokenUses {
    uses: Mutex<HashMap<blake3::Hash, Use>>,
}

struct Use {
    expires: u64,
    /// It ends soon as it was meant to.
    brief: bool,
    last: u64,
    told: bool,
}

impl TokenUses {
    /// Records that a client used the token of `claims` at `now`. Returns true once for each token that expires
    /// within a day, unless it is a job's.
    pub(crate) fn shown(&self, secret: &str, claims: &Claims, now: u64) -> bool {
        let mut uses = self.uses.lock();
        let name = blake3::hash(secret.as_bytes());
        if uses.len() >= TOKENS_MAX && !uses.contains_key(&name) {
            uses.retain(|_, known| known.last + IN_USE_SECONDS > now && known.expires > now);
            if uses.len() >= TOKENS_MAX {
                return false;
            }
        }
        let Claims { expires, brief, .. } = *claims;
        let known = uses.entry(name).or_insert(Use { expires, brief, last: now, told: false });
        known.last = now;
        known.ends_soon(now) && !std::mem::replace(&mut known.told, true)
    }

    /// Number of tokens in use at `now`, and how many of these expire within a day or have expired. Those of jobs are
    /// not among the latter.
    pub(crate) fn count(&self, now: u64) -> (u64, u64) {
        let uses = self.uses.lock();
        let in_use = || uses.values().filter(|known| known.last + IN_USE_SECONDS > now);
        let ending = in_use().filter(|known| known.ends_soon(now));
        (in_use().count() as u64, ending.count() as u64)
    }
}

impl Use {
    fn ends_soon(&self, now: u64) -> bool {
        !self.brief && self.expires.saturating_sub(now) <= WARNING_SECONDS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::authority::Right;

    #[test]
    fn a_token_that_ends_within_a_day_is_told_of_once_and_counted_while_it_is_used() {
        let uses = TokenUses::default();
        let claims = |expires| Claims::plain(vec!["*".into()], Right::Read, expires);
        let (day, begins) = (WARNING_SECONDS, 1_000_000_000);
        let (long, short) = (claims(begins + 30 * day), claims(begins + 2 * day));
        assert!(!uses.shown("long", &long, begins) && !uses.shown("short", &short, begins));
        assert_eq!(uses.count(begins), (2, 0));
        let later = begins + day;
        assert!(uses.shown("short", &short, later) && !uses.shown("short", &short, later + 1));
        assert!(!uses.shown("long", &long, later));
        assert_eq!(uses.count(later), (2, 1));
        // Of a job's token it is known, however often it is renewed.
        let job = Claims { lasts: Some(3600), brief: true, ..claims(later + 3600) };
        let renewed = job.renewed(later + 1).unwrap();
        assert!(!uses.shown("job", &job, later) && !uses.shown("renewed", &renewed, later + 1));
        assert_eq!(uses.count(later + 1), (4, 1));
        assert_eq!(uses.count(later + 2 * IN_USE_SECONDS), (0, 0), "nobody uses them any more");
        let many = (0..2 * TOKENS_MAX).map(|index| uses.shown(&format!("{index}"), &short, later));
        assert_eq!(many.filter(|told| *told).count(), TOKENS_MAX - 4, "memory is bounded");
    }
}
