//! Tests what agents of systems that run are told.

use net::api::Put;

use super::*;

/// What the agent of a running system is told, and whether it was told before.
fn told_agent(table: &mut Table, outcome: Option<&JobOutcome>, seconds: u64) -> (Task, bool) {
    told_agent_with("agent", table, outcome, seconds)
}

fn told_agent_with(key: &str, table: &mut Table, outcome: Option<&JobOutcome>, seconds: u64) -> (Task, bool) {
    let decision = decided(table, &MachineFacts { runs: true, ..facts(ONE) }, key, outcome, seconds).unwrap();
    (decision.task, decision.again)
}

fn put() -> Work {
    let put = Put { reference: "web@3".into(), options: words(&["--hostname", "{host}"]), ..Put::default() };
    Work::Put(put)
}

#[test]
fn an_agent_takes_jobs_for_its_system_and_leaves_others_to_the_one_that_boots() {
    let mut table = Table::of(Vec::new(), 0, WATCH, at(0));
    admit_new(&mut table);
    let nothing = || Task::Wait("nothing to do".into());
    assert_eq!(told_agent(&mut table, None, 1).0, nothing());
    assert_eq!(told_agent(&mut table, None, 2000).0, nothing(), "it has started already");
    let request = JobRequest { disk: Some("/srv/{host}.img".into()), ..request(put(), &["one"]) };
    table.give(&request, &put(), at(2001)).unwrap();
    assert!(!table.boots_ours(ONE, 0), "its own system is to do it");
    // Somebody has its card's address, and waited until it was silent.
    let (Task::Wait(why), _) = told_agent_with("a liar's key", &mut table, None, 2100) else {
        panic!("a job")
    };
    assert!(why.contains("another key"), "{why}");
    let (Task::Work(job), false) = told_agent(&mut table, None, 2101) else { panic!("no job, or again") };
    assert_eq!(job.disk.as_deref(), Some("/srv/one.img"));
    let Work::Put(given) = &job.work else { panic!("{:?}", job.work) };
    assert_eq!(given.options, words(&["--hostname", "one"]));
    // Its answer was lost, or the agent was started again.
    assert!(matches!(told_agent(&mut table, None, 2103), (Task::Work(again), true) if again.job == job.job));
    let done = JobOutcome { job: job.job, failure: None, exit: None, log: None };
    assert_eq!(told_agent(&mut table, Some(&done), 2104).0, Task::Wait("the job `put web@3` is done".into()));
    assert_eq!(stage(&table, ONE), JobStage::Done);

    // It boots from the network for what is to be done there.
    deploy(&mut table, &["one"], 2105).unwrap();
    let (Task::Wait(why), _) = told_agent(&mut table, None, 2106) else { panic!("it has a job") };
    assert!(why.contains("boots from the network"), "{why}");
    assert!(table.boots_ours(ONE, 0));
    let Task::Work(job) = told(&mut table, ONE, "boots", None, 2190) else { panic!("no job") };
    // Somebody switched it off and on: its own system must not keep the job in hand.
    assert!(matches!(told_agent(&mut table, None, 2290).0, Task::Wait(_)));
    assert_eq!(stage(&table, ONE), JobStage::Lost);
    table.seen(ONE, Step::Firmware, at(2380));
    assert!(matches!(told(&mut table, ONE, "boots again", None, 2390), Task::Work(_)));
    let done = JobOutcome { job: job.job, failure: None, exit: None, log: None };
    assert_eq!(told(&mut table, ONE, "boots again", Some(&done), 2391), Task::Start);
    assert_eq!(told_agent(&mut table, None, 2490).0, nothing());
    assert_eq!(stage(&table, ONE), JobStage::Back);

    // A job for its system lets it start.
    table.give(&request, &put(), at(2500)).unwrap();
    assert_eq!(told(&mut table, ONE, "boots", None, 2600), Task::Start);
}

#[test]
fn agents_of_each_network_are_told_whom_to_wake() {
    let mut table = Table::of(Vec::new(), 0, WATCH, at(0));
    admit_new(&mut table);
    let macs: Vec<Mac> = (1..=5).map(|last| Mac([0x52, 0x54, 0, 0, 9, last])).collect();
    // What a machine with that card and on that network is told to wake.
    let wakes = |table: &mut Table, mac: Mac, network: Option<&str>, seconds| {
        let facts = MachineFacts { runs: true, network: network.map(str::to_owned), ..facts(mac) };
        decided(table, &facts, "agent", None, seconds).unwrap().wake
    };
    let (near, far) = (Some("10.0.0.0/24"), Some("10.0.1.0/24"));
    assert!(!table.has_wakers(at(1)));
    let admit = MachineChange::Admit { machines: macs[..4].iter().map(ToString::to_string).collect() };
    for mac in &macs {
        assert_eq!(wakes(&mut table, *mac, near, 1), []);
    }
    assert!(!table.has_wakers(at(1)), "nobody has admitted them");
    table.apply(&admit, at(2)).unwrap();
    assert!(table.has_wakers(at(2)));
    let request = JobRequest { power: Power::Wake, ..request(put(), &["one"]) };
    table.give(&request, &put(), at(3)).unwrap();
    assert_eq!(table.sweep(now(3)).due, [(ONE, Power::Wake)]);
    assert_eq!(wakes(&mut table, macs[4], near, 4), [], "a stranger");
    let liar = MachineFacts { runs: true, network: near.map(str::to_owned), ..facts(macs[0]) };
    assert_eq!(decided(&mut table, &liar, "another key", None, 4).unwrap().wake, []);
    assert_eq!(wakes(&mut table, macs[0], None, 4), []);
    assert_eq!(wakes(&mut table, macs[1], near, 5), [ONE]);
    assert_eq!(wakes(&mut table, macs[1], near, 6), [ONE], "the first answer may be lost");
    assert_eq!(wakes(&mut table, macs[1], near, 7), [], "it was told");
    assert_eq!(wakes(&mut table, macs[2], near, 7), [], "its neighbour was told");
    assert_eq!(wakes(&mut table, macs[3], far, 6), [ONE]);
    assert_eq!(wakes(&mut table, macs[3], Some("10.0.2.0/24"), 63), [], "too late");
    assert!(!table.has_wakers(at(200)));
    table.give(&request, &put(), at(201)).unwrap();
    table.sweep(now(201));
    table.apply(&MachineChange::Cancel { machines: words(&["one"]) }, at(202)).unwrap();
    assert_eq!(wakes(&mut table, macs[1], near, 203), [], "its job was taken back");
}
