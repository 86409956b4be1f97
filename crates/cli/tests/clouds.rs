//! Images for clouds: Ironic's agent downloads them, and libvirt boots from them. docs/clouds.md has them as recipes.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::json;

use crate::common::{Bench, Served, assert_same};

/// Prints its text at the serial port and halts: the first sector of a disk, for BIOS.
const BOOT_CODE: [u8; 21] = [
    0x31, 0xC0, 0x8E, 0xD8, 0xBA, 0xF8, 0x03, 0xBE, 0x15, 0x7C, 0xAC, 0x08, 0xC0, 0x74, 0x03, 0xEE, 0xEB,
    0xF8, 0xF4, 0xEB, 0xFD,
];
const BOOT_TEXT: &str = "a machine boots from an image\n";

/// A server with the image `web` of a disk that boots, and where anybody reads it.
fn serve_web(bench: &Bench) -> (Served, String) {
    let disk = bench.disk("web.img", 16, 1);
    let mut bytes = std::fs::read(&disk).unwrap();
    bytes[..512].fill(0);
    bytes[..21].copy_from_slice(&BOOT_CODE);
    bytes[21..21 + BOOT_TEXT.len()].copy_from_slice(BOOT_TEXT.as_bytes());
    bytes[510..512].copy_from_slice(&[0x55, 0xAA]);
    std::fs::write(disk, bytes).unwrap();
    let seen = bench.see("capture web.img web -q");
    assert!(seen.ends_with("exit: 0\n"), "{seen}");
    let server = bench.serve("--no-multicast --public web --public-http 127.0.0.1:0");
    let url = server.said["public_url"].as_str().unwrap().to_owned();
    (server, url)
}

/// Whether the program is here. A test that needs it says so where it is not.
#[expect(clippy::print_stderr, reason = "a test that leaves something out says so")]
fn is_here(program: &Path, how: &str) -> bool {
    let found = program.exists();
    assert!(found || std::env::var_os("CI").is_none(), "there is no {}", program.display());
    if !found {
        eprintln!("left out: there is no {}: {how}", program.display());
    }
    found
}

#[test]
fn ironics_agent_downloads_checks_inspects_and_writes_both_forms() {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let python = target.join("tools/ironic-python-agent-13.0.0/bin/python");
    if !is_here(&python, "tools/ironic-agent.sh installs it") {
        return;
    }
    let bench = Bench::new();
    let (_server, url) = serve_web(&bench);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ironic.py");
    let deploy = |kind: &str, checksum: &str| {
        let info = json!({
            "id": kind, "urls": [format!("{url}web@1.{kind}")], "checksum": format!("{url}{checksum}"),
            "disk_format": kind, "node_uuid": "node",
        });
        let mut agent = Command::new(&python);
        agent.arg(&script).arg(info.to_string()).arg(bench.path(&format!("{kind}.img")));
        agent.current_dir(bench.path("")).env("TMPDIR", bench.path("")).env("no_proxy", "127.0.0.1");
        agent.output().unwrap()
    };
    for (kind, checksum) in
        [("raw", "web@1.raw.sha256"), ("qcow2", "web@1.qcow2.sha512"), ("qcow2", "SHA256SUMS")]
    {
        // The list has what somebody asked for before.
        bench.tool(&format!("curl -sf -o sum {url}web@1.{kind}.sha256"));
        let done = deploy(kind, checksum);
        assert!(done.status.success(), "{checksum}: {}", String::from_utf8_lossy(&done.stderr));
        let found: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
        assert_eq!(found, json!({"format": kind, "size": 16 << 20}));
        assert_same(&bench.path("web.img"), &bench.path(&format!("{kind}.img")));
    }
}

/// libvirt's daemon for one user, with the pool `pool` in a folder.
struct Libvirt {
    folder: tempfile::TempDir,
    daemon: Child,
}

impl Libvirt {
    fn start() -> Self {
        let builder = tempfile::Builder::new();
        let folder = builder.tempdir().unwrap();
        for name in ["run", "pool"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        if rustix::process::geteuid().is_root() {
            let chown = Command::new("chown").args(["-R", "65534:65534"]).arg(folder.path()).status();
            assert!(chown.unwrap().success());
        }
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let mut command = Self::command(folder.path(), "/usr/sbin/libvirtd");
        let daemon = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let libvirt = Self { folder, daemon };
        let is_ready = || libvirt.virsh("version").status.success();
        wait_for(is_ready, "libvirt's daemon answers");
        let pool = format!("pool-create-as pool dir --target {}", libvirt.path("pool").display());
        libvirt.must(&pool);
        libvirt
    }

    /// A command that sees this daemon alone; as root, it runs as nobody, since root's daemon is that of the machine.
    fn command(folder: &Path, program: &str) -> Command {
        let mut command = Command::new("setpriv");
        if rustix::process::geteuid().is_root() {
            command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        }
        command.arg(program).env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command.env("HOME", folder).env("XDG_RUNTIME_DIR", folder.join("run")).current_dir(folder);
        command
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn virsh(&self, line: &str) -> std::process::Output {
        let mut command = Self::command(self.folder.path(), "virsh");
        command.args(["-q", "-c", "qemu:///session"]).args(line.split(' ')).output().unwrap()
    }

    /// Runs virsh, which must succeed, and returns what it prints.
    fn must(&self, line: &str) -> String {
        let done = self.virsh(line);
        let log = std::fs::read_to_string(self.path("log")).unwrap_or_default();
        assert!(done.status.success(), "{line}: {}\n{log}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    }

    /// Boots a machine from the disk in `source`, until it has printed the text of [`BOOT_CODE`].
    fn boot(&self, name: &str, disk: &str) {
        let serial = self.path(&format!("{name}.serial"));
        let machine = format!(
            "<domain type='qemu'><name>{name}</name><memory unit='MiB'>64</memory>\
             <os><type arch='x86_64' machine='pc'>hvm</type></os><devices>\
             <disk type='file' device='disk'><driver name='qemu' type='qcow2'/>{disk}\
             <target dev='vda' bus='virtio'/></disk>\
             <serial type='file'><source path='{}'/></serial></devices></domain>",
            serial.display()
        );
        let file = self.path(&format!("{name}.xml"));
        std::fs::write(&file, machine).unwrap();
        self.must(&format!("create {}", file.display()));
        let says = || std::fs::read_to_string(&serial).is_ok_and(|said| said.contains(BOOT_TEXT.trim()));
        wait_for(says, "the machine boots");
        self.must(&format!("destroy {name}"));
    }
}

impl Drop for Libvirt {
    fn drop(&mut self) {
        for name in ["pooled", "remote"] {
            self.virsh(&format!("destroy {name}"));
        }
        let pid = self.daemon.id().to_string();
        let _ = Command::new("kill").args(["-TERM", &pid]).status();
        let _ = self.daemon.wait();
    }
}

/// Waits up to a minute.
fn wait_for(is_there: impl Fn() -> bool, what: &str) {
    let comes = (0..1200).any(|_| {
        let is_there = is_there();
        if !is_there {
            std::thread::park_timeout(Duration::from_millis(50));
        }
        is_there
    });
    assert!(comes, "{what}");
}

#[test]
fn libvirt_boots_machines_from_a_pool_and_from_the_server() {
    if !is_here(Path::new("/usr/sbin/libvirtd"), "tools/install-dependencies.sh installs it") {
        return;
    }
    let bench = Bench::new();
    let (server, url) = serve_web(&bench);
    let libvirt = Libvirt::start();
    let pool = libvirt.path("pool");
    // A pool that `diskcast fetch` fills: machines have what they write in volumes of their own over the image.
    let base = pool.join("web-1.qcow2");
    let words = "--as qcow2 --token-file join.token -q";
    let fetched = bench.see(&format!("fetch {} web@1 {} {words}", server.url, base.display()));
    assert!(fetched.ends_with("exit: 0\n"), "{fetched}");
    libvirt.must("pool-refresh pool");
    libvirt.must(
        "vol-create-as pool pooled.qcow2 16M --format qcow2 --backing-vol web-1.qcow2 --backing-vol-format qcow2",
    );
    let overlay = pool.join("pooled.qcow2");
    libvirt.boot("pooled", &format!("<source file='{}'/>", overlay.display()));
    // A volume that is uploaded from the server's file.
    libvirt.must("vol-create-as pool upload.qcow2 1 --format raw");
    bench.tool(&format!("curl -sf -o web.qcow2 {url}web@1.qcow2"));
    bench.tool(&format!("install -m 644 web.qcow2 {}", pool.join("../web.qcow2").display()));
    libvirt.must(&format!("vol-upload --pool pool upload.qcow2 {}", pool.join("../web.qcow2").display()));
    libvirt.must("pool-refresh pool");
    let volume = libvirt.must("vol-dumpxml --pool pool upload.qcow2");
    assert!(
        volume.contains("<capacity unit='bytes'>16777216<") && volume.contains("type='qcow2'"),
        "{volume}"
    );
    // No pool at all: the machine reads what it needs from the server.
    let remote = pool.join("../remote.qcow2");
    bench.tool(&format!("qemu-img create -q -f qcow2 -F qcow2 -b {url}web@1.qcow2 remote.qcow2"));
    bench.tool(&format!("install -m 666 remote.qcow2 {}", remote.display()));
    let port = url.trim_end_matches("/images/").rsplit(':').next().unwrap();
    libvirt.boot(
        "remote",
        &format!(
            "<source file='{}'/><backingStore type='network'><format type='qcow2'/>\
             <source protocol='http' name='images/web@1.qcow2'><host name='127.0.0.1' port='{port}'/></source>\
             <backingStore/></backingStore>",
            remote.display()
        ),
    );
}
