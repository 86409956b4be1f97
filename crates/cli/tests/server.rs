//! Tests the real server and its clients on loopback.

use crate::common::targets::soil;
use crate::common::{Bench, assert_same};

#[test]
fn two_clients_fetch_by_multicast_and_one_by_unicast() {
    let bench = Bench::new();
    let disk = bench.disk("disk.img", 16, 1);
    assert!(bench.see("capture disk.img web -q").ends_with("exit: 0\n"));
    let server = bench.serve("--interface lo");
    let fetch = |target: &str, more: &str| {
        bench.command(&format!("fetch {} web {target} --token-file join.token --json {more}", server.url))
    };
    for name in ["b.img", "c.img"] {
        soil(&bench.path(name), 16 << 20);
    }
    let first = fetch("a.img", "").stdout(std::process::Stdio::piped()).spawn().unwrap();
    let second = fetch("b.img", "--overwrite --receiver second").output().unwrap();
    let first = first.wait_with_output().unwrap();
    let third = fetch("c.img", "--overwrite --transport unicast").output().unwrap();
    for (output, target) in [(&first, "a.img"), (&second, "b.img"), (&third, "c.img")] {
        assert!(output.status.success(), "{}", bench.show(output));
        assert_same(&disk, &bench.path(target));
    }
    let report = |output: &std::process::Output| -> serde_json::Value {
        serde_json::from_str(String::from_utf8_lossy(&output.stdout).lines().last().unwrap()).unwrap()
    };
    assert_eq!(report(&third)["transport"], "unicast");
    assert_eq!(report(&third)["multicast_bytes"], 0);
    assert!(report(&second)["multicast_bytes"].as_u64() > Some(0), "{}", report(&second));
    let (code, log) = server.stop();
    assert_eq!(code, Some(0));
    let ended =
        log.iter().find(|event| event["type"] == "session_ended").expect("the session is logged at its end");
    let names: Vec<_> =
        ended["statistics"]["receivers"].as_array().unwrap().iter().map(|r| r["name"].clone()).collect();
    assert!(names.contains(&"second".into()), "{names:?}");
}

#[test]
fn where_no_server_is_a_fetch_ends_after_the_wait_asked_for() {
    let bench = Bench::new();
    let server = bench.serve("--no-multicast");
    let url = server.url.clone();
    server.kill();
    let seen = bench.see(&format!("fetch {url} web a.img --token-file join.token --wait 4s"));
    for words in
        ["does not answer", "Connection refused", "hint: is `diskcast serve` running there", "exit: 1"]
    {
        assert!(seen.contains(words), "{words} is missing in\n{seen}");
    }
}

#[test]
fn a_capture_goes_to_the_server_and_leaves_nothing_here() {
    let bench = Bench::new();
    let disk = bench.disk("disk.img", 4, 1);
    let server = bench.serve("--no-multicast");
    let token = bench.command("token --write --image lab-*").output().unwrap();
    bench.keep_secret("write.token", &token.stdout);
    let captured = bench.see(&format!("capture disk.img lab-1 --to {} --token-file write.token", server.url));
    assert!(
        captured.starts_with("out: captured lab-1@1: 4.0 MiB in use") && captured.ends_with("exit: 0\n"),
        "{captured}"
    );
    let fetched = bench.see(&format!("fetch {} lab-1 out.img --token-file join.token", server.url));
    assert!(fetched.ends_with("exit: 0\n"), "{fetched}");
    assert_same(&disk, &bench.path("out.img"));
    for (name, token) in [("web", "write.token"), ("lab-1", "join.token")] {
        let refused = bench.see(&format!("capture disk.img {name} --to {} --token-file {token}", server.url));
        assert!(refused.contains("err: error: ") && !refused.ends_with("exit: 0\n"), "{refused}");
    }
    assert_eq!(bench.json("images").len(), 1);
}

#[test]
fn images_are_made_cloned_and_committed_to_on_a_server() {
    let bench = Bench::new();
    let disk = bench.disk("disk.img", 20, 1);
    assert!(bench.see("init -q").ends_with("exit: 0\n"));
    let server = bench.serve("--no-multicast");
    let token = bench.command("token --write").output().unwrap();
    bench.keep_secret("write.token", &token.stdout);
    let see = |words: &str| {
        bench.see(&format!("{words} --to {} --token-file write.token --repo nowhere", server.url))
    };
    assert_eq!(see("create web 20M"), "out: created web@1, 20.0 MiB, all of it free\nexit: 0\n");
    assert_eq!(see("create web 20M").lines().last(), Some("exit: 11"));
    let done = see("commit web disk.img --at 0 --expect 1");
    assert!(done.starts_with("out: committed 20.0 MiB as web@3, ") && done.ends_with("exit: 0\n"), "{done}");
    let late = see("commit web disk.img --at 0 --expect 1");
    assert!(late.contains("is at version 3 by now") && late.ends_with("exit: 11\n"), "{late}");
    assert_eq!(see("clone web lab"), "out: cloned web@3 as lab@1\nexit: 0\n");
    assert_eq!(see("clone web lab --dry-run").lines().last(), Some("exit: 11"));
    assert!(see("commit lab disk.img --append").starts_with("out: committed 20.0 MiB as lab@3, "));
    let freed = see("commit lab disk.img --free 20M+20M");
    assert!(freed.starts_with("out: committed 0 B and freed 20.0 MiB as lab@4, "), "{freed}");
    let compared = see("commit lab disk.img");
    assert!(compared.contains("--range, --at, --append or --free") && compared.ends_with("exit: 2\n"));
    assert!(bench.see("install lab@1 out.img -q").ends_with("exit: 0\n"));
    assert_same(&disk, &bench.path("out.img"));
    assert_eq!(bench.json("log lab --limit 1")[0]["allocated_bytes"], 20 << 20);
}

#[test]
fn a_server_signs_what_it_is_sent_and_clients_hold_it_to_that() {
    let bench = Bench::new();
    let disk = bench.disk("disk.img", 2, 1);
    for key in ["lab", "other"] {
        bench.key(key);
    }
    let server = bench.serve("--no-multicast --sign-key lab.key");
    let token = bench.command("token --write").output().unwrap();
    bench.keep_secret("write.token", &token.stdout);
    let send = format!("capture disk.img web --to {} --token-file write.token", server.url);
    let refused = bench.see(&format!("{send} --sign-key other.key"));
    assert!(refused.contains("hint: give --sign-key to `diskcast serve`") && refused.ends_with("exit: 2\n"));
    for _ in 0..2 {
        assert!(bench.see(&format!("{send} -q")).ends_with("exit: 0\n"));
    }
    let fetch = |name: &str, trust: &str| {
        let from = format!("fetch {} {name} out.img --overwrite --token-file join.token -q", server.url);
        bench.see(&format!("{from} --trust {trust}.key.pub"))
    };
    assert!(bench.see("tag web@1 stable -q --sign-key lab.key").ends_with("exit: 0\n"));
    for name in ["web", "web@1", "web:stable"] {
        assert_eq!(fetch(name, "lab"), "exit: 0\n", "{name}");
        assert_same(&disk, &bench.path("out.img"));
        let refused = fetch(name, "other");
        assert!(refused.contains(", which is not trusted") && refused.ends_with("exit: 11\n"), "{refused}");
    }
    // A trusted version under a tag whose move has no trusted signature.
    assert!(bench.see("tag web@2 stable -q").ends_with("exit: 0\n"));
    let refused = fetch("web:stable", "lab");
    assert!(refused.contains("`web:stable` is not signed") && refused.ends_with("exit: 11\n"), "{refused}");
}

#[test]
fn what_is_encrypted_travels_encrypted_and_is_opened_at_its_end() {
    let bench = Bench::new();
    let disk = bench.disk("disk.img", 16, 1);
    for key in ["repo.key", "other.key"] {
        assert!(bench.see(&format!("key new --encryption {key} -q")).ends_with("exit: 0\n"));
    }
    bench.key("sign");
    assert!(bench.see("init -q --encryption-key repo.key").ends_with("exit: 0\n"));
    assert!(bench.see("serve").ends_with("exit: 11\n"), "without the key nothing can be numbered");
    let server = bench.serve("--interface lo --encryption-key repo.key --sign-key sign.key");
    let token = bench.command("token --write").output().unwrap();
    bench.keep_secret("write.token", &token.stdout);
    let send = |key: &str| {
        bench.see(&format!("capture disk.img web -q --to {} --token-file write.token {key}", server.url))
    };
    for (key, why) in [
        ("", "err: error: the server's repository is encrypted\n"),
        ("--encryption-key other.key", "err: error: the server's repository is encrypted by another key\n"),
    ] {
        let refused = send(key);
        assert!(refused.contains(why) && refused.ends_with("exit: 11\n"), "{refused}");
    }
    assert!(send("--encryption-key repo.key").ends_with("exit: 0\n"));
    let fetch = |name: &str, words: &str| {
        bench.see(&format!("fetch {} {name} out.img --token-file join.token -q {words}", server.url))
    };
    let key = "--encryption-key repo.key";
    assert!(bench.see(&format!("tag web@1 stable -q --sign-key sign.key {key}")).ends_with("exit: 0\n"));
    for (name, words) in [("web", ""), ("web", "--transport unicast"), ("web:stable", "--trust sign.key.pub")]
    {
        assert_eq!(fetch(name, &format!("{key} {words}")), "exit: 0\n", "{name} {words}");
        assert_same(&disk, &bench.path("out.img"));
        std::fs::remove_file(bench.path("out.img")).unwrap();
    }
    for (words, exit) in [("", 11), ("--encryption-key other.key", 12), ("--trust sign.key.pub", 11)] {
        let refused = fetch("web:stable", words);
        assert!(refused.ends_with(&format!("exit: {exit}\n")), "{words}: {refused}");
        assert!(!bench.path("out.img").exists());
    }
    let received = bench.json(&format!("fetch {} web null: --token-file join.token {key}", server.url));
    let received = received.last().unwrap();
    assert!(received["multicast_bytes"].as_u64() > Some(0), "{received}");
}

#[test]
fn strangers_are_told_why_they_are_refused() {
    let bench = Bench::new();
    bench.disk("disk.img", 1, 1);
    assert!(bench.see("capture disk.img web -q").ends_with("exit: 0\n"));
    let server = bench.serve("--no-multicast");
    let fetch = |token: &str| bench.see(&format!("fetch {} web out.img --token-file {token}", server.url));
    assert_eq!(
        bench.see(&format!("fetch {} web out.img", server.url)),
        "err: error: a token of the server is needed\n\
         err: hint: `diskcast serve` prints one, `diskcast token` on the server makes one: give it by --token-file\n\
         exit: 2\n"
    );
    let other = Bench::new();
    let nowhere = other.see("token");
    assert!(nowhere.contains("no server has its secret in") && nowhere.ends_with("exit: 11\n"), "{nowhere}");
    let _other_server = other.serve("--no-multicast");
    bench.keep_secret("other.token", other.command("token").output().unwrap().stdout);
    let untrusted = fetch("other.token");
    assert!(
        untrusted.contains("certificate is not the one in the token") && untrusted.ends_with("exit: 13\n"),
        "{untrusted}"
    );
    let narrow = bench.command("token --image lab-*").output().unwrap();
    bench.keep_secret("narrow.token", narrow.stdout);
    let denied = fetch("narrow.token");
    assert!(
        denied.contains("the token is not good for the image `web`") && denied.ends_with("exit: 13\n"),
        "{denied}"
    );
    assert!(!bench.path("out.img").exists(), "nothing is written before the server agreed");
}

#[test]
fn a_fetch_survives_a_server_that_is_killed_and_started_again() {
    let bench = Bench::new();
    let disk = bench.disk("disk.img", 64, 1);
    assert!(bench.see("capture disk.img web -q").ends_with("exit: 0\n"));
    let server = bench.serve("--interface lo --rate 100M");
    let address = server.url.trim_start_matches("https://").to_owned();
    let words = format!("fetch {} web out.img --token-file join.token --json", server.url);
    let mut fetch = bench.command(&words);
    let mut fetch = fetch.stdout(std::process::Stdio::piped()).spawn().unwrap();
    // The first line of progress shows that objects arrive.
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(fetch.stdout.take().unwrap()));
    let first = lines.next().unwrap().unwrap();
    server.kill();
    let again = bench.serve_at("--interface lo", &address);
    let rest: Vec<_> = lines.map_while(Result::ok).collect();
    assert!(fetch.wait().unwrap().success(), "{first}\n{}", rest.join("\n"));
    assert_same(&disk, &bench.path("out.img"));
    assert_eq!(again.stop().0, Some(0));
}

#[test]
fn a_server_tells_what_became_of_each_machine() {
    let bench = Bench::new();
    bench.disk("disk.img", 64, 1);
    assert!(bench.see("capture disk.img web -q").ends_with("exit: 0\n"));
    let server = bench.serve("--interface lo --rate 100M");
    let fetch = |name: &str| {
        format!("fetch {} web {name}.img --token-file join.token --no-peers --receiver {name}", server.url)
    };
    assert!(bench.see(&fetch("pc1")).ends_with("exit: 0\n"));
    let begin = |name: &str| {
        let mut child =
            bench.command(&fetch(name)).arg("--json").stdout(std::process::Stdio::piped()).spawn().unwrap();
        // The first line of progress shows that objects arrive.
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
        lines.next().unwrap().unwrap();
        (child, lines)
    };
    let (mut stopped, rest) = begin("pc2");
    let pid = rustix::process::Pid::from_raw(stopped.id().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    drop(rest);
    assert_eq!(stopped.wait().unwrap().code(), Some(130));
    let (mut killed, _rest) = begin("pc3");
    killed.kill().unwrap();
    killed.wait().unwrap();
    std::fs::create_dir(bench.path("pc4.img")).unwrap();
    let refused = bench.see(&fetch("pc4"));
    assert!(refused.contains("neither a file nor") && !refused.ends_with("exit: 0\n"), "{refused}");

    let status = format!("status {} --token-file join.token", server.url);
    let stage = |name: &str| {
        let hosts = bench.json(&status);
        let host = hosts.iter().find(|line| line["type"] == "host" && line["host"] == name);
        host.map_or(String::new(), |host| host["stage"].as_str().unwrap().to_owned())
    };
    while stage("pc3") != "gone" {
        assert_eq!(stage("pc1"), "verified");
    }
    let seen = bench.see(&status);
    for words in
        ["MACHINE", "pc1", "verified", "pc2", "failed", "pc3", "gone", "interrupted", "pc4", "SESSION"]
    {
        assert!(seen.contains(words), "{words} is missing in\n{seen}");
    }
    // A token for other images shows nothing of these.
    bench.keep_secret("other.token", bench.command("token --image other").output().unwrap().stdout);
    let hidden = bench.see(&format!("status {} --token-file other.token", server.url));
    assert!(
        hidden.contains("no machine has fetched an image that this token is for") && !hidden.contains("pc1"),
        "{hidden}"
    );
    let (_, log) = server.stop();
    let ends: Vec<_> =
        log.iter().filter(|line| line["type"] == "host_ended").map(|line| &line["host"]).collect();
    let ends: Vec<_> =
        ends.iter().map(|host| (host["host"].as_str().unwrap(), host["stage"].as_str().unwrap())).collect();
    assert_eq!(ends, [("pc1", "verified"), ("pc2", "failed"), ("pc4", "failed"), ("pc3", "gone")]);
}

#[test]
fn on_loopback_no_multicast_is_claimed_unless_it_was_asked_for() {
    let bench = Bench::new();
    bench.disk("disk.img", 4, 1);
    assert!(bench.see("capture disk.img web -q").ends_with("exit: 0\n"));
    for (words, claimed) in [("", false), ("--interface lo", true), ("--no-multicast --interface lo", false)]
    {
        let server = bench.serve(words);
        assert_eq!(server.said["multicast"], claimed, "{words}: {}", server.said);
        let said = bench.json(&format!("fetch {} web null: --token-file join.token --no-peers", server.url));
        let by_multicast = said.last().unwrap()["multicast_bytes"].as_u64() > Some(0);
        assert_eq!(by_multicast, claimed, "{words}: {said:?}");
        let said = bench.json(&format!("doctor {} --token-file join.token --for 1s", server.url));
        assert_eq!(said[0]["findings"][0]["fault"], "loopback", "{words}: {said:?}");
    }
}

#[test]
fn what_is_only_verified_says_so_and_rates_are_those_of_the_network() {
    const RATE: u64 = 60_000_000;
    let bench = Bench::new();
    bench.disk("disk.img", 32, 1);
    assert!(bench.see("capture disk.img web -q").ends_with("exit: 0\n"));
    let server = bench.serve("--rate 60M --interface lo");
    let access = "--token-file join.token";
    let fetched = bench.see(&format!("fetch {} web null: {access} --no-peers --receiver null", server.url));
    assert!(fetched.starts_with("out: fetched web@1: ") && fetched.ends_with("exit: 0\n"), "{fetched}");
    assert!(fetched.contains("MiB verified, nothing written\n"), "{fetched}");
    let unread = format!("fetch {} web fast.img {access} --no-verify --receiver fast", server.url);
    assert!(bench.see(&unread).ends_with("exit: 0\n"));
    let installed = bench.see(&format!("install web out.img --repo {} {access}", server.url));
    assert!(installed.ends_with("exit: 0\n"), "{installed}");

    let status = || bench.json(&format!("status {} {access}", server.url));
    let seen = status();
    let hosts: Vec<_> = seen.iter().filter(|line| line["type"] == "host").collect();
    assert!(hosts.iter().all(|host| host["ended"] == true), "{hosts:?}");
    let stage = |name: &str| hosts.iter().find(|host| host["host"] == name).map(|host| &host["stage"]);
    assert_eq!((stage("null").unwrap(), stage("fast").unwrap()), (&"verified".into(), &"written".into()));
    let install = hosts.iter().find(|host| host["host"] != "null" && host["host"] != "fast");
    let install = install.expect("an install from the server is seen, too");
    assert_eq!((&install["stage"], &install["multicast_bytes"]), (&"verified".into(), &0.into()));
    assert!(install["unicast_bytes"].as_u64() >= Some(8 << 20), "{install}");
    // A session that sends nothing has no rate, also while it waits for receivers.
    while status().iter().any(|line| line["type"] == "session" && !line["rate_bits_per_second"].is_null()) {}
    let (_, log) = server.stop();
    let ended = log.iter().find(|event| event["type"] == "session_ended").unwrap();
    let rate = ended["statistics"]["rate_bits_per_second"].as_u64().unwrap();
    assert!(rate > 0 && rate < RATE / 10 * 11, "{rate}");
}

#[test]
fn an_interface_that_does_not_exist_is_an_error_at_the_start() {
    let bench = Bench::new();
    bench.disk("disk.img", 1, 1);
    assert!(bench.see("capture disk.img web -q").ends_with("exit: 0\n"));
    let server = bench.serve("");
    let fetch = format!("fetch {} web null: --token-file join.token --interface nosuch", server.url);
    for line in ["serve --listen 127.0.0.1:0 --interface nosuch", &fetch] {
        let refused = bench.see(line);
        assert!(
            refused.contains("no interface is called, or has the address, `nosuch`; there are"),
            "{refused}"
        );
        assert!(refused.ends_with("exit: 10\n"), "{refused}");
    }
}

#[test]
fn a_server_without_tls_stays_on_loopback() {
    let bench = Bench::new();
    let refused = bench.see("serve --no-tls --listen 0.0.0.0:0");
    assert_eq!(
        refused,
        "err: error: 0.0.0.0:0 is not a loopback address: without TLS anybody could read tokens\nexit: 11\n"
    );
    bench.disk("disk.img", 1, 1);
    assert!(bench.see("capture disk.img web -q").ends_with("exit: 0\n"));
    let server = bench.serve("--no-tls --no-multicast");
    assert!(server.url.starts_with("http://"));
    let fetched = bench.see(&format!("fetch {} web out.img --token-file join.token", server.url));
    assert!(fetched.ends_with("exit: 0\n"), "{fetched}");
}

#[test]
fn a_token_that_others_can_read_is_refused_and_one_printed_into_a_file_is_private() {
    use std::os::unix::fs::PermissionsExt as _;
    let bench = Bench::new();
    bench.disk("disk.img", 4, 1);
    assert!(bench.see("capture disk.img web -q").ends_with("exit: 0\n"));
    let server = bench.serve("--no-multicast");
    let path = bench.path("printed.token");
    let file = std::fs::File::create(&path).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(bench.command("token").stdout(file).status().unwrap().success());
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let fetch = || bench.see(&format!("fetch {} web null: --token-file printed.token -q", server.url));
    assert!(fetch().ends_with("exit: 0\n"));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    let refused = fetch();
    assert!(
        refused.contains("hint: everybody who can read a token can use it: chmod 600 printed.token"),
        "{refused}"
    );
    assert!(refused.ends_with("exit: 11\n"), "{refused}");
}

#[test]
fn tokens_are_listed_and_revoked_one_by_one() {
    let bench = Bench::new();
    bench.disk("disk.img", 1, 1);
    assert!(bench.see("capture disk.img web -q").ends_with("exit: 0\n"));
    let server = bench.serve("--no-multicast");
    for name in ["lost.token", "kept.token"] {
        bench.keep_secret(name, bench.command("token --image web --expires 8h").output().unwrap().stdout);
    }
    let fetch = |token: &str| bench.see(&format!("fetch {} web null: --token-file {token} -q", server.url));
    assert!(fetch("lost.token").ends_with("exit: 0\n"));
    let listed = bench.command("token list --json").output().unwrap().stdout;
    let listed = String::from_utf8(listed).unwrap();
    let listed: Vec<serde_json::Value> =
        listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(listed.len(), 3, "the server's own and two: {listed:?}");
    let of_web: Vec<_> = listed.iter().filter(|one| one["images"][0] == "web").collect();
    let text = std::fs::read_to_string(bench.path("lost.token")).unwrap();
    // The claims of a token can be read by its holder; its id is among them.
    let lost = of_web
        .iter()
        .map(|one| one["id"].as_str().unwrap())
        .find(|id| claims_of(&text).contains(id))
        .unwrap();
    assert!(bench.see(&format!("token revoke {lost}")).contains("is revoked"));
    let refused = fetch("lost.token");
    assert!(refused.contains("the token was revoked") && refused.ends_with("exit: 13\n"), "{refused}");
    assert!(fetch("kept.token").ends_with("exit: 0\n"));
    let shown = bench.see("token list");
    assert_eq!(shown.matches("revoked").count(), 1, "{shown}");
    let unknown = bench.see("token revoke 00000000000000ff");
    assert!(
        unknown.contains("there is no token 00000000000000ff") && unknown.ends_with("exit: 10\n"),
        "{unknown}"
    );
}

/// The claims in a join token, decoded from base64url.
fn claims_of(token: &str) -> String {
    const DIGITS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let claims = token.trim().split('.').nth(2).unwrap();
    let bits = claims.chars().flat_map(|c| {
        let value = DIGITS.find(c).unwrap();
        (0..6).rev().map(move |bit| value >> bit & 1)
    });
    let bits: Vec<_> = bits.collect();
    let bytes = bits
        .chunks_exact(8)
        .map(|bits| bits.iter().fold(0, |byte, bit| byte << 1 | u8::try_from(*bit).unwrap()));
    String::from_utf8(bytes.collect()).unwrap()
}
