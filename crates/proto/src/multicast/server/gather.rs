//! Delays the first block for a short time, so that machines that are switched on together also begin the session
//! together. The server would have to repeat what one of them missed, and the last machine would finish no sooner.
//! Heads wait for a shorter time than other objects: there are few of them, and receivers learn only from them which
//! other objects they need.
//! Source: `formats/multicast.md`, section 6.

use base::{Duration, Instant};

/// How long a session waits for more receivers before its first block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Gathering {
    /// Heads are sent once no receiver joined for this time.
    pub quiet_heads: Duration,
    /// Other objects are sent once no receiver joined for this time.
    pub quiet: Duration,
    /// Both are sent at the latest this long after the first receiver joined.
    pub most: Duration,
}

/// The times from which heads and other objects may be sent.
#[derive(Debug, Default)]
pub(super) struct Gather {
    rule: Gathering,
    latest: Option<Instant>,
    /// The time from which heads may be sent, and whether one was sent.
    heads: (Instant, bool),
    /// The same for other objects.
    others: (Instant, bool),
}

impl Gather {
    pub(super) fn new(rule: Gathering) -> Self {
        Self { rule, ..Self::default() }
    }

    /// A receiver joined. This moves the start only of a class of objects of which nothing was sent.
    pub(super) fn joined(&mut self, now: Instant) {
        let latest = *self.latest.get_or_insert(now + self.rule.most);
        for ((from, went), quiet) in
            [(&mut self.heads, self.rule.quiet_heads), (&mut self.others, self.rule.quiet)]
        {
            if !*went {
                *from = latest.min(now + quiet);
            }
        }
    }

    /// The server begins to send a head (or another object): receivers that join later do not delay this class any
    /// more.
    pub(super) fn goes(&mut self, is_head: bool) {
        let (_, went) = if is_head { &mut self.heads } else { &mut self.others };
        *went = true;
    }

    /// The time from which heads may be sent.
    pub(super) const fn heads_from(&self) -> Instant {
        self.heads.0
    }

    /// The time from which other objects may be sent.
    pub(super) const fn others_from(&self) -> Instant {
        self.others.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn begins_after_silence_or_at_the_latest() {
        let ms = Duration::from_millis;
        let at = |millis| Instant::ZERO + ms(millis);
        let mut gather = Gather::new(Gathering { quiet_heads: ms(10), quiet: ms(30), most: ms(70) });
        assert_eq!((gather.heads_from(), gather.others_from()), (Instant::ZERO, Instant::ZERO));
        for (join, heads, others) in [(100, 110, 130), (120, 130, 150), (145, 155, 170), (165, 170, 170)] {
            gather.joined(at(join));
            assert_eq!(
                (gather.heads_from(), gather.others_from()),
                (at(heads), at(others)),
                "joined at {join} ms"
            );
        }
    }

    #[test]
    fn who_joins_after_the_first_block_is_not_waited_for() {
        let ms = Duration::from_millis;
        let at = |millis| Instant::ZERO + ms(millis);
        let mut gather = Gather::new(Gathering { quiet_heads: ms(10), quiet: ms(30), most: ms(200) });
        gather.joined(at(100));
        gather.goes(true);
        gather.joined(at(120));
        assert_eq!((gather.heads_from(), gather.others_from()), (at(110), at(150)));
        gather.goes(false);
        gather.joined(at(170));
        assert_eq!(gather.others_from(), at(150));
    }
}
