//! A short pause before the first block that is not of a head, so that machines which start together begin together. What
//! one of them missed would have to be sent again; the last of them is done at the same time either way. Heads are few, and
//! what else is wanted is known only after them: they do not wait.
//! Source: `formats/multicast.md`, section 6.

use base::{Duration, Instant};

/// How long a session waits for more receivers before its first block besides heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Gathering {
    /// It begins once nobody joined for so long,
    pub quiet: Duration,
    /// and so long after the first receiver joined at the latest.
    pub most: Duration,
}

/// When the first block may go.
#[derive(Debug, Default)]
pub(super) struct Gather {
    rule: Gathering,
    latest: Option<Instant>,
    until: Instant,
    over: bool,
}

impl Gather {
    pub(super) fn new(rule: Gathering) -> Self {
        Self { rule, ..Self::default() }
    }

    /// Somebody joined.
    pub(super) fn joined(&mut self, now: Instant) {
        if self.over {
            return;
        }
        let latest = *self.latest.get_or_insert(now + self.rule.most);
        self.until = latest.min(now + self.rule.quiet);
    }

    /// The first block goes now: whoever joins later is late.
    pub(super) fn end(&mut self) {
        self.over = true;
    }

    pub(super) const fn until(&self) -> Instant {
        self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn begins_after_silence_or_at_the_latest() {
        let ms = Duration::from_millis;
        let mut gather = Gather::new(Gathering { quiet: ms(30), most: ms(70) });
        assert_eq!(gather.until(), Instant::ZERO);
        for (join, until) in [(100, 130), (120, 150), (145, 170), (165, 170)] {
            gather.joined(Instant::ZERO + ms(join));
            assert_eq!(gather.until(), Instant::ZERO + ms(until), "joined at {join} ms");
        }
        gather.end();
        gather.joined(Instant::ZERO + ms(180));
        assert_eq!(gather.until(), Instant::ZERO + ms(170));
    }
}
