//! Tests attached disks with the real binary: under the tools of QEMU and libnbd, killed and attached again, and
//! committed while they run.

use std::io::{BufRead, BufReader};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use base::ErrorKind;
use lab::boot::{BootOptions, Medium, nbd_device, until_login};
use serde_json::{Value, json};

use crate::attach_common::{Attached, bench, qemu_io, run, status, write_at};
use crate::common::{Bench, assert_same, debian};

/// Time limit for everything that the tests wait for.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn a_disk_is_read_written_left_and_found_again() {
    let (bench, disk) = bench();
    let attached = Attached::from_repository(&bench, "web --name vm1");
    let copy = bench.path("copy.img");
    if !run("nbdcopy", &[&attached.uri, copy.to_str().unwrap()]) {
        return;
    }
    assert_same(&disk, &copy);
    let now = status(&bench, "vm1");
    assert_eq!((&now["state"], &now["image"], &now["number"]), (&"running".into(), &"web".into(), &1.into()));
    assert_eq!((&now["dirty_bytes"], &now["local_bytes"]), (&0.into(), &now["size_bytes"]));

    assert!(qemu_io(&attached.uri, &["write -P 7 65024 1024", "flush"]));
    write_at(&disk, 65_024, &[7; 1024]);
    assert_eq!(status(&bench, "vm1")["dirty_bytes"], 1024);
    assert_eq!(attached.stop(), Some(0));
    assert_eq!(status(&bench, "vm1")["state"], "stopped");

    // The disk's name is enough, and the image is not needed any more.
    std::fs::rename(bench.path("repo"), bench.path("gone")).unwrap();
    std::fs::create_dir(bench.path("repo")).unwrap();
    assert!(bench.see("attach vm1").ends_with("exit: 10\n"), "its repository is gone");
    std::fs::remove_dir(bench.path("repo")).unwrap();
    std::fs::rename(bench.path("gone"), bench.path("repo")).unwrap();
    let attached = Attached::from_repository(&bench, "vm1");
    assert!(run("nbdcopy", &[&attached.uri, copy.to_str().unwrap()]));
    assert_same(&disk, &copy);
    assert_eq!(status(&bench, "vm1")["demanded_bytes"], 0, "all of it was here");

    let refused = bench.see("detach vm1 --discard");
    assert!(refused.contains("1024 bytes were written") && refused.ends_with("exit: 11\n"), "{refused}");
    assert_eq!(
        bench.see("detach vm1"),
        "out: detached vm1; `diskcast attach vm1` goes on with it\nexit: 0\n"
    );
    assert_eq!(attached.ends(), Some(0));
    let refused = bench.see("detach vm1 --discard");
    assert!(refused.contains("1024 bytes were written") && refused.ends_with("exit: 11\n"), "{refused}");
    assert_eq!(bench.see("detach vm1 --discard --force"), "out: detached and deleted vm1\nexit: 0\n");
    assert!(!bench.path("disks/vm1").exists());
    assert!(bench.see("detach vm1").ends_with("exit: 10\n"));
}

#[test]
fn a_disk_comes_from_a_server_that_may_go_and_come_back() {
    let (bench, disk) = bench();
    let server = bench.serve("--no-multicast");
    let attached = Attached::from_server(&bench, &server, "web@1 --name vm1");
    if !qemu_io(&attached.uri, &["read 0 64k"]) {
        return;
    }
    let listen = server.url.trim_start_matches("https://").to_owned();
    server.kill();
    // A guest that reads meanwhile has to wait.
    let (uri, copy) = (attached.uri.clone(), bench.path("copy.img"));
    let reader = {
        let copy = copy.clone();
        std::thread::spawn(move || run("nbdcopy", &[&uri, copy.to_str().unwrap()]))
    };
    while status(&bench, "vm1")["retries"] == 0 {
        std::thread::yield_now();
    }
    let _server = bench.serve_at("--no-multicast", &listen);
    assert!(reader.join().unwrap());
    assert_same(&disk, &copy);
    assert_eq!(attached.stop(), Some(0));
}

#[test]
fn what_was_written_survives_kills_of_the_process() {
    let (bench, disk) = bench();
    for round in 0..4_u8 {
        let attached = Attached::from_repository(&bench, "web --name vm1");
        let (pattern, offset) = (round + 1, 300_000 / 512 * 512 + 700 * 512 * usize::from(round));
        if !qemu_io(&attached.uri, &[&format!("write -P {pattern} {offset} 90112")]) {
            return;
        }
        write_at(&disk, offset, &[pattern; 90_112]);
        attached.kill();
        assert!(bench.path("disks/vm1/nbd.sock").exists(), "a dead process leaves its sockets");
    }
    let attached = Attached::from_repository(&bench, "vm1");
    let copy = bench.path("copy.img");
    assert!(run("nbdcopy", &[&attached.uri, copy.to_str().unwrap()]));
    assert_same(&disk, &copy);

    let second = bench.see("attach vm1");
    assert!(second.contains("another process has the disk") && second.ends_with("exit: 11\n"), "{second}");
    let other = bench.see("attach web@1 --name vm1");
    assert!(other.contains("exists already") && other.ends_with("exit: 11\n"), "{other}");
    assert!(qemu_io(&attached.uri, &["read 0 512"]), "the first goes on");
}

/// Sends a request to the control socket, which is faster than starting a program.
fn ask(bench: &Bench, name: &str, request: &Value) -> Value {
    use std::io::Write as _;
    let mut stream = UnixStream::connect(bench.path(&format!("disks/{name}/control.sock"))).unwrap();
    writeln!(stream, "{request}").unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap()
}

/// Waits until the status field has reached `bytes`. The test runner ends a test that waits too long.
fn wait_for(bench: &Bench, field: &str, bytes: u64) {
    while ask(bench, "vm1", &json!({ "request": "status" }))[field].as_u64().unwrap() < bytes {
        std::thread::yield_now();
    }
}

#[test]
fn the_guide_says_what_is_tried_here() {
    const GUIDE: &str = include_str!("../../../docs/attached-disks.md");
    let said = GUIDE.lines().find_map(|line| line.trim().strip_prefix("-blockdev ")).unwrap();
    let tried = nbd_device("/var/lib/diskcast/disks/vm1/nbd.sock".as_ref(), "vm1");
    assert_eq!(said.trim_end_matches(" \\"), tried);
}

#[test]
fn a_client_that_writes_and_verifies_lives_through_kills_and_upgrades() {
    let (bench, disk) = bench();
    const PIECE: usize = 64 << 10;
    let pieces = (32 << 20) / PIECE;
    let mut attached = Attached::from_repository(&bench, "web --name vm1");
    // Like QEMU's block layer for a machine: one request after the other, each read back later.
    let mut words = vec!["--image-opts".to_owned(), nbd_device(&bench.path("disks/vm1/nbd.sock"), "vm1")];
    for index in 0..pieces {
        // This stride visits every piece once.
        let (place, before) = (index * 37 % pieces, index.saturating_sub(9) * 37 % pieces);
        let pattern = |place: usize| place % 251 + 1;
        words.push(format!("-cwrite -P {} {} {PIECE}", pattern(place), place * PIECE));
        words.push(format!("-cread -P {} {} {PIECE}", pattern(before), before * PIECE));
        write_at(&disk, place * PIECE, &vec![u8::try_from(pattern(place)).unwrap(); PIECE]);
    }
    let mut command = Command::new("qemu-io");
    let mut writer = match command.args(&words).stdin(Stdio::null()).stdout(Stdio::piped()).spawn() {
        Ok(writer) => writer,
        Err(error) => {
            assert!(std::env::var_os("CI").is_none(), "qemu-io: {error}");
            return;
        }
    };
    let said = writer.stdout.take().unwrap();
    let said = std::thread::spawn(move || std::io::read_to_string(said).unwrap());
    for round in 1..=4 {
        wait_for(&bench, "dirty_bytes", round * (6 << 20));
        if round % 2 == 0 {
            assert_eq!(attached.stop(), Some(0));
        } else {
            attached.kill();
        }
        attached = Attached::from_repository(&bench, "vm1");
    }
    assert!(writer.wait().unwrap().success(), "{}", said.join().unwrap());
    let copy = bench.path("copy.img");
    assert!(run("nbdcopy", &[&attached.uri, copy.to_str().unwrap()]));
    assert_same(&disk, &copy);
}

#[test]
fn a_running_disk_is_committed_cloned_and_resumed_on_another_host() {
    let (bench, disk) = bench();
    let attached = Attached::from_repository(&bench, "web --name vm1");
    if !qemu_io(&attached.uri, &["write -P 1 1M 64k"]) {
        return;
    }
    write_at(&disk, 1 << 20, &[1; 64 << 10]);
    let done = bench.json("commit --disk vm1").remove(0);
    assert_eq!((&done["image"], &done["number"], &done["bytes"]), (&"web".into(), &2.into(), &65_536.into()));
    assert_eq!((&done["changed"], &done["is_base"]), (&true.into(), &true.into()));
    assert_eq!(status(&bench, "vm1")["number"], 2);
    assert_eq!(bench.see("commit --disk vm1"), "out: nothing was written to vm1 since web@2\nexit: 0\n");
    assert_eq!(bench.json("clone --disk vm1 same")[0]["number"], 1);

    // Another host, which has only the server.
    let server = bench.serve("--no-multicast");
    let elsewhere = Attached::from_server(&bench, &server, "web@2 --name vm1 --folder elsewhere");
    let copy = bench.path("copy.img");
    assert!(run("nbdcopy", &[&elsewhere.uri, copy.to_str().unwrap()]));
    assert_same(&disk, &copy);

    assert!(qemu_io(&attached.uri, &["write -P 2 2M 4k"]));
    write_at(&disk, 2 << 20, &[2; 4 << 10]);
    let refused = bench.see("clone --disk vm1 same");
    assert!(
        refused.contains("there is an image `same` already") && refused.ends_with("exit: 11\n"),
        "{refused}"
    );
    let done = bench.json("clone --disk vm1 other").remove(0);
    assert_eq!((&done["image"], &done["number"]), (&"other".into(), &1.into()));
    assert!(bench.see("install other copy.img --free zero --overwrite").ends_with("exit: 0\n"));
    assert_same(&disk, &copy);
    assert_eq!(status(&bench, "vm1")["dirty_bytes"], 0);
    assert!(bench.see("detach vm1 --discard").ends_with("exit: 0\n"), "all of it was committed");
    assert_eq!(attached.ends(), Some(0));
    assert!(bench.see("commit --disk vm1").ends_with("exit: 10\n"), "there is no such disk any more");
}

#[test]
fn a_disk_that_was_trimmed_between_writes_is_committed_and_cloned() {
    let bench = Bench::new();
    let disk = bench.path("disk.img");
    std::fs::File::create(&disk).unwrap().set_len(256 << 20).unwrap();
    write_at(&disk, 200 << 20, &[5; 4096]);
    assert!(bench.see("create v 256M").ends_with("exit: 0\n"));
    assert!(bench.see("commit v disk.img --range 200M+4096").ends_with("exit: 0\n"));
    let attached = Attached::from_repository(&bench, "v --name vm1");
    for (round, words) in ["commit --disk vm1", "clone --disk vm1 other"].into_iter().enumerate() {
        let (first, second) = ((1 + 16 * round) << 20, (4 + 16 * round) << 20);
        let commands = [
            &format!("write -P 1 {first} 4k"),
            &format!("discard {} 1M", first + (1 << 20)),
            &format!("write -P 2 {second} 4k"),
        ];
        let [write, discard, again] = commands;
        if !run(
            "qemu-io",
            &["-f", "raw", "-d", "unmap", &attached.uri, "-c", write, "-c", discard, "-c", again],
        ) {
            return;
        }
        write_at(&disk, first, &[1; 4096]);
        write_at(&disk, second, &[2; 4096]);
        let done = bench.see(words);
        assert!(done.ends_with("exit: 0\n"), "{done}");
    }
    let copy = bench.path("copy.img");
    assert!(bench.see("install other copy.img --free zero").ends_with("exit: 0\n"));
    assert_same(&disk, &copy);
    assert!(bench.see("verify").ends_with("exit: 0\n"));
}

#[test]
fn commits_go_through_a_server_and_onto_what_others_changed() {
    let (bench, disk) = bench();
    let server = bench.serve("--no-multicast");
    let token = bench.command("token --write").output().unwrap();
    bench.keep_secret("join.token", token.stdout);
    let one = Attached::from_server(&bench, &server, "web --name vm1");
    let two = Attached::from_server(&bench, &server, "web --name vm2");
    if !qemu_io(&one.uri, &["write -P 1 1M 64k"]) {
        return;
    }
    assert!(qemu_io(&two.uri, &["write -P 2 3M 4k"]));
    write_at(&disk, 1 << 20, &[1; 64 << 10]);
    write_at(&disk, 3 << 20, &[2; 4 << 10]);
    assert_eq!(bench.json("commit --disk vm1")[0]["number"], 2);
    let refused = bench.see("commit --disk vm2");
    assert!(refused.contains("at version 2 by now") && refused.ends_with("exit: 11\n"), "{refused}");
    let done = bench.json("commit --disk vm2 --merge").remove(0);
    assert_eq!((&done["number"], &done["is_base"]), (&3.into(), &false.into()), "{done}");
    let copy = bench.path("copy.img");
    assert!(bench.see("install web@3 copy.img --free zero --overwrite").ends_with("exit: 0\n"));
    assert_same(&disk, &copy);
    assert!(qemu_io(&two.uri, &["read -P 2 3M 4k"]), "it runs on");
    assert_eq!((one.stop(), two.stop()), (Some(0), Some(0)));
}

/// A mock guest agent: sends each command that it gets to one channel, and answers when something arrives on the
/// other.
fn guest_agent(path: &Path) -> (Receiver<String>, Sender<()>) {
    use std::io::Write as _;
    let listener = UnixListener::bind(path).unwrap();
    let (asked, hears) = channel();
    let (allow, allowed) = channel::<()>();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let lines = BufReader::new(stream.try_clone().unwrap()).split(b'\n');
            for line in lines.map_while(Result::ok) {
                let line: Vec<u8> = line.into_iter().filter(|&byte| byte != 0xff).collect();
                let request: Value = serde_json::from_slice(&line).unwrap();
                let command = request["execute"].as_str().unwrap();
                let answer = if command == "guest-sync-delimited" {
                    stream.write_all(&[0xff]).unwrap();
                    json!({ "return": request["arguments"]["id"] })
                } else {
                    asked.send(command.to_owned()).unwrap();
                    if allowed.recv().is_err() {
                        return;
                    }
                    json!({ "return": 1 })
                };
                if writeln!(stream, "{answer}").is_err() {
                    break;
                }
            }
        }
    });
    (hears, allow)
}

#[test]
fn a_guest_is_frozen_for_the_moment_and_thawed_also_if_the_process_is_to_end() {
    let (bench, _) = bench();
    let attached = Attached::from_repository(&bench, "web --name vm1");
    if !qemu_io(&attached.uri, &["write -P 1 1M 64k"]) {
        return;
    }
    let (hears, allow) = guest_agent(&bench.path("qga"));
    let commit =
        || bench.command("commit --disk vm1 --quiesce agent:qga --json").stdout(Stdio::piped()).spawn();
    let running = commit().unwrap();
    assert_eq!(hears.recv().unwrap(), "guest-fsfreeze-freeze");
    // The guest writes its cached data before it reports that it is frozen.
    assert!(qemu_io(&attached.uri, &["write -P 2 2M 64k"]));
    allow.send(()).unwrap();
    assert_eq!(hears.recv().unwrap(), "guest-fsfreeze-thaw");
    allow.send(()).unwrap();
    let done: Value = serde_json::from_slice(&running.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!((&done["number"], &done["bytes"]), (&2.into(), &(128 << 10).into()), "{done}");

    assert!(qemu_io(&attached.uri, &["write -P 3 3M 64k"]));
    let running = commit().unwrap();
    assert_eq!(hears.recv().unwrap(), "guest-fsfreeze-freeze");
    let pid = attached.child.id().to_string();
    assert!(run("kill", &["-TERM", &pid]));
    allow.send(()).unwrap();
    assert_eq!(hears.recv().unwrap(), "guest-fsfreeze-thaw");
    allow.send(()).unwrap();
    assert_eq!(attached.ends(), Some(0));
    running.wait_with_output().unwrap();

    // An agent that never answers: nothing is published, and the guest is thawed, since it may be frozen.
    let attached = Attached::from_repository(&bench, "vm1");
    let before = bench.json("images web").len();
    assert!(qemu_io(&attached.uri, &["write -P 4 4M 64k"]));
    drop(allow);
    let failed = bench.see("commit --disk vm1 --quiesce agent:qga --quiesce-limit 1s");
    assert!(failed.contains("no answer within 1s") && failed.ends_with("exit: 1\n"), "{failed}");
    assert_eq!(bench.json("images web").len(), before);
    assert!(qemu_io(&attached.uri, &["read -P 4 4M 64k"]), "it runs on");
}

#[test]
fn a_guest_is_thawed_also_if_its_process_is_told_twice_to_end() {
    let (bench, _) = bench();
    let mut command = bench.command("attach web --name vm1");
    command.stderr(Stdio::piped());
    let mut attached = Attached::start(command);
    if !qemu_io(&attached.uri, &["write -P 1 1M 64k"]) {
        return;
    }
    let (hears, allow) = guest_agent(&bench.path("qga"));
    let mut commit = bench.command("commit --disk vm1 --quiesce agent:qga --quiet");
    let mut commit = commit.stderr(Stdio::null()).spawn().unwrap();
    assert_eq!(hears.recv().unwrap(), "guest-fsfreeze-freeze");
    // Two equal answers may count as one.
    let pid = attached.child.id().to_string();
    assert!(run("kill", &["-TERM", &pid]) && run("kill", &["-INT", &pid]));
    let mut said = BufReader::new(attached.child.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(said.any(|line| line == "interrupted"));
    allow.send(()).unwrap();
    assert_eq!(hears.recv_timeout(PATIENCE).as_deref(), Ok("guest-fsfreeze-thaw"));
    allow.send(()).unwrap();
    assert_eq!(attached.ends(), Some(130));
    commit.wait().unwrap();
}

/// A file system in a file, mounted until this is dropped; `None` if the test may not mount.
struct Mounted(PathBuf);

impl Mounted {
    fn new(bench: &Bench) -> Option<Self> {
        let (file, path) = (bench.path("fs.img"), bench.path("mnt"));
        std::fs::create_dir(&path).unwrap();
        std::fs::File::create(&file).unwrap().set_len(64 << 20).unwrap();
        let made = run("mkfs.ext4", &["-q", file.to_str().unwrap()]);
        let words = ["-o", "loop", file.to_str().unwrap(), path.to_str().unwrap()];
        let mounted = made && Command::new("mount").args(words).status().is_ok_and(|status| status.success());
        mounted.then_some(Self(path))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("fsfreeze").arg("--unfreeze").arg(&self.0).stderr(Stdio::null()).status();
        let _ = lab::unmount(&self.0);
    }
}

#[test]
fn a_mounted_file_system_is_frozen_for_the_moment_unless_it_holds_the_disk() {
    let (bench, _) = bench();
    let attached = Attached::from_repository(&bench, "web --name vm1");
    if !qemu_io(&attached.uri, &["write -P 1 1M 64k"]) {
        return;
    }
    std::fs::create_dir(bench.path("plain")).unwrap();
    let refused = bench.see("commit --disk vm1 --quiesce mount:plain");
    assert!(refused.contains("is not a mount point") && refused.ends_with("exit: 11\n"), "{refused}");
    // Only root may mount.
    let Some(mounted) = Mounted::new(&bench) else { return };
    assert_eq!(bench.json("commit --disk vm1 --quiesce mount:mnt")[0]["number"], 2);
    std::fs::write(mounted.0.join("file"), "thawed").unwrap();

    let inside = Attached::from_repository(&bench, "web --name vm1 --folder mnt/disks");
    assert!(qemu_io(&inside.uri, &["write -P 1 1M 64k"]));
    let refused = bench.see("commit --disk vm1 --folder mnt/disks --quiesce mount:mnt");
    assert!(refused.contains("holds the disk's own folder") && refused.ends_with("exit: 11\n"), "{refused}");
    assert_eq!(inside.stop(), Some(0));
}

#[test]
fn options_are_kept_and_what_would_harm_is_refused() {
    let (bench, _) = bench();
    let open = bench.see("attach web --listen 0.0.0.0:0");
    assert!(open.contains("is not a loopback address") && open.ends_with("exit: 11\n"), "{open}");
    assert!(bench.see("attach nothing").ends_with("exit: 10\n"));
    let said = bench.see("attach web --name vm1 --read-only --listen 127.0.0.1:0 --prepare");
    assert_eq!(said, "out: the disk vm1 of web@1 is ready; `diskcast attach vm1` runs it\nexit: 0\n");
    let attached = Attached::from_repository(&bench, "vm1");
    let now = status(&bench, "vm1");
    assert_eq!(now["read_only"], true);
    let tcp = now["nbd"][1].as_str().unwrap();
    if !run("qemu-io", &["-r", "-f", "raw", tcp, "-c", "read 0 64k"]) {
        return;
    }
    let refused = Command::new("qemu-io").args(["-f", "raw", tcp, "-c", "write 0 64k"]).output().unwrap();
    assert!(!refused.status.success());
    assert_eq!(attached.stop(), Some(0));
    // A socket of another process, and a file.
    let _other = UnixListener::bind(bench.path("taken")).unwrap();
    std::fs::write(bench.path("file"), "precious").unwrap();
    for (path, why) in [("taken", "somebody answers there"), ("file", "is not a socket")] {
        let refused = bench.see(&format!("attach vm1 --nbd {path}"));
        assert!(refused.contains(why) && refused.ends_with("exit: 11\n"), "{refused}");
    }
    assert_eq!(std::fs::read(bench.path("file")).unwrap(), b"precious");
}

#[test]
fn systemd_is_told_when_a_service_is_ready_and_finds_no_fault_in_the_units() {
    let (bench, _) = bench();
    let socket = UnixDatagram::bind(bench.path("notify")).unwrap();
    // A program that ends without a word fails the test, and does not hang it.
    socket.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    let told = || {
        let mut bytes = [0; 256];
        let count = socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..count].to_vec()).unwrap()
    };
    for words in ["attach web --quiet", "serve --listen 127.0.0.1:0 --no-multicast --quiet"] {
        let mut command = bench.command(words);
        let mut child =
            command.env("NOTIFY_SOCKET", bench.path("notify")).stdout(Stdio::null()).spawn().unwrap();
        let ready = told();
        assert!(ready.starts_with("READY=1\n"), "{ready}");
        assert!(run("kill", &["-TERM", &child.id().to_string()]));
        assert_eq!(told(), "STOPPING=1");
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }

    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist/systemd");
    let mut command = Command::new("systemd-analyze");
    command.args(["verify", "--man=no"]);
    for unit in ["diskcast-attach@.service", "diskcast-serve.service", "diskcast-agent.service"] {
        // The program is not installed on test machines.
        let text = std::fs::read_to_string(units.join(unit)).unwrap();
        assert!(text.contains("=/usr/bin/diskcast "));
        let text = text.replace("/usr/bin/diskcast", env!("CARGO_BIN_EXE_diskcast"));
        std::fs::write(bench.path(unit), text).unwrap();
        command.arg(bench.path(unit));
    }
    if let Ok(output) = command.output() {
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && errors.is_empty(), "{errors}");
    }
}

#[test]
#[expect(clippy::print_stderr, reason = "a test that leaves something out says so")]
fn a_machine_boots_while_its_server_dies_and_its_disk_is_upgraded() {
    let Some(debian) = debian() else {
        eprintln!("left out: `make demo` makes the disk that is booted");
        return;
    };
    let bench = Bench::of_machines();
    assert!(bench.see(&format!("capture {} debian -q", debian.display())).ends_with("exit: 0\n"));
    let server = bench.serve("--no-multicast");
    let attached = Attached::from_server(&bench, &server, "debian --name vm1");
    let socket = bench.path("disks/vm1/nbd.sock");
    let machine = std::thread::spawn(move || {
        until_login(Medium::Nbd { socket: &socket, export: "vm1" }, &BootOptions::default())
    });

    // The kernel and the initrd are already larger than that.
    wait_for(&bench, "demanded_bytes", 8 << 20);
    let listen = server.url.trim_start_matches("https://").to_owned();
    server.kill();
    wait_for(&bench, "retries", 1);
    let server = bench.serve_at("--no-multicast", &listen);
    wait_for(&bench, "dirty_bytes", 1);
    assert_eq!(attached.stop(), Some(0));
    let attached = Attached::from_server(&bench, &server, "vm1");

    let boot = match machine.join().unwrap() {
        Err(error) if error.kind() == ErrorKind::Unsupported && std::env::var_os("CI").is_none() => {
            return;
        }
        boot => boot.unwrap(),
    };
    assert!(boot.console.contains("login:"));
    // Other machines can start from the version with its changes.
    let token = bench.command("token --write").output().unwrap();
    bench.keep_secret("write.token", token.stdout);
    assert_eq!(attached.stop(), Some(0));
    let attached = Attached::start({
        let words = format!("attach vm1 --quiet --from {} --token-file write.token", server.url);
        bench.command(&words)
    });
    let done = bench.json("commit --disk vm1").remove(0);
    assert_eq!(done["number"], 2, "{done}");
    assert!(bench.see("verify debian@2 -q").ends_with("exit: 0\n"));
    assert_eq!(attached.stop(), Some(0));
}
