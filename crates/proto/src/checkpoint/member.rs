//! One host of a set.

use base::Instant;

use super::rules::{Phase, Rules};

/// What the program of a host says. [`Self::Ended`] and [`Self::Failed`] are its last words: it has ended then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// It is alive.
    Alive,
    /// All is done that has to be done before the freeze.
    Prepared,
    /// The disk stands still.
    Frozen,
    /// A version with the disk of the moment is in the repository.
    Stored,
    /// It has ended as it was told.
    Ended,
    /// It has ended otherwise.
    Failed {
        /// Why, for people.
        why: String,
        /// Whether another round may help.
        again: bool,
    },
}

/// How far a host is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Standing {
    /// Its program does not run.
    #[default]
    Idle,
    /// Its program prepares.
    Prepares,
    /// It may be told to freeze.
    Prepared,
    /// Its disk stands still.
    Frozen,
    /// Its version is there.
    Stored,
    /// It has ended as it was told.
    Ended,
    /// It has failed, or was stopped.
    Failed(String),
}

/// A host and its program.
#[derive(Debug, Clone, Default)]
pub(super) struct Member {
    pub(super) standing: Standing,
    /// When the program that runs last said something.
    heard: Option<Instant>,
    stopped: bool,
    /// Why it is stopped, if that is its own fault.
    noted: Option<String>,
}

impl Member {
    /// A host whose program begins.
    pub(super) fn begin(now: Instant) -> Self {
        Self { standing: Standing::Prepares, heard: Some(now), ..Self::default() }
    }

    /// Whether its program has not ended yet.
    pub(super) fn runs(&self) -> bool {
        self.heard.is_some()
    }

    /// Whether the driver has to be told to stop it: not twice.
    pub(super) fn stop(&mut self) -> bool {
        self.runs() && !std::mem::replace(&mut self.stopped, true)
    }

    /// Whether its program runs, and was not told to end.
    pub(super) fn goes_on(&self) -> bool {
        self.runs() && !self.stopped
    }

    /// Keeps why it is stopped, for its end.
    pub(super) fn note(&mut self, why: String) {
        self.noted.get_or_insert(why);
    }

    /// When it hangs if nothing is heard of it. One that was stopped is ended by the driver.
    pub(super) fn silent_at(&self, rules: &Rules) -> Option<Instant> {
        self.heard.filter(|_| self.goes_on()).map(|heard| heard + rules.silence)
    }

    /// Takes what it said while all were in `phase`. `Err` if that means that the round fails: why, and whether
    /// another one may help. A host that does not keep to the order of the words cannot be relied on.
    pub(super) fn take(&mut self, said: Said, phase: Phase, now: Instant) -> Result<(), (String, bool)> {
        self.heard = Some(now);
        let next = match (said, phase, &self.standing) {
            (Said::Alive, ..) => return Ok(()),
            (Said::Failed { why, again }, ..) => {
                let why = self.noted.take().unwrap_or(why);
                self.ends(Standing::Failed(why.clone()));
                return Err((why, again));
            }
            (Said::Ended, Phase::Finishing(_), Standing::Stored) => {
                self.ends(Standing::Ended);
                return Ok(());
            }
            (Said::Ended, ..) => {
                let why = "it ended before it was told to".to_owned();
                self.ends(Standing::Failed(why.clone()));
                return Err((why, false));
            }
            // What it says while it is ended is of no account.
            (_, Phase::Ending, _) => return Ok(()),
            (Said::Prepared, Phase::Preparing(_), Standing::Prepares) => Standing::Prepared,
            (Said::Frozen, Phase::Freezing(_), Standing::Prepared) => Standing::Frozen,
            (Said::Stored, Phase::Storing, Standing::Frozen) => Standing::Stored,
            (said, ..) => return Err((format!("it says `{said:?}` out of turn"), false)),
        };
        self.standing = next;
        Ok(())
    }

    fn ends(&mut self, standing: Standing) {
        (self.standing, self.heard) = (standing, None);
    }
}
