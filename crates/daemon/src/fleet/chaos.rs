//! Drives the table with machines that lose power, lie, and fall silent, and a server that is restarted: at random,
//! each run from a seed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use base::Instant;
use base::chance::Chance;
use net::api::{
    After, JobOutcome, JobRequest, JobStage, MachineChange, MachineFacts, NewMachine, Power, Work,
};
use net::mac::Mac;

use super::machine::{Call, Now, Record, Step, Task};
use super::silence::Watch;
use super::table::Table;

const MACHINES: u8 = 4;
const SEEDS: u64 = 2000;
const STEPS: u32 = 300;
const WATCH: Watch = Watch { boot_time: Duration::from_secs(300), sees_systems: true, strict: false };

/// A machine as it really is.
#[derive(Default)]
struct Real {
    /// Its key, while it runs our system.
    key: Option<String>,
    /// The job that it works on, and one that it has done and not told yet.
    work: Option<u64>,
    done: Option<u64>,
    /// When the server heard it last; 0 if it takes a liar for it since.
    heard: u64,
    /// When a liar last pretended that it was started.
    pretended: u64,
}

impl Real {
    /// It loses what it had in memory.
    fn restart(&mut self, key: Option<String>) {
        *self = Self { key, heard: self.heard, pretended: self.pretended, ..Self::default() };
    }
}

struct World {
    table: Table,
    durable: BTreeMap<Mac, Record>,
    durable_job: u64,
    machines: Vec<Real>,
    seconds: u64,
    keys: u32,
    /// Jobs that were given, and those whose end the server has told of.
    given: BTreeSet<u64>,
    ended: BTreeSet<u64>,
}

fn mac(index: usize) -> Mac {
    Mac([2, 0, 0, 0, 0, u8::try_from(index).unwrap()])
}

impl World {
    fn new() -> Self {
        let mut table = Table::of(Vec::new(), 0, WATCH, Instant::ZERO);
        let machines = (0..usize::from(MACHINES)).map(|index| NewMachine {
            mac: mac(index).to_string(),
            name: None,
            groups: Some(vec!["lab".to_owned()]),
            ..NewMachine::default()
        });
        table.apply(&MachineChange::Add { machines: machines.collect() }, Instant::ZERO).unwrap();
        let machines = (0..MACHINES).map(|_| Real::default()).collect();
        let mut world = Self {
            table,
            durable: BTreeMap::new(),
            durable_job: 0,
            machines,
            seconds: 1,
            keys: 0,
            given: BTreeSet::new(),
            ended: BTreeSet::new(),
        };
        world.keep();
        world
    }

    fn now(&self) -> Now {
        Now { at: Instant::ZERO + Duration::from_secs(self.seconds), unix: self.seconds }
    }

    /// What the server writes down before anybody learns of it.
    fn keep(&mut self) {
        let changed = self.table.take_changed();
        if !changed.is_empty() {
            self.durable_job = self.table.last_job();
        }
        for (mac, record) in changed {
            match record {
                Some(record) => drop(self.durable.insert(mac, record)),
                None => drop(self.durable.remove(&mac)),
            }
        }
        let jobs = self.durable.values().filter_map(|record| record.job.as_ref());
        let over = [JobStage::Done, JobStage::Back, JobStage::Failed];
        self.ended.extend(jobs.filter(|job| over.contains(&job.stage)).map(|job| job.job));
    }

    fn boot(&mut self, index: usize) {
        let now = self.now();
        self.table.seen(mac(index), Step::Firmware, now.at);
        let ours = self.table.boots_ours(mac(index), now.unix);
        if ours {
            self.table.seen(mac(index), Step::Loader, now.at);
            self.keys += 1;
        } else {
            self.table.seen(mac(index), Step::System, now.at);
        }
        let key = ours.then(|| format!("key {}", self.keys));
        self.machines[index].restart(key);
        self.keep();
    }

    /// A machine, or a liar with its address, asks what to do.
    fn call(&mut self, index: usize, key: &str, working: Option<u64>, done: Option<u64>) -> Task {
        let disks = Vec::new();
        let (serial, product, firmware) = (None, None, "bios".to_owned());
        let facts = MachineFacts {
            mac: mac(index).to_string(),
            serial,
            product,
            memory_bytes: 1,
            firmware,
            disks,
            runs: false,
            network: None,
        };
        let outcome = done.map(|job| JobOutcome { job, failure: None, exit: None, log: None });
        let call = Call {
            facts: &facts,
            key,
            from: IpAddr::from([10, 0, 0, 7]),
            outcome: outcome.as_ref(),
            working,
            progress: None,
            proven: true,
        };
        let task = self.table.call(mac(index), call, self.now()).unwrap().task;
        self.keep();
        if let Task::Work(job) = &task {
            assert!(self.given.contains(&job.job), "job {} was never given", job.job);
            assert!(!self.ended.contains(&job.job), "job {} is over", job.job);
        }
        task
    }

    fn honest_call(&mut self, index: usize) {
        let Real { key: Some(key), work, done, .. } = &self.machines[index] else { return };
        let (key, work, done) = (key.clone(), *work, *done);
        let task = self.call(index, &key, work, done);
        let seconds = self.seconds;
        let machine = &mut self.machines[index];
        match task {
            Task::Work(job) => {
                assert!(work.is_none(), "it works on {work:?} and gets {}", job.job);
                (machine.work, machine.done) = (Some(job.job), None);
            }
            Task::Start => return self.boot(index),
            // Somebody took its place meanwhile. Its screen says what to do.
            Task::Wait(why) if why.contains("start the machine from the network") => return self.boot(index),
            Task::Wait(why) if why.contains("another machine") => return,
            Task::Wait(_) => machine.done = None,
        }
        machine.heard = seconds;
    }

    /// A liar who pretends that the machine was started again gets its job after a minute of silence; another one
    /// never does.
    fn lying_call(&mut self, index: usize, pretends: bool) {
        if pretends {
            self.table.seen(mac(index), Step::Firmware, self.now().at);
            self.machines[index].pretended = self.seconds;
        }
        let task = self.call(index, "a liar's key", None, Some(self.given.len() as u64));
        let real = &mut self.machines[index];
        let silent = self.seconds - real.heard;
        let is_taken_for_it = real.heard == 0 || real.pretended > real.heard && silent > 60;
        assert!(
            !matches!(&task, Task::Work(job) if real.work == Some(job.job)) || is_taken_for_it,
            "a liar gets the job that a machine works on, {silent} s after it called"
        );
        // The server takes it for the machine for a while: so the page on security says.
        if !matches!(&task, Task::Wait(why) if why.contains("another machine") || why.contains("another key"))
        {
            real.heard = 0;
        }
    }

    fn give(&mut self, chance: &mut Chance) {
        let work = [Work::Install { reference: "web@1".into(), after: After::default() }, Work::Wipe]
            [usize::from(chance.hits(300_000))]
        .clone();
        let machines = match chance.below(2) {
            0 => "lab".to_owned(),
            _ => mac(usize::try_from(chance.below(MACHINES.into())).unwrap()).to_string(),
        };
        let begins = if chance.hits(200_000) { self.seconds + chance.below(100) } else { 0 };
        let (power, window) = (Power::Wake, chance.below(20));
        let request =
            JobRequest { work: work.clone(), machines: vec![machines], disk: None, begins, power, window };
        if let Ok(made) = self.table.give(&request, &work, self.now().at) {
            self.given.extend(made.machines.iter().filter_map(|machine| Some(machine.job.as_ref()?.job)));
        }
        self.keep();
    }

    fn step(&mut self, chance: &mut Chance) {
        let index = usize::try_from(chance.below(MACHINES.into())).unwrap();
        self.seconds += chance.below(20);
        match chance.below(100) {
            0..50 => self.honest_call(index),
            50..62 => {
                let machine = &mut self.machines[index];
                machine.done = machine.work.take().or(machine.done);
            }
            62..74 => self.boot(index),
            // Its power is cut.
            74..80 => self.machines[index].restart(None),
            80..84 => {
                let pretends = chance.hits(500_000);
                self.lying_call(index, pretends);
            }
            84..88 => self.give(chance),
            88..90 => {
                let machines = vec![mac(index).to_string()];
                let _ = self.table.apply(&MachineChange::Cancel { machines }, self.now().at);
                self.keep();
            }
            90..95 => self.restart(),
            _ => {
                self.table.sweep(self.now());
                self.keep();
            }
        }
    }

    fn restart(&mut self) {
        let records = self.durable.iter().map(|(mac, record)| (*mac, record.clone())).collect();
        self.table = Table::of(records, self.durable_job, WATCH, self.now().at);
    }

    /// From now on nobody lies, and each machine does what it is told: every job ends.
    fn settle(&mut self) {
        self.seconds += 1000;
        self.table.sweep(self.now());
        for _ in 0..60 {
            for index in 0..usize::from(MACHINES) {
                self.seconds += 3;
                if self.machines[index].key.is_none() {
                    self.boot(index);
                }
                let machine = &mut self.machines[index];
                machine.done = machine.work.take().or(machine.done);
                self.honest_call(index);
            }
        }
        for (mac, record) in &self.durable {
            let stage = record.job.as_ref().map(|job| job.stage);
            assert!(
                matches!(stage, None | Some(JobStage::Done | JobStage::Back)),
                "{mac} never ends its job: {stage:?}"
            );
        }
    }
}

#[test]
fn whatever_happens_jobs_are_done_by_their_machines_once_told_and_end() {
    for seed in 0..SEEDS {
        let mut chance = Chance::from_seed(seed);
        let mut world = World::new();
        let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..STEPS {
                world.step(&mut chance);
            }
            world.settle();
        }));
        assert!(run.is_ok(), "seed {seed}");
    }
}
