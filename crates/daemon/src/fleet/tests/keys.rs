//! Tests who speaks for a card, and who goes on with its job.

use net::api::{KeyStatus, MachineStatus, Put};

use super::super::machine::Record;
use super::*;

fn status(table: &Table, mac: Mac, seconds: u64) -> MachineStatus {
    let all = table.list(at(seconds)).machines;
    all.into_iter().find(|machine| machine.mac == mac.to_string()).unwrap()
}

fn key_of(table: &Table, seconds: u64) -> KeyStatus {
    status(table, ONE, seconds).key.unwrap()
}

/// What is told to who calls for the card [`ONE`], and what the log says of it.
fn heard(table: &mut Table, key: &str, runs: bool, seconds: u64) -> (Task, Option<String>) {
    let decision = decided(table, &MachineFacts { runs, ..facts(ONE) }, key, None, seconds).unwrap();
    (decision.task, decision.news.map(|news| news.what))
}

fn waits(table: &mut Table, key: &str, runs: bool, seconds: u64) -> String {
    match heard(table, key, runs, seconds).0 {
        Task::Wait(why) => why,
        task => panic!("{key} gets {task:?}"),
    }
}

/// A table with a machine that is at work on `work` with the key "own" since second 2.
fn at_work(work: &Work, watch: Watch) -> Table {
    let mut table = Table::of(Vec::new(), 0, watch, at(0));
    admit_new(&mut table);
    table.give(&request(work.clone(), &["one"]), work, at(1)).unwrap();
    // A job that needs a confirmed key waits for that.
    heard(&mut table, "own", false, 2);
    admit(&mut table, &[&fingerprint("own")]);
    assert!(matches!(heard(&mut table, "own", false, 2).0, Task::Work(_)));
    table.take_changed();
    table
}

#[test]
fn nobody_takes_a_job_over_by_calls_without_a_proof() {
    let mut table = at_work(&install(), WATCH);
    let facts = facts(ONE);
    for second in 3..200 {
        if second % 5 == 0 {
            let job = status(&table, ONE, second).job.unwrap().job;
            let beat = Call { working: Some(job), ..call(&facts, "own") };
            assert_eq!(table.call(ONE, beat, now(second)).unwrap().task, Task::Wait("at work".into()));
            table.take_changed();
        }
        let before = table.list(at(second));
        for key in ["own", "liar"] {
            let unproven = Call { proven: false, ..call(&facts, key) };
            let decision = table.call(ONE, unproven, now(second)).unwrap();
            assert_eq!(decision.task, Task::Wait("one moment".into()));
            assert!(decision.again_ms < PROVES_NOTHING_MS && decision.name.is_none());
        }
        assert_eq!((table.list(at(second)), table.take_changed()), (before, Vec::new()));
        assert!(waits(&mut table, "liar", false, second).contains("another machine"));
        assert_eq!(table.sweep(now(second)), Swept::default());
    }
    // Nor is a stranger in the table before it has shown a key.
    let other = MachineFacts { mac: TWO.to_string(), ..facts.clone() };
    let mut empty = Table::of(Vec::new(), 0, WATCH, at(0));
    empty.call(TWO, Call { proven: false, ..call(&other, "k") }, now(1)).unwrap();
    assert!(empty.list(at(1)).machines.is_empty());
}

#[test]
fn what_anybody_can_pretend_changes_no_job() {
    for stage in [JobStage::Queued, JobStage::Taken, JobStage::Lost, JobStage::Done, JobStage::Failed] {
        let mut table = Table::of(Vec::new(), 0, WATCH, at(0));
        admit_new(&mut table);
        deploy(&mut table, &["one"], 1).unwrap();
        let mut records: Vec<(Mac, Record)> =
            table.take_changed().into_iter().map(|(mac, record)| (mac, record.unwrap())).collect();
        records[0].1.job.as_mut().unwrap().stage = stage;
        let mut table = Table::of(records, table.last_job(), WATCH, at(2));
        let before = status(&table, ONE, 3);
        for step in [Step::Firmware, Step::Loader, Step::System] {
            table.seen(ONE, step, at(3));
            let MachineStatus { job, called_seconds_ago, .. } = status(&table, ONE, 3);
            assert_eq!((&job, called_seconds_ago), (&before.job, before.called_seconds_ago), "{step:?}");
        }
        assert!(table.take_changed().is_empty());
    }
}

#[test]
fn a_job_goes_on_with_a_new_key_after_silence_and_a_start_and_is_marked() {
    let mut table = at_work(&install(), WATCH);
    assert!(key_of(&table, 2).confirmed && !key_of(&table, 2).followed);
    // Silent, but not started: the network is away, and the machine still at work.
    assert!(waits(&mut table, "new", false, 100).contains("was not seen since"));
    assert_eq!(status(&table, ONE, 100).rival.unwrap().fingerprint, fingerprint("new"));
    assert!(matches!(heard(&mut table, "own", false, 101).0, Task::Work(_)), "it is back");
    // Started, but the one of before still calls.
    table.seen(ONE, Step::Firmware, at(110));
    assert!(waits(&mut table, "new", false, 120).contains("another machine"));
    let (task, news) = heard(&mut table, "new", false, 162);
    assert!(
        matches!(task, Task::Work(_)) && news.as_deref().unwrap().contains("another key had begun"),
        "{news:?}"
    );
    let wanted = KeyStatus {
        fingerprint: fingerprint("new"),
        since: 162,
        address: Some(HERE),
        confirmed: false,
        followed: true,
    };
    assert_eq!(
        (key_of(&table, 162), heard(&mut table, "new", false, 163).1),
        (wanted, None),
        "it is told once"
    );
    // One start is no leave for two.
    assert!(waits(&mut table, "third", false, 300).contains("was not seen since"));
    // The mark stays through a restart, until somebody has looked.
    let records = table.take_changed().into_iter().map(|(mac, record)| (mac, record.unwrap())).collect();
    let mut table = Table::of(records, table.last_job(), WATCH, at(0));
    assert!(key_of(&table, 0).followed && !key_of(&table, 0).confirmed);
    admit(&mut table, &[&fingerprint("new").replace('-', "").to_uppercase()]);
    assert!(key_of(&table, 0).confirmed);
}

#[test]
fn a_capture_and_a_strict_server_wait_for_an_administrator() {
    let strict = Watch { strict: true, ..WATCH };
    for (work, watch) in
        [(Work::Capture { image: "web".into() }, WATCH), (install(), strict), (Work::Wipe, strict)]
    {
        let mut table = at_work(&work, watch);
        table.seen(ONE, Step::Firmware, at(50));
        let why = waits(&mut table, "new", false, 100);
        assert!(why.contains(&format!("diskcast hosts admit {}", fingerprint("new"))), "{why}");
        assert!(matches!(heard(&mut table, "own", false, 101).0, Task::Work(_)), "it keeps its job");
        assert!(waits(&mut table, "new", false, 200).contains("must say"));
        table.apply(&MachineChange::Admit { machines: vec![fingerprint("new")] }, at(200)).unwrap();
        // From now on the other one is out, before the new one has called and after.
        assert!(waits(&mut table, "own", false, 201).contains("named another key"));
        assert!(matches!(heard(&mut table, "new", false, 202).0, Task::Work(_)));
        assert!(key_of(&table, 202).confirmed && key_of(&table, 202).followed);
        assert!(waits(&mut table, "own", false, 203).contains("another machine"));
    }
    // Nor does a job begin there with a key that nobody has confirmed.
    let mut table = Table::of(Vec::new(), 0, strict, at(0));
    admit_new(&mut table);
    deploy(&mut table, &["one"], 1).unwrap();
    assert!(waits(&mut table, "own", false, 2).contains("must confirm"));
    admit(&mut table, &["one"]);
    assert!(waits(&mut table, "own", false, 3).contains("must confirm"), "that names no key");
    admit(&mut table, &[&fingerprint("own")]);
    assert!(matches!(heard(&mut table, "own", false, 4).0, Task::Work(_)));
}

#[test]
fn the_job_of_an_agent_never_goes_to_another_key() {
    let put = Work::Put(Put { reference: "web@3".into(), ..Put::default() });
    let mut table = Table::of(Vec::new(), 0, WATCH, at(0));
    admit_new(&mut table);
    let request = JobRequest { disk: Some("/srv/one.img".into()), ..request(put.clone(), &["one"]) };
    table.give(&request, &put, at(1)).unwrap();
    let (task, news) = heard(&mut table, "own", true, 2);
    assert!(matches!(task, Task::Work(_)) && news.unwrap().contains("the first one"));
    // It falls silent, and somebody pretends its start, and that it boots from the network.
    table.seen(ONE, Step::Firmware, at(10));
    table.sweep(now(100));
    let (task, news) = heard(&mut table, "liar", true, 100);
    assert!(matches!(task, Task::Wait(why) if why.contains("another key")));
    assert!(news.unwrap().contains("gets nothing"));
    assert_eq!(heard(&mut table, "liar too", true, 101).1, None, "the log is not flooded");
    assert_eq!(heard(&mut table, "liar", false, 102).0, Task::Start);
    assert!(matches!(heard(&mut table, "own", true, 103).0, Task::Work(_)), "it is not kept out");
    // Its key is lost: an administrator names the new one.
    assert!(waits(&mut table, "new", true, 300).contains("another key"));
    let new =
        |key: &str| NewMachine { mac: ONE.to_string(), key: Some(key.to_owned()), ..NewMachine::default() };
    let add = |key: &str| MachineChange::Add { machines: vec![new(key)] };
    assert_eq!(table.apply(&add("lab-7"), at(300)).unwrap_err().kind(), ErrorKind::Invalid);
    table.apply(&add(&fingerprint("new")), at(301)).unwrap();
    assert_eq!(status(&table, ONE, 301).named_key, Some(fingerprint("new")));
    assert!(waits(&mut table, "own", true, 302).contains("named another key"));
    assert!(matches!(heard(&mut table, "new", true, 303).0, Task::Work(_)));
    let known = status(&table, ONE, 303).agent_key.unwrap();
    assert!(known.confirmed && known.fingerprint == fingerprint("new"), "{known:?}");
}

#[test]
fn a_key_that_was_named_before_the_first_call_is_the_only_one() {
    let mut table = Table::of(Vec::new(), 0, WATCH, at(0));
    let key = Some(fingerprint("own"));
    let machine = NewMachine { mac: ONE.to_string(), name: Some("one".into()), key, ..NewMachine::default() };
    table.apply(&MachineChange::Add { machines: vec![machine] }, at(0)).unwrap();
    deploy(&mut table, &["one"], 1).unwrap();
    for runs in [true, false] {
        assert!(waits(&mut table, "liar", runs, 2).contains("named another key"));
    }
    let (task, news) = heard(&mut table, "own", false, 3);
    assert!(matches!(task, Task::Work(_)) && news.unwrap().contains("an administrator named"));
    // A name that looks like a fingerprint would be taken for one.
    let name = Some(fingerprint("k"));
    let machine = NewMachine { mac: TWO.to_string(), name, ..NewMachine::default() };
    let refused = table.apply(&MachineChange::Add { machines: vec![machine] }, at(4));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn of_two_that_call_with_one_card_nobody_is_admitted_by_chance() {
    let mut table = Table::of(Vec::new(), 0, WATCH, at(0));
    assert!(waits(&mut table, "liar", true, 1).contains("must admit"));
    assert!(waits(&mut table, "own", true, 2).contains("another machine"));
    // Neither by its card, nor by all, nor by an open window.
    let change = |words: &[&str]| MachineChange::Admit { machines: self::words(words) };
    assert_eq!(table.apply(&change(&[&ONE.to_string()]), at(3)).unwrap_err().kind(), ErrorKind::Refused);
    assert!(table.apply(&change(&["*"]), at(3)).unwrap().is_empty());
    table.apply(&MachineChange::Open { seconds: 60 }, at(3)).unwrap();
    assert!(waits(&mut table, "liar", true, 4).contains("must admit"));
    assert_eq!(
        table.apply(&change(&[&fingerprint("nobody")]), at(5)).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    table.apply(&change(&[&fingerprint("own")]), at(5)).unwrap();
    assert!(waits(&mut table, "liar", true, 6).contains("named another key"));
    assert_eq!(waits(&mut table, "own", true, 7), "nothing to do");
    // Who called first and is gone was nothing but the first: before somebody admits it, a key may change.
    let mut table = Table::of(Vec::new(), 0, WATCH, at(0));
    waits(&mut table, "liar", true, 1);
    assert!(waits(&mut table, "own", true, 100).contains("must admit"));
    assert_eq!(table.apply(&change(&["*"]), at(101)).unwrap().len(), 1);
    assert_eq!(status(&table, ONE, 101).agent_key.unwrap().fingerprint, fingerprint("own"));
}

#[test]
fn all_machines_are_those_that_were_admitted() {
    let mut table = Table::of(Vec::new(), 0, WATCH, at(0));
    assert_eq!(deploy(&mut table, &["*"], 0).unwrap_err().kind(), ErrorKind::NotFound);
    admit_new(&mut table);
    told(&mut table, Mac([2, 0, 0, 0, 0, 9]), "stranger", None, 1);
    deploy(&mut table, &["*"], 2).unwrap();
    let all = |change: fn(Vec<String>) -> MachineChange| change(words(&["*"]));
    assert_eq!(table.apply(&all(|machines| MachineChange::Cancel { machines }), at(3)).unwrap().len(), 2);
    assert_eq!(table.apply(&all(|machines| MachineChange::Remove { machines }), at(3)).unwrap().len(), 2);
    assert_eq!(table.list(at(3)).machines.len(), 1);
}

#[test]
fn tables_of_before_are_read_with_the_keys_of_machines_at_work() {
    let old = r#"{"name":"one","groups":["lab"],"admitted":true,"key":"own","agent_key":"agent","facts":null,
        "job":{"job":7,"work":"wipe","stage":"taken"},"woken":null}"#;
    let stranger = r#"{"admitted":false,"key":"x"}"#;
    let records =
        vec![(ONE, serde_json::from_str(old).unwrap()), (TWO, serde_json::from_str(stranger).unwrap())];
    let mut table = Table::of(records, 7, WATCH, at(0));
    assert!(waits(&mut table, "liar", false, 1).contains("another machine"));
    assert!(waits(&mut table, "liar", true, 1).contains("another key"));
    assert!(matches!(heard(&mut table, "own", false, 30).0, Task::Work(job) if job.job == 7));
    let (known, agent) = (key_of(&table, 30), status(&table, ONE, 30).agent_key.unwrap());
    assert_eq!((known.since, known.address, known.confirmed), (0, Some(HERE), false));
    assert_eq!((agent.fingerprint, agent.confirmed), (fingerprint("agent"), false));
    // What strangers said is no longer kept.
    let changed = table.take_changed();
    assert!(changed.iter().any(|(mac, record)| *mac == TWO && record.is_none()), "{changed:?}");
    let kept = changed.into_iter().find_map(|(mac, record)| record.filter(|_| mac == ONE)).unwrap();
    let text = serde_json::to_string(&kept).unwrap();
    assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), kept);
}
