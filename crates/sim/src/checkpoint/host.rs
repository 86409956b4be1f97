//! A program that runs on a host for one round, and the disk that it freezes.

use base::{Chance, Duration, Instant};
use proto::checkpoint::{Order, Said};

/// A disk that is kept frozen for longer than the freeze may take goes on when nothing was heard for this time.
pub(super) const UNHEARD_MAX: Duration = Duration::from_secs(30);

/// A step of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Prepare,
    Freeze,
    Store,
}

impl Step {
    fn draw(chance: &mut Chance) -> Self {
        [Self::Prepare, Self::Freeze, Self::Store][chance.below(3) as usize]
    }
}

/// What a host does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Good,
    /// Nobody answers.
    Dead,
    /// It says that it can't be frozen.
    Refuses,
    /// It takes longer to freeze than it may.
    Slow,
    /// It is lost in this step, of the first rounds up to this one.
    Dies(Step, u32),
    /// It is silent from this step on. What it would have said comes when it was ended.
    Hangs(Step, u32),
    /// It lives, and never ends to store.
    Stands,
    /// It says anything at any time.
    Lies,
}

impl Kind {
    pub(super) fn draw(chance: &mut Chance) -> Self {
        let last = [1, 1, u32::MAX][chance.below(3) as usize];
        match chance.below(9) {
            0 => Self::Dead,
            1 => Self::Refuses,
            2 => Self::Slow,
            3 | 4 => Self::Dies(Step::draw(chance), last),
            5 | 6 => Self::Hangs(Step::draw(chance), last),
            7 => Self::Stands,
            _ => Self::Lies,
        }
    }

    /// Whether it does what it is told in this round.
    pub(super) fn is_good_in(self, round: u32) -> bool {
        match self {
            Self::Good => true,
            Self::Dies(_, last) | Self::Hangs(_, last) => round > last,
            _ => false,
        }
    }
}

/// What happens at a host later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Later {
    Step(Step),
    /// The time for which it may be frozen without a word of the deployment is over.
    Bound,
    Alive,
    /// What a liar says.
    Lie(Said),
}

/// What a host does at once: words, and what happens later.
#[derive(Debug, Default)]
pub(super) struct Doing {
    pub said: Vec<Said>,
    pub later: Vec<(Duration, Later)>,
}

/// A program and its disk.
#[derive(Debug, Clone)]
pub(super) struct Program {
    pub kind: Kind,
    pub round: u32,
    suspends: bool,
    bound: Duration,
    /// Since when the disk is frozen.
    pub frozen: Option<Instant>,
    /// Since when it was frozen at the moment of its version, and when it went on.
    pub moment: Option<(Instant, Instant)>,
    /// Whether its version is in the repository.
    pub stored: bool,
    /// Whether its machine has ended for good.
    pub ended: bool,
    /// Whether it does not hear and say anything any more.
    pub is_silent: bool,
    heard: Instant,
    /// Whether it has given up, or was told to.
    failed: bool,
    kept: bool,
    /// The longest time that it was frozen.
    pub longest: Duration,
}

impl Program {
    pub(super) fn new(
        kind: Kind,
        round: u32,
        (suspends, bound): (bool, Duration),
        now: Instant,
        chance: &mut Chance,
    ) -> (Self, Doing) {
        let program = Self {
            kind,
            round,
            suspends,
            bound,
            frozen: None,
            moment: None,
            stored: false,
            ended: false,
            is_silent: false,
            heard: now,
            failed: false,
            kept: false,
            longest: Duration::ZERO,
        };
        let mut doing = Doing::default();
        match kind {
            Kind::Dead => {}
            Kind::Lies => {
                for _ in 0..1 + chance.below(6) {
                    let said = [Said::Alive, Said::Prepared, Said::Frozen, Said::Stored, Said::Ended];
                    let said = said[chance.below(5) as usize].clone();
                    doing.later.push((Duration::from_millis(chance.below(9000)), Later::Lie(said)));
                }
            }
            _ => doing
                .later
                .push((Duration::from_millis(100 + chance.below(3000)), Later::Step(Step::Prepare))),
        }
        doing.later.push((Duration::from_secs(2), Later::Alive));
        (program, doing)
    }

    fn fails_at(&self, step: Step) -> bool {
        match self.kind {
            Kind::Dies(at, last) | Kind::Hangs(at, last) => at == step && self.round <= last,
            _ => false,
        }
    }

    /// The disk goes on.
    pub(super) fn thaw(&mut self, now: Instant) {
        if let Some(since) = self.frozen.take() {
            self.longest = self.longest.max(now.since(since));
            if let Some(moment) = &mut self.moment {
                moment.1 = now;
            }
        }
    }

    fn fail(&mut self, again: bool, now: Instant) -> Doing {
        self.thaw(now);
        self.failed = true;
        let said = Said::Failed { why: "it can't".to_owned(), again };
        Doing { said: vec![said], later: vec![] }
    }

    /// An order arrives.
    pub(super) fn told(&mut self, order: Order, now: Instant, chance: &mut Chance) -> Doing {
        self.heard = now;
        if self.failed || self.kind == Kind::Lies {
            return Doing::default();
        }
        let in_time =
            |time: u64, then| Doing { said: vec![], later: vec![(Duration::from_millis(time), then)] };
        match order {
            Order::Freeze if self.kind == Kind::Refuses => self.fail(false, now),
            Order::Freeze => {
                let time = if self.kind == Kind::Slow { 20_000 } else { 10 + chance.below(1500) };
                let mut doing = in_time(time, Later::Step(Step::Freeze));
                doing.later.push((self.bound, Later::Bound));
                doing
            }
            Order::GoOn => {
                let Some(since) = self.frozen else { return Doing::default() };
                self.moment = Some((since, Instant(u64::MAX)));
                self.kept = self.suspends;
                if !self.suspends {
                    self.thaw(now);
                }
                if self.kind == Kind::Stands {
                    return Doing::default();
                }
                in_time(500 + chance.below(8000), Later::Step(Step::Store))
            }
            Order::Finish => {
                self.ended = self.suspends && self.frozen.is_some();
                let was = self.frozen;
                self.thaw(now);
                if self.suspends && was.is_none() {
                    return self.fail(true, now);
                }
                Doing { said: vec![Said::Ended], later: vec![] }
            }
        }
    }

    /// Something happens at the host.
    pub(super) fn happens(&mut self, later: Later, now: Instant) -> Doing {
        let says = |said: Said| Doing { said: vec![said], later: vec![] };
        if self.failed || self.ended {
            return Doing::default();
        }
        match later {
            Later::Lie(said) => says(said),
            Later::Alive => {
                // The deployment, too, says that it lives, as long as it does.
                Doing { said: vec![Said::Alive], later: vec![(Duration::from_secs(2), Later::Alive)] }
            }
            Later::Bound if self.kept => {
                let left = (self.heard + UNHEARD_MAX).since(now);
                match (self.frozen, left.is_zero()) {
                    (None, _) => Doing::default(),
                    (Some(_), true) => self.fail(true, now),
                    (Some(_), false) => Doing { said: vec![], later: vec![(left, Later::Bound)] },
                }
            }
            // Frozen, or on the way there: whatever becomes of it, it goes on.
            Later::Bound if self.moment.is_none() => self.fail(true, now),
            Later::Bound => Doing::default(),
            Later::Step(step) => {
                if self.fails_at(step) {
                    self.is_silent = true;
                }
                self.steps(step, now)
            }
        }
    }

    fn steps(&mut self, step: Step, now: Instant) -> Doing {
        let said = match step {
            Step::Prepare => Said::Prepared,
            Step::Freeze => {
                self.frozen = Some(now);
                Said::Frozen
            }
            Step::Store => {
                self.stored = true;
                Said::Stored
            }
        };
        Doing { said: vec![said], later: vec![] }
    }

    /// The deployment is heard of.
    pub(super) fn hears(&mut self, now: Instant) {
        self.heard = now;
    }

    /// The way to the deployment has ended.
    pub(super) fn cut(&mut self, now: Instant) -> Doing {
        if self.failed || self.ended {
            return Doing::default();
        }
        self.fail(true, now)
    }
}
