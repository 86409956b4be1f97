//! What every engine of the metadata service does: the one in a file, and etcd with three members. What only etcd
//! does: one instance leads, and others change nothing; history, quota, snapshots, members that die.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::ErrorKind;
use cluster::Opening;
use cluster::metadata::engine::{Condition, Embedded, Engine, Write};
use cluster::metadata::etcd::{Election, Etcd, EtcdAccess, EtcdSetting, Term};
use lab::EtcdSite;

use crate::conformance::{conforms, conforms_in_all, count};

#[test]
fn the_embedded_engine_conforms_and_keeps_what_it_has() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("metadata.redb");
    let missing = Embedded::open(&path, Opening::Existing).unwrap_err();
    assert!(missing.kind() == ErrorKind::Refused && missing.to_string().contains("--new"), "{missing}");
    assert!(!path.exists(), "nothing is made");
    let engine = Embedded::open(&path, Opening::OrNew).unwrap();
    conforms_in_all(&engine, "");
    let twice = Embedded::open(&path, Opening::Existing).unwrap_err();
    assert_eq!(twice.kind(), ErrorKind::Refused, "one process at a time");
    drop(engine);
    let again = Embedded::open(&path, Opening::Existing).unwrap();
    assert_eq!(again.get("counter").unwrap().unwrap().value, b"80");
    conforms(&again, "again/");
}

fn site(folder: &Path, words: &[&str]) -> Option<EtcdSite> {
    EtcdSite::start_or_skip(folder, 3, words)
}

fn etcd(site: &EtcdSite, prefix: &str) -> Arc<Etcd> {
    let (members, prefix, access) = (site.addresses(), prefix.to_owned(), EtcdAccess::default());
    let setting = EtcdSetting { members, access, prefix, lease: Duration::from_secs(2), history: 200 };
    Etcd::open(&setting).unwrap()
}

fn leader(etcd: &Arc<Etcd>, address: &str) -> Arc<Term> {
    for _ in 0..600 {
        match etcd.campaign(address).unwrap() {
            Election::Won(term) => return term,
            Election::Lost(_) => std::thread::park_timeout(Duration::from_millis(50)),
        }
    }
    panic!("nobody gives way to {address}");
}

/// Keeps a seat until it is dropped.
struct Kept(Arc<AtomicBool>, Option<std::thread::JoinHandle<()>>);

fn keep(term: &Arc<Term>) -> Kept {
    let (term, stop) = (Arc::clone(term), Arc::new(AtomicBool::new(false)));
    let stopped = Arc::clone(&stop);
    let thread = std::thread::spawn(move || {
        while !stopped.load(Ordering::Relaxed) {
            let _ = term.keep();
            std::thread::park_timeout(term.keep_every());
        }
    });
    Kept(stop, Some(thread))
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        let thread = self.1.take().unwrap();
        thread.thread().unpark();
        thread.join().unwrap();
    }
}

#[test]
fn etcd_conforms_and_its_prefixes_are_apart() {
    let folder = tempfile::tempdir().unwrap();
    let Some(site) = site(folder.path(), &[]) else { return };
    let (one, other) = (leader(&etcd(&site, "one"), "here"), leader(&etcd(&site, "/one/two/"), "here"));
    let _kept = (keep(&one), keep(&other));
    conforms_in_all(one.as_ref(), "");
    conforms(other.as_ref(), "");
    assert_eq!(other.get("counter").unwrap(), None);
    // What etcd's own tool shows is what the engine lists.
    let shown = site.ctl(1, &["get", "--prefix", "one/state/", "--keys-only"]);
    let shown: Vec<_> = shown.lines().filter_map(|line| line.strip_prefix("one/state/")).collect();
    let listed = one.list("", "", 10_000).unwrap();
    assert_eq!(listed.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(), shown);
    assert!(listed.len() > 1000);
}

#[test]
fn who_lost_the_seat_changes_and_reads_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let Some(site) = site(folder.path(), &[]) else { return };
    let etcd = etcd(&site, "fenced");
    let first = leader(&etcd, "http://first");
    assert!(first.commit(&[], &[Write::Put("a".to_owned(), b"1".to_vec())]).unwrap());
    let Election::Lost(holder) = etcd.campaign("http://second").unwrap() else { panic!("two lead") };
    assert_eq!(holder, "http://first");
    // Silent for longer than its lease; it does not know that another one leads.
    let second = leader(&etcd, "http://second");
    let late = first.commit(&[], &[Write::Put("a".to_owned(), b"2".to_vec())]).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Revoked, "{late}");
    assert_eq!(first.get("a").unwrap_err().kind(), ErrorKind::Revoked);
    assert!(!first.keep().unwrap());
    assert_eq!(second.get("a").unwrap().unwrap().value, b"1");
    // One that was only asked for reads notices, too; one that leaves gives way at once.
    second.resign().unwrap();
    let third = leader(&etcd, "http://second");
    assert_eq!(second.list("", "", 1).unwrap_err().kind(), ErrorKind::Revoked);
    assert!(third.commit(&[], &[Write::Put("a".to_owned(), b"3".to_vec())]).unwrap());
    assert_eq!(third.get("a").unwrap().unwrap().value, b"3");
}

/// Counts, also while etcd has no leader: whatever happens to an answer, each step is made once.
#[test]
fn a_member_that_dies_or_hangs_doubles_and_loses_no_commit() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut site) = site(folder.path(), &[]) else { return };
    let term = leader(&etcd(&site, "members"), "here");
    let _kept = keep(&term);
    let stop = AtomicBool::new(false);
    let steps = std::thread::scope(|scope| {
        let counting = scope.spawn(|| {
            let mut steps = 0;
            while !stop.load(Ordering::Relaxed) {
                assert_eq!(count(term.as_ref(), "steps"), steps + 1, "made twice, or not at all");
                steps += 1;
            }
            steps
        });
        let moment = || std::thread::park_timeout(Duration::from_millis(300));
        for member in 0..3 {
            moment();
            site.kill(member);
            moment();
            site.start(member);
            assert!(site.wait_until_healthy());
            site.signal(member, "-STOP");
            // Longer than a request waits for one member.
            std::thread::park_timeout(Duration::from_millis(1500));
            site.signal(member, "-CONT");
            assert!(site.wait_until_healthy());
        }
        stop.store(true, Ordering::Relaxed);
        counting.join().unwrap()
    });
    assert!(steps > 50, "{steps}");
    let told = site.ctl(0, &["get", "members/state/steps", "--print-value-only"]);
    assert_eq!(told.trim(), steps.to_string());
    // With two of three away nothing is changed, and the error says so.
    site.kill(1);
    site.kill(2);
    let error = term.commit(&[], &[Write::Put("steps".to_owned(), b"0".to_vec())]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.to_string().contains("no member of etcd answers"), "{error}");
    // Whether it was made is unknown, so this term is over.
    assert_eq!(term.get("steps").unwrap_err().kind(), ErrorKind::Revoked);
}

#[test]
fn history_is_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let Some(site) = site(folder.path(), &[]) else { return };
    let term = leader(&etcd(&site, "history"), "here");
    // On a busy machine this takes longer than a lease.
    let _kept = keep(&term);
    let old = |revision: &str| site.try_ctl(0, &["get", "history/state/steps", "--rev", revision]);
    (0..150).for_each(|_| assert!(count(term.as_ref(), "steps") > 0));
    assert!(term.keep().unwrap());
    assert!(old("100").is_some(), "there is little of it yet");
    (0..100).for_each(|_| assert!(count(term.as_ref(), "steps") > 0));
    assert!(term.keep().unwrap());
    assert!(old("100").is_none(), "it was dropped");
    assert_eq!(term.get("steps").unwrap().unwrap().value, b"250");
}

#[test]
fn a_full_etcd_says_what_to_do_and_goes_on_after_that() {
    let folder = tempfile::tempdir().unwrap();
    let Some(site) = site(folder.path(), &["--quota-backend-bytes", "4000000"]) else { return };
    let etcd = etcd(&site, "full");
    let term = leader(&etcd, "here");
    let _kept = keep(&term);
    let put_value = |round: u8| vec![round; 300_000];
    let put = |round: u8| [Write::Put("large".to_owned(), put_value(round))];
    let made = |round| term.commit(&[], &put(round)).map(|made| assert!(made)).err();
    let (round, error) = (0..100).find_map(|round| Some((round, made(round)?))).expect("the quota is small");
    assert_eq!(error.kind(), ErrorKind::Full);
    assert!(error.to_string().contains("etcdctl alarm disarm"), "{error}");
    // Nothing was changed: etcd also refuses a change that it makes. What is there is read, and the instance leads on.
    let kept = term.get("large").unwrap().unwrap();
    assert_eq!(kept.value, put_value(round - 1));
    assert!(term.keep().unwrap());
    assert!(site.ctl(0, &["alarm", "list"]).contains("NOSPACE"));

    // As docs/cluster.md says.
    let status: serde_json::Value =
        serde_json::from_str(&site.ctl(0, &["endpoint", "status", "-w", "json"])).unwrap();
    let revision = status[0]["Status"]["header"]["revision"].to_string();
    let _ = site.ctl(0, &["compact", &revision]);
    for member in 0..3 {
        let _ = site.ctl(member, &["defrag"]);
    }
    let _ = site.ctl(0, &["alarm", "disarm"]);
    assert!(term.commit(&[Condition::Revision("large".to_owned(), kept.revision)], &put(200)).unwrap());
    assert_eq!(term.get("large").unwrap().unwrap().value, put_value(200));
}

#[test]
fn a_snapshot_brings_back_what_it_holds() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut site) = site(folder.path(), &[]) else { return };
    let etcd = etcd(&site, "saved");
    let term = leader(&etcd, "before");
    (0..5).for_each(|_| assert!(count(term.as_ref(), "steps") > 0));
    let snapshot = folder.path().join("snapshot");
    let _ = site.ctl(0, &["snapshot", "save", snapshot.to_str().unwrap()]);
    (0..5).for_each(|_| assert!(count(term.as_ref(), "steps") > 0));
    site.restore(&snapshot);
    // The seat is in the snapshot, with a lease that nobody renews; the leader of before has no right to it.
    let error = term.commit(&[], &[Write::Put("steps".to_owned(), b"77".to_vec())]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Revoked);
    let after = leader(&etcd, "after");
    assert_eq!(after.get("steps").unwrap().unwrap().value, b"5");
    assert_eq!(count(after.as_ref(), "steps"), 6);
}
