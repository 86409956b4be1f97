//! Tests what machines are told, with the time as an argument.

mod agents;
mod keys;
mod strangers;

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use base::{ErrorKind, Instant};
use net::api::{
    After, DiskFacts, JobOutcome, JobRequest, JobStage, MachineChange, MachineFacts, NewMachine,
    PROVES_NOTHING_MS, Power, Work,
};
use net::mac::Mac;
use net::machine_key::fingerprint;

use super::machine::{Call, Decision, Now, Step, Task};
use super::silence::Watch;
use super::table::{Swept, Table};

const ONE: Mac = Mac([0x52, 0x54, 0, 0, 0, 1]);
const TWO: Mac = Mac([0x52, 0x54, 0, 0, 0, 2]);

const WATCH: Watch = Watch { boot_time: Duration::from_secs(300), sees_systems: true, strict: false };
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 7));

fn at(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

fn now(seconds: u64) -> Now {
    Now { at: at(seconds), unix: seconds }
}

fn facts(mac: Mac) -> MachineFacts {
    let disk = DiskFacts { path: "/dev/sda".into(), size_bytes: 1 << 30, serial: None, model: None };
    MachineFacts {
        mac: mac.to_string(),
        serial: None,
        product: None,
        memory_bytes: 1 << 30,
        firmware: "uefi".into(),
        disks: vec![disk],
        runs: false,
        network: None,
    }
}

/// What a machine with `key` is told, which has shown that it has it.
fn told(table: &mut Table, mac: Mac, key: &str, outcome: Option<&JobOutcome>, seconds: u64) -> Task {
    decided(table, &facts(mac), key, outcome, seconds).unwrap().task
}

fn decided(
    table: &mut Table,
    facts: &MachineFacts,
    key: &str,
    outcome: Option<&JobOutcome>,
    seconds: u64,
) -> base::Result<Decision> {
    table.call(facts.mac.parse()?, Call { outcome, ..call(facts, key) }, now(seconds))
}

/// A call of a machine that has shown that it has `key`.
fn call<'a>(facts: &'a MachineFacts, key: &'a str) -> Call<'a> {
    Call { facts, key, from: HERE, outcome: None, working: None, progress: None, proven: true }
}

fn words(list: &[&str]) -> Vec<String> {
    list.iter().map(|word| (*word).to_owned()).collect()
}

fn install() -> Work {
    Work::Install { reference: "web@3".into(), after: After::default() }
}

fn request(work: Work, machines: &[&str]) -> JobRequest {
    JobRequest { work, machines: words(machines), disk: None, begins: 0, power: Power::Leave, window: 0 }
}

fn deploy(table: &mut Table, machines: &[&str], seconds: u64) -> base::Result<()> {
    table.give(&request(install(), machines), &install(), at(seconds)).map(drop)
}

fn admit(table: &mut Table, machines: &[&str]) {
    table.apply(&MachineChange::Admit { machines: words(machines) }, at(0)).unwrap();
}

fn stage(table: &Table, mac: Mac) -> JobStage {
    let all = table.list(at(1000)).machines;
    all.iter().find(|machine| machine.mac == mac.to_string()).unwrap().job.as_ref().unwrap().stage
}

#[test]
fn a_machine_is_admitted_gets_its_job_once_and_starts_from_its_disk() {
    let mut table = Table::of(Vec::new(), 0, WATCH, at(0));
    assert!(table.boots_ours(ONE, 0), "a stranger is asked who it is");
    let Task::Wait(why) = told(&mut table, ONE, "k", None, 1) else { panic!("a stranger gets a job") };
    assert!(why.contains("diskcast hosts admit 52:54:00:00:00:01"), "{why}");
    assert_eq!(deploy(&mut table, &["52:54:00:00:00:01"], 2).unwrap_err().kind(), ErrorKind::Refused);
    admit(&mut table, &["52:54:00:00:00:01"]);
    assert_eq!(told(&mut table, ONE, "k", None, 3), Task::Wait("nothing to do".into()));
    assert!(!table.boots_ours(ONE, 0));
    deploy(&mut table, &["*"], 4).unwrap();
    assert!(table.boots_ours(ONE, 0));
    let Task::Work(job) = told(&mut table, ONE, "k", None, 5) else { panic!("no job") };
    assert_eq!((&job.work, stage(&table, ONE)), (&install(), JobStage::Taken));
    assert_eq!(deploy(&mut table, &["*"], 6).unwrap_err().kind(), ErrorKind::Refused, "it is at work");
    let done = JobOutcome { job: job.job, failure: None, exit: None, log: None };
    assert_eq!(told(&mut table, ONE, "k", Some(&done), 7), Task::Start);
    // It boots again, and is not installed again.
    assert!(!table.boots_ours(ONE, 0));
    assert_eq!(stage(&table, ONE), JobStage::Done);
    table.seen(ONE, Step::Firmware, at(8));
    assert_eq!(stage(&table, ONE), JobStage::Done);
    // Its system shows itself, or somebody who pretends that.
    table.seen(ONE, Step::System, at(9));
    assert_eq!(stage(&table, ONE), JobStage::Done);
    assert_eq!(table.list(at(9)).machines[0].seen_in.as_deref(), Some("system"));
}

#[test]
fn who_has_no_proof_or_another_key_gets_nothing() {
    let mut table = Table::of(Vec::new(), 0, WATCH, at(0));
    admit_new(&mut table);
    deploy(&mut table, &["one"], 1).unwrap();
    let facts = facts(ONE);
    let unproven = Call { proven: false, ..call(&facts, "k") };
    let decision = table.call(ONE, unproven, now(2)).unwrap();
    assert!(matches!(decision.task, Task::Wait(_)) && decision.again_ms < PROVES_NOTHING_MS);
    assert!(matches!(told(&mut table, ONE, "k", None, 3), Task::Work(_)));
    // While it is at work, another machine says that it is the same one: it gets no token, and ends no job.
    let job = table.list(at(3)).machines[0].job.as_ref().unwrap().job;
    let lie = JobOutcome { job, failure: Some("no".into()), exit: None, log: None };
    let Task::Wait(why) = told(&mut table, ONE, "other", Some(&lie), 4) else { panic!("a liar gets a job") };
    assert!(why.contains("another machine"), "{why}");
    assert_eq!(stage(&table, ONE), JobStage::Taken);
    // After a while of silence it may have been started again, with a new key.
    table.seen(ONE, Step::Firmware, at(50));
    assert!(matches!(told(&mut table, ONE, "new", None, 100), Task::Work(_)));
}

#[test]
fn a_machine_at_work_gets_no_second_order_and_only_its_own_word_ends_a_job() {
    let mut table = Table::of(Vec::new(), 0, WATCH, at(0));
    admit_new(&mut table);
    deploy(&mut table, &["one"], 1).unwrap();
    let Task::Work(job) = told(&mut table, ONE, "k", None, 2) else { panic!("no job") };
    let facts = facts(ONE);
    let mut say = |outcome: Option<&JobOutcome>, working: Option<u64>, proven: bool, seconds: u64| {
        let call = Call { outcome, working, proven, ..call(&facts, "k") };
        let decision = table.call(ONE, call, now(seconds)).unwrap();
        (decision.task, decision.ended.is_some())
    };
    let at_work = || Task::Wait("at work".into());
    assert_eq!(say(None, Some(job.job), true, 30), (at_work(), false));
    // After a minute of silence it counts as lost, and goes on where it was.
    assert_eq!(say(None, Some(job.job), true, 200), (at_work(), false));
    assert!(matches!(say(None, None, true, 201), (Task::Work(again), false) if again.job == job.job));
    let done = JobOutcome { job: job.job, failure: None, exit: None, log: None };
    assert!(matches!(say(Some(&done), None, false, 202), (Task::Wait(_), false)), "without a proof");
    assert_eq!(say(Some(&done), None, true, 203), (Task::Start, true));
    assert_eq!(say(Some(&done), None, true, 204), (Task::Start, false), "it is told once");
}

fn admit_new(table: &mut Table) {
    let machine = |mac: Mac, name: &str| NewMachine {
        mac: mac.to_string(),
        name: Some(name.to_owned()),
        groups: Some(vec!["lab".to_owned()]),
        ..NewMachine::default()
    };
    let machines = vec![machine(ONE, "one"), machine(TWO, "two")];
    table.apply(&MachineChange::Add { machines }, at(0)).unwrap();
}

#[test]
fn a_machine_that_falls_silent_is_named_once_and_goes_on_later() {
    let mut table = Table::of(Vec::new(), 0, WATCH, at(0));
    admit_new(&mut table);
    deploy(&mut table, &["lab"], 1).unwrap();
    for mac in [ONE, TWO] {
        assert!(matches!(told(&mut table, mac, "k", None, 2), Task::Work(_)));
    }
    told(&mut table, TWO, "k", None, 50);
    assert_eq!(table.sweep(now(60)), Swept::default());
    assert_eq!(lost(&table.sweep(now(70))), [ONE]);
    assert_eq!(table.sweep(now(71)), Swept::default());
    assert_eq!((stage(&table, ONE), stage(&table, TWO)), (JobStage::Lost, JobStage::Taken));
    assert!(table.boots_ours(ONE, 0));
    table.seen(ONE, Step::Firmware, at(79));
    assert!(matches!(told(&mut table, ONE, "after a restart", None, 80), Task::Work(_)));
    assert_eq!(stage(&table, ONE), JobStage::Taken);
}

fn lost(swept: &Swept) -> Vec<Mac> {
    swept.lost.iter().map(|(mac, _)| *mac).collect()
}

#[test]
fn a_machine_that_vanishes_while_it_boots_is_named_once_with_its_step() {
    // What was seen of it last, and what an administrator reads.
    type See = fn(&mut Table);
    let cases: [(See, &str); 4] = [
        (|table| table.seen(ONE, Step::Firmware, at(10)), "since its firmware asked where to boot from"),
        (|table| table.seen(ONE, Step::Loader, at(10)), "since its boot loader asked what to load"),
        (
            |table| assert!(matches!(told(table, ONE, "k", None, 10), Task::Wait(_))),
            "since it waited for its job to begin",
        ),
        (|table| assert_eq!(table.sweep(now(10)).due.len(), 2), "since it was told to boot"),
    ];
    for (see, wanted) in cases {
        let mut table = Table::of(Vec::new(), 0, WATCH, at(0));
        admit_new(&mut table);
        // What was seen before the job was given counts for nothing.
        table.seen(ONE, Step::Firmware, at(1));
        let power = if wanted.contains("told to boot") { Power::Wake } else { Power::Leave };
        let given = JobRequest { power, window: 3600, ..request(install(), &["lab"]) };
        table.give(&given, &install(), at(2)).unwrap();
        see(&mut table);
        assert_eq!(lost(&table.sweep(now(310))), []);
        let swept = table.sweep(now(311));
        assert_eq!(swept.lost[0].0, ONE);
        assert!(
            swept.lost[0].1.contains(wanted) && swept.lost[0].1.contains("no sign for 5m01s"),
            "{swept:?}"
        );
        assert_eq!((stage(&table, ONE), table.sweep(now(9999))), (JobStage::Lost, Swept::default()));
        // It boots after all. Anybody can pretend that; it is not lost any more when it calls, and goes on.
        table.seen(ONE, Step::Firmware, at(10_000));
        assert_eq!(stage(&table, ONE), JobStage::Lost);
        told(&mut table, TWO, "k", None, 10_001);
        assert!(matches!(told(&mut table, ONE, "k", None, 10_002), Task::Work(_)));
        assert!(table.list(at(10_002)).machines[0].job.as_ref().unwrap().reason.is_none());
        assert_eq!(lost(&table.sweep(now(10_003))), []);
    }
}

#[test]
fn what_was_seen_before_a_job_begins_makes_no_machine_lost() {
    let mut table = Table::of(Vec::new(), 0, WATCH, at(0));
    admit_new(&mut table);
    let later = JobRequest { begins: 5000, window: 20, ..request(install(), &["lab"]) };
    table.give(&later, &install(), at(1)).unwrap();
    table.seen(ONE, Step::Firmware, at(10));
    for seconds in [1000, 5000, 5001] {
        assert_eq!(lost(&table.sweep(now(seconds))), []);
    }
    // One that vanished while it booted has not begun: the other waits for it, as for any.
    table.seen(ONE, Step::Firmware, at(5010));
    assert_eq!(lost(&table.sweep(now(5400))), [ONE]);
    assert!(matches!(told(&mut table, TWO, "k", None, 5401), Task::Wait(why) if why.contains("1 more")));
}

#[test]
fn an_erased_machine_is_not_expected_to_start_and_a_woken_one_is_also_after_a_restart() {
    let mut table = Table::of(Vec::new(), 0, WATCH, at(0));
    admit_new(&mut table);
    table.give(&request(Work::Wipe, &["one"]), &Work::Wipe, at(1)).unwrap();
    let Task::Work(job) = told(&mut table, ONE, "k", None, 2) else { panic!("no job") };
    let done = JobOutcome { job: job.job, failure: None, exit: None, log: None };
    told(&mut table, ONE, "k", Some(&done), 3);
    table.seen(ONE, Step::Firmware, at(100));
    assert_eq!(lost(&table.sweep(now(9000))), []);

    let woken = JobRequest { power: Power::Wake, ..request(install(), &["two"]) };
    table.give(&woken, &install(), at(9001)).unwrap();
    assert_eq!(table.sweep(now(9002)).due, [(TWO, Power::Wake)]);
    let records = table.take_changed().into_iter().map(|(mac, record)| (mac, record.unwrap())).collect();
    let mut table = Table::of(records, table.last_job(), WATCH, at(0));
    assert_eq!(table.sweep(now(300)), Swept::default());
    assert_eq!(lost(&table.sweep(now(301))), [TWO]);
}

#[test]
fn a_machine_that_does_not_come_back_is_named() {
    for sees_systems in [true, false] {
        let mut table = Table::of(Vec::new(), 0, Watch { sees_systems, ..WATCH }, at(0));
        admit_new(&mut table);
        deploy(&mut table, &["lab"], 1).unwrap();
        for mac in [ONE, TWO] {
            let Task::Work(job) = told(&mut table, mac, "k", None, 2) else { panic!("no job") };
            let done = JobOutcome { job: job.job, failure: None, exit: None, log: None };
            assert_eq!(told(&mut table, mac, "k", Some(&done), 3), Task::Start);
            // It asks once more what to boot, and gets its disk.
            table.seen(mac, Step::Loader, at(40));
        }
        table.seen(TWO, Step::System, at(50));
        assert_eq!(lost(&table.sweep(now(340))), []);
        let swept = table.sweep(now(341));
        // A server that sees no requests of systems on disks knows nothing of them.
        assert_eq!(lost(&swept), if sees_systems { vec![ONE] } else { vec![] });
        assert_eq!((stage(&table, ONE), stage(&table, TWO)), (JobStage::Done, JobStage::Done));
        assert!(!table.boots_ours(ONE, 341), "it is not installed again");
        table.seen(ONE, Step::System, at(400));
        assert_eq!(stage(&table, ONE), JobStage::Done, "anybody can pretend that");
        assert_eq!(table.list(at(400)).machines[0].seen_in.as_deref(), Some("system"));
    }
}

#[test]
fn a_restart_of_the_server_loses_no_job() {
    let mut table = Table::of(Vec::new(), 0, WATCH, at(0));
    admit_new(&mut table);
    deploy(&mut table, &["lab"], 1).unwrap();
    let Task::Work(job) = told(&mut table, ONE, "k", None, 2) else { panic!("no job") };
    let records = table.take_changed().into_iter().map(|(mac, record)| (mac, record.unwrap())).collect();
    assert!(table.take_changed().is_empty());

    let mut table = Table::of(records, table.last_job(), WATCH, at(0));
    assert_eq!((stage(&table, ONE), stage(&table, TWO)), (JobStage::Taken, JobStage::Queued));
    // Its machine is at work: it is not lost at once, and ends its job.
    assert_eq!(table.sweep(now(30)), Swept::default());
    let done =
        JobOutcome { job: job.job, failure: Some("the disk is too small".into()), exit: None, log: None };
    let Task::Wait(why) = told(&mut table, ONE, "k", Some(&done), 40) else { panic!("a job again") };
    assert!(why.contains("the disk is too small"), "{why}");
    // The number of a job is never used again.
    deploy(&mut table, &["one"], 41).unwrap();
    let Task::Work(next) = told(&mut table, ONE, "k", None, 42) else { panic!("no job") };
    assert!(next.job > job.job);
}

#[test]
fn an_open_window_admits_for_a_time_and_strangers_do_not_fill_the_table() {
    let mut table = Table::of(Vec::new(), 0, WATCH, at(0));
    table.apply(&MachineChange::Open { seconds: 60 }, at(10)).unwrap();
    assert_eq!(told(&mut table, ONE, "k", None, 69), Task::Wait("nothing to do".into()));
    assert!(matches!(told(&mut table, TWO, "k", None, 70), Task::Wait(why) if why.contains("admit")));
    let mac = |number: u32| {
        Mac([
            2,
            0,
            number.to_be_bytes()[0],
            number.to_be_bytes()[1],
            number.to_be_bytes()[2],
            number.to_be_bytes()[3],
        ])
    };
    assert_eq!(table.take_changed().len(), 1, "what strangers say is not kept");
    for number in 0..2000 {
        table.seen(mac(number), Step::Firmware, at(71));
    }
    assert!(table.list(at(71)).machines.len() <= 1001);
    // The newest ones are kept, and nobody has to make room for them by hand.
    assert!(matches!(told(&mut table, mac(2000), "k", None, 72), Task::Wait(why) if why.contains("admit")));
    assert_eq!(told(&mut table, ONE, "k", None, 73), Task::Wait("nothing to do".into()));
    let has = |table: &Table, mac: Mac| {
        table.list(at(73)).machines.iter().any(|machine| machine.mac == mac.to_string())
    };
    assert!(has(&table, ONE) && has(&table, mac(2000)) && has(&table, mac(1999)) && !has(&table, mac(0)));
    assert!(table.take_changed().iter().all(|(mac, _)| *mac == ONE));
    // They are forgotten after a day, or when an administrator says so.
    let mut later = table.clone();
    later.sweep(now(71 + 24 * 3600));
    assert_eq!(later.list(at(0)).machines.len(), 2, "one called later than the others");
    assert_eq!(table.apply(&MachineChange::RemoveStrangers, at(74)).unwrap().len(), 1000);
    assert_eq!(table.list(at(74)).machines.len(), 1);
}

#[test]
fn an_administrators_mistakes_change_nothing() {
    let mut table = Table::of(Vec::new(), 0, WATCH, at(0));
    admit_new(&mut table);
    table.take_changed();
    let add = |name: &str| MachineChange::Add {
        machines: vec![NewMachine {
            mac: "52:54:00:00:00:09".into(),
            name: Some(name.to_owned()),
            groups: None,
            ..NewMachine::default()
        }],
    };
    for (name, kind) in [("one", ErrorKind::Invalid), ("a b", ErrorKind::Invalid), ("", ErrorKind::Invalid)] {
        assert_eq!(table.apply(&add(name), at(1)).unwrap_err().kind(), kind, "{name}");
    }
    let unknown = MachineChange::Remove { machines: words(&["one", "three"]) };
    assert_eq!(table.apply(&unknown, at(1)).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(deploy(&mut table, &["one", "three"], 1).unwrap_err().kind(), ErrorKind::NotFound);
    assert!(table.take_changed().is_empty());
    assert_eq!(table.list(at(1)).machines.len(), 2);
    let remove = MachineChange::Remove { machines: words(&["lab"]) };
    assert_eq!(table.apply(&remove, at(1)).unwrap().len(), 2);
    assert!(table.take_changed().iter().all(|(_, record)| record.is_none()));
    // A machine that says too much.
    let mut facts = facts(ONE);
    facts.serial = Some("x".repeat(5000));
    let refused = decided(&mut table, &facts, "k", None, 2);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn a_job_begins_at_its_time_and_its_machine_is_got_to_boot_once() {
    let mut table = Table::of(Vec::new(), 0, WATCH, at(0));
    admit_new(&mut table);
    told(&mut table, ONE, "k", None, 1);
    let later = JobRequest { begins: 500, power: Power::Wake, ..request(install(), &["one"]) };
    table.give(&later, &install(), at(2)).unwrap();
    // Until then it starts from its disk, and waits if it is in our system.
    assert!(!table.boots_ours(ONE, 499) && table.boots_ours(ONE, 500));
    assert!(
        matches!(told(&mut table, ONE, "k", None, 3), Task::Wait(why) if why.contains("begins in 497 s"))
    );
    assert_eq!(table.sweep(now(499)), Swept::default());
    assert_eq!(table.sweep(now(500)), Swept { lost: vec![], due: vec![(ONE, Power::Wake)] });
    assert_eq!(table.sweep(now(501)), Swept::default());
    // Nor once more because the server was restarted.
    let records = table.take_changed().into_iter().map(|(mac, record)| (mac, record.unwrap())).collect();
    let mut table = Table::of(records, table.last_job(), WATCH, at(501));
    assert_eq!(table.sweep(now(502)), Swept::default());
    assert!(matches!(told(&mut table, ONE, "k", None, 503), Task::Work(_)));
}

#[test]
fn jobs_of_all_kinds_end_as_they_should() {
    let mut table = Table::of(Vec::new(), 0, WATCH, at(0));
    admit_new(&mut table);
    for (number, work) in
        [Work::Capture { image: "web".into() }, Work::Wipe, Work::Shell].into_iter().enumerate()
    {
        let seconds = 10 * u64::try_from(number).unwrap();
        table.give(&request(work.clone(), &["one"]), &work, at(seconds)).unwrap();
        if work.writes() {
            let Task::Wait(why) = told(&mut table, ONE, "k", None, seconds) else { panic!("it may publish") };
            assert!(why.contains("confirm") && why.contains(&fingerprint("k")), "{why}");
            admit(&mut table, &[&fingerprint("k")]);
        }
        let Task::Work(job) = told(&mut table, ONE, "k", None, seconds + 1) else { panic!("no job") };
        assert_eq!(job.work, work);
        let done = JobOutcome { job: job.job, failure: None, exit: None, log: None };
        let after = told(&mut table, ONE, "k", Some(&done), seconds + 2);
        assert_eq!(
            after == Task::Start,
            matches!(work, Work::Capture { .. }),
            "an empty disk does not start"
        );
        assert!(!table.boots_ours(ONE, 0), "nothing is done twice");
    }
}

#[test]
fn jobs_are_taken_back_unless_a_machine_is_at_work() {
    let mut table = Table::of(Vec::new(), 0, WATCH, at(0));
    admit_new(&mut table);
    deploy(&mut table, &["lab"], 1).unwrap();
    told(&mut table, ONE, "k", None, 2);
    let cancel = |machine: &str| MachineChange::Cancel { machines: words(&[machine]) };
    for word in ["one", "lab"] {
        assert_eq!(table.apply(&cancel(word), at(3)).unwrap_err().kind(), ErrorKind::Refused);
    }
    table.apply(&cancel("two"), at(3)).unwrap();
    assert_eq!(told(&mut table, TWO, "k", None, 4), Task::Wait("nothing to do".into()));
    // A machine that waits for nothing starts from its disk after a while.
    assert_eq!(told(&mut table, TWO, "k", None, 4 + 900), Task::Start);
    // It boots our system again: it waits as long again.
    assert_eq!(told(&mut table, TWO, "new", None, 1000), Task::Wait("nothing to do".into()));
}

#[test]
fn machines_of_one_deploy_begin_together_or_after_a_while() {
    let mut table = Table::of(Vec::new(), 0, WATCH, at(0));
    admit_new(&mut table);
    let together = JobRequest { window: 20, ..request(install(), &["lab"]) };
    table.give(&together, &install(), at(1)).unwrap();
    let waits = |task: &Task| matches!(task, Task::Wait(why) if why.contains("for 1 more to begin together"));
    assert!(waits(&told(&mut table, ONE, "k", None, 100)));
    // The other comes: it begins at once, and the first follows.
    assert!(matches!(told(&mut table, TWO, "k", None, 105), Task::Work(_)));
    assert!(matches!(told(&mut table, ONE, "k", None, 106), Task::Work(_)));

    let mut table = Table::of(Vec::new(), 0, WATCH, at(0));
    admit_new(&mut table);
    table.give(&together, &install(), at(1)).unwrap();
    for seconds in [100, 110, 119] {
        assert!(waits(&told(&mut table, ONE, "k", None, seconds)));
    }
    // Who is late finds that the others have begun.
    assert!(matches!(told(&mut table, ONE, "k", None, 120), Task::Work(_)));
    assert!(matches!(told(&mut table, TWO, "k", None, 300), Task::Work(_)));
}
