//! Tests attached disks on block devices and behind TLS with the real binary, and what a server records about a
//! detached disk.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::attach_common::{Attached, bench, qemu_io, run, status, write_at};
use crate::common::{Bench, assert_same};

/// A loop device over a file; detached when dropped.
struct Loop(PathBuf);

impl Loop {
    /// `None` if loop devices are not available, which is a failure if `CI` is set.
    #[expect(clippy::print_stderr, reason = "a test that leaves something out says so")]
    fn new(file: &Path, mib: u64) -> Option<Self> {
        // Old content of the device, which the disk must never return.
        std::fs::write(file, vec![0xAA; usize::try_from(mib << 20).unwrap()]).unwrap();
        let output = Command::new("losetup").args(["--find", "--show"]).arg(file).output();
        match output {
            Ok(output) if output.status.success() => {
                Some(Self(String::from_utf8(output.stdout).unwrap().trim().into()))
            }
            why => {
                assert!(std::env::var_os("CI").is_none(), "CI needs loop devices: {why:?}");
                eprintln!("left out, since there is no loop device: {why:?}");
                None
            }
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

/// The content of a device, up to the size of the disk.
fn content(device: &Path, disk: &Path) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(disk.metadata().unwrap().len()).unwrap()];
    std::fs::File::open(device).unwrap().read_exact(&mut bytes).unwrap();
    bytes
}

#[test]
fn a_disk_on_a_block_device_is_read_written_committed_and_found_again() {
    let (bench, disk) = bench();
    let Some(device) = Loop::new(&bench.path("device.img"), 40) else { return };
    let words = format!("attach web --name vm1 --device {}", device.0.display());
    let asked = bench.see(&words);
    assert!(asked.contains("will be overwritten by web@1") && asked.ends_with("exit: 11\n"), "{asked}");
    let attached = Attached::start(bench.command(&format!("{words} --yes --quiet")));
    if !qemu_io(&attached.uri, &["write -P 7 65024 1024", "write -z 8M 1M", "flush"]) {
        return;
    }
    write_at(&disk, 65_024, &[7; 1024]);
    write_at(&disk, 8 << 20, &vec![0; 1 << 20]);
    let taken = bench.see(&format!("attach web --name vm2 --device {} --yes", device.0.display()));
    assert!(taken.contains("is in use") && taken.ends_with("exit: 11\n"), "{taken}");
    let copy = bench.path("copy.img");
    assert!(run("nbdcopy", &[&attached.uri, copy.to_str().unwrap()]));
    assert_same(&disk, &copy);
    let done = bench.json("commit --disk vm1").remove(0);
    assert_eq!((&done["number"], &done["bytes"]), (&2.into(), &((1 << 20) + 1024).into()), "{done}");
    assert!(bench.see("install web@2 copy.img --free zero --overwrite").ends_with("exit: 0\n"));
    assert_same(&disk, &copy);
    assert!(qemu_io(&attached.uri, &["write -P 9 20M 64k"]));
    write_at(&disk, 20 << 20, &[9; 64 << 10]);
    attached.kill();

    let attached = Attached::from_repository(&bench, "vm1");
    assert!(run("nbdcopy", &[&attached.uri, copy.to_str().unwrap()]));
    assert_same(&disk, &copy);
    assert_eq!(status(&bench, "vm1")["dirty_bytes"], 64 << 10);
    assert_eq!(attached.stop(), Some(0));
    assert!(content(&device.0, &disk) == std::fs::read(&disk).unwrap(), "the device is the disk");
    assert!(!bench.path("disks/vm1/data").exists());
}

#[test]
fn what_can_not_hold_a_disk_is_refused_and_left_as_it_is() {
    let (bench, disk) = bench();
    let Some(small) = Loop::new(&bench.path("small.img"), 16) else { return };
    let refused = |device: &Path| bench.see(&format!("attach web --device {} --yes", device.display()));
    let said = refused(&small.0);
    assert!(said.contains("is too small") && said.ends_with("exit: 11\n"), "{said}");
    assert!(std::fs::read(bench.path("small.img")).unwrap().iter().all(|&byte| byte == 0xAA));
    // A typing error must not create a file in /dev, nor use a file as a device.
    let missing = bench.path("missing");
    let said = refused(&missing);
    assert!(said.contains("is not a block device") && said.ends_with("exit: 11\n"), "{said}");
    let said = refused(&disk);
    assert!(said.contains("is not a block device") && said.ends_with("exit: 11\n"), "{said}");
    assert!(!missing.exists() && !bench.path("disks/web").exists());

    // If the device is missing when the disk is attached again, that is an error; it is not replaced by zeros.
    let Some(device) = Loop::new(&bench.path("device.img"), 40) else { return };
    let name = bench.path("by-name");
    std::os::unix::fs::symlink(&device.0, &name).unwrap();
    let words = format!("attach web --device {} --yes --prepare", name.display());
    assert!(bench.see(&words).ends_with("exit: 0\n"));
    std::fs::remove_file(&name).unwrap();
    let said = bench.see("attach web");
    assert!(said.contains("by-name") && said.ends_with("exit: 10\n"), "{said}");
    assert!(!name.exists());
    std::os::unix::fs::symlink(&device.0, &name).unwrap();
    assert_eq!(Attached::from_repository(&bench, "web").stop(), Some(0));
}

/// A certificate for loopback and its key, for the server, and in the folder `trust` for libnbd.
fn certificate(bench: &Bench, trust: &str) {
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    std::fs::create_dir(bench.path(trust)).unwrap();
    std::fs::write(bench.path(&format!("{trust}/ca-cert.pem")), made.cert.pem()).unwrap();
    std::fs::write(bench.path(&format!("{trust}.pem")), made.cert.pem()).unwrap();
    bench.keep_secret(&format!("{trust}.key"), made.signing_key.serialize_pem());
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
    assert!(bench.see("install web@2 copy.img --free zero --overwrite").ends_with("exit: 0\n"));
    assert_same(&disk, &copy);
    // Unencrypted connections and other certificates are refused.
    let said = fails("nbdinfo", &[&door().replace("nbds:", "nbd:")]);
    assert!(said.contains("server replied with error"), "{said}");
    fails("nbdinfo", &[&trusting("theirs")]);
    assert_eq!(attached.stop(), Some(0));

    // The settings are stored with the disk.
    let attached = Attached::from_repository(&bench, "vm1");
    assert!(run("nbdcopy", &[&trusting("ours"), copy.to_str().unwrap()]));
    assert_same(&disk, &copy);
    assert_eq!(attached.stop(), Some(0));
}

/// Makes an authority in `NAME.pem`, and in the folder `NAME` the certificate and key of a client that it has signed.
/// The client trusts the server `server`.
fn client(bench: &Bench, name: &str, server: &str) {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut authority = rcgen::CertificateParams::default();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    authority.distinguished_name.push(rcgen::DnType::CommonName, name);
    let own = authority.self_signed(&key).unwrap();
    std::fs::write(bench.path(&format!("{name}.pem")), own.pem()).unwrap();
    let issuer = rcgen::Issuer::new(authority, key);
    let key = rcgen::KeyPair::generate().unwrap();
    let signed = rcgen::CertificateParams::default().signed_by(&key, &issuer).unwrap();
    let folder = bench.path(name);
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("client-cert.pem"), signed.pem()).unwrap();
    std::fs::write(folder.join("client-key.pem"), key.serialize_pem()).unwrap();
    std::fs::copy(bench.path(&format!("{server}.pem")), folder.join("ca-cert.pem")).unwrap();
}

#[test]
fn a_neighbour_without_a_certificate_cannot_use_an_attached_disk() {
    let (bench, disk) = bench();
    certificate(&bench, "server");
    client(&bench, "friends", "server");
    client(&bench, "strangers", "server");
    let tls = "--tls-cert server.pem --tls-key server.key";
    for words in ["", tls] {
        let said = bench.see(&format!("attach web --name vm1 --listen 0.0.0.0:0 {words}"));
        assert!(said.contains("not a loopback address") && said.contains("--tls-client-ca"), "{said}");
        assert!(said.ends_with("exit: 11\n"), "{said}");
    }
    let words = format!("web --name vm1 --listen 127.0.0.1:0 {tls} --tls-client-ca friends.pem");
    let attached = Attached::from_repository(&bench, &words);
    let door = status(&bench, "vm1")["nbd"][1].as_str().unwrap().to_owned();
    let as_one_of = |who: &str| format!("{door}?tls-certificates={}", bench.path(who).display());
    let copy = bench.path("copy.img");
    if !run("nbdcopy", &[&as_one_of("friends"), copy.to_str().unwrap()]) {
        return;
    }
    assert_same(&disk, &copy);
    // The same authority for the server, and no certificate or another authority's for the client.
    for who in ["server", "strangers"] {
        let said = fails("nbdcopy", &[disk.to_str().unwrap(), &as_one_of(who)]);
        assert!(!said.is_empty(), "{who}");
    }
    assert!(run("nbdcopy", &[&as_one_of("friends"), copy.to_str().unwrap()]));
    assert_same(&disk, &copy);
    assert_eq!(attached.stop(), Some(0));
}

#[test]
fn a_server_keeps_what_was_read_by_a_disk_that_is_detached_before_its_machine_is_up() {
    let (bench, _) = bench();
    let server = bench.serve("--no-multicast");
    let attached = Attached::from_server(&bench, &server, "web --name vm1");
    if !qemu_io(&attached.uri, &["read 0 16M"]) {
        return;
    }
    assert!(bench.see("detach vm1").ends_with("exit: 0\n"));
    assert_eq!(attached.ends(), Some(0));
    let kept = bench.json("profile show web").remove(0);
    assert_eq!((&kept["boots"], &kept["chunks"]), (&1.into(), &32.into()), "{kept}");
}
