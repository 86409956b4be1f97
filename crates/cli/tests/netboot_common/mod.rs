//! What tests of machines that boot from the network share: a server, and the room that its machines are in.
#![allow(clippy::unwrap_used, dead_code, reason = "a test that fails says where; each test uses a part")]

use std::fs::{self, File};
use std::io::Write as _;
use std::process::{Child, Stdio};
use std::time::Duration;

use lab::bare::{BRIDGE, Bare, BareOptions, Firmware, Room};

use crate::common::{self, Bench};

pub(crate) const SERVER: &str = "10.9.0.1:7717";
/// How long each step may take; emulated machines are slow while other tests run.
pub(crate) const PATIENCE: Duration = Duration::from_secs(420);
/// What a machine may not say.
pub(crate) const FAILED: Option<&str> = Some("the job failed");
/// Bytes of an empty disk.
pub(crate) const DISK_BYTES: u64 = 3 << 30;
/// Addresses that machines get, and where the kernel writes.
pub(crate) const ALONE: &str = "--dhcp 10.9.0.100-10.9.0.120/24";

/// A server, and the room that its machines are in.
pub(crate) struct Site {
    pub bench: Bench,
    pub room: Room,
    pub server: Option<Running>,
}

/// A program that ends with the test.
pub(crate) struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A test that failed shows what its server and its machines said.
impl Drop for Site {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let mut said = std::io::stdout();
        let _ = write!(said, "{}", fs::read_to_string(self.bench.path("log")).unwrap_or_default());
        for plug in 0..5 {
            let console = fs::read(self.bench.path(&format!("machine-{plug}/console"))).unwrap_or_default();
            let end = &console[console.len().saturating_sub(2000)..];
            let _ = writeln!(said, "== machine {plug}\n{}", String::from_utf8_lossy(end));
        }
    }
}

impl Site {
    /// A server that has the image `debian`, of a disk that starts everywhere, and a boot image.
    pub(crate) fn new(machines: u32) -> Option<Self> {
        let bench = common::with_grub("disk.img").filter(|_| lab::available_or_skip())?;
        assert!(bench.see("capture disk.img debian -q").ends_with("exit: 0\n"));
        let made = bench.see("boot-image boot --level 3 --kernel linux-image-cloud-amd64");
        assert!(made.contains("out: made boot: Linux ") && made.ends_with("exit: 0\n"), "{made}");
        Some(Self { bench, room: Room::build(machines).unwrap(), server: None })
    }

    pub(crate) fn serve(&mut self, more: &str) {
        let serve = format!(
            "netboot {BRIDGE} --listen {SERVER} --interface {BRIDGE} --boot-image boot \
             --kernel-parameters console=ttyS0 {more}"
        );
        self.server = None;
        let log = File::options().append(true).create(true).open(self.bench.path("log")).unwrap();
        let mut command = self.room.inside(&self.bench.command(&serve));
        self.server = Some(Running(command.stdout(Stdio::null()).stderr(log).spawn().unwrap()));
        wait_until("the server has a secret", || self.bench.path("state/secret").exists());
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.bench.path("log")).unwrap()
    }

    /// Runs a command at the server.
    pub(crate) fn tell(&self, words: &str) -> String {
        let command = self.bench.command(&format!("{words} --server {SERVER} --wait 60s"));
        self.bench.show(&self.room.inside(&command).output().unwrap())
    }

    /// The part of `hosts --json` about a machine.
    pub(crate) fn host(&self, mac: &str) -> serde_json::Value {
        let hosts = self.tell("hosts --json");
        let lines = hosts.lines().filter_map(|line| line.strip_prefix("out: "));
        let mut records = lines.filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        records.find(|record| record["mac"] == mac).unwrap_or_else(|| panic!("{hosts}"))
    }

    /// A machine with empty disks of so many bytes.
    pub(crate) fn options(&self, firmware: Firmware, plug: u32, disks: &[u64]) -> BareOptions {
        let folder = self.bench.path(&format!("machine-{plug}"));
        BareOptions::empty(firmware, plug, folder, disks).unwrap()
    }

    pub(crate) fn start(&self, options: &BareOptions) -> Bare {
        Bare::start(&self.room, options).unwrap()
    }
}

/// Waits until `is_so`, which looks at something that a real machine changes.
#[expect(clippy::disallowed_methods, reason = "a machine takes real time")]
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = std::time::Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "{what}: not in time");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The first block between fences of `kind` in docs/netboot.md that comes after `words`.
pub(crate) fn block_of_the_page(words: &str, kind: &str) -> String {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/netboot.md")).unwrap();
    let (_, rest) = page.split_once(words).unwrap();
    let (_, rest) = rest.split_once(&format!("```{kind}\n")).unwrap();
    rest.split_once("```").unwrap().0.to_owned()
}
