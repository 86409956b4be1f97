//! `diskcast cluster try`: a cluster of processes, of which some are killed and some hang, under a repository.

use std::net::TcpListener;

use serde_json::Value;

use crate::common::running::Running;
use crate::common::{Bench, assert_same};

/// A cluster that runs, and the words with which it is used.
struct Trial {
    running: Running,
    started: Value,
    words: String,
}

impl Trial {
    /// Starts the cluster in the folder `try`; at another port if one of its ports is in use.
    fn start(bench: &Bench, more: &str) -> Self {
        for _ in 0..5 {
            // The devices take the ports after it.
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().min(60_000);
            let words =
                format!("cluster try try --devices 5 --width 3+2 --listen 127.0.0.1:{port} --json {more}");
            let mut running = Running::start(bench.command(&words));
            let first = running.lines.next().and_then(Result::ok);
            let Some(started) = first.and_then(|line| serde_json::from_str::<Value>(&line).ok()) else {
                continue;
            };
            // An error is a line of JSON, too.
            let Some(location) = started["location"].as_str() else { continue };
            let token = bench.path("try/cluster.token");
            let words = format!("--repo {location} --cluster-token {}", token.display());
            return Self { running, started, words };
        }
        panic!("no cluster started");
    }

    fn signal(&self, name: &str, signal: &str) {
        let processes = self.started["processes"].as_array().unwrap();
        let pid = processes.iter().find(|process| process["name"] == name).unwrap()["pid"].to_string();
        assert!(std::process::Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }
}

impl Drop for Trial {
    /// A process that is stopped does not notice that the cluster ends.
    fn drop(&mut self) {
        for process in self.started["processes"].as_array().into_iter().flatten() {
            let _ = std::process::Command::new("kill").args(["-CONT", &process["pid"].to_string()]).output();
        }
    }
}

#[test]
fn a_repository_survives_two_of_five_devices() {
    let bench = Bench::new();
    let disk = bench.disk("disk.img", 24, 1);
    let mut trial = Trial::start(&bench, "");
    let there = |words: &str| bench.see(&format!("{words} {}", trial.words));
    assert!(there("capture disk.img web -q").ends_with("exit: 0\n"));
    let status = there("cluster status");
    assert!(status.contains("all is well: any 2 devices may fail"), "{status}");
    let again = bench.disk("again.img", 24, 2);
    // One dies while a capture runs, one hangs.
    let mut capture = bench.command(&format!("capture again.img web -q {}", trial.words)).spawn().unwrap();
    trial.signal("device-02", "-KILL");
    trial.signal("device-04", "-STOP");
    assert!(capture.wait().unwrap().success());
    for (version, disk) in [(1, &disk), (2, &again)] {
        let installed = there(&format!("install web@{version} out-{version}.img -q"));
        assert!(installed.ends_with("exit: 0\n"), "{installed}");
        assert_same(disk, &bench.path(&format!("out-{version}.img")));
    }
    let verified = there("verify -q");
    assert!(verified.ends_with("exit: 0\n"), "{verified}");
    trial.signal("device-04", "-CONT");
    let unknown = there("cluster drain 77");
    assert!(unknown.contains("no device 77") && unknown.ends_with("exit: 10\n"), "{unknown}");
    let careful = there("cluster lost 2");
    assert!(careful.contains("--yes") && careful.ends_with("exit: 11\n"), "{careful}");
    // All end with the command that started them, and start again with what they have: in plain HTTP, then with TLS.
    for (more, scheme) in [("--no-tls", "cluster+http://"), ("", "cluster://")] {
        trial.running.signal("TERM");
        assert!(trial.running.child.wait().unwrap().success());
        trial = Trial::start(&bench, more);
        assert!(trial.started["location"].as_str().unwrap().starts_with(scheme));
        let there = |words: &str| bench.see(&format!("{words} {}", trial.words));
        assert!(there("install web@1 back.img -q --overwrite").ends_with("exit: 0\n"));
        assert_same(&disk, &bench.path("back.img"));
        let log = there("log web");
        assert!(log.ends_with("exit: 0\n") && log.contains('2'), "{log}");
    }
}

#[test]
fn a_dry_run_changes_nothing_of_a_cluster_and_limits_are_kept() {
    let bench = Bench::new();
    let trial = Trial::start(&bench, "");
    let there = |words: &str| bench.see(&format!("{words} {}", trial.words));
    // A device that was killed becomes silent and away by itself; `lost` and `draining` it becomes by a command.
    let ordered = || {
        let records = bench.json(&format!("cluster status {}", trial.words));
        let states =
            records.iter().filter_map(|record| record["device"]["state"].as_str().map(str::to_owned));
        states.filter(|state| state == "lost" || state == "draining").count()
    };
    let limited = there("cluster limit --quota 1G");
    assert!(
        limited.starts_with("out: group 1 may store 1.0 GiB, ") && limited.ends_with("exit: 0\n"),
        "{limited}"
    );
    trial.signal("device-02", "-KILL");
    for words in ["drain 3", "lost 2", "rebalance", "limit --quota none"] {
        let told = there(&format!("cluster {words} --dry-run --yes"));
        assert!(told.contains("would") && told.ends_with("exit: 0\n"), "{words}: {told}");
    }
    assert_eq!(ordered(), 0);
    assert!(there("cluster limit").contains("may store 1.0 GiB"));
    let drained = there("cluster drain 3 --yes");
    assert!(drained.ends_with("exit: 0\n") && ordered() == 1, "{drained}");
}

#[test]
fn what_is_out_of_reach_is_not_damaged_and_programs_that_run_read_on() {
    let bench = Bench::new();
    let disk = bench.disk("disk.img", 8, 1);
    let trial = Trial::start(&bench, "");
    let there = |words: &str| bench.see(&format!("{words} {}", trial.words));
    assert!(there("capture disk.img web -q").ends_with("exit: 0\n"));
    // A server that has not opened the image yet, and then no metadata service.
    let server = bench.serve(&trial.words);
    trial.signal("metadata", "-STOP");
    let fetched = bench.see(&format!("fetch {} web out.img --token-file join.token -q", server.url));
    assert!(fetched.ends_with("exit: 0\n"), "{fetched}");
    assert_same(&disk, &bench.path("out.img"));
    trial.signal("metadata", "-CONT");
    // Three of five are away: the list of objects can't be read, and nothing is known to be damaged.
    for device in ["device-01", "device-03", "device-05"] {
        trial.signal(device, "-STOP");
    }
    let verified = there("verify -q");
    assert!(verified.contains("does not answer") && verified.ends_with("exit: 1\n"), "{verified}");
}

#[test]
fn nothing_is_lost_by_cuts_clocks_older_copies_and_kills() {
    if !lab::ClusterFaults::available_or_skip() {
        return;
    }
    let bench = Bench::new();
    let rounds = std::env::var("DISKCAST_ROUNDS").map_or(3, |rounds| rounds.parse().unwrap());
    let first: u64 = std::env::var("DISKCAST_SEED").map_or(0, |seed| seed.parse().unwrap());
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_diskcast"));
    let wrong = lab::ClusterFaults { program, folder: &bench.path("") }.run(first..first + rounds);
    assert!(wrong.is_empty(), "{}\nagain: DISKCAST_SEED=N DISKCAST_ROUNDS=1", wrong.join("\n"));
}

#[test]
fn what_is_wrong_with_a_cluster_is_told() {
    let bench = Bench::new();
    let few = bench.see("cluster try few --devices 3");
    assert!(few.contains("too few") && few.ends_with("exit: 2\n"), "{few}");
    let no_token = bench.see("images --repo cluster://127.0.0.1:1");
    assert!(no_token.contains("a cluster needs its token") && no_token.ends_with("exit: 2\n"), "{no_token}");
    bench.keep_secret("cluster.token", "0123456789abcdef".repeat(4));
    let nobody = bench.see("images --repo cluster://127.0.0.1:1 --cluster-token cluster.token");
    assert!(nobody.contains("Connection refused") && nobody.ends_with("exit: 1\n"), "{nobody}");
    let wrong = bench.see("images --repo cluster://127.0.0.1 --cluster-token cluster.token");
    assert!(wrong.contains("cluster://HOST:PORT") && wrong.ends_with("exit: 2\n"), "{wrong}");
    let which = bench.see("cluster status --cluster-token cluster.token");
    assert!(which.contains("which cluster?") && which.ends_with("exit: 2\n"), "{which}");
    let open = bench.see("device d --metadata 127.0.0.1:1 --listen 0.0.0.0:0 --cluster-token cluster.token");
    assert!(open.contains("say where they do") && open.ends_with("exit: 2\n"), "{open}");
    for words in ["--metadata http://127.0.0.1:1", "--metadata 127.0.0.1:1 --address https://10.0.0.7:7420"] {
        let url = bench.see(&format!("device d {words} --cluster-token cluster.token"));
        assert!(url.contains("expected HOST:PORT") && url.ends_with("exit: 2\n"), "{url}");
    }
    let token = bench.see("metadata --etcd http://127.0.0.1:1");
    assert!(token.contains("which token?") && token.ends_with("exit: 2\n"), "{token}");
    let both = bench.see("metadata m --etcd http://127.0.0.1:1");
    assert!(both.contains("cannot be used with") && both.ends_with("exit: 2\n"), "{both}");
    let other = bench.see("metadata m --width 12+3 --listen 127.0.0.1:0");
    assert!(other.contains("at most 13 together") && other.ends_with("exit: 2\n"), "{other}");
}
