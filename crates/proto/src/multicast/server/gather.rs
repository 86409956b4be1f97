//! A short pause before the first block, so that machines which start together begin together. What one of them missed
//! would have to be sent again; the last of them is done at the same time either way. Heads are few, and what else is
//! wanted is known only after them: they wait less.
//! Source: `formats/multicast.md`, section 6.

use base::{Duration, Instant};

/// How long a session waits for more receivers before its first block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Gathering {
    /// The heads begin once nobody joined for so long,
    pub quiet_heads: Duration,
    /// the other objects once nobody joined for so long,
    pub quiet: Duration,
    /// and both so long after the first receiver joined at the latest.
    pub most: Duration,
}

/// When the first blocks may go.
#[derive(Debug, Default)]
pub(super) struct Gather {
    rule: Gathering,
    latest: Option<Instant>,
    /// From when on heads may go, and whether one went.
    heads: (Instant, bool),
    /// The same of other objects.
    others: (Instant, bool),
}

impl Gather {
    pub(super) fn new(rule: Gathering) -> Self {
        Self { rule, ..Self::default() }
    }

    /// Somebody joined.
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

    /// A block goes now: whoever joins later is late.
    pub(super) fn goes(&mut self, is_head: bool) {
        let (_, went) = if is_head { &mut self.heads } else { &mut self.others };
        *went = true;
    }

    /// From when on heads may go.
    pub(super) const fn heads_from(&self) -> Instant {
        self.heads.0
    }

    /// From when on other objects may go.
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
