//! Tests the real binary with its default options: a fetch returns when its disk is done, and its machine goes on
//! serving others, from memory and from its target.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use lab::{Host, Star};
use serde_json::Value;

use crate::common::running::Running;
use crate::common::{Bench, Served, assert_same, star_with_image};

const PAUSE: Duration = Duration::from_millis(10);

/// `fetch` on a host, as users type it, into a file.
fn fetch(bench: &Bench, host: &Host, url: &str, more: &str) -> Command {
    let target = bench.host_target(host.index());
    let words = format!("fetch {url} web {target} --token-file join.token --json {more}");
    let mut command = bench.command_in(host, &words);
    command.env_remove("DISKCAST_SERVE_FOR");
    command
}

/// Serves the image `web` on host 0.
fn serve(star: &Star, bench: &Bench) -> Served {
    let listen = format!("{}:7717", star.host(0).ipv4());
    let words = format!("serve --listen {listen} --interface eth0 --token-out join.token --json");
    Served::start(bench.command_in(star.host(0), &words))
}

/// What it printed by the end, which it had to reach: also the pipe that it got is closed then.
fn printed(mut command: Command) -> Vec<Value> {
    let output = command.stderr(Stdio::piped()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn of_kind<'a>(records: &'a [Value], kind: &str) -> &'a Value {
    records.iter().find(|record| record["type"] == kind).unwrap_or_else(|| panic!("{kind} in {records:?}"))
}

/// The process that serves on; it is ended when this is dropped.
struct Serving(u64);

impl Serving {
    fn of(records: &[Value]) -> Self {
        Self(of_kind(records, "serving")["pid"].as_u64().unwrap())
    }

    fn folder(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}", self.0))
    }

    /// What its files are.
    fn files(&self) -> Vec<String> {
        let files = fs::read_dir(self.folder().join("fd")).unwrap().flatten();
        let links = files.filter_map(|file| fs::read_link(file.path()).ok());
        links.map(|link| link.to_string_lossy().into_owned()).collect()
    }

    fn is_there(&self) -> bool {
        is_there(&self.folder())
    }

    fn signal(&self, name: &str) {
        let _ = Command::new("kill").args([&format!("-{name}"), &self.0.to_string()]).status();
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.signal("KILL");
    }
}

/// Whether the process of this folder runs: nobody may wait for it.
fn is_there(folder: &Path) -> bool {
    let stat = fs::read_to_string(folder.join("stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// Waits until the server knows of a machine that has everything.
fn wait_for_whole(bench: &Bench, star: &Star, server: &Served) {
    let words = format!("status {} --token-file join.token --json", server.url);
    let is_known = || {
        let status = bench.command_in(star.host(1), &words).output().unwrap();
        String::from_utf8_lossy(&status.stdout).contains(r#""whole":1"#)
    };
    while !is_known() {
        std::thread::park_timeout(PAUSE);
    }
}

#[test]
fn a_fetch_returns_when_its_disk_is_done_and_its_machine_serves_on() {
    let Some((star, bench, disk)) = star_with_image(3, 64) else { return };
    let server = serve(&star, &bench);
    // Most of the image has no room in memory. Files of the caller's stay with it: a lock is free when the fetch
    // returns.
    let mut locked = Command::new("flock");
    let first = fetch(&bench, star.host(1), &server.url, "--spool-memory 2M");
    locked.arg(bench.path("lock")).arg(first.get_program()).args(first.get_args());
    let envs = first.get_envs().map(|(name, value)| (name, value.unwrap_or_default()));
    locked.envs(envs).env_remove("DISKCAST_SERVE_FOR").current_dir(bench.path(""));
    let records = printed(locked);
    assert_eq!(of_kind(&records, "serving")["seconds"], 30.0);
    let serving = Serving::of(&records);
    let files = serving.files();
    let is_callers =
        |file: &String| file.starts_with("pipe:") || file.contains(&*bench.path("").to_string_lossy());
    assert!(serving.is_there() && !files.iter().any(is_callers), "{files:?}");
    assert_eq!(fs::read_link(serving.folder().join("cwd")).unwrap(), Path::new("/"));
    let free = Command::new("flock").arg("--nonblock").arg(bench.path("lock")).arg("true").status().unwrap();
    assert!(free.success(), "the one that serves holds its caller's lock");
    wait_for_whole(&bench, &star, &server);

    let records = printed(fetch(&bench, star.host(2), &server.url, "--serve-for 0"));
    let fetched = of_kind(&records, "fetched");
    assert_eq!(
        (&fetched["transport"], fetched["unicast_bytes"].as_u64()),
        (&"peers".into(), Some(0)),
        "{fetched}"
    );
    assert!(records.iter().all(|record| record["type"] != "serving"), "{records:?}");
    assert_same(&disk, &bench.path("disk-2.img"));

    // What has changed since comes from elsewhere.
    let target = File::options().write(true).open(bench.path("disk-1.img")).unwrap();
    target.write_all_at(&[7; 1 << 20], 24 << 20).unwrap();
    let records = printed(fetch(&bench, star.host(3), &server.url, "--serve-for 0"));
    let fetched = of_kind(&records, "fetched");
    let (server_sent, peers) =
        (fetched["unicast_bytes"].as_u64().unwrap(), fetched["peer_bytes"].as_u64().unwrap());
    assert!(server_sent > 0 && peers > 4 * server_sent, "{fetched}");
    assert_same(&disk, &bench.path("disk-3.img"));

    serving.signal("INT");
    while serving.is_there() {
        std::thread::park_timeout(PAUSE);
    }
}

#[test]
fn what_ends_a_fetch_ends_it_whole() {
    let Some((star, bench, disk)) = star_with_image(1, 64) else { return };
    star.shape_host(1, 20_000_000, 64 << 10).unwrap();
    let server = serve(&star, &bench);
    let start = || Running::start(fetch(&bench, star.host(1), &server.url, "--resume"));
    let child_of = |running: &Running| {
        let pid = running.child.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        PathBuf::from(format!("/proc/{}", children.trim()))
    };
    // Both get the signal of a terminal; it counts once. A single one reaches the other.
    for both in [true, false] {
        let mut running = start();
        running.wait_for_progress();
        let child = child_of(&running);
        if both {
            let pid = child.file_name().unwrap().to_str().unwrap().to_owned();
            assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
        }
        running.signal("INT");
        let error = running.kind("error");
        assert!(error["message"] == "interrupted" && error["hint"].is_string(), "{error}");
        assert_eq!(running.child.wait().unwrap().code(), Some(130));
        assert!(!is_there(&child));
    }
    // Nobody waits for the disk any more.
    let mut running = start();
    running.wait_for_progress();
    let child = child_of(&running);
    running.child.kill().unwrap();
    while is_there(&child) {
        std::thread::park_timeout(PAUSE);
    }
    // The other way round.
    let mut running = start();
    running.wait_for_progress();
    let child = child_of(&running);
    let pid = child.file_name().unwrap().to_str().unwrap().to_owned();
    assert!(Command::new("kill").args(["-KILL", &pid]).status().unwrap().success());
    let error = running.kind("error");
    assert!(error["message"].as_str().unwrap().starts_with("the fetch was killed"), "{error}");
    assert_eq!(running.child.wait().unwrap().code(), Some(1));

    let records = printed(fetch(&bench, star.host(1), &server.url, "--resume"));
    drop(Serving::of(&records));
    assert_same(&disk, &bench.path("disk-1.img"));
    // What fails does so with its own code and words, and once.
    let output = fetch(&bench, star.host(1), &server.url, "--resume --into 9").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.code() != Some(0) && text.matches(r#""type":"error""#).count() == 1, "{text}");
}
