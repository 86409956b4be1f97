//! Tests end to end that nothing is lost silently. It captures disks with random layers of signatures, and installs
//! them onto noise or onto another such disk. Then it compares copy and source as other programs see them: blkid,
//! wipefs and sfdisk for the disk and for all partitions, nested ones too; the filesystems' own checkers; and the
//! files after the kernel has mounted the filesystem.
//!
//! `DISKCAST_STACKED=17 cargo test --workspace --test image stacked::` runs one seed again; `17..40` runs a range.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::Chance;
use disk::{SurveyOptions, TargetOptions, open_source, open_target, survey};
use image::{
    CaptureOptions, Catalogue, Cipher, InstallOptions, Installer, Manifest, MemoryObjects, NoProgress,
    capture,
};
use parking_lot::Mutex;

use crate::stack::{Stacker, Templates};
use crate::tools::{Bench, have, is_root, output};

const TOOLS: &[&str] = &[
    "sfdisk",
    "blkid",
    "wipefs",
    "mke2fs",
    "e2fsck",
    "mkfs.fat",
    "fsck.fat",
    "mcopy",
    "mkswap",
    "mkfs.btrfs",
    "btrfs",
    "mkfs.xfs",
    "xfs_repair",
    "mount",
    "sha256sum",
];

/// The filesystems that the kernel mounts, with the mount options and the checker of each.
const MOUNTED: &[(&str, &str, &str)] = &[
    ("ext2", "ro,loop", "e2fsck -fn"),
    ("ext4", "ro,loop", "e2fsck -fn"),
    ("vfat", "ro,loop", "fsck.fat -n"),
    ("btrfs", "ro,loop", "btrfs check --readonly"),
    // Such a small XFS has only one allocation group; `force_geometry` makes the checker accept that.
    ("xfs", "ro,loop,norecovery,nouuid", "xfs_repair -n -f -o force_geometry"),
];

/// Locked while a btrfs is mounted: the kernel does not mount two with the same identifier at a time, and source and
/// copy have the same.
static MOUNTING: Mutex<()> = Mutex::new(());

/// Counters that prove that the test compares something: volumes whose bytes differ, file trees, and disks with XFS and
/// with btrfs. These two are captured whole and restored byte by byte, so the other counters do not show them.
static VOLUMES: AtomicU64 = AtomicU64::new(0);
static TREES: AtomicU64 = AtomicU64::new(0);
static LARGE: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

#[test]
fn copies_of_stacked_disks_are_seen_as_their_sources() {
    if !have(TOOLS) || !is_root() {
        return;
    }
    let seeds = seeds();
    let (next, templates) = (AtomicU64::new(seeds.start), Templates::default());
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from).min(8) {
            scope.spawn(|| {
                let bench = Bench::new();
                while let Some(seed) =
                    Some(next.fetch_add(1, Ordering::Relaxed)).filter(|seed| *seed < seeds.end)
                {
                    if let Err(difference) = try_seed(&bench, &templates, seed) {
                        failures.lock().push((seed, difference));
                    }
                }
            });
        }
    });
    let mut failures = failures.into_inner();
    failures.sort();
    let numbers: Vec<_> = failures.iter().map(|(seed, _)| *seed).collect();
    if let Some((seed, difference)) = failures.first() {
        let again = format!("DISKCAST_STACKED={seed} cargo test --workspace --test image stacked::");
        panic!("{} seeds fail: {numbers:?}\n{difference}\nto see this again: {again}", failures.len());
    }
    if seeds.end - seeds.start >= 500 {
        let [volumes, trees] = [&VOLUMES, &TREES].map(|count| count.load(Ordering::Relaxed));
        assert!(volumes >= 250 && trees >= 80, "{volumes} volumes and {trees} trees are too few");
        let [xfs, btrfs] = LARGE.each_ref().map(|count| count.load(Ordering::Relaxed));
        assert!(xfs >= 10 && btrfs >= 20, "{xfs} disks with XFS and {btrfs} with btrfs are too few");
    }
}

fn seeds() -> Range<u64> {
    let Ok(text) = std::env::var("DISKCAST_STACKED") else { return 0..500 };
    match text.split_once("..") {
        Some((from, to)) => from.parse().unwrap()..to.parse().unwrap(),
        None => text.parse().map(|seed| seed..seed + 1).unwrap(),
    }
}

/// What other programs see in a volume.
struct Seen {
    /// Output of blkid, wipefs and sfdisk.
    signatures: String,
    /// Output of the filesystem's checker, and the list of files that the kernel shows.
    files: String,
    /// Its partitions, as ranges of bytes.
    partitions: Vec<Range<usize>>,
}

/// The folder of one of the two disks. File names are the same in both, so that the tools' output can be compared.
struct Side(PathBuf);

impl Side {
    fn new(bench: &Bench, name: &str) -> Self {
        let path = bench.path(name);
        fs::create_dir_all(path.join("mount")).unwrap();
        Self(path)
    }

    /// The output of a command with its exit status, without the path of this folder.
    fn says(&self, line: &str, file: &Path) -> String {
        let output = output(line, &[&file]);
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text).replace(self.0.to_str().unwrap(), "");
        format!("$ {line}\n{text}{}\n", output.status)
    }

    /// What the kernel and the tools see in `bytes`.
    fn seen(&self, bytes: &[u8], name: &str) -> Seen {
        VOLUMES.fetch_add(1, Ordering::Relaxed);
        let file = self.0.join(name);
        fs::write(&file, bytes).unwrap();
        let blkid = self.says("blkid -p", &file);
        let table = if blkid.contains("PTTYPE=") { self.says("sfdisk -d", &file) } else { String::new() };
        let found = MOUNTED.iter().find(|(kind, ..)| blkid.contains(&format!(" TYPE=\"{kind}\"")));
        let files =
            found.map(|(kind, how, checker)| self.says(checker, &file) + &self.tree(&file, kind, how));
        let partitions = partitions(&table, bytes.len());
        let signatures = blkid + &self.says("wipefs -n", &file) + &table;
        Seen { signatures, files: files.unwrap_or_default(), partitions }
    }

    /// The list of a filesystem's files with their attributes and SHA-256, or "not mounted" if the kernel refuses it.
    fn tree(&self, file: &Path, kind: &str, how: &str) -> String {
        use std::os::unix::fs::MetadataExt;
        let at = self.0.join("mount");
        let is_btrfs = kind == "btrfs";
        let _one_at_a_time = is_btrfs.then(|| MOUNTING.lock());
        let mount = || output(&format!("mount -t {kind} -o {how}"), &[&file, &at]);
        let mut mounted = mount();
        // Others take loop devices, too: that says nothing about the filesystem.
        for _ in 0..100 {
            if !String::from_utf8_lossy(&mounted.stderr).contains("loop device") {
                break;
            }
            mounted = mount();
        }
        if !mounted.status.success() {
            return "not mounted\n".to_owned();
        }
        TREES.fetch_add(1, Ordering::Relaxed);
        let (mut text, mut files, mut all) = (String::new(), Vec::new(), Vec::new());
        list(&at, &mut all);
        for path in all {
            let shown = path.strip_prefix(&at).unwrap().display();
            let Ok(meta) = fs::symlink_metadata(&path) else {
                writeln!(text, "{shown} can't be read").unwrap();
                continue;
            };
            let target = fs::read_link(&path).map_or(String::new(), |to| to.display().to_string());
            let (mode, owner, bytes, time) = (meta.mode(), meta.uid(), meta.len(), meta.mtime());
            let bytes = if meta.is_file() { bytes } else { 0 };
            writeln!(text, "{shown} {mode:o} {owner} {bytes} {time} {target}").unwrap();
            if meta.is_file() {
                files.push(path);
            }
        }
        let files: Vec<&dyn AsRef<OsStr>> = files.iter().map(|file| file as _).collect();
        let digests = output("sha256sum --", &files);
        for said in [digests.stdout, digests.stderr] {
            text += &String::from_utf8_lossy(&said).replace(at.to_str().unwrap(), "");
        }
        let unmounted = output(if is_btrfs { "umount" } else { "umount --lazy" }, &[&at]);
        assert!(unmounted.status.success(), "{}", String::from_utf8_lossy(&unmounted.stderr));
        text
    }
}

/// Adds all paths below `folder`, in order. A folder that can't be listed gives a path that does not exist.
fn list(folder: &Path, into: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(folder).and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
    let mut entries: Vec<PathBuf> = entries.unwrap_or_else(|_| vec![folder.join("(not to be listed)")]);
    entries.sort();
    for path in entries {
        into.push(path.clone());
        if path.is_dir() && !path.is_symlink() {
            list(&path, into);
        }
    }
}

/// The partitions in the output of `sfdisk -d`, as ranges of bytes, cut at the end of the disk. Leaves out extended
/// partitions (type 5).
fn partitions(dump: &str, len: usize) -> Vec<Range<usize>> {
    let number = |line: &str, key: &str| -> Option<usize> {
        let rest = line.split_once(key)?.1.trim_start();
        rest.split([',', ' ']).next()?.parse().ok()
    };
    let range = |line: &str| {
        let (start, size) = (number(line, "start=")?, number(line, "size=")?);
        let end = (start + size).saturating_mul(512).min(len);
        (start > 0 && start * 512 < end && !line.contains("type=5")).then_some(start * 512..end)
    };
    dump.lines().filter_map(range).collect()
}

/// The first difference that programs see between two disks, or between the same partition of both.
fn difference(sides: [&Side; 2], disks: [&[u8]; 2], name: &str) -> Option<String> {
    // Programs can't see a difference in equal bytes.
    if disks[0] == disks[1] {
        return None;
    }
    let [source, copy] = [0, 1].map(|side| sides[side].seen(disks[side], name));
    // If the checker finds the source damaged, sectors that its maps wrongly call free are lost, so files may differ.
    let is_sound = source.files.contains("exit status: 0\n");
    if source.signatures != copy.signatures || (is_sound && source.files != copy.files) {
        let Seen { signatures, files, .. } = source;
        return Some(format!(
            "{name}\n--- source\n{signatures}{files}--- copy\n{}{}",
            copy.signatures, copy.files
        ));
    }
    let inside = source.partitions.into_iter().enumerate();
    inside.into_iter().find_map(|(index, range)| {
        let parts = disks.map(|disk| &disk[range.clone()]);
        difference(sides, parts, &format!("{name}p{}", index + 1))
    })
}

/// Makes a source and a target from `seed`, copies, and compares. An error lists the layers and the difference.
fn try_seed(bench: &Bench, templates: &Templates, seed: u64) -> Result<(), String> {
    let mut chance = Chance::from_seed(seed);
    let mut bytes = 512 * (8192 + chance.below(12_288) as usize);
    if chance.below(6) == 0 {
        bytes += 18 << 20;
    }
    let target_seed = chance.u64();
    let onto_noise = chance.below(3) == 0;
    let mut stacker = Stacker { bench, templates, chance, story: Vec::new(), tidy: false };
    let source = stacker.disk(bytes);
    let mut old = vec![0; bytes + 512 * stacker.chance.below(300) as usize];
    if onto_noise {
        stacker.chance.fill(&mut old);
    } else {
        stacker.story.push("--- onto".to_owned());
        stacker.chance = Chance::from_seed(target_seed);
        old = stacker.disk(old.len());
    }
    for (kind, count) in ["mkfs.xfs", "mkfs.btrfs"].iter().zip(&LARGE) {
        let has = stacker.story.iter().any(|line| line.contains(kind));
        count.fetch_add(u64::from(has), Ordering::Relaxed);
    }
    let (from, to) = (bench.path("source"), bench.path("target"));
    fs::write(&from, &source).unwrap();
    fs::write(&to, &old).unwrap();
    copy(&from, &to, bytes as u64).map_err(|error| format!("{}\n{error}", stacker.story.join("\n")))?;
    let copied = fs::read(&to).unwrap();
    let sides = [Side::new(bench, "sources"), Side::new(bench, "copies")];
    match difference([&sides[0], &sides[1]], [&source, &copied], "disk") {
        None => Ok(()),
        Some(difference) => Err(format!("{}\n{difference}", stacker.story.join("\n"))),
    }
}

/// Captures the disk `from` and installs it on `to`.
fn copy(from: &Path, to: &Path, bytes: u64) -> base::Result<()> {
    let (source, objects) = (open_source(from).unwrap(), MemoryObjects::new());
    let map = survey(&source, &SurveyOptions::default()).unwrap();
    let options = CaptureOptions { threads: 1, ..CaptureOptions::default() };
    let done = capture(&source, &map, &objects, &options, &NoProgress)?;
    let manifest = Manifest::draft("test", &map, &done, "2026-11-20T14:00:00Z");
    let options = TargetOptions { create_size: Some(bytes), cut: true, ..TargetOptions::default() };
    let target = Arc::new(open_target(to, &options).unwrap());
    let options = InstallOptions { threads: 1, ..InstallOptions::default() };
    let catalogue = Arc::new(Catalogue::load(&manifest, &objects, &Cipher::None)?);
    let installer = Installer::begin(catalogue, target, options, Arc::new(NoProgress))?;
    installer.pull(&objects)?;
    installer.finish().map(drop)
}
