//! BitTorrent in a lab: `serve --torrent`, `fetch --torrent`, and clients of others, in one swarm.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use lab::{Star, StarOptions};

use crate::common::running::Running;
use crate::common::{Bench, Served, Xfs, assert_same};

/// A process that ends with the test.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a program of others, which has two minutes.
fn spawn(mut command: Command) -> Program {
    Program(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap())
}

/// Whether the clients are here. If not, says so; where `CI` is set they must be.
#[expect(clippy::print_stderr, reason = "a test that leaves something out says so")]
fn clients_are_here() -> bool {
    let is_here = |program: &str, word: &str| {
        let mut command = Command::new(program);
        let status =
            command.args(["-c", word]).arg(word).stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| program != PYTHON || status.success())
    };
    let lacks = [("aria2c", "--version"), ("transmission-cli", "--version"), (PYTHON, "import libtorrent")];
    let Some((lacks, _)) = lacks.into_iter().find(|(program, word)| !is_here(program, word)) else {
        return true;
    };
    assert!(std::env::var_os("CI").is_none(), "CI needs {lacks}");
    eprintln!("left out: {lacks} is not here");
    false
}

/// Debian's Python has Debian's libtorrent.
const PYTHON: &str = "/usr/bin/python3";
/// How libtorrent takes part: ends when it has everything, and the tracker says that somebody has beside the server.
/// It asks again until then: the tracker may not have heard yet that this one has. Of a hybrid torrent it also asks for
/// the swarm of version 2, which is none of the tracker's, so one of two questions fails.
const PEER: &str = "
import sys, time, libtorrent as lt
session = lt.session({'listen_interfaces': sys.argv[3] + ':6881', 'enable_dht': False, 'enable_lsd': False,
    'enable_upnp': False, 'enable_natpmp': False, 'alert_mask': lt.alert.category_t.tracker_notification})
handle = session.add_torrent({'ti': lt.torrent_info(sys.argv[1]), 'save_path': sys.argv[2]})
while not handle.status().is_seeding:
    time.sleep(0.05)
handle.scrape_tracker()
while True:
    session.wait_for_alert(1000)
    for alert in session.pop_alerts():
        if isinstance(alert, lt.scrape_reply_alert):
            if alert.complete > 1:
                sys.exit(0)
            handle.scrape_tracker()
        if isinstance(alert, lt.scrape_failed_alert):
            print(alert.message(), file=sys.stderr)
";

/// A lab with a repository that host 0 serves.
struct Room {
    star: Star,
    bench: Bench,
    server: Served,
    disk: PathBuf,
}

fn serve(star: &Star, bench: &Bench) -> Served {
    let listen = format!("{}:7717", star.host(0).ipv4());
    let words = format!(
        "serve --listen {listen} --no-multicast --token-out join.token --torrent --state state --json"
    );
    Served::start(bench.command_in(star.host(0), &words))
}

impl Room {
    fn new(hosts: u32) -> Self {
        let star = Star::build(&StarOptions {
            hosts,
            rate_bits_per_second: Some(100_000_000),
            ..StarOptions::default()
        });
        let (star, bench) = (star.unwrap(), Bench::new());
        let disk = bench.disk("disk.img", 48, 1);
        assert!(bench.see("capture disk.img web -q").ends_with("exit: 0\n"));
        let server = serve(&star, &bench);
        Self { star, bench, server, disk }
    }

    /// Fetches the torrent of the image, as any client by HTTP does.
    fn torrent(&self, name: &str, query: &str) -> PathBuf {
        let token = std::fs::read_to_string(self.bench.path("join.token")).unwrap();
        let secret = token.trim().splitn(3, '.').nth(2).unwrap().to_owned();
        let path = self.bench.path(name);
        let mut curl = self.star.host(0).command("curl");
        curl.args([
            "--silent",
            "--fail",
            "--insecure",
            "--header",
            &format!("Authorization: Bearer {secret}"),
        ]);
        curl.arg("--output").arg(&path).arg(format!("{}/api/v1/torrents/web{query}", self.server.url));
        assert!(curl.status().unwrap().success());
        path
    }

    fn fetch(&self, host: u32, more: &str) -> Running {
        let target = self.bench.host_target(host);
        let words =
            format!("fetch {} web {target} --token-file join.token --json --torrent {more}", self.server.url);
        Running::start(self.bench.command_in(self.star.host(host), &words))
    }

    fn folder(&self, name: &str) -> PathBuf {
        let folder = self.bench.path(name);
        std::fs::create_dir(&folder).unwrap();
        folder
    }

    /// A program of others on a host.
    fn client(&self, host: u32, program: &str) -> Command {
        let mut command = self.star.host(host).command("timeout");
        command.args(["120", program]);
        command
    }
}

#[test]
fn clients_of_all_kinds_fetch_one_version_from_one_swarm() {
    if !lab::available_or_skip() || !clients_are_here() {
        return;
    }
    let room = Room::new(6);
    let (v1, hybrid) = (room.torrent("v1.torrent", ""), room.torrent("hybrid.torrent", "?kind=hybrid"));
    // It goes on serving until the test ends.
    let mut first = room.fetch(1, "--serve-for 10m");

    let aria2 = room.folder("aria2");
    let mut command = room.client(2, "aria2c");
    command.args([
        "--no-conf=true",
        "--enable-dht=false",
        "--file-allocation=none",
        "--seed-time=0",
        "--dir",
    ]);
    command.arg(&aria2).arg(&v1);
    let mut aria2c = spawn(command);

    let transmission = room.folder("transmission");
    let home = room.folder("home");
    std::fs::write(home.join("settings.json"), r#"{"utp-enabled": false, "dht-enabled": false}"#).unwrap();
    let script = room.bench.path("done.sh");
    std::fs::write(&script, "#!/bin/sh\nkill $PPID\n").unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let mut command = room.client(3, "transmission-cli");
    command
        .env("TRANSMISSION_HOME", &home)
        .arg("-w")
        .arg(&transmission)
        .arg("-f")
        .arg(&script)
        .arg("-M")
        .arg(&v1);
    let mut transmission_cli = spawn(command);

    let mut libtorrent = Vec::new();
    for (host, torrent) in [(4, &v1), (5, &hybrid)] {
        let folder = room.folder(&format!("libtorrent-{host}"));
        let mut command = room.client(host, PYTHON);
        command.args(["-c", PEER]).arg(torrent).arg(&folder).arg(room.star.host(host).ipv4().to_string());
        libtorrent.push((spawn(command), folder));
    }

    let report = first.kind("fetched");
    assert_eq!((&report["transport"], &report["unicast_bytes"]), (&"torrent".into(), &0.into()), "{report}");
    assert_same(&room.disk, &room.bench.path("disk-1.img"));
    let same = |folder: &Path| assert_same(&room.disk, &folder.join("web@1.img"));
    assert!(aria2c.0.wait().unwrap().success());
    same(&aria2);
    let _ = transmission_cli.0.wait().unwrap();
    same(&transmission);
    for (mut program, folder) in libtorrent {
        assert!(program.0.wait().unwrap().success(), "{}", folder.display());
        same(&folder);
    }
}

#[test]
fn a_server_that_starts_again_serves_what_it_hashed_before() {
    if !lab::available_or_skip() {
        return;
    }
    let room = Room::new(3);
    let before = std::fs::read(room.torrent("before.torrent", "")).unwrap();
    let Room { star, bench, server, disk } = room;
    assert_eq!(server.stop().0, Some(0));
    let kept = |bench: &Bench| {
        let files = std::fs::read_dir(bench.path("state/torrents")).unwrap();
        files.map(|file| file.unwrap().metadata().unwrap().modified().unwrap()).collect::<Vec<_>>()
    };
    let made = kept(&bench);
    assert_eq!(made.len(), 1);
    let server = serve(&star, &bench);
    let room = Room { star, bench, server, disk };
    // A peer that knew the torrent is served before anybody asks for it by the API.
    let mut fetch = room.fetch(1, "");
    assert_eq!(fetch.kind("fetched")["unicast_bytes"], 0);
    assert_same(&room.disk, &room.bench.path("disk-1.img"));
    assert_eq!(std::fs::read(room.torrent("after.torrent", "")).unwrap(), before);
    assert_eq!(kept(&room.bench), made);
    // An announce for another torrent is refused, in words that clients show.
    let mut curl = room.star.host(2).command("curl");
    let url = room.server.url.replace("https", "http");
    let said =
        curl.arg("--silent").arg(format!("{url}/announce?info_hash=12345678901234567890&port=1")).output();
    let said = String::from_utf8(said.unwrap().stdout).unwrap();
    assert_eq!(said, "d14:failure reason31:this server has no such torrente");
}

#[test]
fn a_version_is_a_qcow2_for_clients_that_want_one() {
    if !lab::available_or_skip() || !clients_are_here() {
        return;
    }
    let room = Room::new(2);
    let (torrent, folder) = (room.torrent("qcow2.torrent", "?form=qcow2"), room.folder("aria2"));
    let mut command = room.client(1, "aria2c");
    command
        .args(["--no-conf=true", "--enable-dht=false", "--seed-time=0", "--dir"])
        .arg(&folder)
        .arg(&torrent);
    assert!(spawn(command).0.wait().unwrap().success());
    room.bench.tool("qemu-img compare -f raw -F qcow2 disk.img aria2/web@1.qcow2");
    let bytes = folder.join("web@1.qcow2").metadata().unwrap().len();
    assert!(bytes < room.disk.metadata().unwrap().len(), "free sectors are not in it");
}

#[test]
fn a_port_that_is_taken_is_not_announced() {
    if !lab::available_or_skip() {
        return;
    }
    let room = Room::new(3);
    let taken = room.star.host(1).run(|| std::net::TcpListener::bind("0.0.0.0:6881").unwrap()).unwrap();
    let taken = taken.join().unwrap();
    let mut fetch = room.fetch(1, "--serve-for 10m");
    assert_eq!(fetch.kind("fetched")["unicast_bytes"], 0);
    // Another peer asks the tracker who takes part.
    let (metainfo, _) =
        torrent::Metainfo::parse(&std::fs::read(room.torrent("web.torrent", "")).unwrap()).unwrap();
    let hash: String = metainfo.info_hash().0.iter().map(|byte| format!("%{byte:02x}")).collect();
    let mut curl = room.star.host(2).command("curl");
    let url = room.server.url.replace("https", "http");
    let query = format!("info_hash={hash}&peer_id=-XX0000-000000000000&port=1&left=1&compact=1");
    let said = curl.arg("--silent").arg(format!("{url}/announce?{query}")).output().unwrap().stdout;
    let host = room.star.host(1).ipv4().octets();
    let at = said.windows(4).position(|bytes| bytes == host).expect("host 1 takes part");
    let port = u16::from_be_bytes([said[at + 4], said[at + 5]]);
    assert_ne!(port, 6881);
    let address = (room.star.host(1).ipv4(), port);
    let connects = room.star.host(2).run(move || std::net::TcpStream::connect(address).is_ok()).unwrap();
    assert!(connects.join().unwrap(), "nobody listens at {address:?}");
    drop(taken);
}

#[test]
fn what_the_swarm_lacks_comes_by_unicast_and_a_target_is_checked_first() {
    if !lab::available_or_skip() {
        return;
    }
    let room = Room::new(2);
    let held = room.bench.path("disk-1.img");
    std::fs::write(&held, "not to be lost").unwrap();
    let mut refused = room.fetch(1, "");
    assert_eq!(refused.child.wait().unwrap().code(), Some(11));
    assert_eq!(std::fs::read(&held).unwrap(), b"not to be lost");
    // Half of it is there: only the rest is fetched.
    let disk = std::fs::read(&room.disk).unwrap();
    std::fs::write(&held, &disk[..disk.len() / 2]).unwrap();
    let report = room.fetch(1, "--resume").kind("fetched");
    assert_same(&room.disk, &held);
    let fetched = report["torrent_bytes"].as_u64().unwrap();
    assert!(fetched > 0 && fetched < 3 * disk.len() as u64 / 4, "{report}");
}

#[test]
fn a_machine_starts_from_its_target_while_others_are_served() {
    if !lab::available_or_skip() {
        return;
    }
    let room = Room::new(3);
    let shares = Xfs::mount(&room.bench);
    let fetch = |target: &str| {
        let words = format!(
            "fetch {} web {target} --token-file join.token --json --torrent --serve-for 10m --serve-copy",
            room.server.url
        );
        Running::start(room.bench.command_in(room.star.host(1), &words))
    };
    let mut first = fetch("xfs/disk.img");
    assert_eq!(first.kind("fetched")["unicast_bytes"], 0);
    assert_same(&room.disk, &room.bench.path("xfs/disk.img"));
    // The machine writes all of its disk.
    let bytes = room.disk.metadata().unwrap().len();
    room.bench.tool(&format!("dd if=/dev/zero of=xfs/disk.img bs=1M count={} status=none", bytes >> 20));
    let mut second = room.fetch(2, "");
    assert_eq!(second.kind("fetched")["unicast_bytes"], 0);
    assert_same(&room.disk, &room.bench.path("disk-2.img"));
    first.signal("INT");
    let served = first.kind("served")["served_bytes"].as_u64().unwrap();
    assert!(served > bytes / 8, "{served} bytes came from the copy");
    assert_eq!(room.bench.tool("ls -A xfs"), "disk.img\n");
    drop((first, shares));
    // Where no copy is possible, the image is there all the same.
    let mut probe = Command::new("cp");
    probe.args(["--reflink=always"]).arg(&room.disk).arg(room.bench.path("probe.img"));
    if probe.output().unwrap().status.success() {
        return;
    }
    let mut refused = fetch("plain.img");
    assert_eq!(refused.child.wait().unwrap().code(), Some(11));
    assert_same(&room.disk, &room.bench.path("plain.img"));
}
