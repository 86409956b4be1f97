//! `metadata --etcd` with TLS, a certificate and a user: nothing readable passes between it and etcd, and who is set up
//! wrongly is told what to do.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use lab::EtcdSite;

use crate::common::Bench;
use crate::common::running::Running;
use crate::common::wire::Wire;

const PASSWORD: &str = "the-password-of-a-test";
const SECURE: &str = "--etcd-ca ca.pem --etcd-certificate client.pem --etcd-key client.key";
const USER: &str = "--etcd-user diskcast --etcd-password-file password";

fn running(bench: &Bench, words: &str) -> (Running, u16) {
    let mut running = Running::start(bench.command(&format!("{words} --cluster-token cluster.token --json")));
    let said = running.wait_for(|record| record["address"].is_string());
    let (_, port) = said["address"].as_str().unwrap().rsplit_once(':').unwrap();
    (running, port.parse().unwrap())
}

/// All that passes between a metadata service and etcd while a disk is captured.
fn overheard(secure: bool) -> Option<Vec<u8>> {
    let bench = Bench::new();
    let start = if secure { EtcdSite::start_secure_or_skip } else { EtcdSite::start_or_skip };
    let mut etcd = start(&bench.path(""), 1, &[])?;
    etcd.enable_users("diskcast", PASSWORD, "diskcast/");
    bench.keep_secret("password", format!("{PASSWORD}\n"));
    let wire = Wire::new(&Arc::default());
    let (scheme, member) =
        etcd.addresses()[0].split_once("://127.0.0.1:").map(|(a, b)| (a.to_owned(), b.parse()))?;
    wire.lead_to(member.unwrap());
    let words = if secure { SECURE } else { "" };
    let place = &wire.place;
    let words = format!("metadata --etcd {scheme}://{place} {words} {USER} --listen 127.0.0.1:0 --width 1+1");
    let (_metadata, port) = running(&bench, &words);
    let device = |number| {
        let words = format!(
            "device disk-{number} --new --domain {number} --metadata 127.0.0.1:{port} --listen 127.0.0.1:0"
        );
        running(&bench, &words)
    };
    let _devices = [device(1), device(2)];
    let there = format!("--repo cluster://127.0.0.1:{port} --cluster-token cluster.token");
    let ready = (0..600).any(|_| {
        std::thread::park_timeout(Duration::from_millis(50));
        bench.see(&format!("cluster status {there}")).contains("all is well")
    });
    assert!(ready, "{}", bench.see(&format!("cluster status {there}")));
    bench.disk("disk.img", 4, 7);
    for words in ["init", "capture disk.img web -q"] {
        let seen = bench.see(&format!("{words} {there}"));
        assert!(seen.ends_with("exit: 0\n"), "{words}: {seen}");
    }
    // The oracle: etcd's own client sees the version that was captured.
    let kept = etcd.ctl(0, &["get", "--prefix", "diskcast/state/record/", "--keys-only"]);
    assert!(kept.contains("versions/web/"), "{kept}");
    Some(wire.take_seen())
}

#[test]
fn neither_the_password_nor_state_passes_in_the_clear() {
    for secure in [true, false] {
        let Some(wire) = overheard(secure) else { return };
        for (what, part) in [
            ("the password", PASSWORD),
            ("a token", "authorization: "),
            // base64 of `diskcast/state/`, which begins keys.
            ("a key", "ZGlza2Nhc3Qvc3RhdGUv"),
        ] {
            let passes = wire.windows(part.len()).any(|window| window == part.as_bytes());
            assert_eq!(passes, !secure, "{what} in {} bytes, secure: {secure}", wire.len());
        }
    }
}

#[test]
fn what_is_set_up_wrongly_is_told() {
    let bench = Bench::new();
    let Some(mut etcd) = EtcdSite::start_secure_or_skip(&bench.path(""), 1, &[]) else { return };
    etcd.enable_users("diskcast", PASSWORD, "diskcast/");
    bench.keep_secret("password", "another\n");
    bench.keep_secret("cluster.token", "0123456789abcdef".repeat(4));
    let metadata = |words: &str| {
        bench.see(&format!("metadata --listen 127.0.0.1:0 --cluster-token cluster.token --etcd {words}"))
    };
    let place = &etcd.addresses()[0];
    for (words, told, exit) in [
        (format!("{place} {USER}"), "--etcd-ca names its authority", 2),
        (format!("http://10.0.0.1:2379 {USER}"), "the password would pass in the clear", 2),
        (format!("{place} --etcd-ca ca.pem --etcd-user diskcast"), "--etcd-password-file", 2),
        (format!("{place} --etcd-ca ca.pem --etcd-certificate client.pem"), "--etcd-key", 2),
        (format!("{place} --etcd-ca none.pem"), "none.pem", 2),
        (format!("{place} --etcd-ca client.key"), "`client.key` holds no certificate", 2),
        (
            format!("{place} --etcd-ca ca.pem --etcd-certificate client.pem --etcd-key named.key"),
            "use the certificates for etcd",
            2,
        ),
    ] {
        let seen = metadata(&words);
        assert!(seen.contains(told) && seen.ends_with(&format!("exit: {exit}\n")), "{told}: {seen}");
    }
    // What only etcd knows is told while the service waits for it to change.
    let words =
        format!("metadata --listen 127.0.0.1:0 --cluster-token cluster.token --etcd {place} {SECURE} {USER}");
    let mut command = bench.command(&words);
    command.stderr(Stdio::piped());
    let mut waiting = Running::start(command);
    let mut said = BufReader::new(waiting.child.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(said.any(|line| line.contains("the password is wrong")), "it says so");
    let _ = etcd.ctl(0, &["user", "delete", "diskcast"]);
    let _ = etcd.ctl(0, &["user", "add", "diskcast:another"]);
    let _ = etcd.ctl(0, &["user", "grant-role", "diskcast", "diskcast"]);
    assert!(said.any(|line| line.contains("this instance of the metadata service leads")), "it goes on");
}
