//! Tests `diskcast mount`. Needs /dev/fuse and fusermount3.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::common::running::Running;
use crate::common::targets::{PARTS, lab, soil};
use crate::common::{Bench, star_with_image};

/// A running `diskcast mount`.
struct Mount {
    child: Child,
    dir: PathBuf,
}

impl Mount {
    fn start(bench: &Bench, words: &str) -> Self {
        let dir = bench.path("dir");
        // Fails if a dead mount is still there.
        let _ = std::fs::create_dir(&dir);
        let mut command = bench.command(&format!("mount dir --folder kept --json {words}"));
        if words.contains("--from") {
            command.env_remove("DISKCAST_REPO");
        }
        let mut child = command
            .env("PATH", std::env::var_os("PATH").unwrap())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = lines.next().expect("it says that it is mounted").unwrap();
        assert_eq!(serde_json::from_str::<serde_json::Value>(&first).unwrap()["type"], "mounted", "{first}");
        std::thread::spawn(move || lines.map_while(Result::ok).count());
        Self { child, dir }
    }

    /// Ends it with a signal, like systemd.
    fn terminate(mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
        assert_eq!(std::fs::read_dir(&self.dir).unwrap().count(), 0, "nothing is left mounted");
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Fails if it has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = Command::new("fusermount3").arg("-uzq").arg(&self.dir).status();
    }
}

#[test]
fn a_server_is_mounted_and_a_signal_ends_it() {
    let bench = Bench::new();
    let disk = bench.disk("disk.img", 4, 1);
    bench.see("capture disk.img lab");
    let served = bench.serve("");
    let mount = Mount::start(&bench, &format!("--from {} --token-file join.token", served.url));
    assert!(std::fs::read(mount.dir.join("lab/latest")).unwrap() == std::fs::read(disk).unwrap());
    let other = bench.see("mount dir --folder kept");
    assert!(other.contains("another mount has `DIR/kept`") && other.ends_with("exit: 11\n"), "{other}");
    mount.terminate();
}

#[test]
fn a_clone_outlives_a_kill_and_is_committed() {
    let bench = Bench::new();
    bench.disk("disk.img", 4, 2);
    bench.see("capture disk.img lab");
    let mut mount = Mount::start(&bench, "");
    std::fs::write(mount.dir.join("_control"), "clone vm1 lab").unwrap();
    let clone = mount.dir.join("_clones/vm1");
    let mut expected = std::fs::read(&clone).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&clone).unwrap();
    for (number, at) in (1u8..).zip((100..3 << 20).step_by(300_001)) {
        file.write_all_at(&[number; 5000], at).unwrap();
        let at = usize::try_from(at).unwrap();
        expected[at..at + 5000].fill(number);
    }
    file.sync_all().unwrap();
    mount.child.kill().unwrap();
    mount.child.wait().unwrap();
    assert!(file.write_all_at(&[0], 0).is_err());
    // The next mount removes the remains of the first, unless that has happened already.
    let mount = Mount::start(&bench, "");
    assert!(std::fs::read(&clone).unwrap() == expected);
    std::fs::write(mount.dir.join("_control"), "commit vm1").unwrap();
    let answer = std::fs::read_to_string(mount.dir.join("_control")).unwrap();
    assert!(answer.starts_with("committed vm1 as lab@2: "), "{answer}");
    let error = std::fs::write(mount.dir.join("_control"), "clone vm1 lab").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists);
    mount.terminate();
    soil(&bench.path("out.img"), 4 << 20);
    bench.see("install lab@2 out.img --yes");
    assert!(std::fs::read(bench.path("out.img")).unwrap() == expected);
}

#[test]
fn what_a_clone_writes_into_free_space_is_right_on_a_missing_and_on_a_used_target() {
    let bench = lab();
    bench.change_lab();
    let mount = Mount::start(&bench, "");
    std::fs::write(mount.dir.join("_control"), "clone vm1 lab").unwrap();
    let clone = mount.dir.join("_clones/vm1").display().to_string();
    bench.tool(&format!("dd if=new of={clone} bs=512 seek={} conv=notrunc,fsync status=none", PARTS[1].0));
    std::fs::write(mount.dir.join("_control"), "commit vm1").unwrap();
    mount.terminate();
    bench.assert_changed_lab("a clone");
}

/// A writable disk of a mount neither grows nor shrinks, so an install cannot cut it to the image's size.
#[test]
fn a_file_of_fixed_size_is_a_target_like_a_larger_disk() {
    let bench = Bench::new();
    let disk = bench.disk("disk.img", 4, 3);
    bench.see("capture disk.img lab");
    bench.disk("larger.img", 6, 4);
    bench.see("capture larger.img larger");
    let mount = Mount::start(&bench, "");
    std::fs::write(mount.dir.join("_control"), "clone vm1 larger").unwrap();
    let clone = mount.dir.join("_clones/vm1");
    let installed = bench.see("install lab dir/_clones/vm1 --yes -q");
    assert_eq!(installed, "exit: 0\n");
    let (disk, found) = (std::fs::read(disk).unwrap(), std::fs::read(&clone).unwrap());
    assert!(found.len() == 6 << 20 && found[..disk.len()] == disk);
    mount.terminate();
}

#[test]
fn machines_that_read_the_same_version_share_it() {
    let Some((star, bench, disk)) = star_with_image(2, 16) else { return };
    let address = star.host(0).ipv4();
    let words = format!("serve --listen {address}:7717 --token-out join.token --json");
    let mut server = Running::start(bench.command_in(star.host(0), &words));
    server.kind("serving");
    // What a mount shows is seen on its host alone.
    let reader = |host: u32| {
        let line = format!(
            "mkdir mnt-{host}; {} mount mnt-{host} --folder kept-{host} --from https://{address}:7717 \
             --token-file join.token --share --json >log-{host} & \
             until grep -q mounted log-{host}; do kill -0 $! || exit 1; sleep 0.05; done; \
             exec 3<mnt-{host}/web/1; cmp mnt-{host}/web/1 {} && cat mnt-{host}/_status; echo end; cat; exec 3<&-; \
             kill $!; wait $!",
            env!("CARGO_BIN_EXE_diskcast"),
            disk.display()
        );
        let mut command = star.host(host).command("sh");
        command.args(["-c", &line]).current_dir(bench.path(".")).stdin(Stdio::piped());
        command.env("DISKCAST_CONFIG", "/dev/null").env("DISKCAST_SEEN", bench.path("seen.json"));
        command.env_remove("DISKCAST_REPO");
        let mut reader = Running::start(command);
        let said =
            reader.lines.by_ref().map(Result::unwrap).take_while(|line| line != "end").collect::<Vec<_>>();
        (reader, said.join("\n"))
    };
    let (first, said) = reader(1);
    assert!(said.contains("version web@1 "), "{said}");
    let (second, said) = reader(2);
    let counted = |name: &str| -> u64 {
        let value = said.split_whitespace().skip_while(|word| *word != name).nth(1);
        value.unwrap_or_else(|| panic!("{said}")).parse().unwrap()
    };
    // What it did not get by multicast it has from the first one.
    assert!(
        counted("peer_bytes") > 0 && counted("peer_bytes") + counted("multicast_bytes") > 3 << 20,
        "{said}"
    );
    for mut reader in [first, second] {
        // The end of its input ends the mount.
        drop(reader.child.stdin.take());
        reader.child.wait().unwrap();
    }
}

#[test]
fn sharing_needs_a_server() {
    let bench = Bench::new();
    bench.disk("disk.img", 4, 1);
    bench.see("capture disk.img lab -q");
    std::fs::create_dir(bench.path("dir")).unwrap();
    let said = bench.see("mount dir --folder kept --share");
    assert!(said.contains("--share needs a server") && said.ends_with("exit: 2\n"), "{said}");
}
