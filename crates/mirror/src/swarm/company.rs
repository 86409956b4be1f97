//! Whether a disk asks other machines, or the server at once.
//!
//! A machine that is alone asks the server at once: the redirector would only say that nobody has anything. It learns
//! from the redirector's answers when that changes. A machine whose others are useless leaves them alone for a time.

use std::time::Duration;

use net::peer::News;

/// After so many answers in a row that nobody else is there, a machine is alone.
const ALONE_AFTER: u32 = 4;
/// After so many objects in a row that members did not send in time, they are left alone for [`SHUNNED`].
const OVERDUE_MAX: u32 = 3;
/// Doubled each time, up to `SHUNNED_MAX`, until a member sends something.
const SHUNNED: Duration = Duration::from_secs(5);
const SHUNNED_MAX: Duration = Duration::from_secs(300);

/// See the module. Times count from any moment.
#[derive(Debug)]
pub(super) struct Company {
    alone: bool,
    /// Answers in a row that nobody else is there.
    alone_said: u32,
    /// Objects in a row that did not come in time.
    overdue: u32,
    /// How often members were shunned in a row.
    shunned: u32,
    shunned_until: Duration,
}

impl Company {
    /// Whether others are there is what the server said.
    pub(super) fn new(others: bool) -> Self {
        Self { alone: !others, alone_said: 0, overdue: 0, shunned: 0, shunned_until: Duration::ZERO }
    }

    /// Whether other machines are asked.
    pub(super) fn is_asked(&self, now: Duration) -> bool {
        !self.alone && now >= self.shunned_until
    }

    /// Something was noticed.
    pub(super) fn hear(&mut self, now: Duration, news: News) {
        match news {
            News::Alone => {
                self.alone_said += 1;
                self.alone |= self.alone_said >= ALONE_AFTER;
            }
            News::Others => (self.alone, self.alone_said) = (false, 0),
            News::Deaf => self.alone = true,
            News::Came => (self.overdue, self.shunned) = (0, 0),
            News::Overdue => {
                self.overdue += 1;
                if self.overdue >= OVERDUE_MAX && now >= self.shunned_until {
                    self.overdue = 0;
                    self.shunned_until = now + (SHUNNED * (1 << self.shunned.min(6))).min(SHUNNED_MAX);
                    self.shunned += 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn who_is_alone_asks_nobody_until_somebody_comes() {
        let mut company = Company::new(false);
        assert!(!company.is_asked(at(0)));
        company.hear(at(0), News::Others);
        assert!(company.is_asked(at(0)));
        (0..3).for_each(|_| company.hear(at(1), News::Alone));
        assert!(company.is_asked(at(1)));
        company.hear(at(1), News::Alone);
        assert!(!company.is_asked(at(1)));
        let mut deaf = Company::new(true);
        deaf.hear(at(0), News::Deaf);
        assert!(!deaf.is_asked(at(100)));
    }

    #[test]
    fn members_that_send_nothing_in_time_are_left_alone_for_longer_each_time() {
        let mut company = Company::new(true);
        let fail = |company: &mut Company, now| (0..3).for_each(|_| company.hear(now, News::Overdue));
        fail(&mut company, at(0));
        // What was asked for before.
        fail(&mut company, at(1));
        assert!(!company.is_asked(at(4)) && company.is_asked(at(5)));
        fail(&mut company, at(10));
        assert!(!company.is_asked(at(19)) && company.is_asked(at(20)));
        company.hear(at(20), News::Came);
        company.hear(at(20), News::Overdue);
        assert!(company.is_asked(at(20)));
        fail(&mut company, at(20));
        assert!(!company.is_asked(at(24)) && company.is_asked(at(25)));
    }
}
