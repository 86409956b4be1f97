//! A cluster of real processes: three members of etcd, three metadata services and six devices of 3 + 2. Each device
//! has a host in a star and a filesystem of its own; the first three hosts have the other parts, too. Host 0 is the
//! client.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cluster::ClusterToken;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::health::{unheard, unwell};
use crate::tool::{run, unmount};
use crate::{Host, Star, StarOptions};

pub(super) type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Devices, and hosts beside the client's.
pub(super) const DEVICES: u32 = 6;
/// Instances of the metadata service, and members of etcd.
pub(super) const INSTANCES: u32 = 3;

/// A command that takes longer hangs.
const COMMAND_SECONDS: u64 = 120;
/// How long a cluster may take until all is well again.
const WELL_SECONDS: u64 = 120;
/// How long a part may take to end, or to refuse.
const END_SECONDS: u64 = 30;
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// A clock that is wrong by more has jumped.
const SKEW_SEEN_MS: u64 = 60_000;
/// A restored cluster begins so many epochs further.
const EPOCHS_OF_A_RESTORE: u64 = 65_536;
/// Lines of each log that are told of a wrong round.
const LINES_TOLD: usize = 6;

/// A process of the cluster. All count from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    Etcd(u32),
    Metadata(u32),
    Device(u32),
}

impl Part {
    fn name(self) -> String {
        match self {
            Self::Etcd(number) => format!("etcd-{number}"),
            Self::Metadata(number) => format!("metadata-{number}"),
            Self::Device(number) => format!("device-{number}"),
        }
    }

    fn number(self) -> u32 {
        let (Self::Etcd(number) | Self::Metadata(number) | Self::Device(number)) = self;
        number
    }
}

/// A process, killed when this is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // `drop` cannot report an error.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A command of a client that runs.
pub(super) struct Running {
    process: Process,
    line: String,
    number: u32,
}

/// The disk of a device: a loop device, which may be mounted. It stays attached until the cluster ends, so that a
/// namespace that still has it mounted and a new mount share one filesystem.
struct Disk {
    device: String,
    place: PathBuf,
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = unmount(&self.place);
        let _ = run("losetup", &["-d", &self.device]);
    }
}

/// The cluster. Dropping it ends all processes, and removes its folder.
pub(super) struct Site {
    // Dropped in this order: filesystems are free only once no process has them.
    parts: BTreeMap<Part, Process>,
    star: Star,
    disks: Vec<Disk>,
    folder: tempfile::TempDir,
    program: PathBuf,
    /// Commands so far.
    commands: Cell<u32>,
    /// The epoch when it was first well; 0 before.
    epoch: Cell<u64>,
    /// What devices told when all was well last.
    when_well: RefCell<Vec<Value>>,
    /// When each device was started.
    started: BTreeMap<Part, Instant>,
}

impl Site {
    /// Starts a cluster in a new folder in `folder`, and waits until all is well.
    pub(super) fn start(program: &Path, folder: &Path) -> Result<Self> {
        let folder = tempfile::tempdir_in(folder)?;
        let star = Star::build(&StarOptions { hosts: 1 + DEVICES, ..StarOptions::default() })?;
        let mut site = Self {
            parts: BTreeMap::new(),
            star,
            disks: Vec::new(),
            folder,
            program: program.to_owned(),
            commands: Cell::new(0),
            epoch: Cell::new(0),
            when_well: RefCell::default(),
            started: BTreeMap::new(),
        };
        let token = File::options().write(true).create_new(true).mode(0o600).open(site.path("token"))?;
        std::io::Write::write_all(&mut &token, ClusterToken::random()?.as_str().as_bytes())?;
        (0..DEVICES).try_for_each(|number| site.make_disk(number))?;
        (0..INSTANCES).try_for_each(|number| site.start_part(Part::Etcd(number)))?;
        (0..INSTANCES).try_for_each(|number| site.start_part(Part::Metadata(number)))?;
        for number in 0..DEVICES {
            site.set_clock(Part::Device(number), 0)?;
            site.spawn(Part::Device(number), &["--new"])?;
        }
        let begun = site.wait_until_well().and_then(|()| site.run("init"));
        begun.map_err(|error| format!("no cluster starts: {}{}", base::chain(&*error), site.logs()))?;
        Ok(site)
    }

    /// A path in its folder.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn make_disk(&mut self, number: u32) -> Result<()> {
        let (file, place) = (self.path(&format!("disk-{number}.img")), self.path(&format!("disk-{number}")));
        File::create(&file)?.set_len(400 << 20)?;
        // Without its disk the folder is there, and empty.
        fs::create_dir_all(place.join("device"))?;
        run("mkfs.ext4", &["-q", "-F", "-E", "lazy_itable_init=1", &file.to_string_lossy()])?;
        let device = run("losetup", &["--find", "--show", &file.to_string_lossy()])?.trim().to_owned();
        self.disks.push(Disk { device, place });
        self.mount(number)
    }

    /// Mounts the disk of a device.
    pub(super) fn mount(&self, device: u32) -> Result<()> {
        let disk = &self.disks[device as usize];
        Ok(run("mount", &["-t", "ext4", &disk.device, &disk.place.to_string_lossy()]).map(drop)?)
    }

    /// Unmounts the disk of a device, which does not run.
    pub(super) fn unmount(&self, device: u32) -> Result<()> {
        Ok(unmount(&self.disks[device as usize].place)?)
    }

    fn device_folder(&self, device: u32) -> PathBuf {
        self.disks[device as usize].place.join("device")
    }

    /// Copies the folder of a device that does not run.
    pub(super) fn copy_device(&self, device: u32) -> Result<()> {
        let copy = self.path("copy");
        if copy.exists() {
            fs::remove_dir_all(&copy)?;
        }
        let folder = self.device_folder(device);
        Ok(run("cp", &["-aT", &folder.to_string_lossy(), &copy.to_string_lossy()]).map(drop)?)
    }

    /// Puts that copy in the place of the folder.
    pub(super) fn put_copy_back(&self, device: u32) -> Result<()> {
        let folder = self.device_folder(device);
        fs::remove_dir_all(&folder)?;
        let copy = self.path("copy");
        Ok(run("cp", &["-aT", &copy.to_string_lossy(), &folder.to_string_lossy()]).map(drop)?)
    }

    fn host(&self, part: Part) -> &Host {
        self.star.host(part.number() + 1)
    }

    fn all(&self, scheme: &str, port: u16) -> String {
        let hosts = (0..INSTANCES).map(|number| self.host(Part::Metadata(number)).ipv4());
        hosts.map(|host| format!("{scheme}{host}:{port}")).collect::<Vec<_>>().join(",")
    }

    /// Starts a part with what it has.
    pub(super) fn start_part(&mut self, part: Part) -> Result<()> {
        self.set_clock(part, 0)?;
        self.spawn(part, &[])
    }

    fn spawn(&mut self, part: Part, more: &[&str]) -> Result<()> {
        let child = self.command_of(part).args(more).spawn()?;
        self.parts.insert(part, Process(child));
        self.started.insert(part, now());
        Ok(())
    }

    fn command_of(&self, part: Part) -> Command {
        let (host, ip) = (self.host(part), self.host(part).ipv4());
        let token = self.path("token");
        let mut command;
        match part {
            Part::Etcd(number) => {
                let at = |number: u32, port: u16| {
                    format!("http://{}:{port}", self.host(Part::Etcd(number)).ipv4())
                };
                let (client, peer) = (at(number, 2379), at(number, 2380));
                let all: Vec<_> =
                    (0..INSTANCES).map(|number| format!("etcd-{number}={}", at(number, 2380))).collect();
                command = host.command("etcd");
                command.args(["--name", &part.name(), "--data-dir"]).arg(self.path(&part.name()));
                command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
                command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
                command.args(["--initial-cluster", &all.join(","), "--log-level", "error"]);
                command.args(["--heartbeat-interval", "200", "--election-timeout", "2000"]);
                command.stdin(Stdio::null());
            }
            Part::Metadata(_) => {
                command = host.command(&self.program.to_string_lossy());
                command.args(["metadata", "--etcd", &self.all("http://", 2379), "--width", "3+2"]);
                command.args(["--listen", &format!("{ip}:7400")]);
            }
            Part::Device(number) => {
                command = host.command(&self.program.to_string_lossy());
                command.arg("device").arg(self.device_folder(number));
                command.args(["--metadata", &self.all("", 7400), "--listen", &format!("{ip}:7420")]);
                command.args(["--domain", &part.name(), "--scrub-rate", "800M"]);
            }
        }
        if !matches!(part, Part::Etcd(_)) {
            command.arg("--cluster-token").arg(token).arg("--with-parent").stdin(Stdio::piped());
            command.env("LD_PRELOAD", faketime()).env("FAKETIME_NO_CACHE", "1").env("NO_FAKE_STAT", "1");
            command.env("DONT_FAKE_MONOTONIC", "1").env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
            command.env("FAKETIME_TIMESTAMP_FILE", self.path(&format!("{}.clock", part.name())));
        }
        if let Ok(log) = File::options().create(true).append(true).open(self.log(part))
            && let Ok(again) = log.try_clone()
        {
            command.stdout(log).stderr(again);
        }
        command
    }

    fn log(&self, part: Part) -> PathBuf {
        self.path(&format!("{}.log", part.name()))
    }

    /// The last lines that the parts said.
    pub(super) fn logs(&self) -> String {
        let parts = (0..INSTANCES).map(Part::Metadata).chain((0..DEVICES).map(Part::Device));
        parts.map(|part| format!("\n{}: {}", part.name(), self.said(part))).collect()
    }

    fn said(&self, part: Part) -> String {
        let log = fs::read_to_string(self.log(part)).unwrap_or_default();
        let lines: Vec<_> = log.lines().rev().take(LINES_TOLD).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join(" | ")
    }

    /// Lets the clock of a part be so many seconds ahead.
    pub(super) fn set_clock(&self, part: Part, seconds: i64) -> Result<()> {
        let file = self.path(&format!("{}.clock", part.name()));
        // The part reads it at any time: it must never be empty.
        fs::write(file.with_extension("new"), format!("{seconds:+}\n"))?;
        Ok(fs::rename(file.with_extension("new"), file)?)
    }

    /// Waits until the cluster shows that the clock of a device is wrong.
    pub(super) fn wait_for_skew(&self, device: u32) -> Result<()> {
        let address = format!("//{}:", self.host(Part::Device(device)).ipv4());
        let is_wrong = |view: &Value| {
            view["address"].as_str().is_some_and(|at| at.contains(&address))
                && view["skew_ms"].as_i64().is_some_and(|skew| skew.unsigned_abs() > SKEW_SEEN_MS)
        };
        let seen = wait(WELL_SECONDS, || {
            let told = self.status()?.is_ok_and(|(_, devices)| devices.iter().any(is_wrong));
            Ok(told.then_some(()))
        })?;
        Ok(seen.ok_or("nobody sees that a clock is wrong")?)
    }

    /// Kills a part, as `kill -9` does.
    pub(super) fn kill(&mut self, part: Part) {
        drop(self.parts.remove(&part));
    }

    /// Asks a part to end, which it must.
    pub(super) fn end(&mut self, part: Part) -> Result<()> {
        let mut process = self.parts.remove(&part).ok_or("it does not run")?;
        kill_process(Pid::from_child(&process.0), Signal::TERM)?;
        self.ended(part, &mut process).map(drop)
    }

    fn ended(&self, part: Part, process: &mut Process) -> Result<bool> {
        let what = format!("{} does not end: {}", part.name(), self.said(part));
        let status = wait(END_SECONDS, || Ok(process.0.try_wait()?))?.ok_or(what)?;
        Ok(status.success())
    }

    /// Starts a device without its disk. It must refuse, and write nothing.
    pub(super) fn must_refuse(&self, device: u32) -> Result<()> {
        let part = Part::Device(device);
        let mut process = Process(self.command_of(part).spawn()?);
        if self.ended(part, &mut process)? {
            return Err("a device without its disk ended with success".into());
        }
        let left = fs::read_dir(self.device_folder(device))?.count();
        if left == 0 { Ok(()) } else { Err("a device without its disk made files".into()) }
    }

    /// Cuts off the host of an instance.
    pub(super) fn cut(&self, instance: u32) -> Result<()> {
        Ok(self.star.cut(instance + 1)?)
    }

    /// Connects it again.
    pub(super) fn heal(&self, instance: u32) -> Result<()> {
        Ok(self.star.heal(instance + 1)?)
    }

    /// The instance that leads.
    pub(super) fn leader(&self) -> Result<u32> {
        let (cluster, _) = self.status()??;
        let leader = cluster["leader"].as_str().ok_or("nobody leads")?;
        let is_it =
            |number: &u32| leader.contains(&format!("//{}:", self.host(Part::Metadata(*number)).ipv4()));
        Ok((0..INSTANCES).find(is_it).ok_or("the leader is unknown")?)
    }

    /// Waits until the metadata service answers.
    pub(super) fn wait_for_leader(&self) -> Result<()> {
        let answers = wait(WELL_SECONDS, || Ok(self.status()?.ok()))?;
        Ok(answers.map(drop).ok_or("the metadata service does not answer")?)
    }

    /// Waits until all is well.
    pub(super) fn wait_until_well(&mut self) -> Result<()> {
        let mut last = String::new();
        for _ in 0..WELL_SECONDS {
            let mut parts = self.parts.iter_mut();
            let gone = parts
                .find_map(|(part, process)| (!matches!(process.0.try_wait(), Ok(None))).then_some(*part));
            if let Some(part) = gone {
                return Err(format!("{} ended by itself: {}", part.name(), self.said(part)).into());
            }
            let ages = self.ages();
            last = match self.status()? {
                Err(said) => said,
                Ok((cluster, devices)) => {
                    match unwell(&cluster, &devices).or_else(|| unheard(&devices, &ages)) {
                        Some(what) => what,
                        None => {
                            self.epoch.set(cluster["epoch"].as_u64().ok_or("no epoch")?);
                            self.when_well.replace([vec![cluster], devices].concat());
                            return Ok(());
                        }
                    }
                }
            };
            pass(1);
        }
        Err(format!("it is not well after {WELL_SECONDS} s: {last}").into())
    }

    /// Which device has which address, and how long ago it was started.
    fn ages(&self) -> Vec<(String, Duration)> {
        let of = |number| {
            let part = Part::Device(number);
            let address = format!("//{}:", self.host(part).ipv4());
            Some((address, self.started.get(&part)?.elapsed()))
        };
        (0..DEVICES).filter_map(of).collect()
    }

    /// What devices told when all was well last.
    pub(super) fn when_well(&self) -> String {
        self.when_well.borrow().iter().map(|device| format!("\n  {device}")).collect()
    }

    /// What the cluster says of itself and of its devices, or why nobody does. A restored cluster is an error.
    fn status(&self) -> Result<std::result::Result<(Value, Vec<Value>), String>> {
        let said = match self.finish(self.begin("cluster status --json")?)? {
            Ok(said) => said,
            Err(why) => return Ok(Err(why)),
        };
        let lines: Vec<Value> =
            said.lines().map(serde_json::from_str).collect::<std::result::Result<_, _>>()?;
        let of = |kind: &'static str| lines.iter().filter(move |line| line["type"] == kind);
        let cluster = of("cluster").next().ok_or("no line of the cluster")?.clone();
        let (waits_for, epoch) = (&cluster["waits_for"], cluster["epoch"].as_u64().ok_or("no epoch")?);
        if waits_for.as_array().is_some_and(|devices| !devices.is_empty()) {
            return Err(format!("it counts as restored, and waits for {waits_for}").into());
        }
        let before = self.epoch.get();
        if before != 0 && epoch >= before + EPOCHS_OF_A_RESTORE {
            return Err(format!("it counts as restored: epoch {before} became {epoch}").into());
        }
        Ok(Ok((cluster, of("device").map(|line| line["device"].clone()).collect())))
    }

    /// Starts a command of the client.
    pub(super) fn begin(&self, line: &str) -> Result<Running> {
        let number = self.commands.get();
        self.commands.set(number + 1);
        let mut command = self.star.host(0).command(&self.program.to_string_lossy());
        command.args(line.split_whitespace()).current_dir(self.folder.path()).stdin(Stdio::null());
        command.arg("--repo").arg(format!("cluster://{}", self.all("", 7400)));
        command.arg("--cluster-token").arg(self.path("token"));
        command.env("DISKCAST_CACHE", "off").env("DISKCAST_CONFIG", "/dev/null");
        command.env("DISKCAST_SEEN", self.path("seen.json")).env("XDG_CACHE_HOME", self.path("cache"));
        command.stdout(File::create(self.path(&format!("{number}.out")))?);
        command.stderr(File::create(self.path(&format!("{number}.err")))?);
        Ok(Running { process: Process(command.spawn()?), line: line.to_owned(), number })
    }

    /// Waits for it: what it printed, or why it failed. That it hangs is an error.
    pub(super) fn finish(&self, running: Running) -> Result<std::result::Result<String, String>> {
        let Running { mut process, line, number } = running;
        let ended = wait(COMMAND_SECONDS, || Ok(process.0.try_wait()?))?;
        let read = |kind: &str| fs::read_to_string(self.path(&format!("{number}.{kind}")));
        let (out, err) = (read("out")?, read("err")?);
        let status = ended.ok_or_else(|| format!("`{line}` hangs: {}", err.trim()))?;
        Ok(if status.success() { Ok(out) } else { Err(format!("`{line}`: {status}: {}", err.trim())) })
    }

    /// Runs a command that must succeed.
    pub(super) fn run(&self, line: &str) -> Result<String> {
        Ok(self.finish(self.begin(line)?)??)
    }
}

/// The library that lets the clock of a program be another one.
fn faketime() -> PathBuf {
    format!("/usr/lib/{}-linux-gnu/faketime/libfaketimeMT.so.1", std::env::consts::ARCH).into()
}

/// A package that a cluster needs and this machine lacks.
pub(super) fn lacks() -> Option<&'static str> {
    let etcd = Command::new("etcd").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    match (etcd.is_ok(), faketime().exists()) {
        (false, _) => Some("etcd-server"),
        (true, false) => Some("faketime"),
        (true, true) => None,
    }
}

#[expect(clippy::disallowed_methods, reason = "processes take real time")]
fn now() -> Instant {
    Instant::now()
}

/// Lets time pass.
pub(super) fn pass(seconds: u64) {
    let _ = wait(seconds, || Ok(None::<()>));
}

/// Looks again and again until there is something; `None` if there is nothing for about so many seconds.
fn wait<T>(seconds: u64, mut look: impl FnMut() -> Result<Option<T>>) -> Result<Option<T>> {
    for _ in 0..u128::from(seconds) * 1000 / LOOK_EVERY.as_millis() {
        if let Some(found) = look()? {
            return Ok(Some(found));
        }
        std::thread::park_timeout(LOOK_EVERY);
    }
    look()
}
