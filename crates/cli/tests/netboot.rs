//! Tests machines that boot from the network: firmware, boot loader, kernel and system in memory are real, and so is
//! the Debian that they install and start.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

mod common;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::Bench;

/// A network for the server and one machine, in a namespace of its own.
struct Room {
    name: String,
}

const CARD: &str = "52:54:00:00:00:07";
const SERVER: &str = "10.9.0.1:7717";
/// How long each step may take; emulated machines are slow while other tests run.
const PATIENCE: Duration = Duration::from_secs(420);

impl Room {
    fn new() -> Self {
        let room = Self { name: format!("dcnetboot-{}", std::process::id()) };
        ip(&format!("netns add {}", room.name));
        for line in [
            "link add br0 type bridge",
            "addr add 10.9.0.1/24 dev br0",
            "link set lo up",
            "link set br0 up",
            "tuntap add dev tap0 mode tap",
            "link set tap0 master br0 up",
        ] {
            ip(&format!("-n {} {line}", room.name));
        }
        room
    }

    /// Makes `command` run in the namespace.
    fn inside(&self, command: &Command) -> Command {
        let mut inside = Command::new("ip");
        inside.args(["netns", "exec", &self.name]).arg(command.get_program()).args(command.get_args());
        inside.env_clear().env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin");
        for (name, value) in command.get_envs() {
            inside.env(name, value.unwrap_or_default());
        }
        if let Some(folder) = command.get_current_dir() {
            inside.current_dir(folder);
        }
        inside.stdin(Stdio::null());
        inside
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

fn ip(line: &str) {
    assert!(Command::new("ip").args(line.split(' ')).status().unwrap().success(), "ip {line}");
}

/// A program that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A machine with an empty disk, whose firmware boots from the network first.
fn machine(bench: &Bench, room: &Room) -> Running {
    let path = |name: &str| bench.path(name).display().to_string();
    fs::copy("/usr/share/OVMF/OVMF_VARS_4M.fd", bench.path("settings.fd")).unwrap();
    fs::File::create(bench.path("empty.img")).unwrap().set_len(3 << 30).unwrap();
    let mut command = Command::new("qemu-system-x86_64");
    command
        .args(["-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-m", "1024", "-smp", "1"])
        .args(["-nodefaults", "-display", "none", "-serial"])
        .arg(format!("file:{}", path("console")))
        .args(["-fw_cfg", "name=opt/org.tianocore/IPv6PXESupport,string=n"])
        .args(["-drive", "if=pflash,format=raw,readonly=on,file=/usr/share/OVMF/OVMF_CODE_4M.fd", "-drive"])
        .arg(format!("if=pflash,format=raw,file={}", path("settings.fd")))
        .args(["-netdev", "tap,id=n0,ifname=tap0,script=no,downscript=no", "-device"])
        .arg(format!("virtio-net-pci,netdev=n0,romfile=,mac={CARD},bootindex=1"))
        .arg("-drive")
        .arg(format!("if=none,id=d0,format=raw,file={}", path("empty.img")))
        .args(["-device", "virtio-blk-pci,drive=d0,serial=S1,bootindex=2"]);
    Running(room.inside(&command).spawn().unwrap())
}

/// Waits until the machine's console has `text`.
#[expect(clippy::disallowed_methods, reason = "a machine takes real time")]
fn wait_for(console: &Path, text: &str) {
    let begin = Instant::now();
    loop {
        let seen = String::from_utf8_lossy(&fs::read(console).unwrap_or_default()).into_owned();
        if seen.contains(text) {
            return;
        }
        let tail: String = seen.chars().rev().take(3000).collect::<Vec<_>>().into_iter().rev().collect();
        assert!(!seen.contains("the job failed"), "{tail}");
        assert!(begin.elapsed() < PATIENCE, "no `{text}` in time: {tail}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn a_machine_boots_from_the_network_gets_its_disk_and_starts_from_it() {
    let Some(bench) = common::with_debian("disk.img").filter(|_| lab::available_or_skip()) else { return };
    let room = Room::new();
    assert!(bench.see("capture disk.img debian -q").ends_with("exit: 0\n"));
    let made = bench.see("boot-image boot --level 3 --kernel linux-image-cloud-amd64");
    assert!(made.contains("out: made boot: Linux ") && made.ends_with("exit: 0\n"), "{made}");

    let serve = "serve --listen 10.9.0.1:7717 --interface br0 --netboot br0 --boot-image boot \
                 --dhcp 10.9.0.100-10.9.0.120/24 --kernel-parameters console=ttyS0";
    let log = fs::File::create(bench.path("log")).unwrap();
    let mut command = room.inside(&bench.command(serve));
    let _server = Running(command.stdout(Stdio::null()).stderr(log).spawn().unwrap());
    let at_server = |words: &str| {
        let command = bench.command(&format!("{words} --server {SERVER} --wait 60s"));
        bench.show(&room.inside(&command).output().unwrap())
    };
    let console = bench.path("console");
    let _machine = machine(&bench, &room);
    wait_for(&console, "waiting: an administrator must admit this machine");
    let hosts = at_server("hosts");
    assert!(hosts.contains(CARD) && hosts.contains("not admitted"), "{hosts}");
    // What nobody admitted is not installed.
    let refused = at_server(&format!("deploy debian {CARD}"));
    assert!(refused.contains("was not admitted") && refused.ends_with("exit: 11\n"), "{refused}");
    let added = at_server(&format!("hosts add {CARD} --name lab-07 --group lab"));
    assert!(added.contains("out: added lab-07"), "{added}");
    assert!(at_server("deploy nothing lab").ends_with("exit: 10\n"));
    let deployed = at_server("deploy debian lab");
    assert!(deployed.contains("debian@1 will be put on lab-07"), "{deployed}");
    // It is installed, named, and starts from its disk, although its firmware asks the network first again.
    wait_for(&console, "nothing to do here, starting from the disk");
    wait_for(&console, "lab-07 login:");
    let hosts = at_server("hosts --json");
    assert!(hosts.contains("\"stage\":\"installed\"") || hosts.contains("\"stage\":\"back\""), "{hosts}");
    let log = fs::read_to_string(bench.path("log")).unwrap();
    assert!(log.contains(&format!("machine {CARD} has its disk and starts from it")), "{log}");
}
