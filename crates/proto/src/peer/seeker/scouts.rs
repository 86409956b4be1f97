//! What others got meanwhile. While the server still has enough to send to this member, it asks at the places where the
//! others began: only for what a member has by now. So members give each other what they have while the server sends
//! to all of them, and not only when it has sent everything once.

use base::{Duration, Instant};

/// So many shares are looked at first, and most of them.
const SHARES: usize = 8;
const SHARES_MAX: usize = 32;
/// A share where nobody has anything new is looked at again after this time; doubled each time, up to the second.
const AGAIN_MIN: Duration = Duration::from_millis(25);
const AGAIN_MAX: Duration = Duration::from_millis(1600);
/// For how long the word counts that others lack the same.
const CROWDED_FOR: Duration = Duration::from_secs(1);

/// The place where the member of a rank began.
#[derive(Debug, Clone, Copy)]
pub(super) struct Share {
    pub(super) rank: u32,
    /// Where the next request is looked for; `None` at the beginning of the share.
    pub(super) cursor: Option<u32>,
    /// It is not looked at before this.
    not_before: Instant,
    again: Duration,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Scouts {
    /// Those of the nearest ranks: who joined at about the same time.
    shares: Vec<Share>,
    next: usize,
    crowded_at: Option<Instant>,
}

impl Scouts {
    /// The redirector says that others lack the same, or that nobody does.
    pub(super) fn hear(&mut self, now: Instant, others: bool) {
        self.crowded_at = others.then_some(now);
    }

    /// Whether others fetch the same now.
    pub(super) fn is_crowded(&self, now: Instant) -> bool {
        self.crowded_at.is_some_and(|at| now.since(at) < CROWDED_FOR)
    }

    /// The shares that may be looked at, in turn, for the member of rank `own`.
    pub(super) fn open(&mut self, now: Instant, own: u32) -> Vec<usize> {
        if self.shares.is_empty() {
            self.grow(SHARES, own);
        }
        let len = self.shares.len();
        let turns = (0..len).map(|step| (self.next + step) % len);
        turns.filter(|&share| self.shares[share].not_before <= now).collect()
    }

    /// The nearest ranks above and below the own one, so many together.
    fn grow(&mut self, most: usize, own: u32) {
        let near = (1..).flat_map(|far| [own.checked_add(far), own.checked_sub(far)]);
        let ranks = near.flatten().take(most.min(SHARES_MAX)).skip(self.shares.len());
        let share = |rank| Share { rank, cursor: None, not_before: Instant::ZERO, again: AGAIN_MIN };
        self.shares.extend(ranks.map(share));
    }

    pub(super) fn share(&mut self, share: usize) -> &mut Share {
        &mut self.shares[share]
    }

    /// A request goes to this share.
    pub(super) fn asked(&mut self, share: usize) {
        self.next = share + 1;
    }

    /// Somebody has something there.
    pub(super) fn found(&mut self, share: usize, own: u32) {
        self.shares[share].again = AGAIN_MIN;
        let len = self.shares.len();
        if share >= len / 2 {
            self.grow(2 * len, own);
        }
    }

    /// Nobody has, of this batch. Of several requests to a share that find nothing the first counts.
    pub(super) fn missed(&mut self, now: Instant, share: usize, batch: u32) {
        let share = &mut self.shares[share];
        if now < share.not_before {
            return;
        }
        share.not_before = now + share.again;
        share.again = (share.again * 2).min(AGAIN_MAX);
        share.cursor = Some(batch);
    }

    /// When the next share may be looked at again.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        let crowded = self.is_crowded(now);
        self.shares.iter().filter(|_| crowded).map(|share| share.not_before).filter(|at| *at > now).min()
    }
}
