//! Runs two threads of a test as two machines: each in its own network namespace, with a link between them.
//!
//! Needs root. Without root the test is skipped on a developer's machine, and fails in CI.

use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};

const PATIENCE: Duration = Duration::from_secs(20);

/// Lets the other machine continue.
pub(crate) struct Signal(Sender<i32>);

impl Signal {
    /// Sends the signal.
    pub(crate) fn give(&self) {
        self.0.send(0).expect("the other machine waits");
    }
}

/// Runs `client`, and after it has given its signal also `server`, as two machines on one link: `10.77.0.1` and
/// `10.77.0.2`, `fd77::1` and `fd77::2`, MTU 1500. Returns false if there is no root.
pub(crate) fn on_a_link(server: impl FnOnce() + Send, client: impl FnOnce(&Signal) + Send) -> bool {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("CI").is_none(), "this test needs root, and in CI it must run");
        return false;
    }
    let (to_server, from_client) = channel();
    let (to_client, from_server) = channel();
    thread::scope(|scope| {
        let client = scope.spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            to_server.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            await_signal(&from_server);
            ip("addr add 10.77.0.2/24 dev eth0; -6 addr add fd77::2/64 dev eth0 nodad; \
                link set eth0 up; link set lo up");
            await_link();
            client(&Signal(to_server));
        });
        let server = scope.spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            let peer = await_signal(&from_client);
            ip(&format!("link add eth0 type veth peer name eth0 netns {peer}"));
            ip("addr add 10.77.0.1/24 dev eth0; -6 addr add fd77::1/64 dev eth0 nodad; \
                link set eth0 up; link set lo up");
            to_client.send(0).unwrap();
            await_signal(&from_client);
            await_link();
            server();
        });
        server.join().unwrap();
        client.join().unwrap();
    });
    true
}

fn await_signal(from: &Receiver<i32>) -> i32 {
    from.recv_timeout(PATIENCE).expect("the other machine gives its signal")
}

/// Waits until the link is up. The kernel drops packets that are sent before it has noticed the link's carrier.
fn await_link() {
    let state =
        || Command::new("ip").args(["-o", "link", "show", "eth0"]).output().expect("iproute2 is installed");
    let up = |_| String::from_utf8_lossy(&state().stdout).contains("state UP");
    assert!((0..5000).any(up), "the link comes up");
}

/// Runs `ip` with each of the commands, which semicolons separate, in this thread's namespace.
fn ip(commands: &str) {
    for command in commands.split(';') {
        let output =
            Command::new("ip").args(command.split_whitespace()).output().expect("iproute2 is installed");
        assert!(output.status.success(), "ip {command}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
