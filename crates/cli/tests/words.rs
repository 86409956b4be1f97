//! What people read when a command fails or is interrupted: errors, hints, and nothing that a terminal obeys.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::ffi::OsStringExt as _;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use base::Digest;

use crate::common::Bench;
use crate::common::between::between;

/// How long a command may take until it asks for what it is interrupted at.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server that gives one answer to every request. Returns its URL.
fn parrot(status: &'static str, body: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        listener.incoming().for_each(|client| drop(answer(&client.unwrap(), status, &body)))
    });
    url
}

fn answer(mut client: &TcpStream, status: &str, body: &[u8]) -> std::io::Result<()> {
    let head = BufReader::new(client).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
    head.for_each(drop);
    write!(client, "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len())?;
    client.write_all(body)
}

/// A manifest of which the checksum is right.
fn manifest(body: &str) -> Vec<u8> {
    let mut bytes = b"DCMF\x01\0\0\0".to_vec();
    bytes.extend(u32::try_from(body.len()).unwrap().to_le_bytes());
    bytes.extend(body.as_bytes());
    bytes.extend(Digest::of(&bytes).0);
    bytes
}

#[test]
fn a_hostile_server_does_not_control_the_terminal() {
    let bench = Bench::new();
    bench.keep_secret("any.token", "diskcast1.-.secret");
    let needs = manifest(r#"{"format": 1, "features": ["\u001b[2Jhostile\nhint: sudo this"]}"#);
    let stage = r#"{"sessions": [], "hosts": [{"stage": "\u001b[2Jhostile"}]}"#;
    let reason = r#"{"type": "denied", "title": "", "status": 403, "detail": "\u001b[2Jhostile\u009b2J"}"#;
    for (words, url) in [
        ("fetch URL lab null:", parrot("200 OK", needs)),
        ("status URL", parrot("200 OK", stage.into())),
        ("status URL", parrot("403 Forbidden", reason.into())),
    ] {
        let line = format!("{} --token-file any.token", words.replace("URL", &url));
        let output = bench.command(&line).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("[2Jhostile"), "{words}: {said:?}");
        assert!(!said.replace('\n', "").contains(char::is_control), "{words}: {said:?}");
        assert!(!said.contains("\nhint: sudo"), "{words}: {said:?}");
    }
}

/// Interrupts `command` when `ready` says so. Returns what it printed.
fn interrupted(bench: &Bench, mut command: Command, ready: impl FnOnce(&mut std::process::Child)) -> String {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    ready(&mut child);
    let pid = rustix::process::Pid::from_raw(child.id().cast_signed()).unwrap();
    // A command that ends in its own way after the first signal may wait for an answer that never comes.
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let _ = rustix::process::kill_process(pid, signal);
    }
    bench.show(&child.wait_with_output().unwrap())
}

#[test]
fn who_interrupts_is_told_what_it_leaves_behind() {
    let bench = Bench::new();
    bench.disk("disk.img", 4, 1);
    assert!(bench.see("capture disk.img web -q").ends_with("exit: 0\n"));
    let server = bench.serve("--no-tls --no-multicast");
    bench.keep_secret("write.token", bench.command("token --write --no-tls").output().unwrap().stdout);
    // A request for a chunk, or for the version that a capture follows, is not answered. What an earlier command still
    // asks for goes another way.
    let way = || {
        let (asked, asks) = mpsc::channel();
        let url = between(&server.url, move |request, _| {
            if request.contains("/objects/chunks/") || request.starts_with("GET /api/v1/images/new ") {
                let _ = asked.send(());
                std::thread::park();
            }
        });
        (url, asks)
    };
    let resume = "--resume goes on from here";
    for (words, told, hint) in [
        ("install web out.img --repo URL", "interrupted\n", resume),
        (
            "install web null: --repo URL",
            "interrupted: nothing was written, and not everything was verified\n",
            "",
        ),
        ("fetch URL web out.img --overwrite --transport unicast", "interrupted\n", resume),
        (
            "fetch URL web null: --transport unicast",
            "interrupted: nothing was written, and not everything was verified\n",
            "",
        ),
        ("capture disk.img new --to URL", "interrupted: no version was made\n", ""),
    ] {
        let (url, asks) = way();
        let words = format!("{} --token-file write.token", words.replace("URL", &url));
        let said = interrupted(&bench, bench.command(&words), |_| asks.recv_timeout(PATIENCE).unwrap());
        assert!(said.contains(told) && said.ends_with("exit: 130\n"), "{words}: {said}");
        assert!(said.contains(hint) && said.contains("hint: ") != hint.is_empty(), "{words}: {said}");
        // Half a disk has not the name of a whole one.
        assert!(!bench.path("out.img").exists() && bench.path("out.img.part").exists(), "{words}");
    }
    let done = bench.see("install web out.img --resume");
    assert!(done.contains("on out.img: ") && done.ends_with("exit: 0\n"), "{done}");
    bench.tool("cmp disk.img out.img");
    assert!(!bench.path("out.img.part").exists());
    // Nor has an old file that was half overwritten. It can't be told which of two is meant.
    std::fs::write(bench.path("out.img"), vec![7; 4 << 20]).unwrap();
    let (url, asks) = way();
    let words = format!("install web out.img --json --overwrite --repo {url} --token-file write.token");
    let said = interrupted(&bench, bench.command(&words), |_| asks.recv_timeout(PATIENCE).unwrap());
    let record = said.lines().find_map(|line| line.strip_prefix("out: ")).unwrap();
    let record: serde_json::Value = serde_json::from_str(record).unwrap();
    assert_eq!((&record["type"], &record["exit"]), (&"error".into(), &130.into()), "{record}");
    assert!(record["hint"].as_str().unwrap().contains(resume), "{record}");
    assert!(!bench.path("out.img").exists());
    std::fs::write(bench.path("out.img"), "another").unwrap();
    let both = bench.see("install web out.img --overwrite");
    assert!(both.contains("out.img.part") && both.ends_with("exit: 11\n"), "{both}");
    assert_eq!(std::fs::read(bench.path("out.img")).unwrap(), b"another");

    // Nobody reads on, so most of the disk does not fit into the pipe.
    let said = interrupted(&bench, bench.command("install web -"), |child| {
        let mut first = [0; 512];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut first).unwrap();
    });
    assert!(said.contains("err: interrupted: standard output got a part of the disk only\n"), "{said}");
}

#[test]
fn who_gives_no_command_gets_the_help_also_with_variables() {
    // The bench sets DISKCAST_REPO and others.
    let bench = Bench::new();
    let help = bench.see("");
    assert!(help.contains("Usage: diskcast") && help.contains("All options: diskcast --help"), "{help}");
    assert!(help.ends_with("exit: 2\n"), "{help}");
    let wrong = bench.see("nosuch");
    assert!(wrong.contains("unrecognized subcommand") && wrong.ends_with("exit: 2\n"), "{wrong}");
}

#[test]
fn what_a_server_answers_is_said_without_the_request() {
    let bench = Bench::new();
    bench.disk("disk.img", 4, 1);
    assert!(bench.see("capture disk.img web -q").ends_with("exit: 0\n"));
    let server = bench.serve("--no-multicast");
    let there = |words: &str| bench.see(&format!("{words} --repo {} --token-file join.token", server.url));
    let absent = there("inspect web@7");
    assert!(absent.starts_with("err: error: there is no version `web@7`\n"), "{absent}");
    // What a token must not see is not said to be absent.
    let narrow = bench.command("token --image lab-*").output().unwrap();
    bench.keep_secret("narrow.token", narrow.stdout);
    let none = bench.see(&format!("images --repo {} --token-file narrow.token", server.url));
    assert!(none.contains("no image of the server; it is for images named lab-*"), "{none}");
    assert!(!none.contains("no images yet") && none.ends_with("exit: 0\n"), "{none}");
    // The right to write is asked for before the disk is looked at.
    let denied = there("capture disk.img web");
    assert!(denied.contains("the token grants reading only") && denied.contains("token --write"), "{denied}");
    assert!(!denied.contains("to capture") && denied.ends_with("exit: 13\n"), "{denied}");

    std::fs::remove_dir_all(bench.path("repo/chunks")).unwrap();
    for words in ["install web out.img", "fetch web out2.img"] {
        let missing = there(words);
        assert!(missing.contains("missing in the server's repository"), "{words}: {missing}");
        assert!(!missing.contains("chunks/") && !missing.contains("--resume"), "{words}: {missing}");
        assert!(missing.ends_with("exit: 10\n"), "{words}: {missing}");
    }
}

/// Names of files are bytes. Each `%` stands for one that is not UTF-8.
#[test]
fn paths_that_are_not_utf8_are_paths_like_others() {
    let bench = Bench::new();
    bench.disk("disk.img", 2, 1);
    let path = |word: &str| {
        let bytes = word.bytes().map(|byte| if byte == b'%' { 0xFF } else { byte });
        OsString::from_vec(bytes.collect())
    };
    std::fs::rename(bench.path("disk.img"), bench.path("").join(path("%.img"))).unwrap();
    std::fs::create_dir(bench.path("").join(path("%"))).unwrap();
    let run = |words: &str, folder: &str| {
        let mut command = bench.command("");
        command.args(words.split_whitespace().map(path)).current_dir(bench.path("").join(path(folder)));
        bench.show(&command.output().unwrap())
    };
    let mut wrong = String::new();
    for (words, code) in [
        ("capture %.img web", 0),
        ("capture %.img web -n", 0),
        ("commit web %.img", 0),
        ("install web %.out --overwrite", 0),
        ("install web %.out --overwrite -n", 0),
        ("install web out.img --also %.also --overwrite", 0),
        ("install web %.qcow2 --as qcow2 --overwrite", 0),
        ("install web %.small --as qcow2 --compress --overwrite", 0),
        ("install web top.qcow2 --as qcow2 --copy-of %.out --overwrite", 11),
        ("capture %.qcow2 web", 0),
        ("grow %.out -n", 11),
        ("personalize %.out --hostname a -n", 11),
        ("key new %.key -n", 0),
        ("key new --encryption %.encryption -n", 0),
        ("mount %.mount -n", 0),
        ("attach web -n --nbd %.socket", 0),
        ("boot-image %.boot --kernel %.missing", 2),
        ("--repo %.repo images", 2),
    ] {
        for form in ["", " --json"] {
            let seen = run(&format!("{words}{form}"), ".");
            if !seen.ends_with(&format!("exit: {code}\n")) {
                wrong += &format!("{words}{form}: {seen}");
            }
        }
    }
    assert_eq!(wrong, "");
    for words in ["--repo repo init", "--repo . images"] {
        let seen = run(words, "%");
        assert!(seen.contains("not UTF-8") && seen.ends_with("exit: 2\n"), "{words}: {seen}");
    }
    let seen = run("attach web --prepare --name vm --nbd %.socket", ".");
    assert!(seen.contains("UTF-8") && seen.ends_with("exit: 2\n"), "{seen}");
}
