//! Helpers for tests of sets: hosts with attached disks, writers that pass messages, agents and machines.
#![allow(clippy::unwrap_used, reason = "helpers of tests unwrap, too")]

mod files;
mod ring;

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use lab::boot::nbd_device;
use lab::{Sshd, Star, StarOptions};
use serde_json::{Value, json};

use crate::attach_common::Attached;
use crate::common::{Bench, Served};

pub(crate) use files::FileWriter;
pub(crate) use ring::Ring;

pub(crate) const FREEZE: &str = "guest-fsfreeze-freeze";
pub(crate) const THAW: &str = "guest-fsfreeze-thaw";

/// Bytes of the disks.
const DISK_BYTES: u64 = 64 << 20;

/// Host 0 deploys and may serve; the others are reached by ssh, and have a folder of disks each.
pub(crate) struct Site {
    star: Star,
    pub(crate) bench: Bench,
    sshd: Sshd,
}

impl Site {
    /// A repository with the image `web`, all of it free. `None` where there is no lab.
    pub(crate) fn new(hosts: u32) -> Option<Self> {
        if !lab::available_or_skip() {
            return None;
        }
        let options = StarOptions { hosts: 1 + hosts, ..StarOptions::default() };
        let (star, bench) = (Star::build(&options).unwrap(), Bench::new());
        assert!(bench.see(&format!("create web {DISK_BYTES}")).ends_with("exit: 0\n"));
        let sshd = Sshd::start(&star, &star.hosts()[1..], bench.path(".").as_path()).unwrap();
        let site = Self { star, bench, sshd };
        // What hosts run: each has its own folder of disks, by its address.
        let program = format!(
            "#!/bin/sh\nDISKCAST_DISKS={}/disks-$(echo $SSH_CONNECTION | cut -d ' ' -f 3)\nexport DISKCAST_DISKS\n\
             exec {} \"$@\"\n",
            site.path(""),
            env!("CARGO_BIN_EXE_diskcast"),
        );
        std::fs::write(site.path("program"), program).unwrap();
        site.bench.tool("chmod +x program");
        Some(site)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.bench.path(name).display().to_string()
    }

    fn folder(&self, host: u32) -> String {
        self.path(&format!("disks-{}", self.star.host(host).ipv4()))
    }

    /// Runs a disk of a host, with the repository as its source.
    pub(crate) fn attach(&self, host: u32, words: &str) -> Attached {
        Attached::from_repository(&self.bench, &format!("{words} --folder {}", self.folder(host)))
    }

    /// The state of a disk that runs.
    pub(crate) fn running(&self, host: u32, name: &str) -> Value {
        let status = self.bench.json(&format!("disks {name} --folder {}", self.folder(host))).remove(0);
        assert_eq!(status["state"], "running", "{status}");
        status
    }

    /// Makes a disk the first version of a new image.
    pub(crate) fn commit(&self, host: u32, disk: &str, image: &str) {
        let seen = self.bench.see(&format!("clone --disk {disk} {image} --folder {}", self.folder(host)));
        assert!(seen.ends_with("exit: 0\n"), "{seen}");
    }

    /// Ends disks whose processes the deployment started.
    pub(crate) fn end(&self, hosts: &[u32], name: &str) {
        for host in hosts {
            let seen = self.bench.see(&format!("detach {name} --folder {}", self.folder(*host)));
            assert!(seen.ends_with("exit: 0\n"), "{seen}");
        }
    }

    /// A server on host 0, and a token for it in `write.token`, which may write.
    pub(crate) fn serve(&self) -> Served {
        let here = self.star.host(0);
        let words = format!("serve --listen {}:0 --token-out join.token --json --no-multicast", here.ipv4());
        let served = Served::start(self.bench.command_in(here, &words));
        self.bench.keep_secret("write.token", self.bench.command("token --write").output().unwrap().stdout);
        served
    }

    /// A file of hosts.
    pub(crate) fn hosts(&self, numbers: &[u32]) -> String {
        let lines: Vec<_> = numbers.iter().map(u32::to_string).collect();
        self.hosts_with(&lines.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// The same, of hosts with variables behind their numbers.
    pub(crate) fn hosts_with(&self, lines: &[&str]) -> String {
        let line = |line: &&str| {
            let (number, rest) = line.split_once(' ').unwrap_or((line, ""));
            let host = self.star.host(number.parse().unwrap());
            format!("host{number} address={} {rest}\n", host.ipv4())
        };
        let name = format!("hosts-{}", lines.join("-").replace([' ', '/'], "_"));
        std::fs::write(self.path(&name), lines.iter().map(line).collect::<String>()).unwrap();
        format!("@{}", self.path(&name))
    }

    /// The command `deploy WORDS` on host 0.
    pub(crate) fn command(&self, words: &str, hosts: &str) -> Command {
        let mut command = self.bench.command_in(self.star.host(0), &format!("deploy {words} --json --yes"));
        command.args(["--ssh", &self.sshd.client(), "--program", &self.path("program"), "--to", hosts]);
        command.arg("--retry-file").arg(self.bench.path("again"));
        command
    }

    /// Runs it to its end. Returns its exit code, and what it says.
    pub(crate) fn deploy(&self, words: &str, hosts: &str) -> (Option<i32>, Vec<Value>) {
        let output = self.command(words, hosts).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let mut said: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        said.push(json!({ "type": "stderr", "text": String::from_utf8_lossy(&output.stderr) }));
        (output.status.code(), said)
    }

    /// Writes a version into `member.img`.
    pub(crate) fn install(&self, reference: &str) {
        let seen = self.bench.see(&format!("install {reference} member.img --free zero --overwrite -q"));
        assert!(seen.ends_with("exit: 0\n"), "{seen}");
    }

    /// How many messages three versions of disks have, if they are of one moment.
    pub(crate) fn messages(&self, places: &[String]) -> Result<u64, String> {
        let disks = places.iter().map(|place| {
            self.install(place);
            std::fs::read(self.path("member.img")).unwrap()
        });
        ring::count(&disks.collect::<Vec<_>>())
    }

    /// Checks that the set that was made shows one moment, with at least so many messages. Returns how many there are.
    pub(crate) fn check_moment(&self, said: &[Value], at_least: u64) -> u64 {
        let places: Vec<_> = of(said, "set")["members"].as_array().unwrap().iter().map(place).collect();
        let messages = self.messages(&places).unwrap();
        assert!(messages >= at_least, "{messages} of {at_least} messages");
        messages
    }

    /// There is no set, and the messages go on.
    pub(crate) fn check_nothing(&self, ring: &Ring) {
        assert!(self.bench.see("log pod").ends_with("exit: 10\n"));
        ring.wait_for_steps(50);
    }

    /// A machine that runs nothing but its firmware, with the disk `vm` and its monitor at `qmp`.
    pub(crate) fn machine(&self, host: u32) -> Option<Machine> {
        let socket = format!("{}/vm/nbd.sock", self.folder(host));
        let mut command = Command::new("qemu-system-x86_64");
        command.args(["-machine", "q35", "-accel", "tcg", "-nodefaults", "-display", "none", "-m", "64"]);
        command.args(["-blockdev", &nbd_device(Path::new(&socket), "vm")]);
        command.args(["-device", "virtio-blk-pci,drive=disk0"]);
        command.arg("-qmp").arg(format!("unix:{},server=on,wait=off", self.path("qmp")));
        let child = match command.stdin(Stdio::null()).spawn() {
            Ok(child) => child,
            Err(error) => {
                assert!(std::env::var_os("CI").is_none(), "qemu-system-x86_64: {error}");
                return None;
            }
        };
        let machine = Machine { child, monitor: self.path("qmp") };
        while UnixStream::connect(&machine.monitor).is_err() {
            std::thread::yield_now();
        }
        Some(machine)
    }
}

/// The record of a kind.
pub(crate) fn of<'a>(records: &'a [Value], kind: &str) -> &'a Value {
    records
        .iter()
        .find(|record| record["type"] == kind)
        .unwrap_or_else(|| panic!("no {kind} in {records:#?}"))
}

/// The version of a member.
fn place(member: &Value) -> String {
    format!("{}@{}", member["image"].as_str().unwrap(), member["number"])
}

/// A mock guest agent of a host, until this is dropped.
pub(crate) struct Agent {
    path: String,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Agent {
    /// `answer` gets each command; `None`: it is never answered.
    pub(crate) fn start(
        site: &Site,
        host: u32,
        answer: impl Fn(&str) -> Option<Value> + Send + 'static,
    ) -> Self {
        let path = site.path(&format!("qga-host{host}"));
        let listener = UnixListener::bind(&path).unwrap();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&heard);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let lines = BufReader::new(stream.try_clone().unwrap()).split(b'\n');
                for line in lines.map_while(Result::ok) {
                    let line: Vec<u8> = line.into_iter().filter(|&byte| byte != 0xff).collect();
                    let request: Value = serde_json::from_slice(&line).unwrap();
                    let command = request["execute"].as_str().unwrap();
                    let reply = if command == "guest-sync-delimited" {
                        let _ = stream.write_all(&[0xff]);
                        Some(json!({ "return": request["arguments"]["id"] }))
                    } else {
                        log.lock().unwrap().push(command.to_owned());
                        answer(command)
                    };
                    // The disk's process may be gone.
                    let _ = reply.map(|reply| writeln!(stream, "{reply}"));
                }
            }
        });
        Self { path, heard }
    }

    pub(crate) fn heard(&self) -> Vec<String> {
        self.heard.lock().unwrap().clone()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A QEMU with a monitor; killed when this is dropped.
pub(crate) struct Machine {
    pub(crate) child: Child,
    monitor: String,
}

impl Machine {
    /// What its monitor says: `running` or `paused`.
    pub(crate) fn status(&self) -> String {
        let mut stream = UnixStream::connect(&self.monitor).unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
        for command in ["qmp_capabilities", "query-status"] {
            writeln!(stream, "{{\"execute\":\"{command}\"}}").unwrap();
        }
        lines
            .find_map(|line| {
                Some(serde_json::from_str::<Value>(&line).ok()?["return"]["status"].as_str()?.to_owned())
            })
            .unwrap()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
