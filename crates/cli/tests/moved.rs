//! Tests the real binary with a server that is named by a host name, and moves to another address while its clients
//! work. The name is in `/etc/hosts`, of which every client has its own.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use lab::{Host, Star, StarOptions};

use crate::attach_common::{Attached, qemu_io, run};
use crate::common::{Bench, Served, assert_same};

/// The server's name, in a domain that no DNS has (RFC 6761).
const NAME: &str = "images.test";

/// A client on `host` whose `/etc/hosts` is the file `hosts` of the bench.
fn client(bench: &Bench, host: &Host, words: &str) -> Command {
    // `ip netns exec` gives the shell mounts of its own, so the machine's file stays as it is.
    let mut command = host.command("sh");
    command
        .args(["-c", "mount --bind \"$0\" /etc/hosts && exec \"$@\""])
        .arg(bench.path("hosts"))
        .arg(env!("CARGO_BIN_EXE_diskcast"))
        .args(words.split_whitespace())
        .args(["--token-file", "join.token"])
        .current_dir(bench.path(""))
        .env_remove("DISKCAST_REPO")
        .env("DISKCAST_STATE", bench.path("state"))
        .env("DISKCAST_DISKS", bench.path("disks"))
        .env("DISKCAST_CONFIG", "/dev/null")
        .env("XDG_CACHE_HOME", bench.path("caches"))
        .stdin(Stdio::null());
    command
}

/// Makes the name point to `host`, in the file that is mounted: another file of this name would not be seen.
fn point(bench: &Bench, host: &Host) {
    let file = std::fs::File::options().create(true).write(true).truncate(true).open(bench.path("hosts"));
    file.unwrap().write_all(format!("{} {NAME}\n", host.ipv4()).as_bytes()).unwrap();
}

fn serve(bench: &Bench, host: &Host) -> Served {
    let listen = format!("{}:7717", host.ipv4());
    let words = format!("serve --listen {listen} --interface eth0 --token-out join.token --json");
    Served::start(bench.command_in(host, &words))
}

/// A command that writes the image to a file, and is over when it succeeded.
struct Writing {
    child: std::process::Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Writing {
    /// Starts it, and waits until something was written.
    fn start(mut command: Command) -> Self {
        let mut child = command.arg("--json").stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let written = |line: String| {
            let line: serde_json::Value = serde_json::from_str(&line).unwrap();
            line["stage"] == "install" && line["bytes"].as_u64() > Some(0)
        };
        assert!(lines.by_ref().map_while(Result::ok).any(written), "it ended before the server moved");
        Self { child, lines }
    }

    /// Waits until it has succeeded.
    fn end(mut self) {
        let last = self.lines.by_ref().map_while(Result::ok).last().unwrap_or_default();
        assert!(self.child.wait().unwrap().success(), "{last}");
    }
}

/// Moves the server by `go`, which ends it on host 0, while a fetch, an install and an attached disk use it.
fn follow(go: impl FnOnce(&Star, Served)) {
    if !lab::available_or_skip() {
        return;
    }
    let options = StarOptions { hosts: 5, rate_bits_per_second: Some(50_000_000), ..StarOptions::default() };
    let (star, bench) = (Star::build(&options).unwrap(), Bench::new());
    let disk = bench.disk("disk.img", 96, 1);
    assert!(bench.see("capture disk.img web -q").ends_with("exit: 0\n"));
    let (old, new) = (star.host(0), star.host(1));
    point(&bench, old);
    let server = serve(&bench, old);
    let url = format!("https://{NAME}:7717");
    let attached =
        Attached::start(client(&bench, star.host(2), &format!("attach web@1 --name vm1 -q --from {url}")));
    if !qemu_io(&attached.uri, &["read 0 64k"]) {
        return;
    }
    let fetched =
        Writing::start(client(&bench, star.host(3), &format!("fetch {url} web fetched.img --receiver pc1")));
    let installed =
        Writing::start(client(&bench, star.host(4), &format!("install web installed.img --repo {url}")));

    go(&star, server);
    point(&bench, new);
    let server = serve(&bench, new);
    let copy = bench.path("copy.img");
    assert!(run("nbdcopy", &[&attached.uri, copy.to_str().unwrap()]));
    fetched.end();
    installed.end();
    let same = |copy: &Path| assert_same(&disk, copy);
    ["copy.img", "fetched.img", "installed.img"].iter().for_each(|name| same(&bench.path(name)));
    assert_eq!(attached.stop(), Some(0));
    assert_eq!(server.stop().0, Some(0));
}

#[test]
fn a_server_that_stops_and_starts_at_another_address_is_followed_by_its_name() {
    follow(|_, server| drop(server.stop()));
}

#[test]
fn a_server_whose_old_address_falls_silent_is_followed_by_its_name() {
    // Nothing tells the clients that their connections have ended.
    follow(|star, server| {
        star.cut(0).unwrap();
        server.kill();
    });
}
