//! Tests that an attached disk reports what it waits for: tokens that expire, damaged chunks, unreachable servers.
//! Also tests folders that were moved. With the real binary.

use std::io::{BufRead, BufReader, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::attach_common::{Attached, bench, qemu_io, run, status, write_at};
use crate::common::{Bench, assert_same};

/// Waits until the disk's status satisfies `fits`. The test runner ends a test that waits too long.
fn until(bench: &Bench, fits: impl Fn(&Value) -> bool) -> Value {
    loop {
        let now = status(bench, "vm1");
        if fits(&now) {
            return now;
        }
    }
}

/// Makes a token and writes it to `join.token`, where the disk reads it.
fn give_token(bench: &Bench, words: &str) {
    let token = bench.command(&format!("token {words}")).output().unwrap();
    assert!(token.status.success(), "{token:?}");
    bench.keep_secret("new.token", token.stdout);
    std::fs::rename(bench.path("new.token"), bench.path("join.token")).unwrap();
}

fn types(events: &[Value]) -> Vec<&str> {
    events.iter().filter_map(|event| event["type"].as_str()).collect()
}

#[test]
fn a_token_is_renewed_as_long_as_a_disk_needs_it() {
    let (bench, disk) = bench();
    let server = bench.serve("--no-multicast --token-expires 6s");
    let given = std::fs::read_to_string(bench.path("join.token")).unwrap();
    // A separate copy: the server replaces the token in its own file, so a disk that reads that file would have
    // nothing to renew.
    bench.keep_secret("given.token", &given);
    let attach = || {
        let words = format!("attach web@1 --name vm1 --quiet --from {} --token-file given.token", server.url);
        let mut command = bench.command(&words);
        command.env_remove("DISKCAST_REPO");
        Attached::start(command)
    };
    let attached = attach();
    let expires = |now: &Value| now["tokens"][0]["expires"].as_str().map(str::to_owned);
    let first = expires(&until(&bench, |now| expires(now).is_some())).unwrap();
    // Times of RFC 3339 in the same zone sort like their texts.
    let later = until(&bench, |now| expires(now).is_some_and(|at| at > first));
    assert_eq!(later["tokens"][0]["state"], "good", "{later}");
    // Renewed often enough that the original token has expired in any case.
    let second = expires(&later).unwrap();
    let third = expires(&until(&bench, |now| expires(now).is_some_and(|at| at > second))).unwrap();
    until(&bench, |now| expires(now).is_some_and(|at| at > third));
    let old = bench.see(&format!("fetch {} web@1 null: --token-file given.token", server.url));
    assert!(old.contains("the token has expired") && old.ends_with("exit: 13\n"), "{old}");
    let kept: Vec<PathBuf> = std::fs::read_dir(bench.path("disks/vm1"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("token-"))
        .collect();
    assert_eq!(kept.len(), 1);
    assert_eq!(std::fs::metadata(&kept[0]).unwrap().permissions().mode() & 0o777, 0o600);
    let copy = bench.path("copy.img");
    if run("nbdcopy", &[&attached.uri, copy.to_str().unwrap()]) {
        assert_same(&disk, &copy);
    }
    // The server has also replaced the token in its own file.
    assert_ne!(std::fs::read_to_string(bench.path("join.token")).unwrap(), given);
    let fresh = bench.see(&format!("fetch {} web@1 null: --token-file join.token", server.url));
    assert!(fresh.ends_with("exit: 0\n"), "{fresh}");
    // The next process finds the renewed token.
    assert_eq!(attached.stop(), Some(0));
    let attached = attach();
    until(&bench, |now| now["tokens"][0]["state"] == "good");
    assert_eq!(attached.stop(), Some(0));
}

#[test]
fn a_token_that_ends_is_told_of_and_a_new_file_is_read() {
    let (bench, disk) = bench();
    let server = bench.serve("--no-multicast");
    give_token(&bench, "--expires 6s --no-renewal");
    let attached = Attached::from_server(&bench, &server, "web@1 --name vm1");
    until(&bench, |now| now["tokens"][0]["state"] == "ending");
    until(&bench, |now| now["tokens"][0]["state"] == "expired");
    let said = bench.see("disks vm1");
    assert!(said.contains("token expired") && said.contains("has expired at"), "{said}");
    let (uri, copy) = (attached.uri.clone(), bench.path("copy.img"));
    let reader = {
        let copy = copy.clone();
        std::thread::spawn(move || run("nbdcopy", &[&uri, copy.to_str().unwrap()]))
    };
    let waiting = until(&bench, |now| now["waits"].is_object() || reader.is_finished());
    if !reader.is_finished() {
        let why = waiting["waits"]["why"].as_str().unwrap();
        assert!(why.contains("the token has expired"), "{why}");
    }
    give_token(&bench, "");
    if !reader.join().unwrap() {
        return;
    }
    assert_same(&disk, &copy);
    let page = metrics(&server.url);
    let refused = page.lines().find(|line| line.starts_with("diskcast_token_expired_requests_total "));
    assert!(refused.is_some_and(|line| !line.ends_with(" 0")), "{page}");
    let events = attached.events_until(|event| event["type"] == "token_good");
    let types = types(&events);
    for kind in ["token_ending", "token_expired", "token_good"] {
        assert!(types.contains(&kind), "{types:?}");
    }
    let (_, log) = server.stop();
    assert!(log.iter().any(|event| event["type"] == "token_ends"), "{log:?}");
}

/// Fetches the server's metrics, which need no token, by a handwritten request, since the certificate is self-signed.
fn metrics(url: &str) -> String {
    let output = Command::new("curl").args(["--silent", "--insecure", &format!("{url}/metrics")]).output();
    String::from_utf8(output.unwrap().stdout).unwrap()
}

/// The files of chunks in a repository.
fn chunks(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(chunks(&path)) } else { found.push(path) }
    }
    found
}

#[test]
fn a_chunk_that_is_damaged_at_its_only_source_is_an_error_that_is_told_of() {
    let (bench, _) = bench();
    for path in chunks(&bench.path("repo/chunks")) {
        let mut bytes = std::fs::read(&path).unwrap();
        let at = bytes.len() / 2;
        bytes[at] ^= 1;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(&path, bytes).unwrap();
    }
    // Without --give-up: reads wait only for sources that cannot be reached, not for damage.
    let attached = Attached::from_repository(&bench, "web --name vm1");
    if !qemu_io(&attached.uri, &["write -P 1 8M 64k", "read -P 1 8M 64k"]) {
        return;
    }
    let failed =
        Command::new("qemu-io").args(["-f", "raw", &attached.uri, "-c", "read 0 64k"]).output().unwrap();
    assert!(!failed.status.success(), "{failed:?}");
    let now = status(&bench, "vm1");
    assert_eq!(now["waits"], Value::Null);
    let damaged = &now["damaged"][0];
    assert_eq!(damaged["what"], "chunk 0", "{now}");
    assert!(damaged["source"].as_str().unwrap().contains("repository"), "{now}");
    let said = bench.see("disks vm1");
    assert!(said.contains("damaged") && said.contains("no undamaged chunk 0"), "{said}");
    let events = attached.events_until(|event| event["type"] == "damaged");
    assert!(types(&events).contains(&"request_failed"), "{events:?}");
}

#[test]
fn a_commit_that_waits_for_a_server_says_so_and_is_called_off_by_a_signal() {
    let (bench, disk) = bench();
    let server = bench.serve("--no-multicast");
    give_token(&bench, "--write");
    let attached = Attached::from_server(&bench, &server, "web@1 --name vm1 --wait 3s");
    if !qemu_io(&attached.uri, &["write -P 1 1M 64k"]) {
        return;
    }
    write_at(&disk, 1 << 20, &[1; 64 << 10]);
    let listen = server.url.trim_start_matches("https://").to_owned();
    server.kill();
    let commit = || -> Child {
        bench.command("commit --disk vm1").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    // The commit reports what it waits for long before it gives up.
    let mut running = commit();
    let mut said = BufReader::new(running.stderr.take().unwrap());
    let mut first = String::new();
    said.read_line(&mut first).unwrap();
    assert!(first.contains("does not answer") && first.contains("waiting for"), "{first}");
    assert!(run("kill", &["-INT", &running.id().to_string()]));
    assert_eq!(running.wait().unwrap().code(), Some(130));
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("called off"), "{rest}");
    // The next commit is not refused; the server cannot be reached for it either.
    let failed = commit().wait_with_output().unwrap();
    let said = String::from_utf8(failed.stderr).unwrap();
    assert!(failed.status.code() == Some(1) && said.contains("the disk runs on"), "{said}");
    assert!(!said.contains("is it running"), "{said}");
    let _server = bench.serve_at("--no-multicast", &listen);
    give_token(&bench, "--write");
    let done = bench.json("commit --disk vm1").remove(0);
    assert_eq!((&done["number"], &done["bytes"]), (&2.into(), &65_536.into()), "{done}");
    let copy = bench.path("copy.img");
    assert!(bench.see("install web@2 copy.img --free zero").ends_with("exit: 0\n"));
    assert_same(&disk, &copy);
    let events = attached.events();
    assert!(types(&events).contains(&"commit_called_off"), "{events:?}");
}

#[test]
fn a_folder_that_was_moved_listens_where_it_is_and_a_copy_is_refused() {
    let (bench, _) = bench();
    let attached = Attached::from_repository(&bench, "web --name vm1");
    if !qemu_io(&attached.uri, &["write -P 7 1M 4k"]) {
        return;
    }
    assert!(run(
        "cp",
        &["-a", bench.path("disks/vm1").to_str().unwrap(), bench.path("disks/vm2").to_str().unwrap()]
    ));
    let refused = bench.see("attach vm2");
    assert!(
        refused.contains("is a copy of the one in `DIR/disks/vm1`") && refused.ends_with("exit: 11\n"),
        "{refused}"
    );
    assert!(qemu_io(&attached.uri, &["read -P 7 1M 4k"]), "the first goes on");
    assert_eq!(attached.stop(), Some(0));
    let refused = bench.see("attach vm2");
    assert!(refused.ends_with("exit: 11\n"), "it may have been torn: {refused}");
    std::fs::remove_dir_all(bench.path("disks/vm2")).unwrap();

    std::fs::rename(bench.path("disks/vm1"), bench.path("disks/vm3")).unwrap();
    let attached = Attached::from_repository(&bench, "vm3");
    assert!(
        attached.uri.contains("disks/vm3/nbd.sock") && !bench.path("disks/vm1").exists(),
        "{}",
        attached.uri
    );
    assert!(qemu_io(&attached.uri, &["read -P 7 1M 4k"]));
    assert_eq!(status(&bench, "vm3")["name"], "vm3");
    assert_eq!(attached.stop(), Some(0));
}
