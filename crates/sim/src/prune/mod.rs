//! Simulates prunes that run at the same time as writers. The real code of the repository runs in threads, of which
//! only one runs at a time, on a store that stops a thread at every operation. A seed decides which actor continues,
//! sleeps for long or dies, whose request takes effect later or not at all, whose reply is lost, and which changes
//! lists do not show yet.
//!
//! ```text
//! actors (threads)  writers, those who clone and remove, readers, prunes: crates/store as it is
//!    |  every get, put, list, delete
//! world             grants one operation at a time; memory, faults, and what lists show
//!    |
//! checker           which objects live versions need, and whether each still has a copy
//! ```

mod actors;
mod checker;
mod store;
mod world;

use std::sync::Arc;

use base::Chance;

use crate::Violation;
use actors::{Actor, Role};
use world::{Faults, World};

/// The result of a run.
#[derive(Debug)]
pub struct PruneOutcome {
    /// The broken rules.
    pub violations: Vec<Violation>,
    /// Equal runs have equal traces.
    pub trace: u64,
    /// Operations of the store.
    pub operations: u64,
    /// Versions that were published.
    pub published: u64,
    /// Copies of objects that were deleted.
    pub deleted: u64,
    /// Leases that were revoked while their owners lived.
    pub revoked: u64,
}

/// Runs writers and prunes with faults drawn from `seed`, then two undisturbed prunes.
#[must_use]
pub fn run_prunes(seed: u64) -> PruneOutcome {
    let mut chance = Chance::from_seed(seed);
    let world = World::new(chance.fork());
    actors::found(&world);
    let faults = Faults::draw(&mut chance);
    world.trouble(faults);
    let actors = actors::draw(&mut chance);
    play(&world, &actors);
    // Late requests of dead actors may arrive after another prune has deleted the object and a writer has stored it
    // again.
    world.trouble(Faults { deaths_show: faults.deaths_show, ..Faults::NONE });
    for role in [Role::Prune { rounds: 1, looks: 1 }, Role::Write { rounds: 3 }] {
        play(&world, &[Actor { role, seed: chance.u64() }]);
    }
    world.calm();
    for seed in 0..2 {
        play(&world, &[Actor { role: Role::Prune { rounds: 1, looks: 1 }, seed }]);
    }
    world.outcome()
}

/// Runs `actors` until all have ended.
fn play(world: &Arc<World>, actors: &[Actor]) {
    world.begin(actors.len());
    std::thread::scope(|scope| {
        for (index, actor) in actors.iter().enumerate() {
            let stage = world.stage(index);
            scope.spawn(move || {
                actor.act(&stage);
                stage.leave();
            });
        }
    });
}
