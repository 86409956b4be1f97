//! Takes the events in order of time, changes the stage, and tells the policy.

use super::policy::Policy;
use super::stage::{Event, Stage};
use super::{Outcome, Setting};
use crate::fabric::Place;

/// Events of one receiver at most, on average: a run with more goes round in circles.
const STEPS_EACH_MAX: u64 = 10_000_000;

/// The state of a run.
pub(super) struct World<P: Policy> {
    stage: Stage<P::Message>,
    policy: P,
}

impl<P: Policy> World<P> {
    pub(super) fn new(setting: &Setting, policy: P) -> Self {
        Self { stage: Stage::new(setting), policy }
    }

    /// Runs until nothing is left to happen.
    pub(super) fn run(mut self) -> Outcome {
        for (at, place) in self.stage.starts() {
            self.stage.flows.schedule(at, place, Event::Start);
        }
        let steps_max = STEPS_EACH_MAX.saturating_mul(self.stage.setting().receivers.len() as u64);
        let mut steps = 0;
        while let Some((place, event)) = self.stage.flows.advance() {
            steps += 1;
            assert!(steps < steps_max, "the policy makes no progress");
            self.happen(place, event);
        }
        self.stage.outcome(steps)
    }

    fn happen(&mut self, at: Place, event: Event<P::Message>) {
        let Self { stage, policy } = self;
        match event {
            Event::Start => {
                stage.start(at);
                policy.started(stage, at);
            }
            Event::Message { from, message } => match stage.number(at) {
                Some(_) if stage.is_present(at) => policy.told(stage, at, from, message),
                Some(_) => policy.unheard(stage, at, from, message),
                None => stage.handle(at, from, message),
            },
            Event::Handled { from, message } => policy.told(stage, at, from, message),
            Event::Chunk { from, chunk, cast } => match stage.take(at, chunk, cast) {
                Some(fresh) => policy.arrived(stage, at, from, chunk, fresh),
                None => policy.missed(stage, at, from, chunk),
            },
            Event::Written => {
                stage.written(at);
                policy.freed(stage, at);
            }
            Event::Ended => {
                policy.ended(stage, at);
                stage.end(at);
            }
            Event::Wake(token) => policy.woken(stage, at, token),
        }
    }
}
