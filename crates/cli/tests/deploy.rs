//! Deploys the real binary's way: by OpenSSH's client, to OpenSSH's servers on hosts of a virtual network.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use lab::{Sshd, Star};
use serde_json::Value;

use crate::common::running::Running;
use crate::common::targets::soil;
use crate::common::{Bench, assert_same, mount_xfs, star_with_image};

const DISKCAST: &str = env!("CARGO_BIN_EXE_diskcast");

/// Host 0 deploys, the others are reached by ssh.
struct Site {
    star: Star,
    bench: Bench,
    sshd: Sshd,
    disk: PathBuf,
}

impl Site {
    /// A network of `hosts` hosts besides host 0, and a repository with one image there. `None` where there is no lab.
    fn new(hosts: u32, mib: usize) -> Option<Self> {
        Self::prepared(hosts, mib, |_| {})
    }

    /// The same, with what `prepare` does before servers start: they see no mounts that come later.
    fn prepared(hosts: u32, mib: usize, prepare: impl FnOnce(&Bench)) -> Option<Self> {
        let (star, bench, disk) = star_with_image(hosts, mib)?;
        prepare(&bench);
        let sshd = Sshd::start(&star, &star.hosts()[1..], bench.path(".").as_path()).unwrap();
        Some(Self { star, bench, sshd, disk })
    }

    /// The command that deploys `web`, from host 0, where hosts run `program`.
    fn command(&self, program: &str, words: &[&str]) -> Command {
        let mut command = self.bench.command_in(self.star.host(0), "deploy web --json --yes");
        command.args(["--ssh", &self.sshd.client(), "--program", program]);
        command.arg("--retry-file").arg(self.bench.path("again")).args(words);
        command
    }

    fn deploy_by(&self, program: &str, words: &[&str]) -> (Option<i32>, Vec<Value>) {
        let output = self.command(program, words).output().unwrap();
        (output.status.code(), records(&output))
    }

    fn deploy(&self, words: &[&str]) -> (Option<i32>, Vec<Value>) {
        self.deploy_by(DISKCAST, words)
    }

    /// A file of hosts: `lines` begin with the number of a host.
    fn hosts(&self, lines: &[&str]) -> String {
        let line = |line: &&str| {
            let (number, rest) = line.split_once(' ').unwrap_or((line, ""));
            let host = self.star.host(number.parse().unwrap());
            format!("host{number} address={} {rest}\n", host.ipv4())
        };
        std::fs::write(self.bench.path("hosts"), lines.iter().map(line).collect::<String>()).unwrap();
        format!("@{}", self.bench.path("hosts").display())
    }

    fn path(&self, name: &str) -> String {
        self.bench.path(name).display().to_string()
    }
}

fn records(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    let all: Vec<_> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(!all.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    all
}

/// The record of a kind; of a host if one is named.
fn of<'a>(records: &'a [Value], kind: &str, host: Option<&str>) -> &'a Value {
    let is_it = |record: &&Value| record["type"] == kind && host.is_none_or(|host| record["host"] == host);
    records.iter().find(is_it).unwrap_or_else(|| panic!("no {kind} of {host:?} in {records:#?}"))
}

/// Puts another program in the place of the one that a host runs.
fn program(site: &Site, name: &str, script: &str) -> String {
    let path = site.path(name);
    std::fs::write(&path, script.replace("DISKCAST", DISKCAST)).unwrap();
    assert!(Command::new("chmod").args(["+x", &path]).status().unwrap().success());
    path
}

#[test]
fn what_a_host_missed_that_logs_in_later_is_sent_again_and_not_by_another_host() {
    let Some(site) = Site::new(2, 64) else { return };
    (1..3).for_each(|host| site.star.shape_host(host, 50_000_000, 1 << 20).unwrap());
    let early = site.star.host(1).namespace();
    let count = |what: &str| format!("ip netns exec {early} cat /sys/class/net/eth0/statistics/{what}_bytes");
    // A quarter of the disk is sent. The second host begins when the first one has half of that.
    let script = format!(
        "#!/bin/sh\ncase \"$SSH_CONNECTION\" in *' {} '*) until [ $({}) -gt {} ]; do :; done;; esac\n\
         exec DISKCAST \"$@\"\n",
        site.star.host(2).ipv4(),
        count("rx"),
        8 << 20
    );
    let (hosts, target) = (site.hosts(&["1", "2"]), site.path("{host}.img"));
    let (exit, said) =
        site.deploy_by(&program(&site, "late", &script), &["--to", &hosts, "--target", &target]);
    assert_eq!(exit, Some(0), "{said:#?}");
    for host in ["host1", "host2"] {
        assert_same(&site.disk, &site.bench.path(&format!("{host}.img")));
    }
    let sent = Command::new("sh").args(["-c", &count("tx")]).output().unwrap();
    let sent: u64 = String::from_utf8_lossy(&sent.stdout).trim().parse().unwrap();
    assert!(sent < 3 << 20, "{sent} bytes from the first host");
}

#[test]
fn hosts_get_the_image_and_those_that_can_not_are_named() {
    let Some(site) = Site::new(3, 8) else { return };
    let target = site.path("{host}.img");
    // Host 4 does not exist; host 3 has no folder for its file.
    let hosts = site.hosts(&["1", "2 note='a b'", "3"]);
    let gone = format!("{},192.0.2.1", hosts);
    std::fs::create_dir(site.bench.path("host3.img")).unwrap();
    soil(&site.bench.path("host2.img"), 8 << 20);
    let words = ["--to", &gone, "--target", &target, "--attempts", "2"];
    let (exit, said) = site.deploy(&words);
    assert_eq!(exit, Some(3), "{said:#?}");
    for host in ["host1", "host2"] {
        assert_eq!(of(&said, "host", Some(host))["state"], "ready");
        assert_same(&site.disk, &site.bench.path(&format!("{host}.img")));
    }
    let refused = of(&said, "host", Some("host3"));
    assert_eq!(refused["state"], "failed", "{refused}");
    let away = of(&said, "host", Some("192.0.2.1"));
    assert!(away["why"].as_str().unwrap().contains("ssh failed"), "{away}");
    assert_eq!(of(&said, "deployed", None)["missing"], serde_json::json!(["host3", "192.0.2.1"]));
    // The file has those that got none, with their variables.
    let again = std::fs::read_to_string(site.bench.path("again")).unwrap();
    assert!(again.contains(&format!("host3 address={}", site.star.host(3).ipv4())), "{again}");
    std::fs::remove_dir(site.bench.path("host3.img")).unwrap();
    std::fs::write(site.bench.path("again"), again.replace("192.0.2.1\n", "")).unwrap();
    let (exit, said) = site.deploy(&["--to", &format!("@{}", site.path("again")), "--target", &target]);
    assert_eq!(exit, Some(0), "{said:#?}");
    assert_same(&site.disk, &site.bench.path("host3.img"));
}

#[test]
fn hosts_are_reached_by_ipv6_and_beside_others_by_ipv4() {
    let Some(site) = Site::new(2, 8) else { return };
    let (one, two) = (site.star.host(1).ipv6(), site.star.host(2).ipv4());
    std::fs::write(site.bench.path("hosts"), format!("host1 address={one}\nhost2 address={two}\n")).unwrap();
    let (hosts, target) = (format!("@{}", site.path("hosts")), site.path("{host}.img"));
    let (exit, said) = site.deploy(&["--to", &hosts, "--target", &target]);
    assert_eq!(exit, Some(0), "{said:#?}");
    for host in ["host1", "host2"] {
        assert_same(&site.disk, &site.bench.path(&format!("{host}.img")));
    }
}

#[test]
fn a_plan_and_wrong_usage_start_nothing() {
    let Some(site) = Site::new(2, 1) else { return };
    let hosts = site.hosts(&["1 disk=vda", "2 disk=vdb"]);
    let words =
        ["--to", &hosts, "--target", "/dev/{disk}", "--wave", "1", "-n", "--", "--hostname", "{host}"];
    let (exit, said) = site.deploy(&words);
    assert_eq!((exit, said.len()), (Some(0), 2));
    assert_eq!((&said[1]["target"], &said[1]["wave"]), (&"/dev/vdb".into(), &2.into()));
    assert_eq!(said[1]["options"], serde_json::json!(["--hostname", "host2"]));
    let (exit, said) = site.deploy(&["--to", &hosts, "--target", "/dev/{disc}"]);
    assert_eq!(exit, Some(2), "{said:#?}");
    let (exit, _) = site.deploy(&["--to", &hosts]);
    assert_eq!(exit, Some(2), "no target");
    let (exit, said) = site.deploy(&["--to", &hosts, "--target", "null:", "--at", "2h"]);
    assert_eq!(exit, Some(2), "it would begin at once: {said:#?}");
    for more in [&["--no-such-option"][..], &["--serve-for", "slow"], &["more"]] {
        let (exit, said) = site.deploy(&[&["--to", &hosts, "--target", "null:", "--"], more].concat());
        assert_eq!(exit, Some(2), "{said:#?}");
        assert!(said[0].to_string().contains("are not options of `diskcast fetch`"), "{said:#?}");
    }
}

#[test]
fn a_host_that_hangs_is_tried_again_and_goes_on() {
    let Some(site) = Site::new(1, 8) else { return };
    let (first, hosts) = (site.path("was-here"), site.hosts(&["1"]));
    // The first attempt says that it is there, and then nothing, whatever happens.
    let script = format!(
        "#!/bin/sh\n[ -e {first} ] && exec DISKCAST \"$@\"\ntouch {first}\n\
         echo '{{\"type\":\"alive\",\"doing\":\"nothing\"}}'\nexec sleep 1000\n"
    );
    let program = program(&site, "hangs", &script);
    let target = site.path("{host}.img");
    let (exit, said) = site.deploy_by(&program, &["--to", &hosts, "--target", &target, "--silence", "2s"]);
    assert_eq!(exit, Some(0), "{said:#?}");
    assert!(Path::new(&first).exists());
    assert_same(&site.disk, &site.bench.path("host1.img"));
}

#[test]
fn a_second_attempt_takes_no_disk_that_was_there_before() {
    let Some(site) = Site::new(1, 8) else { return };
    let (first, hosts) = (site.path("was-here"), site.hosts(&["1"]));
    // The connection breaks before the first attempt has done anything.
    let script = format!(
        "#!/bin/sh\n[ -e {first} ] || {{ touch {first}; exit 1; }}\n\
         set -- \"$1\" --kept {} --keep-free 0\nexec DISKCAST \"$@\"\n",
        site.path("kept")
    );
    let program = program(&site, "breaks", &script);
    let target = site.bench.path("host1.qcow2");
    std::fs::write(&target, "the disk of a machine").unwrap();
    for form in ["overlay", "share"] {
        let target = site.path("{host}.qcow2");
        let (exit, said) = site.deploy_by(&program, &["--to", &hosts, "--target", &target, "--copy", form]);
        assert_eq!(exit, Some(1), "{said:#?}");
        let why = of(&said, "host", Some("host1"))["why"].as_str().unwrap().to_owned();
        // The second one says why the copy can't be made, if this filesystem shares no blocks.
        assert!(why.contains("host1.qcow2` exists") || why.contains("host1.qcow2` can't share"), "{why}");
        std::fs::remove_file(&first).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "the disk of a machine");
    // The last word of the first attempt is lost: the second one finds its copy.
    let script = format!(
        "#!/bin/sh\nset -- \"$1\" --kept {} --keep-free 0\n[ -e {first} ] && exec DISKCAST \"$@\"\n\
         touch {first}; DISKCAST \"$@\" >/dev/null\nexit 1\n",
        site.path("kept")
    );
    let program = self::program(&site, "silent", &script);
    std::fs::remove_file(&target).unwrap();
    let words = ["--to", &hosts, "--target", &site.path("{host}.qcow2"), "--copy", "overlay"];
    let (exit, said) = site.deploy_by(&program, &words);
    assert_eq!(exit, Some(0), "{said:#?}");
    site.bench.tool("qemu-img compare -f raw -F qcow2 disk.img host1.qcow2");
}

#[test]
fn a_host_is_ready_when_the_command_after_has_succeeded() {
    let Some(site) = Site::new(1, 1) else { return };
    let (hosts, target) = (site.hosts(&["1"]), site.path("{host}.img"));
    // It fails the first time, and is tried again.
    let mark = site.path("mark");
    let after = format!(
        "cmp $DISKCAST_TARGET {} || exit 9; [ -e {mark} ] || (touch {mark}; exit 1)",
        site.path("disk.img")
    );
    let (exit, said) = site.deploy(&["--to", &hosts, "--target", &target, "--after", &after]);
    assert_eq!(exit, Some(0), "{said:#?}");
    assert!(Path::new(&mark).exists());
    let words = ["--to", &hosts, "--target", &target, "--attempts", "1", "--after", "exit 7 # {host}"];
    let (exit, said) = site.deploy(&words);
    let why = of(&said, "host", Some("host1"))["why"].as_str().unwrap().to_owned();
    assert!(exit == Some(1) && why.contains("the image is there"), "{why}");
}

#[test]
fn a_host_whose_command_after_runs_says_so() {
    let Some(site) = Site::new(1, 1) else { return };
    let (hosts, target, gate) = (site.hosts(&["1"]), site.path("{host}.img"), site.path("gate"));
    site.bench.tool("mkfifo gate");
    let words = ["--to", &hosts, "--target", &target, "--after", &format!("cat {gate}")];
    let mut running = Running::start(site.command(DISKCAST, &words));
    running.wait_for(|record| record["hosts"][0]["step"] == "after");
    std::fs::write(&gate, "go").unwrap();
    assert_eq!(running.kind("host")["state"], "ready");
}

#[test]
fn who_says_it_is_ready_must_have_the_version() {
    let Some(site) = Site::new(1, 1) else { return };
    let hosts = site.hosts(&["1"]);
    let lie = format!("{{\"type\":\"ready\",\"root\":\"{}\",\"report\":null}}", "0".repeat(64));
    let liar = program(&site, "liar", &format!("#!/bin/sh\necho '{lie}'\n"));
    let (exit, said) = site.deploy_by(&liar, &["--to", &hosts, "--target", "null:"]);
    assert_eq!(exit, Some(1));
    let why = of(&said, "host", Some("host1"))["why"].as_str().unwrap().to_owned();
    assert!(why.contains("another version"), "{why}");
}

#[test]
fn ctrl_c_ends_the_work_on_the_hosts() {
    let Some(site) = Site::new(1, 8) else { return };
    let (hosts, target) = (site.hosts(&["1"]), site.path("{host}.img"));
    let lock = site.path("lock");
    // The command before runs until its host is told to stop. What it has in the background does not hear INT.
    let before = format!("sh -c 'echo $$ > {lock}; exec sleep 1000' & wait");
    let words = ["--to", &hosts, "--target", &target, "--before", &before];
    let mut running = Running::start(site.command(DISKCAST, &words));
    while !std::fs::read_to_string(&lock).is_ok_and(|pid| pid.ends_with('\n')) {
        std::thread::yield_now();
    }
    running.signal("INT");
    assert_eq!(running.kind("host")["state"], "left_out");
    let pid = std::fs::read_to_string(&lock).unwrap();
    let words = std::fs::read_to_string(format!("/proc/{}/cmdline", pid.trim())).unwrap_or_default();
    assert_eq!(words, "", "the host goes on");
    assert!(!site.bench.path("host1.img").exists());
}

/// What hosts run so that each keeps its images in a folder of its own, `kept-ADDRESS` in `folder`.
fn keeping(site: &Site, folder: &str) -> String {
    let script = format!(
        "#!/bin/sh\nset -- \"$1\" --kept {folder}/kept-$(echo $SSH_CONNECTION | cut -d ' ' -f 3) --kept-size 1G \
         --keep-free 0\nexec DISKCAST \"$@\"\n"
    );
    program(site, "keeping", &script)
}

/// The images that a host keeps.
fn kept(site: &Site, host: u32) -> Vec<Value> {
    let folder = format!("kept-{}", site.star.host(host).ipv4());
    site.bench.json(&format!("agent --list --kept {folder}"))
}

#[test]
fn the_second_copy_on_a_host_costs_no_network() {
    let Some(site) = Site::new(1, 16) else { return };
    let (hosts, program) = (site.hosts(&["1"]), keeping(&site, &site.path("")));
    std::fs::create_dir(site.bench.path("vm1")).unwrap();
    std::fs::create_dir(site.bench.path("vm2")).unwrap();
    let received = || site.star.traffic().unwrap()[1].received.bytes;
    // The connections to sshd, as the kernel has them: with the ports of this side.
    let connections = || {
        let mut list = site.star.host(0).command("ss");
        list.args(["-Htn", "state", "established", "dport", "=", ":22"]);
        let said = String::from_utf8(list.output().unwrap().stdout).unwrap();
        said.lines().map(|line| line.split_whitespace().nth(2).unwrap().to_owned()).collect::<Vec<_>>()
    };
    let (mut taken, mut logins) = (Vec::new(), Vec::new());
    for machine in ["vm1", "vm2"] {
        let (before, target) = (received(), site.path(&format!("{machine}/disk.0")));
        let (exit, said) =
            site.deploy_by(&program, &["--to", &hosts, "--target", &target, "--copy", "overlay"]);
        assert_eq!(exit, Some(0), "{said:#?}");
        taken.push(received() - before);
        logins.push(connections());
        site.bench.tool(&format!("qemu-img compare -f raw -F qcow2 disk.img {machine}/disk.0"));
    }
    assert!(taken[0] > 4 << 20 && taken[1] < 64 << 10, "bytes that the host received: {taken:?}");
    assert!(logins[0].len() == 1 && logins[0] == logins[1], "the connection stays: {logins:?}");
    // What one machine writes is its own.
    let mut io = Command::new("qemu-io");
    io.args(["-c", "write -P 7 0 1M", "-f", "qcow2"]).arg(site.bench.path("vm1/disk.0"));
    assert!(io.status().unwrap().success());
    site.bench.tool("qemu-img compare -f raw -F qcow2 disk.img vm2/disk.0");
    // A machine that exists is not written over.
    let again = site.path("vm1/disk.0");
    let (exit, said) = site.deploy_by(&program, &["--to", &hosts, "--target", &again, "--copy", "overlay"]);
    assert_eq!(exit, Some(1), "{said:#?}");
    assert!(of(&said, "host", None)["why"].as_str().unwrap().contains("exists"), "{said:#?}");

    // Both keep the image's blocks, wherever their folders are moved.
    site.bench.tool("mv vm2 moved");
    let images = kept(&site, 1);
    assert_eq!((images.len(), &images[0]["own_bytes"]), (1, &0.into()), "{images:?}");
    let folder = format!("--kept kept-{} --kept-size 1 --keep-free 0", site.star.host(1).ipv4());
    clean(&site, &folder);
    site.bench.tool("qemu-img compare -f raw -F qcow2 disk.img moved/disk.0");
    assert_eq!(kept(&site, 1).len(), 1, "removing it would free nothing");
    // Of a machine that is gone nothing stays.
    site.bench.tool("rm vm1/disk.0");
    clean(&site, &folder);
    assert_eq!(std::fs::read_dir(site.bench.path("vm1")).unwrap().count(), 0);
    site.bench.tool("rm -r moved");
    clean(&site, &folder);
    assert_eq!(kept(&site, 1), Vec::<Value>::new());
}

/// Ends the programs that serve what was written to a host's file. Returns how many there were.
fn end_serving(target: &str) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    let words = |process: &PathBuf| std::fs::read_to_string(process.join("cmdline")).unwrap_or_default();
    let serve = |process: &PathBuf| {
        let words = words(process);
        words.contains("\0fetch\0") && words.contains("\0--serve-for\0") && words.contains(target)
    };
    let found: Vec<_> = processes.filter(serve).collect();
    for process in &found {
        let number = process.file_name().unwrap().to_str().unwrap();
        assert!(Command::new("kill").args(["-INT", number]).status().unwrap().success());
    }
    found.len()
}

#[test]
fn hosts_that_have_the_image_serve_those_of_the_next_wave() {
    let Some(site) = Site::new(2, 8) else { return };
    let (hosts, target) = (site.hosts(&["1", "2"]), site.path("{host}.img"));
    let (exit, said) =
        site.deploy(&["--to", &hosts, "--target", &target, "--wave", "1", "--serve-for", "1m"]);
    assert_eq!(exit, Some(0), "{said:#?}");
    for host in ["host1", "host2"] {
        assert_same(&site.disk, &site.bench.path(&format!("{host}.img")));
    }
    // The deployment did not wait for it. These hosts have one filesystem, so the second one found the image served.
    let serving = |host: &str| end_serving(&site.path(&format!("{host}.img")));
    assert_eq!((serving("host1"), serving("host2")), (1, 0));
    let traffic = site.star.traffic().unwrap();
    let sent = |host: usize| traffic[host].sent.bytes;
    assert!(sent(1) > sent(0) / 4 * 3, "{} bytes of the first host, {} of the server", sent(1), sent(0));
}

/// Lets the agent look once.
fn clean(site: &Site, words: &str) {
    let seen = site.bench.see(&format!("agent --once {words}"));
    assert!(seen.ends_with("exit: 0\n"), "{seen}");
}

#[test]
fn jobs_of_one_host_fetch_the_image_once() {
    let Some(site) = Site::new(1, 16) else { return };
    let program = keeping(&site, &site.path(""));
    // Three names of one host: three jobs.
    let address = site.star.host(1).ipv4();
    let lines: String = (1..=3).map(|number| format!("vm{number} address={address}\n")).collect();
    std::fs::write(site.bench.path("hosts"), lines).unwrap();
    let (hosts, target) = (format!("@{}", site.path("hosts")), site.path("{host}.qcow2"));
    let before = site.star.traffic().unwrap()[1].received.bytes;
    let (exit, said) = site.deploy_by(&program, &["--to", &hosts, "--target", &target, "--copy", "overlay"]);
    assert_eq!(exit, Some(0), "{said:#?}");
    let taken = site.star.traffic().unwrap()[1].received.bytes - before;
    let image = site.bench.json("images")[0]["stored_bytes"].as_u64().unwrap_or(16 << 20);
    assert!(taken < image * 3 / 2, "{taken} bytes for an image of {image}");
    for number in 1..=3 {
        site.bench.tool(&format!("qemu-img compare -f raw -F qcow2 disk.img vm{number}.qcow2"));
    }
}

#[test]
fn copies_share_blocks_where_the_filesystem_can() {
    let Some(site) = Site::prepared(1, 16, mount_xfs) else { return };
    let (hosts, program) = (site.hosts(&["1"]), keeping(&site, &site.path("xfs")));
    for name in ["a", "b"] {
        let target = site.path(&format!("xfs/{name}.img"));
        let (exit, said) =
            site.deploy_by(&program, &["--to", &hosts, "--target", &target, "--copy", "share"]);
        assert_eq!(exit, Some(0), "{said:#?}");
        assert_same(&site.disk, &site.bench.path(&format!("xfs/{name}.img")));
    }
    let images = site.bench.json(&format!("agent --list --kept xfs/kept-{}", site.star.host(1).ipv4()));
    assert_eq!(images[0]["own_bytes"], 0, "the copies have the same blocks: {images:?}");
    lab::unmount(&site.bench.path("xfs")).unwrap();
}
