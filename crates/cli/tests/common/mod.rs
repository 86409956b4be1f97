//! Helpers that run the real binary in a temporary folder and return its output.
#![allow(dead_code, reason = "every test program uses its own part")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

pub(crate) mod between;
pub(crate) mod running;
pub(crate) mod targets;
pub(crate) mod wire;

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use base::ErrorKind;
use lab::boot::{BootOptions, Medium, until_login};

/// The disk that `make demo` boots. It is built if `CI` is set; elsewhere it is used if it exists.
pub(crate) fn debian() -> Option<PathBuf> {
    debian_disk("disk.img", &[])
}

/// A disk like it in the file `name`, made with more `words`.
fn debian_disk(name: &str, words: &[&str]) -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let disk = target.join("debian").join(name);
    if std::env::var_os("CI").is_some() {
        // Tests of one program run side by side.
        static BUILDS: std::sync::Mutex<()> = std::sync::Mutex::new(());
        let _alone = BUILDS.lock();
        let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/debian-disk.sh");
        assert!(Command::new(tool).args(words).arg(&disk).status().unwrap().success());
    }
    disk.exists().then_some(disk)
}

/// A folder with a copy of [`debian`] in the file `name`, for a test that takes root. `None`, and a word about it,
/// where that can't be had.
pub(crate) fn with_debian(name: &str) -> Option<Bench> {
    copy_of(debian(), name)
}

/// [`with_debian`], with LVM's tools in it.
pub(crate) fn with_lvm(name: &str) -> Option<Bench> {
    copy_of(debian_disk("lvm.img", &["--packages", "lvm2 thin-provisioning-tools"]), name)
}

/// [`with_debian`], of a disk that starts on BIOS and UEFI, with Secure Boot, too.
pub(crate) fn with_grub(name: &str) -> Option<Bench> {
    copy_of(debian_disk("small-grub.img", &["--grub", "--small"]), name)
}

#[expect(clippy::print_stderr, reason = "a test that leaves something out says so")]
fn copy_of(debian: Option<PathBuf>, name: &str) -> Option<Bench> {
    let Some(debian) = debian.filter(|_| rustix::process::geteuid().is_root()) else {
        eprintln!("left out: it takes root, and `make demo` makes the disk that is booted");
        return None;
    };
    let bench = Bench::of_machines();
    bench.tool(&format!("cp --sparse=always {} {name}", debian.display()));
    Some(bench)
}

/// Boots the disk in the file `NAME.img`, until it asks for a login under its own name.
pub(crate) fn boot(bench: &Bench, name: &str) {
    let options = BootOptions { prompt: format!("{name} login:"), ..BootOptions::default() };
    match until_login(Medium::File(&bench.path(&format!("{name}.img"))), &options) {
        Err(error) if error.kind() == ErrorKind::Unsupported && std::env::var_os("CI").is_none() => {}
        boot => drop(boot.unwrap()),
    }
}

/// A folder with a repository in `repo`, removed at the end.
pub(crate) struct Bench {
    folder: tempfile::TempDir,
    /// Of a test that starts whole machines.
    machines: Option<lab::Permit>,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), machines: None }
    }

    /// For a test that starts whole machines: it waits for its turn.
    pub(crate) fn of_machines() -> Self {
        let machines = Some(lab::Permit::take());
        Self { machines, ..Self::new() }
    }

    /// Writes a file with mode 0600, as tokens must have.
    pub(crate) fn keep_secret(&self, name: &str, bytes: impl AsRef<[u8]>) {
        use std::os::unix::fs::OpenOptionsExt as _;
        let mut options = std::fs::OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(self.path(name));
        file.unwrap().write_all(bytes.as_ref()).unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs a tool in the folder, which must succeed, and returns what it prints.
    pub(crate) fn tool(&self, line: &str) -> String {
        let mut words = line.split_whitespace();
        let mut command = Command::new(words.next().unwrap());
        command.args(words).current_dir(self.folder.path()).env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin");
        let done = command.output().unwrap();
        assert!(done.status.success(), "{line}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8_lossy(&done.stdout).into_owned()
    }

    /// A disk of `mib` MiB without partition table or filesystem: half of it is content, a quarter zeros, by `seed`.
    pub(crate) fn disk(&self, name: &str, mib: usize, seed: u64) -> PathBuf {
        let mut chance = base::Chance::from_seed(seed);
        let mut bytes = vec![0; mib << 20];
        for (index, sector) in bytes.chunks_exact_mut(512).enumerate() {
            match index / 1024 % 4 {
                0 => sector
                    .chunks_exact_mut(8)
                    .for_each(|word| word.copy_from_slice(&chance.u64().to_le_bytes())),
                1 => sector.fill(u8::try_from(index % 251).unwrap()),
                _ => {}
            }
        }
        let path = self.path(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    pub(crate) fn command(&self, words: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_diskcast"));
        command
            .args(words.split_whitespace())
            .current_dir(self.folder.path())
            .env_clear()
            .env("DISKCAST_REPO", self.path("repo"))
            .env("DISKCAST_STATE", self.path("state"))
            .env("DISKCAST_DISKS", self.path("disks"))
            .env("DISKCAST_SEEN", self.path("seen.json"))
            .env("DISKCAST_SERVE_FOR", "0")
            .env("XDG_CACHE_HOME", self.path("caches"))
            // Whatever this machine has there.
            .env("DISKCAST_CONFIG", "/dev/null")
            .env("USER", "tester")
            .stdin(Stdio::null());
        command
    }

    /// Runs `diskcast WORDS` and returns its output, in which values that differ between runs are replaced.
    pub(crate) fn see(&self, words: &str) -> String {
        self.show(&self.command(words).output().unwrap())
    }

    pub(crate) fn show(&self, output: &Output) -> String {
        let mut seen = String::new();
        let sources = [(&output.stdout, "out"), (&output.stderr, "err")];
        for (bytes, name) in sources {
            for line in String::from_utf8_lossy(bytes).lines() {
                writeln!(seen, "{name}: {}", self.scrub(line)).unwrap();
            }
        }
        writeln!(seen, "exit: {}", output.status.code().map_or("signal".into(), |code| code.to_string()))
            .unwrap();
        seen
    }

    /// Replaces times, rates, dates and the name of the folder.
    fn scrub(&self, line: &str) -> String {
        let line = line.replace(&self.folder.path().display().to_string(), "DIR");
        let words: Vec<_> = line.split(' ').collect();
        let mut scrubbed = Vec::new();
        for (index, word) in words.iter().enumerate() {
            let unit = words.get(index + 1).map_or("", |next| next.trim_matches(['(', ')', ',']));
            let number = word.trim_start_matches('(').starts_with(|c: char| c.is_ascii_digit());
            let timed = unit == "s" || unit.ends_with("B/s");
            let dated =
                word.len() >= 16 && word.starts_with("20") && word.contains('T') && word.contains(':');
            let address = word.contains("127.0.0.1:");
            scrubbed.push(match (number && timed, dated, address) {
                (true, ..) => "N".to_owned(),
                (_, true, _) => "TIME".to_owned(),
                (.., true) => "ADDRESS".to_owned(),
                _ => (*word).to_owned(),
            });
        }
        scrubbed.join(" ").replace("N kB/s", "N MB/s").replace("N GB/s", "N MB/s").replace("N B/s", "N MB/s")
    }

    /// The lines of JSON that `diskcast WORDS --json` prints.
    pub(crate) fn json(&self, words: &str) -> Vec<serde_json::Value> {
        let output = self.command(words).arg("--json").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Makes the key NAME.key, and returns it as messages show it.
    pub(crate) fn key(&self, name: &str) -> String {
        let made = self.json(&format!("key new {name}.key --name {name}"));
        let public = made[0]["public"].as_str().unwrap().to_owned();
        let file = std::fs::read_to_string(self.path(&format!("{name}.key.pub"))).unwrap();
        assert_eq!(file, format!("{public}\n"));
        format!("{name} ({})", &public["ed25519 ".len()..][..12])
    }

    /// Starts `diskcast serve WORDS` on a free port of loopback.
    pub(crate) fn serve(&self, words: &str) -> Served {
        self.serve_at(words, "127.0.0.1:0")
    }

    pub(crate) fn serve_at(&self, words: &str, listen: &str) -> Served {
        Served::start(self.command(&format!("serve --listen {listen} --token-out join.token --json {words}")))
    }

    /// The same command on a host of a virtual network.
    pub(crate) fn command_in(&self, host: &lab::Host, words: &str) -> Command {
        let mut command = host.command(env!("CARGO_BIN_EXE_diskcast"));
        command
            .args(words.split_whitespace())
            .current_dir(self.folder.path())
            .env("DISKCAST_REPO", self.path("repo"))
            .env("DISKCAST_STATE", self.path("state"))
            .env("DISKCAST_DISKS", self.path("disks"))
            .env("DISKCAST_SEEN", self.path("seen.json"))
            .env("DISKCAST_SERVE_FOR", "0")
            .env("DISKCAST_CONFIG", "/dev/null")
            .env("XDG_CACHE_HOME", self.path("caches"))
            .stdin(Stdio::null());
        command
    }
}

/// A filesystem whose files share blocks, in the folder `xfs`, until this is dropped.
pub(crate) struct Xfs<'a>(&'a Bench);

impl<'a> Xfs<'a> {
    pub(crate) fn mount(bench: &'a Bench) -> Self {
        mount_xfs(bench);
        Self(bench)
    }
}

/// The same for who unmounts it.
pub(crate) fn mount_xfs(bench: &Bench) {
    bench.tool("truncate -s 320M xfs.img");
    bench.tool("mkfs.xfs -q xfs.img");
    bench.tool("mkdir xfs");
    bench.tool("mount -o loop xfs.img xfs");
}

impl Drop for Xfs<'_> {
    fn drop(&mut self) {
        lab::unmount(&self.0.path("xfs")).unwrap();
    }
}

/// A network of host 0 and `others` more, a repository with the image `web`, and its disk of `mib` MiB. `None` where
/// there is no lab.
pub(crate) fn star_with_image(others: u32, mib: usize) -> Option<(lab::Star, Bench, PathBuf)> {
    if !lab::available_or_skip() {
        return None;
    }
    let options = lab::StarOptions { hosts: 1 + others, ..lab::StarOptions::default() };
    let (star, bench) = (lab::Star::build(&options).unwrap(), Bench::new());
    let disk = bench.disk("disk.img", mib, 1);
    assert!(bench.see("capture disk.img web -q").ends_with("exit: 0\n"));
    Some((star, bench, disk))
}

/// A running `diskcast serve`.
pub(crate) struct Served {
    child: Child,
    pub url: String,
    /// What it said first.
    pub said: serde_json::Value,
    log: Option<std::thread::JoinHandle<Vec<String>>>,
}

impl Served {
    /// Starts a `diskcast serve --json` and waits until it serves.
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = lines.next().expect("serve says that it serves").unwrap();
        let record: serde_json::Value = serde_json::from_str(&first).unwrap();
        assert_eq!(record["type"], "serving", "{first}");
        // Reads all logged lines, so that the server never blocks on a full pipe.
        let log = std::thread::spawn(move || lines.map_while(Result::ok).collect());
        Self { child, url: record["url"].as_str().unwrap().to_owned(), said: record, log: Some(log) }
    }

    /// Sends SIGTERM; returns the exit code and the logged events.
    pub(crate) fn stop(mut self) -> (Option<i32>, Vec<serde_json::Value>) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        let code = self.child.wait().unwrap().code();
        let lines = self.log.take().unwrap().join().unwrap();
        (code, lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect())
    }

    /// Stops it until it gets `CONT`.
    pub(crate) fn suspend(&self) {
        running::suspend(&self.child);
    }

    /// Sends CONT.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap().success());
    }

    /// Sends SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Fails, without printing megabytes, if two files differ.
pub(crate) fn assert_same(a: &Path, b: &Path) {
    let (left, right) = (std::fs::read(a).unwrap(), std::fs::read(b).unwrap());
    assert_eq!(left.len(), right.len(), "sizes of {} and {}", a.display(), b.display());
    let differs = left.iter().zip(&right).position(|(left, right)| left != right);
    assert_eq!(differs, None, "first difference of {} and {}", a.display(), b.display());
}
