//! Attached disks behind TLS, through the real binary.
#![allow(clippy::unwrap_used, reason = "helpers of tests unwrap, too")]

mod attach_common;
mod common;

use std::process::{Command, Stdio};

use attach_common::{Attached, bench, qemu_io, run, status, write_at};
use common::{Bench, assert_same};

/// A certificate for loopback and its key, as a server uses them and, in the folder `trust`, as libnbd trusts them.
fn certificate(bench: &Bench, trust: &str) {
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    std::fs::create_dir(bench.path(trust)).unwrap();
    std::fs::write(bench.path(&format!("{trust}/ca-cert.pem")), made.cert.pem()).unwrap();
    std::fs::write(bench.path(&format!("{trust}.pem")), made.cert.pem()).unwrap();
    std::fs::write(bench.path(&format!("{trust}.key")), made.signing_key.serialize_pem()).unwrap();
}

fn fails(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().unwrap();
    assert!(!output.status.success(), "{program} {arguments:?} succeeds");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn an_attached_disk_is_read_written_and_committed_by_tls() {
    let (bench, disk) = bench();
    certificate(&bench, "ours");
    certificate(&bench, "theirs");
    let mixed =
        bench.see("attach web --name vm1 --listen 127.0.0.1:0 --tls-cert ours.pem --tls-key theirs.key");
    assert!(mixed.contains("use the certificate for NBD") && mixed.ends_with("exit: 2\n"), "{mixed}");
    let words = "web --name vm1 --listen 127.0.0.1:0 --tls-cert ours.pem --tls-key ours.key";
    let attached = Attached::from_repository(&bench, words);
    let door = || status(&bench, "vm1")["nbd"][1].as_str().unwrap().to_owned();
    let trusting = |who: &str| format!("{}?tls-certificates={}", door(), bench.path(who).display());
    assert!(door().starts_with("nbds://127.0.0.1:"), "{}", door());
    if !run("nbdinfo", &[&trusting("ours")]) {
        return;
    }
    let copy = bench.path("copy.img");
    assert!(run("nbdcopy", &[&trusting("ours"), copy.to_str().unwrap()]));
    assert_same(&disk, &copy);
    write_at(&disk, 5 << 20, &[7; 100_000]);
    assert!(run("nbdcopy", &["--destination-is-zero", disk.to_str().unwrap(), &trusting("ours")]));
    assert_eq!(bench.json("commit --disk vm1")[0]["number"], 2);
    assert!(bench.see("install web@2 copy.img --free zero").ends_with("exit: 0\n"));
    assert_same(&disk, &copy);
    // Nobody reads it in the clear, or is taken in by somebody else's certificate.
    let said = fails("nbdinfo", &[&door().replace("nbds:", "nbd:")]);
    assert!(said.contains("server replied with error"), "{said}");
    fails("nbdinfo", &[&trusting("theirs")]);
    assert_eq!(attached.stop(), Some(0));

    // It is kept with the disk.
    let attached = Attached::from_repository(&bench, "vm1");
    assert!(run("nbdcopy", &[&trusting("ours"), copy.to_str().unwrap()]));
    assert_same(&disk, &copy);
    assert_eq!(attached.stop(), Some(0));
}
