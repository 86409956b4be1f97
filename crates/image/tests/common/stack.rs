//! Makes disks with random layers of signatures: partition tables inside partitions, filesystems made by the real
//! tools, swap, RAID, LVM and LUKS. Later layers overwrite only parts of earlier ones, so that stale signatures
//! remain.
#![allow(clippy::cast_possible_truncation, reason = "small disks")]

use std::collections::HashMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::Chance;
use parking_lot::Mutex;

use crate::tools::{Bench, output, run};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// A tool's command line, and the size of the volume in bytes.
type Recipe = (&'static str, usize);

/// A cache of the filesystems that the real tools made, so that each recipe runs only once.
#[derive(Default)]
pub(crate) struct Templates(Mutex<HashMap<Recipe, Arc<Vec<u8>>>>);

/// The content of a volume: the command that makes it, and its minimum and maximum size in bytes. mkfs.xfs makes a
/// filesystem as small as 16 MiB only in the mode that `TEST_DIR`, `TEST_DEV` and `QA_CHECK_FS` switch on.
const FILESYSTEMS: &[(&str, usize, usize)] = &[
    ("mke2fs -q -F -t ext4 -b 1024 -d TREE", 512 * KIB, 16 * MIB),
    ("mke2fs -q -F -t ext4 -b 4096 -d TREE", 512 * KIB, 16 * MIB),
    ("mke2fs -q -F -t ext4 -b 1024 -O ^metadata_csum,^64bit,bigalloc -C 4096 -d TREE", 512 * KIB, 16 * MIB),
    ("mke2fs -q -F -t ext2 -b 1024 -d TREE", 512 * KIB, 16 * MIB),
    ("mkfs.fat -F 12 -s 8", 512 * KIB, 4 * MIB),
    ("mkfs.fat -F 16 -s 1", 4 * MIB, 16 * MIB),
    ("mkswap", 512 * KIB, 16 * MIB),
    ("mkswap -p 8192", 512 * KIB, 16 * MIB),
    ("mkfs.btrfs -q -f --mixed --rootdir TREE", 8 * MIB, 16 * MIB),
    ("env TEST_DIR=. TEST_DEV=. QA_CHECK_FS=1 mkfs.xfs -q -f -p PROTOTYPE", 16 * MIB, 16 * MIB),
];

impl Templates {
    fn get(&self, bench: &Bench, command: &'static str, bytes: usize) -> Arc<Vec<u8>> {
        let mut made = self.0.lock();
        let made = made.entry((command, bytes)).or_insert_with(|| {
            let path = bench.sparse_file("template", bytes as u64);
            let tree = bench.tree("tree");
            if !tree.exists() {
                plant(&tree);
            }
            let line = command.replace("TREE", tree.to_str().unwrap());
            let line = line.replace("PROTOTYPE", prototype(&tree).to_str().unwrap());
            let done = output(&line, &[&path]);
            assert!(done.status.success(), "{line}: {}", String::from_utf8_lossy(&done.stderr));
            if command.starts_with("mkfs.fat") && bytes >= MIB {
                run("mcopy -s -Q -i", &[&path, &tree.join("some"), &"::"]);
            }
            Arc::new(fs::read(&path).unwrap())
        });
        Arc::clone(made)
    }
}

/// Writes the files for a small filesystem to `tree`.
fn plant(tree: &Path) {
    let mut chance = Chance::from_seed(77);
    fs::create_dir_all(tree.join("some/deeper")).unwrap();
    for (n, size) in [0, 1, 700, 1024, 4097, 20_000, 60_000].into_iter().enumerate() {
        let mut bytes = vec![0; size];
        chance.fill(&mut bytes);
        fs::write(tree.join(format!("some/file{n}")), &bytes).unwrap();
        fs::write(tree.join(format!("some/deeper/zeros{n}")), vec![0; size]).unwrap();
    }
    std::os::unix::fs::symlink("some/file3", tree.join("link")).unwrap();
}

/// Writes a file next to `tree` that describes it for mkfs.xfs, and returns its path.
fn prototype(tree: &Path) -> PathBuf {
    fn describe(folder: &Path, text: &mut String) {
        let mut entries: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        for path in entries {
            let (name, full) = (path.file_name().unwrap().to_str().unwrap(), path.display());
            if path.is_symlink() {
                *text += &format!("{name} l--777 0 0 {}\n", path.read_link().unwrap().display());
            } else if path.is_dir() {
                *text += &format!("{name} d--755 0 0\n");
                describe(&path, text);
                *text += "$\n";
            } else {
                *text += &format!("{name} ---644 0 0 {full}\n");
            }
        }
    }
    let mut text = "/\n0 0\nd--755 0 0\n".to_owned();
    describe(tree, &mut text);
    let path = tree.with_extension("prototype");
    fs::write(&path, text + "$\n").unwrap();
    path
}

/// Makes random disks.
pub(crate) struct Stacker<'a> {
    pub bench: &'a Bench,
    pub templates: &'a Templates,
    pub chance: Chance,
    /// The layers so far, one line each, for messages.
    pub story: Vec<String>,
    /// Whether to make a disk without stale signatures, so that its capture has free space to leave out.
    pub tidy: bool,
}

impl Stacker<'_> {
    /// A disk of `bytes`: its present use, on top of up to two earlier uses and perhaps noise.
    pub(crate) fn disk(&mut self, bytes: usize) -> Vec<u8> {
        let mut disk = vec![0; bytes];
        self.tidy = self.chance.below(2) == 0;
        if self.tidy {
            self.volume(&mut disk, 0..bytes, 0);
            return disk;
        }
        if self.chance.below(4) == 0 {
            self.chance.fill(&mut disk);
        }
        for _ in 0..[1, 1, 1, 2, 3][self.chance.below(5) as usize] {
            self.volume(&mut disk, 0..bytes, 0);
        }
        disk
    }

    /// Writes a random layer over `disk[range]`. Like the tools, it does not clear the earlier content.
    fn volume(&mut self, disk: &mut [u8], range: Range<usize>, depth: usize) {
        let size = range.len();
        match self.chance.below(if self.tidy { 9 } else { 12 }) {
            0..5 if depth < 3 && size >= 2 * MIB => self.table(disk, range.clone(), depth),
            0..9 => self.filesystem(disk, range.clone(), depth),
            9 => self.signature(disk, range.clone()),
            10 => {
                let end = range.start + size.min(64 * KIB);
                self.chance.fill(&mut disk[range.start..end]);
                self.tell(depth, "noise", &range);
            }
            _ => self.tell(depth, "nothing", &range),
        }
        if !self.tidy && self.chance.below(6) == 0 {
            self.signature(disk, range);
        }
    }

    /// Adds a layer to the story.
    fn tell(&mut self, depth: usize, what: &str, range: &Range<usize>) {
        self.story.push(format!("{}{what} at {}+{}", "  ".repeat(depth), range.start, range.len()));
    }

    /// Writes a filesystem that fills the volume or is shorter: all of it, or only its start, as a stale rest.
    fn filesystem(&mut self, disk: &mut [u8], range: Range<usize>, depth: usize) {
        let room = range.len();
        let which = match self.chance.below(3) {
            // Few volumes are large enough for XFS and btrfs, so prefer them there.
            0 if room >= 16 * MIB => FILESYSTEMS.len() as u64 - 1,
            0 if room >= 8 * MIB => FILESYSTEMS.len() as u64 - 2,
            _ => self.chance.below(FILESYSTEMS.len() as u64),
        };
        let (command, least, most) = FILESYSTEMS[which as usize];
        let sizes = [512 * KIB, MIB, 2 * MIB, 4 * MIB, 8 * MIB, 16 * MIB];
        let fitting: Vec<_> = sizes.into_iter().filter(|&size| size <= room.min(most)).collect();
        let Some(&largest) = fitting.last() else { return };
        let shorter = self.chance.below(4) == 0;
        let size = if shorter { least.max(fitting[0]) } else { largest };
        if size < least || size > room {
            return;
        }
        let template = self.templates.get(self.bench, command, size);
        let is_stale = !self.tidy && self.chance.below(8) == 0;
        // mkswap writes only its first page. The other tools clear all areas that they rely on, so a filesystem that is
        // in use is copied whole.
        let written = match command {
            _ if command.starts_with("mkswap") => 8 * KIB,
            _ if !is_stale => size,
            _ if command.starts_with("mkfs.btrfs") => 128 * KIB,
            _ => 8 * KIB,
        };
        put(&mut disk[range.clone()], 0, &template[..written]);
        let kind = if is_stale { "start of " } else { "" };
        self.tell(depth, &format!("{kind}{command} ({size})"), &range);
    }

    /// Writes a partition table with one to three partitions, and a layer into each partition.
    fn table(&mut self, disk: &mut [u8], range: Range<usize>, depth: usize) {
        let (kib, start) = (range.len() / KIB, 512);
        let count = 1 + self.chance.below(3) as usize;
        let each = (kib - start - 64) / count / 64 * 64;
        if each < 512 {
            return;
        }
        let kind = ["gpt", "dos", "dos", "sun", "logical"][self.chance.below(5) as usize];
        let label = if kind == "logical" { "dos" } else { kind };
        let mut script = format!("label: {label}\nunit: sectors\n");
        let mut starts = Vec::new();
        if kind == "logical" {
            script += &format!("start={}, size={}, type=5\n", start * 2, each * count * 2);
        }
        for index in 0..count {
            let (from, gap) = ((start + index * each) * 2, if kind == "logical" { 128 } else { 0 });
            // Some partitions end before the next one begins.
            let len = each * 2 - gap - 128 * self.chance.below(3) as usize;
            let kind = if label == "gpt" { "L" } else { "83" };
            script += &format!("start={}, size={len}, type={kind}\n", from + gap);
            starts.push((from + gap, len));
        }
        if !self.partition(disk, range.clone(), &script) {
            return;
        }
        self.tell(depth, kind, &range);
        for (from, len) in starts {
            let from = range.start + from * 512;
            self.volume(disk, from..from + len * 512, depth + 1);
        }
    }

    /// Runs sfdisk to write a table over `disk[range]`. Returns false, and changes nothing, if sfdisk refuses.
    fn partition(&self, disk: &mut [u8], range: Range<usize>, script: &str) -> bool {
        use std::io::Write;
        let path = self.bench.path("table");
        fs::write(&path, &disk[range.clone()]).unwrap();
        let mut child = std::process::Command::new("/usr/sbin/sfdisk")
            .args(["-q", "--force", "--wipe", "never", "--wipe-partitions", "never"])
            .arg(&path)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        let done = child.wait().unwrap().success();
        if done {
            disk[range].copy_from_slice(&fs::read(&path).unwrap());
        }
        done
    }

    /// Writes a superblock of RAID, LVM, LUKS or another format that libblkid accepts as valid.
    fn signature(&mut self, disk: &mut [u8], range: Range<usize>) {
        let volume = &mut disk[range.clone()];
        let size = volume.len();
        let which = self.chance.below(10);
        let name = match which {
            0 => {
                md(volume, (size & !0xFFF) - 0x2000);
                "md 1.0"
            }
            1 => {
                md(volume, 0);
                "md 1.1"
            }
            2 => {
                md(volume, 0x1000);
                "md 1.2"
            }
            3 => {
                let at = (size & !0xFFFF) - 0x1_0000;
                put(volume, at, &[0xFC, 0x4E, 0x2B, 0xA9, 0, 0, 0, 0, 90, 0, 0, 0]);
                "md 0.90"
            }
            4 => {
                put(volume, 0, b"LUKS\xBA\xBE\x00\x01");
                put(volume, 168, b"01234567-89ab-cdef-0123-456789abcdef");
                "LUKS1"
            }
            5 => {
                put(volume, 0x4000, b"SKUL\xBA\xBE\x00\x02");
                "second header of LUKS2"
            }
            6 => {
                put(volume, 512, b"LABELONE\x01\0\0\0\0\0\0\0");
                put(volume, 512 + 20, &[0x20, 0, 0, 0]);
                put(volume, 512 + 24, b"LVM2 001");
                put(volume, 512 + 32, b"0123456789abcdefghijklmnopqrstuv");
                "LVM2"
            }
            7 => {
                put(volume, 0x1_0040, b"_BHRfS_M");
                "btrfs"
            }
            8 => {
                put(volume, (256 << 10) + 0x55C, &[0x19, 0x01, 0x54, 0x19]);
                "UFS2"
            }
            _ => {
                put(volume, size / 512 * 512 - 512, &[0xDE, 0x11, 0xDE, 0x11]);
                "DDF"
            }
        };
        self.tell(1, name, &range);
    }
}

fn put(volume: &mut [u8], at: usize, bytes: &[u8]) {
    volume[at..at + bytes.len()].copy_from_slice(bytes);
}

/// An md superblock of version 1.
fn md(volume: &mut [u8], at: usize) {
    put(volume, at, &[0xFC, 0x4E, 0x2B, 0xA9, 1, 0, 0, 0]);
    put(volume, at + 16, b"0123456789abcdef");
    put(volume, at + 144, &(at as u64 / 512).to_le_bytes());
}
