//! Each command of the program with `--dry-run`: it changes nothing, or refuses it.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "../../src/dry_run.rs"]
mod table;

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use serde_json::Value;

use self::table::{COMMANDS, DryRun};
use crate::common::{Bench, Served};

/// More ways to run some commands.
const MORE: &[(&str, &str)] = &[
    ("deploy", "web lab --target /srv/{host}.img --server URL"),
    ("deploy", "web lab --target disk-{host} --copy attach --follow --server URL"),
    ("deploy", "web --to one --agents --target /srv/one.img --server URL"),
    ("deploy", "web --to host1 --target /dev/sdb"),
    ("deploy", "shop --commit --to host1 --target vm1"),
    ("hosts wipe", "lab --disk disk:serial=S1 --at 2h --server URL"),
    ("clone", "--disk vm1 copied"),
    ("commit", "--disk vm1"),
    ("cluster limit", "--quota 2T CLUSTER"),
    ("key new", "--encryption new.key"),
    ("verify", "--repair"),
    ("repository", "--probe"),
    ("capture", "disk.img web --to URL --token-file write.token"),
    ("images", "--repo URL --token-file write.token --trust sign.key.pub --allow-untrusted"),
];

/// What stands behind the name of each command.
fn words(name: &str) -> &'static str {
    match name {
        "capture" => "other.img web",
        "install" => "web out.img",
        "commit" => "web other.img",
        "grow" => "ext.img",
        "shrink" => "ext 12M small",
        "personalize" => "ext.img --hostname lab-07",
        "serve" => "--listen 127.0.0.1:0 --state new",
        "fetch" => "URL web out.img --token-file write.token",
        "deploy" => "web lab --as-captured --server URL",
        "agent" => "--once --kept kept",
        "switch" => "--bridge br0 --server 127.0.0.1:1",
        "status" | "doctor" => "URL --token-file write.token",
        "token" => "--write",
        "token revoke" => "TOKEN",
        "opennebula" => "tm clone web@1 host:/disk.0 1 1",
        "netboot" => "lo --listen 127.0.0.1:0 --state new",
        "boot-image" => "boot",
        "hosts" => "--server URL",
        "hosts admit" | "hosts cancel" | "hosts remove" | "hosts shell" | "hosts wipe" => "lab --server URL",
        "hosts add" => "52:54:00:00:00:09 --name nine --server URL",
        "hosts power" => "off lab --server URL",
        "hosts import" => "more.csv --server URL",
        "hosts capture" => "one web --server URL",
        "hosts log" => "one --server URL",
        "hosts open" => "5m --server URL",
        "boot-agent" => "--interface lo --server http://127.0.0.1:1",
        "attach" => "web --name vm2",
        "detach" => "vm1 --discard",
        "mount" => "here",
        "inspect" | "log" | "profile show" | "profile remove" => "web",
        "diff" => "web@1 web@1",
        "tag" => "web@1 newer",
        "create" => "empty 1M",
        "clone" => "web twin",
        "remove" => "web@1",
        "init" => "--repo made",
        "copy" => "web made",
        "key new" => "new.key",
        "key show" => "sign.key",
        "key cut-over" => "--sign-key sign.key",
        "cluster try" => "cluster --listen 127.0.0.1:7",
        "cluster drain" | "cluster lost" => "3 CLUSTER",
        "cluster status"
        | "cluster rebalance"
        | "cluster limit"
        | "cluster rebuild-index"
        | "cluster certificate" => "CLUSTER",
        "metadata" | "cluster metadata" => "meta --listen 127.0.0.1:0",
        "device" | "cluster device" => "device --metadata 127.0.0.1:1",
        "work" | "token list" | "disks" | "images" | "repository" | "usage" | "verify" | "prune" => "",
        new => panic!("say here what `diskcast {new}` needs"),
    }
}

/// A folder with one of all that commands could change, and a server with its table of machines.
struct Site {
    bench: Bench,
    server: Served,
    token: String,
}

impl Site {
    fn new() -> Self {
        let bench = Bench::new();
        bench.disk("disk.img", 1, 1);
        bench.disk("other.img", 1, 2);
        bench.tool("truncate -s 16M ext.img");
        bench.tool("mkfs.ext4 -q ext.img");
        bench.tool("mkdir here");
        bench.keep_secret("cluster.token", "1".repeat(64));
        for (file, first) in [("machines.csv", 1), ("more.csv", 3)] {
            let line = |number| format!("52:54:00:00:00:0{number},machine-{number},lab\n");
            std::fs::write(bench.path(file), line(first) + &line(first + 1)).unwrap();
        }
        let server = bench.serve("--no-multicast --agents");
        let url = &server.url;
        let done = |words: &str| {
            let said = bench.see(words);
            assert!(said.ends_with("exit: 0\n"), "{words}: {said}");
        };
        done("capture disk.img web");
        done("capture ext.img ext");
        done("tag web@1 stable");
        done("key new sign.key");
        done("attach web --name vm1 --prepare");
        done(&format!("hosts import machines.csv --server {url}"));
        done(&format!("hosts add 52:54:00:00:00:01 --name one --server {url}"));
        done(&format!("deploy web one --as-captured --yes --server {url}"));
        bench.keep_secret("write.token", bench.command("token --write").output().unwrap().stdout);
        let token = bench.json("token list")[0]["id"].as_str().unwrap().to_owned();
        Self { bench, server, token }
    }

    /// The arguments of a dry run of `command`: the options first, since some commands take all that follows.
    fn line(&self, command: &str, words: &str) -> String {
        let cluster = "--repo cluster://127.0.0.1:7 --cluster-token cluster.token";
        let words = words.replace("URL", &self.server.url).replace("TOKEN", &self.token);
        format!("--dry-run --json --yes {command} {}", words.replace("CLUSTER", cluster))
    }

    /// All that a command could change: every file, and the table of machines.
    fn state(&self) -> (Vec<String>, String) {
        let mut files = Vec::new();
        walk(&self.bench.path("."), &mut files);
        files.sort();
        (files, self.bench.see(&format!("hosts --server {}", self.server.url)))
    }
}

/// The names in `folder`, each with what the kernel changes when anything about its file is changed.
fn walk(folder: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let about = path.symlink_metadata().unwrap();
        let changed = (about.ino(), about.len(), about.ctime(), about.ctime_nsec());
        found.push(format!("{} {changed:?}", path.display()));
        if about.is_dir() {
            walk(&path, found);
        }
    }
}

#[test]
fn a_dry_run_of_any_command_changes_nothing_or_is_refused() {
    let site = Site::new();
    let rows = COMMANDS.iter().map(|(name, does)| (*name, *does, words(name)));
    let does = |name: &str| COMMANDS.iter().find(|(known, _)| *known == name).unwrap().1;
    let more = MORE.iter().map(|(name, words)| (*name, does(name), *words));
    let mut before = site.state();
    for (name, does, words) in rows.chain(more) {
        let line = site.line(name, words);
        // What personalises and shrinks disks are programs of the system.
        let mut command = site.bench.command(&line);
        let output = command.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin").output().unwrap();
        let said = site.bench.show(&output);
        let after = site.state();
        assert_eq!(after, before, "`{line}` changed something: {said}");
        before = after;
        let exit: i32 = said.rsplit_once("exit: ").unwrap().1.trim().parse().unwrap();
        let shows = |said: &str| {
            let records = said.lines().filter_map(|line| line.strip_prefix("out: "));
            let mut records = records.filter_map(|line| serde_json::from_str::<Value>(line).ok());
            records.any(|record| record["type"] == "plan" || record["dry_run"] == true)
        };
        match does {
            DryRun::Plans => assert!(exit == 0 && shows(&said), "{line}: {said}"),
            // There may be nothing to read.
            DryRun::Reads => assert_ne!(exit, 2, "{line}: {said}"),
            DryRun::Refuses => assert!(exit == 2 && said.contains("takes no --dry-run"), "{line}: {said}"),
        }
    }
}

/// What would be lost is shown first, and nothing is done if nobody can agree to it.
#[test]
fn machines_are_overwritten_only_if_somebody_agrees() {
    let site = Site::new();
    let url = &site.server.url;
    let before = site.state();
    for (words, question) in [
        (
            "deploy web lab --as-captured",
            "the disks of one, machine-2 will be overwritten by web@1: nobody is there",
        ),
        (
            "deploy web lab --target disk",
            "the targets of one, machine-2 will be overwritten by web@1: nobody",
        ),
        ("hosts wipe lab", "the disks of one, machine-2 will be erased: nobody is there to confirm it"),
    ] {
        let said = site.bench.see(&format!("{words} --server {url}"));
        assert!(said.contains("52:54:00:00:00:01") && said.contains("install web@1: queued"), "{said}");
        assert!(said.contains(question) && said.contains("say --yes"), "{said}");
        assert!(said.ends_with("exit: 11\n"), "{said}");
        let agreed = site.bench.see(&format!("{words} --server {url} --yes --dry-run"));
        assert!(agreed.contains("WOULD DO") && agreed.ends_with("exit: 0\n"), "{agreed}");
    }
    assert_eq!(site.state(), before);
    let wrong = site.bench.see(&format!("hosts add 52:54:00:00:00:09 --name one --server {url} -n"));
    assert!(wrong.contains("`one` is the name of") && wrong.ends_with("exit: 2\n"), "{wrong}");
    let unknown = site.bench.see(&format!("deploy nothing lab --server {url} -n"));
    assert!(unknown.ends_with("exit: 10\n"), "{unknown}");
    // What an image can't become is told before any machine has its job, with what would work.
    for (words, why) in [
        ("deploy web lab", "web@1 can't become a machine of its own: the disk has no filesystem"),
        ("deploy web lab --target disk -- --hostname {host}", "it can be put there without these options"),
        ("deploy ext lab --grow --as-captured --yes --dry-run", "WOULD DO"),
    ] {
        let said = site.bench.see(&words.replacen("lab", &format!("lab --server {url}"), 1));
        assert!(said.contains(why), "{said}");
        assert!(said.ends_with(if why == "WOULD DO" { "exit: 0\n" } else { "exit: 11\n" }), "{said}");
    }
    assert_eq!(site.state(), before);
}
