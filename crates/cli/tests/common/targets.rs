//! Targets as they are before an image is written to them: missing, or used, full of random bytes. In a new file free
//! space reads as zeros, so an install that loses zeros is right there, and wrong on a used disk. Checkers of
//! filesystems, and the files in them, tell whether what was written is right.

use std::fs::{self, File};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use base::Extent;
use base::limits::SECTOR_BYTES;

use super::Bench;

/// What is at a target's place before an install.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Before {
    /// Nothing: free space of the new file reads as zeros.
    Missing,
    /// A disk that was used, full of random bytes.
    Used,
}

/// Each kind of install is tested with both.
pub(crate) const BOTH: [Before; 2] = [Before::Missing, Before::Used];

impl Before {
    /// The one for host `index`, where several hosts get an image: of two neighbours, one begins with a used disk.
    pub(crate) fn of(index: u32) -> Self {
        if index.is_multiple_of(2) { Self::Used } else { Self::Missing }
    }
}

/// Of what an image holds, and of what lies behind it, one in so many MiB of a large used disk is soiled.
const SAMPLE_MIB: u64 = 16;
const MIB: u64 = 1 << 20;

/// One MiB of random bytes, made once.
fn garbage() -> Vec<u8> {
    static MADE: OnceLock<Vec<u8>> = OnceLock::new();
    let make = || {
        let mut bytes = vec![0; 1 << 20];
        base::Chance::from_seed(45).fill(&mut bytes);
        bytes
    };
    MADE.get_or_init(make).clone()
}

/// Fills `bytes` bytes at `path`, a file or a device, with random bytes. No MiB of them is like another one.
pub(crate) fn soil(path: &Path, bytes: u64) {
    let mut file = File::options().write(true).create(true).truncate(true).open(path).unwrap();
    let mut one = garbage();
    for at in (0..bytes).step_by(1 << 20) {
        one[..8].copy_from_slice(&at.to_le_bytes());
        let len = usize::try_from(MIB.min(bytes - at)).unwrap();
        file.write_all(&one[..len]).unwrap();
    }
}

/// Makes `target` a used disk of `bytes` bytes for a large image of the disk `like`, which would take long to fill:
/// soils all that `like` leaves free, and a sample of the rest.
pub(crate) fn soil_around(like: &Path, target: &Path, bytes: u64) {
    let file = File::create(target).unwrap();
    file.set_len(bytes).unwrap();
    let map = disk::survey(&disk::open_source(like).unwrap(), &disk::SurveyOptions::default()).unwrap();
    let one = garbage();
    let fill = |run: Extent| {
        let end = (run.offset_bytes() + run.len_bytes()).min(bytes);
        for at in (run.offset_bytes()..end).step_by(1 << 20) {
            let len = usize::try_from(MIB.min(end - at)).unwrap();
            file.write_all_at(&one[..len], at).unwrap();
        }
    };
    let whole = Extent::new(0, map.geometry.size_bytes / SECTOR_BYTES);
    map.allocated.gaps_within(whole).runs().iter().for_each(|run| fill(*run));
    let sample = (0..bytes / MIB).step_by(usize::try_from(SAMPLE_MIB).unwrap());
    sample.for_each(|mib| fill(Extent::new(mib * MIB / SECTOR_BYTES, MIB / SECTOR_BYTES)));
}

/// Writes a partition table, as sfdisk reads it.
pub(crate) fn partition(bench: &Bench, file: &str, table: &str) {
    let mut child = Command::new("/usr/sbin/sfdisk")
        .args(["--quiet", "--no-reread"])
        .arg(bench.path(file))
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(table.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

/// Sectors of the three partitions of [`lab`]: FAT, ext4, NTFS. They end inside chunks.
pub(crate) const PARTS: [(u64, u64); 3] = [(2048, 20_611), (24_576, 33_001), (57_856, 30_007)];

/// Stands for zeros: ext's tools make holes of zeros, where a running system has blocks that are in use.
const MARK: u8 = b'Z';

/// Makes zeros of the sectors of a filesystem that hold marks.
fn blank(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let marked = bytes.chunks_mut(512).filter(|sector| sector.iter().all(|byte| *byte == MARK));
    marked.for_each(|sector| sector.fill(0));
    fs::write(path, bytes).unwrap();
}

/// The size of the disk of [`lab`].
pub(crate) const DISK_MIB: u64 = 48;

/// A disk with three filesystems, captured as `lab@1`. Each has a file of random bytes and one of zeros.
pub(crate) fn lab() -> Bench {
    let bench = Bench::new();
    bench.tool("truncate -s 48M disk.img");
    let lines = PARTS.map(|(start, size)| format!("start={start}, size={size}\n"));
    partition(&bench, "disk.img", &format!("label: gpt\nunit: sectors\n{}", lines.concat()));
    fs::write(bench.path("file"), [garbage(), garbage(), garbage()].concat()).unwrap();
    fs::write(bench.path("zeros"), vec![0; 1_500_672]).unwrap();
    fs::write(bench.path("marks"), vec![MARK; 1_500_672]).unwrap();
    for ((start, size), name) in PARTS.into_iter().zip(["fat", "ext", "ntfs"]) {
        bench.tool(&format!("truncate -s {} {name}", size * 512));
        match name {
            "fat" => {
                bench.tool(&format!("mkfs.vfat -F 16 -h {start} {name}"));
                bench.tool("mcopy -i fat file zeros ::");
            }
            "ext" => {
                bench.tool("mkdir -p tree/deep/er");
                bench.tool("cp file tree/file");
                bench.tool("cp marks tree/deep/er/zeros");
                // As a running system leaves it: its tables of inodes are zeros that are in use.
                bench.tool("mke2fs -q -t ext4 -E lazy_itable_init=0,lazy_journal_init=0 -d tree ext");
                blank(&bench.path("ext"));
            }
            _ => {
                bench.tool(&format!("mkntfs -Q -F -q -s 512 -p {start} -H 16 -S 63 ntfs"));
                bench.tool("ntfscp ntfs file file");
                bench.tool("ntfscp ntfs zeros zeros");
            }
        }
        bench.tool(&format!("dd if={name} of=disk.img bs=512 seek={start} conv=notrunc status=none"));
    }
    assert!(bench.see("capture disk.img lab -q").ends_with("exit: 0\n"));
    bench
}

impl Bench {
    /// The target of host `index` for the image of `disk.img`, in words for `fetch`. Every second host has a used disk.
    /// What an earlier fetch left stays.
    pub(crate) fn host_target(&self, index: u32) -> String {
        let name = format!("disk-{index}.img");
        if Before::of(index) == Before::Missing || self.path(&name).exists() {
            return name;
        }
        soil(&self.path(&name), self.path("disk.img").metadata().unwrap().len());
        format!("{name} --overwrite")
    }

    /// The place `name` for an image of `mib` MiB, as it is before an install.
    pub(crate) fn target(&self, name: &str, mib: u64, before: Before) -> PathBuf {
        let path = self.path(name);
        let _ = fs::remove_file(&path);
        if before == Before::Used {
            soil(&path, mib * MIB);
        }
        path
    }

    /// Checks that the file `name` holds what [`lab`] made, by the checkers of the three filesystems and the files in
    /// them. Free space may hold anything. `what` was done stands in the message.
    pub(crate) fn assert_lab(&self, name: &str, what: &str) {
        for ((start, size), part) in PARTS.into_iter().zip(["fat", "ext", "ntfs"]) {
            let mut file = File::open(self.path(name)).unwrap();
            file.seek(SeekFrom::Start(start * SECTOR_BYTES)).unwrap();
            let mut out = File::create(self.path("part")).unwrap();
            std::io::copy(&mut std::io::Read::take(file, size * SECTOR_BYTES), &mut out).unwrap();
            self.assert_part("part", part, what);
        }
    }

    /// The same of the file `name`, which holds one of the filesystems: `fat`, `ext` or `ntfs`.
    pub(crate) fn assert_part(&self, name: &str, part: &str, what: &str) {
        match part {
            "fat" => self.run_for(&["fsck.vfat", "-n", name], what),
            "ext" => self.run_for(&["e2fsck", "-f", "-n", name], what),
            _ => self.run_for(&["ntfsfix", "-n", name], what),
        };
        for file in ["file", "zeros"] {
            let _ = fs::remove_file(self.path("got"));
            let printed = match part {
                "fat" => self.run_for(&["mcopy", "-n", "-i", name, &format!("::{file}"), "got"], what),
                "ext" => {
                    let path = if file == "file" { "file" } else { "deep/er/zeros" };
                    self.run_for(&["debugfs", "-R", &format!("dump {path} got"), name], what)
                }
                _ => self.run_for(&["ntfscat", name, file], what),
            };
            let got = fs::read(self.path("got")).unwrap_or(printed);
            let is_same = got == fs::read(self.path(file)).unwrap();
            assert!(is_same, "{what}: `{file}` of {part} has other content");
        }
    }

    /// Makes `new.img`, the disk of [`lab`], and `new`, its ext4, where files of zeros and of other bytes came into
    /// space that was free.
    pub(crate) fn change_lab(&self) {
        self.tool("cp ext new");
        fs::write(self.path("edit"), "write marks more-zeros\nwrite file more\n").unwrap();
        self.tool("debugfs -w -f edit new");
        blank(&self.path("new"));
        self.tool("cp disk.img new.img");
        self.tool(&format!("dd if=new of=new.img bs=512 seek={} conv=notrunc status=none", PARTS[1].0));
    }

    /// Installs the newest version of `lab` on a missing and on a used target, and checks that both hold what
    /// [`Self::change_lab`] made.
    pub(crate) fn assert_changed_lab(&self, what: &str) {
        for before in BOTH {
            self.target("out.img", DISK_MIB, before);
            let seen = self.see("install lab out.img -q --overwrite");
            assert!(seen.ends_with("exit: 0\n"), "{what}: {seen}");
            let what = format!("{before:?} {what}");
            self.assert_lab("out.img", &what);
            let (start, size) = PARTS[1];
            self.tool(&format!("dd if=out.img of=part bs=512 skip={start} count={size} status=none"));
            for (path, file) in [("more-zeros", "zeros"), ("more", "file")] {
                self.run_for(&["debugfs", "-R", &format!("dump {path} got"), "part"], &what);
                let is_same = fs::read(self.path("got")).unwrap() == fs::read(self.path(file)).unwrap();
                assert!(is_same, "{what}: `{path}` of ext has other content");
            }
        }
    }

    /// Runs a tool, which must succeed, and returns what it prints.
    fn run_for(&self, words: &[&str], what: &str) -> Vec<u8> {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).current_dir(self.path("")).env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin");
        let done = command.stdin(Stdio::null()).output().unwrap();
        let said = [&done.stdout[..1000.min(done.stdout.len())], &done.stderr].concat();
        assert!(done.status.success(), "{what}: {words:?}: {}", String::from_utf8_lossy(&said));
        done.stdout
    }
}
