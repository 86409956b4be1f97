//! What tests of machines that boot from the network share: a server, and the room that its machines are in.
#![allow(clippy::unwrap_used, dead_code, reason = "a test that fails says where; each test uses a part")]

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use lab::bare::{BRIDGE, Bare, BareOptions, Firmware, Room, card};
use lab::boot::Kernel;

use crate::common::{self, Bench};

pub(crate) const SERVER: &str = "10.9.0.1:7717";
/// How long each step may take; emulated machines are slow while other tests run.
pub(crate) const PATIENCE: Duration = Duration::from_secs(420);
/// What a machine may not say.
pub(crate) const FAILED: Option<&str> = Some("the job failed");
/// What firmware says when it has tried everything. It gives up after five seconds without an answer, and shim when a
/// connection ends before it looked (0x68), both of which a busy host makes likely.
const GIVEN_UP: &str = "No bootable ";
/// How often somebody switches such a machine on again.
const SWITCHED_ON_MAX: u32 = 20;
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
        share(&bench);
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

    /// Starts a machine, and waits until it shows `text`. One whose firmware has given up is switched on again.
    pub(crate) fn start_until(&self, options: &BareOptions, text: &str) -> Bare {
        self.wait_for(self.start(options), options, text)
    }

    /// Waits until a machine that was started with `options` shows `text`, as [`Self::start_until`].
    pub(crate) fn wait_for(&self, mut machine: Bare, options: &BareOptions, text: &str) -> Bare {
        let mut attempts = 1..SWITCHED_ON_MAX;
        while let Err(error) = machine.wait_for(text, Some(GIVEN_UP), PATIENCE) {
            assert!(error.to_string().contains(GIVEN_UP) && attempts.next().is_some(), "{error}");
            drop(machine);
            machine = self.start(options);
        }
        machine
    }

    /// Starts a machine with the kernel that its boot loader would get, and from its disks once that has restarted it:
    /// for tests of jobs. `DISKCAST_POWER_ON` makes it boot from the network by its firmware, as machines do.
    pub(crate) fn start_at_once(&self, options: &BareOptions) -> Bare {
        if std::env::var_os("DISKCAST_POWER_ON").is_some() {
            return self.start(options);
        }
        let mut ask = Command::new("curl");
        let place = format!("http://{}/machine/{}/ipxe", lab::bare::SERVER, card(options.plug.unwrap()));
        ask.args(["--silent", "--fail", &place]);
        let script = String::from_utf8(self.room.inside(&ask).output().unwrap().stdout).unwrap();
        let words = script
            .lines()
            .find_map(|line| line.strip_prefix("kernel /vmlinuz initrd=initrd.img "))
            .unwrap()
            .to_owned();
        let [kernel, system] = ["boot/vmlinuz", "boot/initrd.img"].map(|file| self.bench.path(file));
        let kernel = Some(Kernel { kernel, system, words });
        self.start(&BareOptions { kernel, ..options.clone() })
    }
}

/// Puts a repository with the image `debian`, of the disk `disk.img`, and the boot image `boot` into the folder. The
/// first test of a new program makes them, in the build folder.
fn share(bench: &Bench) {
    static ALONE: Mutex<()> = Mutex::new(());
    let program = fs::metadata(env!("CARGO_BIN_EXE_diskcast")).unwrap();
    let all = Path::new(env!("CARGO_TARGET_TMPDIR")).join("netboot");
    let place = all.join(format!("{}-{}", program.mtime(), program.len()));
    let _alone = ALONE.lock();
    if !place.exists() {
        let _ = fs::remove_dir_all(&all);
        assert!(bench.see("capture disk.img debian -q").ends_with("exit: 0\n"));
        let made = bench.see("boot-image boot --level 3 --kernel linux-image-cloud-amd64");
        assert!(made.contains("out: made boot: Linux ") && made.ends_with("exit: 0\n"), "{made}");
        let part = all.join("part");
        fs::create_dir_all(&part).unwrap();
        bench.tool(&format!("mv repo boot {}", part.display()));
        fs::rename(part, &place).unwrap();
    }
    bench.tool(&format!("cp -a {0}/repo {0}/boot .", place.display()));
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
