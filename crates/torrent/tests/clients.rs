//! Clients of others fetch from a node and seed to it. Transmission speaks with nobody on loopback: `diskcast-cli`
//! tests it in a lab.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use base::{Chance, Instant};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use torrent::tracker::{Announce, Tracker, refusal};
use torrent::{Bits, Content, InfoHash, Kind, Metainfo, Node, NodeOptions, hash};

use crate::common::{ARIA2, LIBTORRENT, Memory, are_here};

const LEN: usize = 20_000_003;

/// A process that ends with the test.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        // `timeout` passes this on; killed itself, it would leave what it started behind.
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

fn node(runtime: &Runtime, is_origin: bool) -> Node {
    let options = NodeOptions {
        listener: torrent::listen("127.0.0.1:0".parse().unwrap()).unwrap(),
        handle: runtime.handle().clone(),
        place: 0,
        is_origin,
        cache_bytes: 16 << 20,
        chance: Chance::from_seed(u64::from(is_origin)),
        find: None,
    };
    Node::start(options).unwrap()
}

/// A tracker on a port of its own, for torrents of these names; the server's part of it is `daemon`'s.
fn tracker(runtime: &Runtime, origin: SocketAddr, names: Vec<InfoHash>) -> SocketAddr {
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let tracker = Arc::new(Mutex::new(Tracker::new(Chance::from_seed(3))));
    runtime.spawn(async move {
        while let Ok((mut stream, peer)) = listener.accept().await {
            let (tracker, names) = (Arc::clone(&tracker), names.clone());
            tokio::spawn(async move {
                let (mut head, mut chunk) = (Vec::new(), [0; 1024]);
                while !head.ends_with(b"\r\n\r\n") {
                    let read = stream.read(&mut chunk).await.unwrap_or(0);
                    if read == 0 {
                        return;
                    }
                    head.extend_from_slice(&chunk[..read]);
                }
                let head = String::from_utf8_lossy(&head).into_owned();
                let target = head.split(' ').nth(1).unwrap_or_default();
                let Some((_, query)) = target.split_once('?') else { return };
                let announce = Announce::parse(query).unwrap();
                let answer = match names.contains(&announce.info_hash) {
                    true => {
                        tracker.lock().announce(&announce, (peer.ip(), 0), origin, Instant::ZERO).encode()
                    }
                    // Libtorrent asks for the swarm of version 2, too.
                    false => refusal("no such torrent here"),
                };
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    answer.len()
                );
                let _ = stream.write_all(&[head.as_bytes(), &answer].concat()).await;
            });
        }
    });
    address
}

/// How libtorrent takes part: prints a line when it has everything, and goes on until it is killed.
const PEER: &str = r#"
import sys, time, libtorrent as lt
path, folder, port, peer = sys.argv[1:]
session = lt.session({"listen_interfaces": "127.0.0.1:" + port, "enable_dht": False, "enable_lsd": False,
    "enable_upnp": False, "enable_natpmp": False, "allow_multiple_connections_per_ip": True})
handle = session.add_torrent({"ti": lt.torrent_info(path), "save_path": folder})
if peer != "-":
    host, port = peer.rsplit(":", 1)
    handle.connect_peer((host, int(port)))
while not handle.status().is_seeding:
    time.sleep(0.05)
print("complete", flush=True)
while True:
    time.sleep(1)
"#;

/// Waits until a program prints that it has everything.
fn await_word(program: &mut Program, word: &str) {
    let output = program.0.stdout.take().unwrap();
    let found = BufReader::new(output).lines().map_while(Result::ok).any(|line| line.contains(word));
    assert!(found, "the program ended before it had everything");
}

/// Starts a program, which has a minute.
fn spawn(command: &mut Command) -> Program {
    let mut limited = Command::new("timeout");
    limited.arg("60").arg(command.get_program()).args(command.get_args());
    limited.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    Program(limited.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap())
}

fn aria2(folder: &Path, torrent: &Path) -> Command {
    let mut command = Command::new("aria2c");
    command.args(["--no-conf=true", "--enable-dht=false", "--bt-enable-lpd=false", "--file-allocation=none"]);
    command.args(["--interface=127.0.0.1", "--listen-port=21000-29999", "--seed-time=0"]);
    command.arg("--dir").arg(folder).arg(torrent);
    command
}

struct Site {
    runtime: Runtime,
    folder: tempfile::TempDir,
    source: Arc<Memory>,
    server: Node,
    torrents: Vec<(Arc<Metainfo>, std::path::PathBuf)>,
}

impl Site {
    /// A server that has the file, in both kinds of torrents.
    fn new() -> Self {
        let runtime = Runtime::new().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let source = Memory::random(LEN, 4);
        let server = node(&runtime, true);
        let hashes = hash(&*source, 1 << 18).unwrap();
        let kinds = [Kind::V1, Kind::Hybrid];
        let torrents = kinds.map(|kind| Arc::new(Metainfo::new("web.img", &hashes, kind)));
        let names = torrents.iter().map(|torrent| torrent.info_hash()).collect();
        let announce = format!("http://{}/announce", tracker(&runtime, server.address(), names));
        let torrents = std::array::from_fn::<_, 2, _>(|at| {
            let (kind, torrent) = (kinds[at], Arc::clone(&torrents[at]));
            let path = folder.path().join(format!("{kind:?}.torrent"));
            std::fs::write(&path, torrent.encode(Some(&announce))).unwrap();
            let all = Bits::all(torrent.piece_count());
            drop(server.add(Arc::clone(&torrent), Arc::clone(&source) as Arc<dyn Content>, all));
            (torrent, path)
        });
        Self { runtime, folder, source, server, torrents: torrents.into() }
    }

    fn folder(&self, name: &str) -> std::path::PathBuf {
        let folder = self.folder.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        folder
    }

    fn check(&self, folder: &Path) {
        assert!(std::fs::read(folder.join("web.img")).unwrap() == *self.source.0.lock());
    }
}

#[test]
fn clients_fetch_from_a_node() {
    if !are_here(&[ARIA2, LIBTORRENT]) {
        return;
    }
    let site = Site::new();
    let (v1, hybrid) = (&site.torrents[0].1, &site.torrents[1].1);
    let folder = site.folder("aria2");
    assert!(spawn(&mut aria2(&folder, v1)).0.wait().unwrap().success());
    site.check(&folder);

    for (name, torrent) in [("libtorrent", v1), ("libtorrent-hybrid", hybrid)] {
        let folder = site.folder(name);
        let mut peer = Command::new("/usr/bin/python3");
        peer.args(["-c", PEER]).arg(torrent).arg(&folder).args(["0", "-"]);
        let mut peer = spawn(&mut peer);
        await_word(&mut peer, "complete");
        site.check(&folder);
    }

    assert!(site.server.traffic().sent_bytes >= 3 * LEN as u64);
}

#[test]
fn a_node_fetches_from_clients() {
    if !are_here(&[ARIA2, LIBTORRENT]) {
        return;
    }
    let site = Site::new();
    let (torrent, path) = &site.torrents[0];
    let folder = site.folder("seed");
    std::fs::write(folder.join("web.img"), &*site.source.0.lock()).unwrap();
    let ports = free_ports();
    let mut libtorrent = Command::new("/usr/bin/python3");
    libtorrent.args(["-c", PEER]).arg(path).arg(&folder).args([ports[0].to_string().as_str(), "-"]);
    let mut libtorrent = spawn(&mut libtorrent);
    await_word(&mut libtorrent, "complete");
    let mut seed = aria2(&folder, path);
    let _aria2 = spawn(
        seed.args(["--bt-seed-unverified=true", "--seed-ratio=0", "--seed-time=9"])
            .arg(format!("--listen-port={}", ports[1])),
    );
    for port in ports {
        let target = Memory::of(vec![0; LEN]);
        let member = node(&site.runtime, false);
        let none = Bits::none(torrent.piece_count());
        let fetched = member.add(Arc::clone(torrent), Arc::clone(&target) as Arc<dyn Content>, none);
        let peer = SocketAddr::from(([127, 0, 0, 1], port));
        site.runtime.block_on(async {
            // Until the program listens.
            let ask = async {
                let mut again = tokio::time::interval(Duration::from_millis(100));
                loop {
                    again.tick().await;
                    member.connect(&fetched, &[peer]);
                }
            };
            tokio::select! {
                done = fetched.complete() => done.unwrap(),
                () = ask => {}
            }
        });
        assert!(*target.0.lock() == *site.source.0.lock(), "port {port}");
    }
}

/// Two ports on which nothing listens.
fn free_ports() -> [u16; 2] {
    let listeners = [(); 2].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}
