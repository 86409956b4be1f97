//! Hosts that run take jobs by their agents: real HTTPS on a virtual network, without ssh.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lab::Star;
use serde_json::Value;

use crate::common::running::Running;
use crate::common::targets::soil;
use crate::common::{Bench, Served, assert_same, star_with_image};

/// Host 0 serves, and is where the administrator sits; the others run agents.
struct Site {
    star: Star,
    bench: Bench,
    /// `None` while it is away.
    server: Option<Served>,
    url: String,
    disk: PathBuf,
}

impl Site {
    /// `None` where there is no lab.
    fn new(hosts: u32, mib: usize) -> Option<Self> {
        let (star, bench, disk) = star_with_image(hosts, mib)?;
        let url = format!("https://{}:7717", star.host(0).ipv4());
        let mut site = Self { star, bench, server: None, url, disk };
        site.serve();
        Some(site)
    }

    fn serve(&mut self) {
        let host = self.star.host(0);
        let words = format!("--listen {}:7717 --interface eth0 --agents --token-out join.token", host.ipv4());
        self.server = Some(Served::start(self.bench.command_in(host, &format!("serve --json {words}"))));
    }

    /// Starts the agent of a host, which keeps its images apart.
    fn agent(&self, host: u32) -> Running {
        let token = std::fs::read_to_string(self.bench.path("join.token")).unwrap();
        let pin = token.split('.').nth(1).unwrap();
        let words = format!(
            "agent --server {} --pin {pin} --kept kept-{host} --folder disks-{host} --keep-free 0",
            self.url
        );
        Running::start(self.bench.command_in(self.star.host(host), &words))
    }

    /// Runs a command of the administrator.
    fn manage(&self, words: &[&str]) -> (Option<i32>, Vec<Value>) {
        let output = self.manager(words).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        (output.status.code(), text.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
    }

    fn manager(&self, words: &[&str]) -> Command {
        let mut command = self.bench.command_in(self.star.host(0), "--json --yes");
        command.args(words).args(["--server", &self.url]);
        command
    }

    /// Waits until the table shows what is wanted of the machines with these names, or cards.
    fn until(&self, names: &[String], is_so: impl Fn(&Value) -> bool) {
        let fits = |machines: &[Value], name: &String| {
            machines.iter().any(|one| (one["name"] == **name || one["mac"] == **name) && is_so(one))
        };
        while !{
            let machines = self.manage(&["hosts"]).1;
            names.iter().all(|name| fits(&machines, name))
        } {
            std::thread::yield_now();
        }
    }

    /// Admits the hosts from 1 on under the names `host1` and so on.
    fn admit(&self, hosts: u32) {
        let cards: Vec<String> = (1..=hosts).map(|host| self.card(host)).collect();
        self.until(&cards, |one| one["admitted"] == false && one["facts"]["runs"] == true);
        let machines = self.manage(&["hosts"]).1;
        for (host, card) in (1..=hosts).zip(&cards) {
            let machine = machines.iter().find(|one| one["mac"] == **card).unwrap();
            let key = machine["agent_key"]["fingerprint"].as_str().unwrap();
            let name = format!("host{host}");
            let words = ["hosts", "add", card, "--name", &name, "--group", "all", "--key", key];
            let (exit, said) = self.manage(&words);
            assert!(exit == Some(0) && said[0]["machines"][0]["agent_key"]["confirmed"] == true, "{said:?}");
        }
    }

    /// The address of a host's card, as its kernel has it.
    fn card(&self, host: u32) -> String {
        let mut list = self.star.host(host).command("ip");
        let said =
            String::from_utf8(list.args(["-br", "link", "show", "eth0"]).output().unwrap().stdout).unwrap();
        said.split_whitespace().nth(2).unwrap().to_owned()
    }

    fn path(&self, name: &str) -> String {
        self.bench.path(name).display().to_string()
    }
}

/// The record of a host.
fn of<'a>(said: &'a [Value], host: &str) -> &'a Value {
    let is_it = |record: &&Value| record["type"] == "host" && record["host"] == host;
    said.iter().find(is_it).unwrap_or_else(|| panic!("nothing of {host} in {said:#?}"))
}

#[test]
fn hosts_get_the_image_by_their_agents_and_those_that_can_not_are_named() {
    let Some(site) = Site::new(3, 16) else { return };
    let _agents: Vec<Running> = (1..=3).map(|host| site.agent(host)).collect();
    site.admit(3);
    std::fs::create_dir(site.bench.path("host3.img")).unwrap();
    soil(&site.bench.path("host2.img"), 16 << 20);
    let target = site.path("{host}.img");
    let (exit, said) = site.manage(&["deploy", "web", "all", "--target", &target, "--follow"]);
    assert_eq!(exit, Some(3), "{said:#?}");
    for host in ["host1", "host2"] {
        assert_eq!(of(&said, host)["state"], "ready");
        assert_same(&site.disk, &site.bench.path(&format!("{host}.img")));
    }
    let failed = of(&said, "host3");
    assert!(failed["state"] == "failed" && failed["why"].as_str().unwrap().contains("host3.img"), "{failed}");
    let log = site.manage(&["hosts", "log", "host3"]).1;
    assert!(log[0]["text"].as_str().unwrap().contains("asks the server"), "{log:?}");

    // Of a kept image the second copy is there at once, and what a machine has is not written over.
    let received = || site.star.traffic().unwrap()[1].received.bytes;
    let target = site.path("{host}.qcow2");
    for (number, expected) in [(1, 0), (2, 1)] {
        let before = received();
        let words = ["deploy", "web", "host1", "--target", &target, "--copy", "overlay", "--follow"];
        let (exit, said) = site.manage(&words);
        assert_eq!(exit, Some(expected), "{said:#?}");
        let taken = received() - before;
        assert!(number == 1 || taken < 256 << 10, "{taken} bytes for an image that the host keeps");
    }
    site.bench.tool("qemu-img compare -f raw -F qcow2 disk.img host1.qcow2");
}

#[test]
fn a_job_outlives_its_agent_and_its_server() {
    let Some(mut site) = Site::new(1, 8) else { return };
    let mut agent = site.agent(1);
    site.admit(1);
    let host = ["host1".to_owned()];
    // The command before runs until its agent is told to end, and does nothing the second time.
    let (mark, target) = (site.path("begun"), site.path("{host}.img"));
    let before = format!("[ -e {mark} ] || {{ touch {mark}; exec sleep 1000; }}");
    let (exit, said) = site.manage(&["deploy", "web", "host1", "--target", &target, "--before", &before]);
    assert_eq!(exit, Some(0), "{said:?}");
    while !Path::new(&mark).exists() {
        std::thread::yield_now();
    }
    assert_eq!(site.manage(&["hosts", "cancel", "host1"]).0, Some(11), "it is at work");
    agent.signal("TERM");
    assert!(agent.child.wait().unwrap().success());
    site.until(&host, |one| one["job"]["stage"] == "taken");

    assert_eq!(site.server.take().unwrap().stop().0, Some(0));
    site.serve();
    // The agent has its key still: nobody has to admit it again.
    let _agent = site.agent(1);
    site.until(&host, |one| one["job"]["stage"] == "done");
    assert_same(&site.disk, &site.bench.path("host1.img"));
}

#[test]
fn a_stranger_and_a_server_without_agents_give_nothing() {
    let Some(site) = Site::new(1, 1) else { return };
    let _agent = site.agent(1);
    let card = site.card(1);
    site.until(std::slice::from_ref(&card), |one| one["admitted"] == false);
    let words = ["deploy", "web", &card, "--target", "/dev/null"];
    let (exit, said) = site.manage(&words);
    assert_eq!(exit, Some(11), "{said:?}");
    let (exit, said) = site.manage(&["deploy", "web", &card, "--copy", "overlay"]);
    assert_eq!(exit, Some(2), "{said:?}");
    let (exit, said) = site.manage(&["hosts", "remove", "--strangers"]);
    assert!(exit == Some(0) && said[0]["machines"][0]["mac"] == *card, "{said:?}");
    let said = site.bench.see(&format!("agent --server {} --pin nonsense", site.url));
    assert!(said.contains("`nonsense` is not the fingerprint") && said.ends_with("exit: 2\n"), "{said}");
    let other = site.bench.serve("");
    let words = format!("hosts --server {} --json", other.url);
    let said = site.bench.see(&words);
    assert!(said.contains("--agents") && said.ends_with("exit: 11\n"), "{said}");
}

#[test]
fn a_deploy_by_agents_has_waves_variables_and_attempts() {
    let Some(site) = Site::new(4, 16) else { return };
    // The agent of the fourth host has called, and is gone.
    let mut agents: Vec<Running> = (1..=4).map(|host| site.agent(host)).collect();
    site.admit(4);
    drop(agents.pop());
    // The command after fails in the first attempt of the third one.
    std::fs::write(
        site.bench.path("hosts.ini"),
        "[some]\nhost[1:3]\n[some:vars]\nkind=img\n[others]\nhost4 kind=raw\n",
    )
    .unwrap();
    let (before, mark) = (format!("touch {}", site.path("before-{host}")), site.path("after-host3"));
    let after = format!("if [ {{host}} = host3 ] && ! [ -e {mark} ]; then touch {mark}; exit 1; fi");
    let (target, inventory) = (site.path("{host}.{kind}"), site.path("hosts.ini"));
    let words =
        ["deploy", "web", "--to", "some,others", "--agents", "--inventory", &inventory, "--target", &target];
    let (exit, plan) = site.manage(&[&words[..], &["--wave", "2", "-n"]].concat());
    assert_eq!((exit, plan.len(), &plan[2]["wave"]), (Some(0), 4, &serde_json::json!(2)), "{plan:#?}");
    let again = site.path("again");
    let rest = [
        "--before",
        &before,
        "--after",
        &after,
        "--wave",
        "2",
        "--attempts",
        "2",
        "--silence",
        "8s",
        "--retry-file",
        &again,
    ];
    let (exit, said) = site.manage(&[&words[..], &rest].concat());
    assert_eq!(exit, Some(3), "{said:#?}");
    for host in ["host1", "host2", "host3"] {
        assert_eq!(of(&said, host)["state"], "ready", "{said:#?}");
        assert_same(&site.disk, &site.bench.path(&format!("{host}.img")));
        assert!(site.bench.path(&format!("before-{host}")).exists());
    }
    assert!(site.bench.path("after-host3").exists());
    assert_eq!(of(&said, "host4")["state"], "failed", "{said:#?}");
    let order =
        |host: &str| said.iter().position(|one| one["type"] == "host" && one["host"] == host).unwrap();
    assert!(order("host3") > order("host1").max(order("host2")), "the second wave is later: {said:#?}");
    assert!(!site.bench.path("host4.raw").exists());
    // Its job does not wait for it any more; its line, with its variables, is there for another try.
    site.until(&["host4".to_owned()], |one| one["job"].is_null());
    assert!(std::fs::read_to_string(&again).unwrap().contains("\nhost4 kind=raw\n"));
    agents.push(site.agent(4));
    let words = format!("@{again}");
    let (exit, said) = site.manage(&["deploy", "web", "--to", &words, "--agents", "--target", &target]);
    assert_eq!(exit, Some(0), "{said:#?}");
    assert_same(&site.disk, &site.bench.path("host4.raw"));
    let (exit, said) = site.manage(&["deploy", "web", "--to", "nobody", "--agents", "--target", &target]);
    assert_eq!(exit, Some(10), "{said:#?}");
}

#[test]
fn what_would_fail_again_is_not_tried_again_by_agents() {
    let Some(site) = Site::new(1, 1) else { return };
    let _agent = site.agent(1);
    site.admit(1);
    // A folder is in the way: that is refused.
    std::fs::create_dir(site.bench.path("host1.img")).unwrap();
    let before = format!("echo attempt >>{}", site.path("attempts"));
    let words = ["deploy", "web", "--to", "host1", "--agents", "--target", &site.path("{host}.img")];
    let (exit, said) = site.manage(&[&words[..], &["--before", &before, "--attempts", "3"]].concat());
    assert_eq!((exit, of(&said, "host1")["state"].as_str()), (Some(1), Some("failed")), "{said:#?}");
    assert_eq!(std::fs::read_to_string(site.bench.path("attempts")).unwrap(), "attempt\n");
}

#[test]
fn a_disk_that_an_agent_attached_runs_on_without_it() {
    let Some(site) = Site::new(1, 8) else { return };
    let mut agent = site.agent(1);
    site.admit(1);
    let words = ["deploy", "web", "host1", "--target", "vm-{host}", "--copy", "attach", "--follow"];
    assert_eq!(site.manage(&words).0, Some(0));
    let status = || site.bench.json("disks vm-host1 --folder disks-1").remove(0);
    let expires = status()["tokens"][0]["expires"].clone();
    assert!(!expires.is_null(), "{}", status());
    agent.signal("TERM");
    assert!(agent.child.wait().unwrap().success());
    let disk = format!("nbd+unix:///vm-host1?socket={}", site.path("disks-1/vm-host1/nbd.sock"));
    site.bench.tool(&format!("qemu-img compare -f raw -F raw disk.img {disk}"));
    // It runs already, and is no other machine's to have.
    let _agent = site.agent(1);
    let (exit, said) = site.manage(&words);
    assert!(exit == Some(1) && of(&said, "host1")["why"].as_str().unwrap().contains("runs"), "{said:?}");
    assert!(site.bench.see("detach vm-host1 --folder disks-1").ends_with("exit: 0\n"));
}

#[test]
fn an_agent_wakes_a_host_of_its_network() {
    let Some(site) = Site::new(2, 1) else { return };
    assert_eq!(site.manage(&["hosts", "add", "52:54:00:00:00:99", "--name", "far"]).0, Some(0));
    let (exit, said) = site.manage(&["deploy", "web", "far", "--target", "/dev/null", "--wake"]);
    assert!(exit == Some(11) && said[0]["message"].as_str().unwrap().contains("diskcast agent"), "{said:?}");
    let (off, _on) = (site.agent(1), site.agent(2));
    site.admit(2);
    let card = site.card(1);
    drop(off);
    let (seen, target) = (site.bench.path("seen.pcap"), site.path("{host}.img"));
    let mut capture = site.star.host(1).command("tcpdump");
    capture.args(["-i", "eth0", "-U", "--immediate-mode", "-Z", "root", "-w"]).arg(&seen);
    capture.args(["udp", "port", "9"]).stderr(Stdio::null());
    let _capture = Running::start(capture);
    while !seen.exists() {
        std::thread::yield_now();
    }
    // The server has no network on which it wakes machines.
    let (exit, said) = site.manage(&["deploy", "web", "host1", "--target", &target, "--wake"]);
    assert_eq!(exit, Some(0), "{said:?}");
    let bytes: [u8; 6] = base::hex::decode(&card.replace(':', "")).unwrap();
    let wanted = [vec![0xFF; 6], bytes.repeat(16)].concat();
    while !std::fs::read(&seen).unwrap().windows(wanted.len()).any(|window| window == wanted) {
        std::thread::yield_now();
    }
    let _off = site.agent(1);
    site.until(&["host1".to_owned()], |one| one["job"]["stage"] == "done");
    assert_same(&site.disk, &site.bench.path("host1.img"));
}
