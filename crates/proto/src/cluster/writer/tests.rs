//! The writer against components that fail and answer in any order.

use super::*;
use base::Chance;
use std::collections::{BTreeSet, HashMap};

fn setting() -> WriterSetting {
    WriterSetting { run_bytes: 1 << 20, short_runs_max: 2, runs_max: 6, component_bytes: 4 << 20 }
}

fn right(segment: u64) -> SegmentRight {
    let width = Width::new(3, 1).expect("a width");
    SegmentRight { segment, width, devices: (1..=4).map(DeviceId).collect() }
}

fn drain(writer: &mut Writer) -> Vec<Command> {
    std::iter::from_fn(|| writer.poll_command()).collect()
}

#[test]
fn an_item_is_inserted_after_all_components_have_it() {
    let mut writer = Writer::new(setting());
    writer.submit(ItemId(1), 100_000, 10);
    assert_eq!(drain(&mut writer), [Command::Open { avoid: Vec::new() }]);
    writer.opened(right(7));
    let commands = drain(&mut writer);
    assert!(matches!(&commands[0], Command::Form { items, .. } if *items == [ItemId(1)]));
    assert_eq!(commands.len(), 5, "one request for each component: {commands:?}");
    (0..3).for_each(|component| writer.appended(7, component));
    assert_eq!(drain(&mut writer), []);
    writer.appended(7, 3);
    assert_eq!(drain(&mut writer), [Command::Insert { run: RunId(0) }]);
    assert!(!writer.is_idle());
    writer.inserted(RunId(0));
    assert!(writer.is_idle());
}

#[test]
fn what_a_failed_device_did_not_take_goes_elsewhere() {
    let mut writer = Writer::new(setting());
    writer.submit(ItemId(1), 100_000, 10);
    writer.opened(right(7));
    (0..4).for_each(|component| writer.appended(7, component));
    writer.submit(ItemId(2), 100_000, 10);
    drain(&mut writer);
    writer.append_failed(7, 2);
    let commands = drain(&mut writer);
    assert_eq!(commands, [Command::Forget { run: RunId(1) }, Command::Open { avoid: vec![DeviceId(3)] }]);
    // The first run is complete: the segment is sealed behind it, once its entries are inserted.
    writer.inserted(RunId(0));
    let sealed = drain(&mut writer);
    assert!(matches!(sealed[..], [Command::Seal { segment: 7, length }] if length > 0), "{sealed:?}");
    writer.opened(right(8));
    let again = drain(&mut writer);
    assert!(
        matches!(&again[0], Command::Form { segment: 8, items, .. } if *items == [ItemId(2)]),
        "{again:?}"
    );
}

/// Devices that fail at any moment, answers in any order: every item ends in exactly one complete run whose
/// components all have it, runs never overlap, and every segment is sealed behind its last complete run.
#[test]
fn everything_is_stored_whatever_fails() {
    for seed in 0..500 {
        let mut world = World::new(seed);
        for item in 0..60 {
            world.writer.submit(ItemId(item), 1 + world.chance.below(600_000), 20);
            for _ in 0..world.chance.below(6) {
                world.step(seed);
            }
        }
        let mut steps = 0;
        while !world.writer.is_idle() || !world.open.is_empty() {
            world.fail_per_million = if steps > 300 { 0 } else { 50_000 };
            world.step(seed);
            steps += 1;
            assert!(steps < 20_000, "seed {seed}: does not end");
        }
        world.writer.close_current();
        world.take_commands(seed);
        assert_eq!(world.stored.len(), 60, "seed {seed}");
        assert_eq!(world.sealed.len(), world.segments.len(), "seed {seed}: all segments are sealed");
    }
}

/// What the components hold, and what is under way.
struct World {
    chance: Chance,
    writer: Writer,
    fail_per_million: u32,
    next_segment: u64,
    /// Lengths of the components.
    segments: HashMap<u64, Vec<u64>>,
    runs: HashMap<RunId, (u64, Run, Vec<ItemId>)>,
    open: Vec<Command>,
    stored: BTreeSet<ItemId>,
    sealed: HashMap<u64, u64>,
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            chance: Chance::from_seed(seed),
            writer: Writer::new(setting()),
            fail_per_million: 50_000,
            next_segment: 0,
            segments: HashMap::new(),
            runs: HashMap::new(),
            open: Vec::new(),
            stored: BTreeSet::new(),
            sealed: HashMap::new(),
        }
    }

    fn take_commands(&mut self, seed: u64) {
        while let Some(command) = self.writer.poll_command() {
            match command {
                Command::Form { run, segment, place, items, .. } => {
                    assert!(!self.sealed.contains_key(&segment), "seed {seed}");
                    self.runs.insert(run, (segment, place, items));
                }
                Command::Forget { run } => {
                    self.runs.remove(&run);
                }
                Command::Seal { segment, length } => {
                    let held = self.segments[&segment].iter().min().copied();
                    assert!(held >= Some(length), "seed {seed}: sealed beyond what there is");
                    assert_eq!(self.sealed.insert(segment, length), None, "seed {seed}: sealed twice");
                }
                other => self.open.push(other),
            }
        }
    }

    fn step(&mut self, seed: u64) {
        self.take_commands(seed);
        if self.open.is_empty() {
            self.writer.retry();
            return;
        }
        let next = self.chance.below(self.open.len() as u64);
        let command = self.open.swap_remove(usize::try_from(next).expect("small"));
        let fails = self.chance.hits(self.fail_per_million);
        match command {
            Command::Open { .. } if fails => self.writer.open_failed(),
            Command::Open { .. } => {
                self.next_segment += 1;
                self.segments.insert(self.next_segment, vec![0; 4]);
                self.writer.opened(right(self.next_segment));
            }
            Command::Append { segment, component, at, runs, .. } => {
                let length = self.segments.get_mut(&segment).expect("it was opened");
                let length = &mut length[usize::from(component)];
                assert_eq!(*length, at, "seed {seed}: a component takes nothing but at its end");
                if fails {
                    // Perhaps only the answer was lost.
                    self.writer.append_failed(segment, component);
                    return;
                }
                // Runs that were forgotten meanwhile are still in the request.
                for run in &runs {
                    if let Some((_, place, _)) = self.runs.get(run) {
                        *length = place.end();
                    }
                }
                self.writer.appended(segment, component);
            }
            Command::Insert { run } => {
                let (segment, place, items) = &self.runs[&run];
                assert!(self.segments[segment].iter().all(|&length| length >= place.end()), "seed {seed}");
                assert!(!self.sealed.contains_key(segment), "seed {seed}: sealed before its entries");
                for item in items {
                    assert!(self.stored.insert(*item), "seed {seed}: {item:?} is stored twice");
                }
                self.writer.inserted(run);
            }
            _ => unreachable!("handled above"),
        }
    }
}
