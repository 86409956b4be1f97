//! Runs an etcd cluster on loopback for tests: Debian's `etcd`, each member a process with a folder of its own. Members
//! can be killed, stopped and started. They speak plain HTTP, or TLS, and may have users.

#![allow(clippy::unwrap_used, reason = "tests fail by it")]

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::etcd_certificates;

/// How long a member may take to answer.
const START_MAX: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Starts with other ports, if another process takes one before a member does.
const TRIES: usize = 5;

/// An etcd cluster. Dropping it ends its members.
#[derive(Debug)]
pub struct EtcdSite {
    folder: PathBuf,
    ports: Vec<(u16, u16)>,
    words: Vec<String>,
    members: Vec<Option<Member>>,
    scheme: &'static str,
    /// What `etcdctl` needs to be let in.
    shown: Vec<String>,
}

#[derive(Debug)]
struct Member {
    shell: Child,
    pid: String,
}

impl Drop for Member {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        // `drop` cannot report an error.
        let _ = self.shell.wait();
    }
}

fn signal(name: &str, pid: &str) {
    assert!(Command::new("kill").args([name, pid]).status().unwrap().success());
}

impl EtcdSite {
    /// For tests: starts `count` members in `folder`, with more `words`. If etcd is not installed, prints the reason on
    /// stderr and returns `None`.
    ///
    /// # Panics
    /// If etcd is not installed and `CI` is set, and if it does not start.
    #[must_use]
    pub fn start_or_skip(folder: &Path, count: usize, words: &[&str]) -> Option<Self> {
        Self::start_with("http", folder, count, words, &[])
    }

    /// The same with TLS, also between the members, which let in only clients with a certificate. It makes all
    /// certificates in `folder`, each with its key (`NAME.pem`, `NAME.key`): of the authority, `ca`, of the members,
    /// `member`, of a client, `client`; and for what is to fail, of a client with a common name, `named`, of another
    /// authority, `other-ca`, and of a client of that, `stranger`.
    #[must_use]
    pub fn start_secure_or_skip(folder: &Path, count: usize, words: &[&str]) -> Option<Self> {
        etcd_certificates::make(folder);
        let file = |name: &str| folder.join(name).to_str().unwrap().to_owned();
        let mut all: Vec<_> = ["", "peer-"]
            .iter()
            .flat_map(|side| {
                let word = |word: &str| format!("--{side}{word}");
                [
                    vec![word("cert-file"), file("member.pem"), word("key-file"), file("member.key")],
                    vec![word("trusted-ca-file"), file("ca.pem"), word("client-cert-auth")],
                ]
                .concat()
            })
            .collect();
        all.extend(words.iter().map(|&word| word.to_owned()));
        let all: Vec<_> = all.iter().map(String::as_str).collect();
        let shown = [("--cacert", "ca.pem"), ("--cert", "client.pem"), ("--key", "client.key")];
        let shown: Vec<_> = shown.iter().flat_map(|(word, name)| [(*word).to_owned(), file(name)]).collect();
        Self::start_with("https", folder, count, &all, &shown)
    }

    /// From now on lets in users only: `name` with `password`, who may read and write keys that begin with `prefix`.
    /// As docs/cluster.md says.
    pub fn enable_users(&mut self, name: &str, password: &str, prefix: &str) {
        for words in [
            &["user", "add", "root:of-a-test"][..],
            &["user", "grant-role", "root", "root"],
            &["user", "add", &format!("{name}:{password}")],
            &["role", "add", name],
            &["role", "grant-permission", name, "--prefix=true", "readwrite", prefix],
            &["user", "grant-role", name, name],
            &["auth", "enable"],
        ] {
            let _ = self.ctl(0, words);
        }
        self.shown.extend(["--user".to_owned(), "root:of-a-test".to_owned()]);
    }

    #[expect(clippy::print_stderr, reason = "a test that leaves something out says so")]
    fn start_with(
        scheme: &'static str,
        folder: &Path,
        count: usize,
        words: &[&str],
        shown: &[String],
    ) -> Option<Self> {
        let there =
            |tool| Command::new(tool).arg("--help").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if let Err(why) = there("etcd").and_then(|_| there("etcdctl")) {
            assert!(std::env::var_os("CI").is_none(), "CI needs etcd: {why}");
            eprintln!("left out: it needs the packages etcd-server and etcd-client: {why}");
            return None;
        }
        for _ in 0..TRIES {
            // Closed at once: the ports are free, unless another process is faster than the members.
            let listeners: Vec<_> =
                (0..2 * count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
            let free: Vec<_> =
                listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect();
            drop(listeners);
            let ports = free.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
            let words = words.iter().map(|&word| word.to_owned()).collect();
            let members = (0..count).map(|_| None).collect();
            let mut site =
                Self { folder: folder.to_owned(), ports, words, members, scheme, shown: shown.to_vec() };
            (0..count).for_each(|member| site.start(member));
            if site.wait_until_healthy() {
                return Some(site);
            }
            drop(site);
            (0..count)
                .for_each(|member| drop(std::fs::remove_dir_all(folder.join(format!("etcd-{member}")))));
        }
        panic!("etcd does not start: {}", folder.display());
    }

    /// Where clients reach the members.
    #[must_use]
    pub fn addresses(&self) -> Vec<String> {
        self.ports.iter().map(|(client, _)| self.at(*client)).collect()
    }

    fn at(&self, port: u16) -> String {
        format!("{}://127.0.0.1:{port}", self.scheme)
    }

    /// Starts a member, with what its folder holds.
    pub fn start(&mut self, member: usize) {
        let peer = |port: u16| self.at(port);
        let all = (0..).zip(&self.ports).map(|(at, (_, port))| format!("etcd-{at}={}", peer(*port)));
        let (client, own) = self.ports[member];
        let name = format!("etcd-{member}");
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder.join(format!("{name}.log")))
            .unwrap();
        // The shell ends with the member, and kills it when its own standard input ends, which happens even if this
        // process is killed.
        let script = "exec 3<&0; \"$@\" >&2 & member=$!; echo $member
            (cat <&3 >/dev/null; kill -9 $member) >&2 & wait $member";
        let mut shell = Command::new("sh")
            .args(["-c", script, "etcd", "etcd", "--name", &name, "--data-dir"])
            .arg(self.folder.join(&name))
            .args(["--listen-client-urls", &peer(client), "--advertise-client-urls", &peer(client)])
            .args(["--listen-peer-urls", &peer(own), "--initial-advertise-peer-urls", &peer(own)])
            .args(["--initial-cluster", &all.collect::<Vec<_>>().join(","), "--log-level", "warn"])
            .args(&self.words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut pid = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut pid).unwrap();
        self.members[member] = Some(Member { shell, pid: pid.trim().to_owned() });
    }

    /// Kills a member, as `kill -9` does.
    pub fn kill(&mut self, member: usize) {
        self.members[member] = None;
    }

    /// Sends a signal to a member: `-STOP` or `-CONT`.
    pub fn signal(&self, member: usize, name: &str) {
        signal(name, &self.members[member].as_ref().unwrap().pid);
    }

    /// Waits until all members that run answer, with a leader; returns whether they do.
    #[must_use]
    pub fn wait_until_healthy(&mut self) -> bool {
        for _ in 0..START_MAX.as_millis() / LOOK_EVERY.as_millis() {
            let running = self.members.iter_mut().flatten();
            if running.map(|member| member.shell.try_wait()).any(|ended| !matches!(ended, Ok(None))) {
                return false;
            }
            let healthy = |member: usize| self.try_ctl(member, &["endpoint", "health"]).is_some();
            if (0..self.members.len()).filter(|&member| self.members[member].is_some()).all(healthy) {
                return true;
            }
            std::thread::park_timeout(LOOK_EVERY);
        }
        false
    }

    /// Runs `etcdctl`, which must succeed, at one member; returns what it prints.
    #[must_use]
    pub fn ctl(&self, member: usize, words: &[&str]) -> String {
        self.try_ctl(member, words).unwrap_or_else(|| panic!("etcdctl {} failed", words.join(" ")))
    }

    /// The same, which may fail.
    #[must_use]
    pub fn try_ctl(&self, member: usize, words: &[&str]) -> Option<String> {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args(["--endpoints", &self.addresses()[member]]);
        command.args(&self.shown).args(words);
        let done = command.stderr(Stdio::null()).output().unwrap();
        done.status.success().then(|| String::from_utf8(done.stdout).unwrap())
    }

    /// Ends all members, and starts them anew from a snapshot that `etcdctl snapshot save` wrote.
    pub fn restore(&mut self, snapshot: &Path) {
        let count = self.members.len();
        let all: Vec<_> =
            (0..).zip(&self.ports).map(|(at, (_, port))| format!("etcd-{at}={}", self.at(*port))).collect();
        self.members.iter_mut().for_each(|member| drop(member.take()));
        for member in 0..count {
            let name = format!("etcd-{member}");
            std::fs::remove_dir_all(self.folder.join(&name)).unwrap();
            let own = self.at(self.ports[member].1);
            let restored = Command::new("etcdctl")
                .env("ETCDCTL_API", "3")
                .args(["snapshot", "restore"])
                .arg(snapshot)
                .args(["--name", &name, "--initial-cluster", &all.join(","), "--data-dir"])
                .arg(self.folder.join(&name))
                .args(["--initial-advertise-peer-urls", &own, "--initial-cluster-token", "restored"])
                .output()
                .unwrap();
            assert!(restored.status.success(), "{}", String::from_utf8_lossy(&restored.stderr));
        }
        (0..count).for_each(|member| self.start(member));
        assert!(self.wait_until_healthy());
    }
}
