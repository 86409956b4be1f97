//! What a host does with an attempt.

use base::{Chance, Digest, Duration};
use proto::deploy::Said;

use super::ROOT;

/// Bytes of the image.
const IMAGE: u64 = 1 << 30;

/// What becomes of attempts at a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// So many fail, then they work.
    Works { after: u32 },
    /// Nobody answers.
    Dead,
    /// It has no room, and says so.
    Refuses,
    /// It is silent from some moment on.
    Hangs,
    /// It says that it lives, and gets no further.
    Stands,
    /// It says what cannot be, and that it has another version.
    Lies,
    /// The first attempt hangs; its words come when it was given up, and the second works.
    ComesBack,
}

impl Kind {
    pub(super) const GOOD: Self = Self::Works { after: 0 };

    pub(super) fn draw(chance: &mut Chance) -> Self {
        match chance.below(12) {
            0..4 => Self::GOOD,
            4 | 5 => Self::Works { after: 1 + chance.below(3) as u32 },
            6 => Self::Dead,
            7 => Self::Refuses,
            8 => Self::Hangs,
            9 => Self::Stands,
            10 => Self::Lies,
            _ => Self::ComesBack,
        }
    }

    /// The number of the attempt that works, if one does.
    pub(super) fn works_at(self) -> Option<u32> {
        match self {
            Self::Works { after } => Some(after + 1),
            Self::ComesBack => Some(2),
            _ => None,
        }
    }
}

/// The words of an attempt, each with the time since its beginning. The last one ends it, unless it hangs.
#[derive(Debug, Default)]
pub(super) struct Script {
    pub words: Vec<(Duration, Said)>,
    /// What comes after it was given up, though it has ended: since that moment.
    pub late: Vec<(Duration, Said)>,
}

fn failed(why: &str, again: bool) -> Said {
    Said::Failed { why: why.to_owned(), again }
}

/// What attempt `attempt` says.
pub(super) fn script(kind: Kind, attempt: u32, chance: &mut Chance) -> Script {
    let ms = Duration::from_millis;
    let begins = ms(200 + chance.below(800));
    let words = match kind {
        Kind::Works { after } if attempt <= after => {
            vec![(begins, Said::Alive), (ms(4000), failed("lost it", true))]
        }
        Kind::Works { .. } => transfer(begins, 10, chance),
        Kind::ComesBack if attempt > 1 => transfer(begins, 10, chance),
        Kind::Dead => vec![(ms(10_000), failed("no route", true))],
        Kind::Refuses => vec![(begins, failed("no room", false))],
        Kind::Hangs => {
            let all = transfer(begins, 10, chance);
            let some = chance.below(all.len() as u64) as usize;
            all.into_iter().take(some).collect()
        }
        Kind::Stands => (0..400).map(|second| (ms(1000 * second), Said::Alive)).collect(),
        Kind::Lies => lies(begins, chance),
        Kind::ComesBack => {
            let late = vec![(ms(1), Said::Ready { root: ROOT }), (ms(2500), Said::Ready { root: ROOT })];
            return Script { words: vec![(begins, Said::Alive)], late };
        }
    };
    Script { words, late: vec![] }
}

/// It gets on, at its own rate, is checked and is ready.
fn transfer(begins: Duration, steps: u64, chance: &mut Chance) -> Vec<(Duration, Said)> {
    let each = Duration::from_millis(1000 + chance.below(1500));
    let mut words = vec![(begins, Said::Alive)];
    let mut at = begins;
    for step in [2, 3] {
        for part in 1..=steps {
            at += if step == 2 { each } else { each / 10 };
            words.push((at, Said::Progress { step, done: IMAGE * part / steps, total: IMAGE }));
        }
    }
    words.push((at + Duration::from_millis(1), Said::Ready { root: ROOT }));
    words
}

fn lies(begins: Duration, chance: &mut Chance) -> Vec<(Duration, Said)> {
    let mut at = begins;
    let mut words = Vec::new();
    for _ in 0..10 {
        at += Duration::from_millis(500);
        let (done, total) = (chance.below(u64::MAX), chance.below(2 * IMAGE));
        words.push((at, Said::Progress { step: chance.below(5) as u8, done, total }));
    }
    words.push((at, Said::Ready { root: Digest([1; Digest::BYTES]) }));
    words
}
