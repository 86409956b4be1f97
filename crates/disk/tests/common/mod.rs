//! Helpers for the tests that use real tools: they run the tools, make files of all kinds for a filesystem, and restore
//! a disk from its allocated sectors alone.
#![allow(dead_code, reason = "each test takes what it needs")]

pub(crate) mod bad_disk;
pub(crate) mod stack;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use base::{Chance, Extent, ExtentSet};
use disk::{DiskMap, ReadAt, SurveyOptions, open_source, survey};
use tempfile::TempDir;

/// The temporary folders of one test.
pub(crate) struct Bench {
    /// Disk images. They are in memory if it has more than 2 GiB free, since tests write them in full.
    dir: TempDir,
    /// Trees of files with extended attributes, which a filesystem in memory may not support.
    trees: TempDir,
}

impl Bench {
    pub(crate) fn new() -> Self {
        // `cargo xtask test` clears its folder away whatever happens.
        let memory =
            std::env::var_os("DISKCAST_TEST_MEMORY").map_or_else(|| "/dev/shm".into(), PathBuf::from);
        let room = rustix::fs::statvfs(&memory).is_ok_and(|stat| stat.f_bavail * stat.f_frsize > 2 << 30);
        let dir = if room { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        Self { dir: dir.unwrap(), trees: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn tree(&self, name: &str) -> PathBuf {
        self.trees.path().join(name)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A file of random bytes. Code that wrongly relies on zeros fails on it.
    pub(crate) fn random_file(&self, name: &str, bytes: u64, seed: u64) -> PathBuf {
        let path = self.path(name);
        let file = File::create(&path).unwrap();
        file.set_len(bytes).unwrap();
        let mut chance = Chance::from_seed(seed);
        let mut piece = vec![0; 1 << 20];
        let mut offset = 0;
        while offset < bytes {
            chance.fill(&mut piece);
            let len = piece.len().min((bytes - offset) as usize);
            file.write_all_at(&piece[..len], offset).unwrap();
            offset += len as u64;
        }
        path
    }

    /// A sparse file.
    pub(crate) fn sparse_file(&self, name: &str, bytes: u64) -> PathBuf {
        let path = self.path(name);
        File::create(&path).unwrap().set_len(bytes).unwrap();
        path
    }

    /// The disk that a capture and an install produce: the allocated sectors of `source` over random bytes.
    pub(crate) fn restore(&self, source: &Path, map: &DiskMap) -> PathBuf {
        let path = self.random_file("restored", map.geometry.size_bytes, 0xD15C);
        copy_sectors(source, &path, &map.allocated);
        path
    }
}

/// A loop device, detached when dropped.
pub(crate) struct Loop(pub PathBuf);

impl Loop {
    pub(crate) fn over(file: &Path, flags: &str) -> Self {
        let name = run(&format!("losetup -f --show {flags}"), &[&file]);
        Self(PathBuf::from(name.trim()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // A second panic would hide the first.
        let backing = Path::new("/sys/block").join(self.0.file_name().unwrap()).join("loop/backing_file");
        let file = fs::read(&backing);
        assert!(output("losetup -d", &[&self.0]).status.success() || std::thread::panicking());
        // A tool that looks at all devices may hold it for an instant, and the kernel keeps the file as long.
        // What failed may have left it mounted: then that would take for ever.
        while file.is_ok()
            && !std::thread::panicking()
            && fs::read(&backing).ok() == file.as_ref().ok().cloned()
        {
            std::thread::yield_now();
        }
    }
}

/// Whether something succeeds within a minute. A program of another thread may hold a disk or a folder for a moment: it
/// looks at all of them, or it has just been forked and has not let go of the open files of this process.
pub(crate) fn at_last(mut succeeds: impl FnMut() -> bool) -> bool {
    (0..6000).any(|_| {
        succeeds() || {
            std::thread::park_timeout(Duration::from_millis(10));
            false
        }
    })
}

/// A mounted image, unmounted when dropped.
pub(crate) struct Mounted {
    pub(crate) folder: PathBuf,
    _device: Loop,
}

impl Mounted {
    /// Mounts an image by a command that takes a device and a folder.
    pub(crate) fn by(command: &str, image: &Path, folder: PathBuf) -> Self {
        fs::create_dir_all(&folder).unwrap();
        let device = Loop::over(image, "");
        run(command, &[&device.0, &folder]);
        Self { folder, _device: device }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let gone = at_last(|| output("umount", &[&self.folder]).status.success());
        assert!(gone || std::thread::panicking());
    }
}

pub(crate) fn copy_sectors(source: &Path, target: &Path, sectors: &ExtentSet) {
    let source = open_source(source).unwrap();
    let target = File::options().write(true).open(target).unwrap();
    let mut buf = vec![0; 1 << 20];
    for run in sectors.runs() {
        let mut offset = run.offset_bytes();
        let end = offset + run.len_bytes();
        while offset < end {
            let len = buf.len().min((end - offset) as usize);
            source.read_exact_at(&mut buf[..len], offset).unwrap();
            target.write_all_at(&buf[..len], offset).unwrap();
            offset += len as u64;
        }
    }
}

pub(crate) fn map_of(path: &Path) -> DiskMap {
    survey(&open_source(path).unwrap(), &SurveyOptions::default()).unwrap()
}

/// Makes a filesystem and puts it into `disk` at `extent`.
pub(crate) fn put(bench: &Bench, disk: &Path, extent: Extent, mkfs: &str) {
    let image = bench.random_file("part", extent.len_bytes(), 3);
    run(mkfs, &[&image]);
    write_at(disk, extent.offset_bytes(), &fs::read(&image).unwrap());
}

pub(crate) fn write_at(disk: &Path, offset: u64, bytes: &[u8]) {
    File::options().write(true).open(disk).unwrap().write_all_at(bytes, offset).unwrap();
}

pub(crate) fn read_at(disk: &Path, extent: Extent) -> Vec<u8> {
    let mut bytes = vec![0; extent.len_bytes() as usize];
    File::open(disk).unwrap().read_exact_at(&mut bytes, extent.offset_bytes()).unwrap();
    bytes
}

/// The first and the last 128 KiB of an extent, which a survey always captures.
pub(crate) fn ends(extent: Extent) -> [Extent; 2] {
    [Extent::new(extent.start, 256), Extent::new(extent.end() - 256, 256)]
}

/// The extent that starts at `start` MiB and is `count` MiB long.
pub(crate) fn mib(start: u64, count: u64) -> Extent {
    Extent::new(start << 11, count << 11)
}

/// Whether all tools are installed. Without them a test is skipped on a developer's machine, and fails in CI.
pub(crate) fn have(tools: &[&str]) -> bool {
    let there = |tool: &&&str| {
        ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].iter().any(|dir| Path::new(dir).join(tool).exists())
    };
    let missing: Vec<_> = tools.iter().filter(|tool| !there(tool)).collect();
    assert!(missing.is_empty() || std::env::var_os("CI").is_none(), "missing in CI: {missing:?}");
    missing.is_empty()
}

pub(crate) fn is_root() -> bool {
    let root = rustix_is_root();
    assert!(root || std::env::var_os("CI").is_none(), "CI runs these tests as root");
    root
}

fn rustix_is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

/// Runs a command line with `paths` as further arguments, and returns its output.
pub(crate) fn output(line: &str, paths: &[&dyn AsRef<OsStr>]) -> Output {
    let mut words = line.split_whitespace();
    let path = "/usr/sbin:/sbin:/usr/bin:/bin";
    let mut command = Command::new(words.next().unwrap());
    command.args(words).args(paths.iter().map(|path| path.as_ref())).env("PATH", path).env("LC_ALL", "C");
    command.output().unwrap_or_else(|e| panic!("{line}: {e}"))
}

/// Runs a command line that must succeed; returns its standard output.
pub(crate) fn run(line: &str, paths: &[&dyn AsRef<OsStr>]) -> String {
    let output = output(line, paths);
    let paths: Vec<_> = paths.iter().map(|path| path.as_ref().to_string_lossy()).collect();
    assert!(
        output.status.success(),
        "{line} {}: {}\n{}{}",
        paths.join(" "),
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a command with `input` on its standard input; it must succeed.
pub(crate) fn run_with_input(line: &str, path: &Path, input: &str) {
    use std::io::Write;
    let mut words = line.split_whitespace();
    let mut child = Command::new(words.next().unwrap())
        .args(words)
        .arg(path)
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{line} {}", path.display());
}

/// Fills `dir` with files of all kinds: sizes around every block size, hard and symbolic links, holes, owners, modes,
/// times, extended attributes, deep folders and a folder with many entries.
pub(crate) fn populate(dir: &Path, seed: u64) {
    let mut chance = Chance::from_seed(seed);
    fs::create_dir_all(dir.join("deep/er/and/deeper")).unwrap();
    fs::create_dir_all(dir.join("many")).unwrap();
    for (n, size) in [0, 1, 60, 155, 1023, 4096, 4097, 65_536, 300_001, 3_000_000].into_iter().enumerate() {
        let path = dir.join(format!("deep/file{n}"));
        let mut bytes = vec![0; size];
        chance.fill(&mut bytes);
        fs::write(&path, bytes).unwrap();
        mark(&path, n as u32);
    }
    for n in 0..300 {
        fs::write(dir.join(format!("many/a file with a rather long name {n}")), format!("{n}\n")).unwrap();
    }
    let hole = File::create(dir.join("deep/er/with a hole")).unwrap();
    hole.set_len(1 << 20).unwrap();
    hole.write_all_at(b"behind the hole", 900_000).unwrap();
    fs::hard_link(dir.join("deep/file7"), dir.join("deep/er/and/a hard link")).unwrap();
    std::os::unix::fs::symlink("deep/file3", dir.join("short link")).unwrap();
    std::os::unix::fs::symlink("x/".repeat(150), dir.join("long link")).unwrap();
}

/// Gives a file an owner, mode, times and an extended attribute that depend on `n`.
fn mark(path: &Path, n: u32) {
    use std::os::unix::fs::PermissionsExt;
    let mode = [0o644, 0o600, 0o4755, 0o2711, 0o1777][n as usize % 5];
    if rustix_is_root() {
        std::os::unix::fs::chown(path, Some(1000 + n), Some(2000 + n)).unwrap();
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let value = vec![b'v'; 1 + 37 * n as usize];
    rustix::fs::setxattr(path, "user.diskcast", &value, rustix::fs::XattrFlags::empty()).unwrap();
    let time =
        std::time::UNIX_EPOCH + std::time::Duration::new(86_400 * 365 * u64::from(20 + n), 123_456_789);
    let times = fs::FileTimes::new().set_accessed(time).set_modified(time);
    File::options().read(true).open(path).unwrap().set_times(times).unwrap();
}

/// All paths below `dir`, relative to it, sorted.
pub(crate) fn paths(dir: &Path) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(dir.join(&folder)).unwrap() {
            let path = folder.join(entry.unwrap().file_name());
            if fs::symlink_metadata(dir.join(&path)).unwrap().is_dir() {
                folders.push(path.clone());
            }
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Formats extents as `start+count` in sectors, for messages.
pub(crate) fn show(extents: &ExtentSet) -> String {
    let text: Vec<_> =
        extents.runs().iter().map(|run: &Extent| format!("{}+{}", run.start, run.count)).collect();
    text.join(" ")
}

/// Fills `root`, where files have no owners and no links: folders, deleted files between others, and two files that
/// grow in turn for `rounds`, so that they are in many pieces.
pub(crate) fn scatter(root: &Path, seed: u64, many: usize, rounds: usize) {
    use std::io::Write;
    fs::create_dir_all(root.join("folder/deeper")).unwrap();
    fs::create_dir_all(root.join("many")).unwrap();
    let mut chance = Chance::from_seed(seed);
    let data = |chance: &mut Chance, most: u64| {
        let mut bytes = vec![0; chance.below(most) as usize];
        chance.fill(&mut bytes);
        bytes
    };
    let path = |n: usize| {
        let folder = ["", "folder", "folder/deeper"][n % 3];
        root.join(folder).join(format!("a long name \u{1F4BE} {n}.data"))
    };
    let small = |n: usize| root.join(format!("many/a file with a rather long name {n}"));
    (0..60).for_each(|n| fs::write(path(n), data(&mut chance, 20_000)).unwrap());
    (0..many).for_each(|n| fs::write(small(n), data(&mut chance, 900)).unwrap());
    (0..60).step_by(4).for_each(|n| fs::remove_file(path(n)).unwrap());
    (0..many).step_by(3).for_each(|n| fs::remove_file(small(n)).unwrap());
    let mut files = ["one", "other"].map(|name| File::create(root.join(name)).unwrap());
    for _ in 0..rounds {
        for file in &mut files {
            file.write_all(&data(&mut chance, 9000)).unwrap();
            file.sync_all().unwrap();
        }
    }
    files[0].set_len(30_000).unwrap();
}

/// Writes, truncates, punches and deletes files in the folder `many` at random.
pub(crate) fn age(root: &Path, seed: u64) {
    let mut chance = Chance::from_seed(seed);
    for _ in 0..1500 {
        let path = root.join(format!("many/aged {}", chance.below(80)));
        if chance.below(6) == 0 {
            // It may not be there yet.
            let _ = fs::remove_file(&path);
            continue;
        }
        let file = File::options().create(true).truncate(false).write(true).open(&path).unwrap();
        let len = file.metadata().unwrap().len();
        if chance.below(5) == 0 {
            file.set_len(chance.below(len + 1)).unwrap();
        } else {
            let mut bytes = vec![0; chance.below(40_000) as usize];
            chance.fill(&mut bytes);
            file.write_all_at(&bytes, chance.below(len + 8192)).unwrap();
        }
        if chance.below(20) == 0 {
            file.sync_all().unwrap();
        }
    }
}

/// The only filesystem of `image` is understood without a warning, and has the names that blkid prints.
pub(crate) fn assert_understood<'a>(map: &'a DiskMap, image: &Path, context: &str) -> &'a disk::Filesystem {
    assert_eq!(map.warnings, [""; 0], "{context}");
    let filesystem = map.partitions[0].filesystem.as_ref().unwrap();
    assert!(filesystem.understood, "{context}");
    let tag = |name: &str| run(&format!("blkid -p -o value -s {name}"), &[&image]).trim_end().to_owned();
    let names = (Some(tag("UUID")), Some(tag("LABEL")));
    assert_eq!((filesystem.uuid.clone(), filesystem.label.clone()), names, "{context}");
    filesystem
}

/// `free` sectors are left out, except for the ends, which a survey captures, used or not.
pub(crate) fn assert_left_out(map: &DiskMap, free: u64, context: &str) {
    let taken_anyway: u64 = ends(map.window).iter().map(|end| end.count).sum();
    let left_out = map.allocated.gaps_within(map.window).sectors();
    let range = free.saturating_sub(taken_anyway)..=free;
    assert!(range.contains(&left_out), "{left_out} free sectors, not {range:?}, {context}");
}

/// The files of both folders are the same; the contents of those at `without` may differ.
pub(crate) fn assert_same_files(there: &Path, here: &Path, without: &[&str], context: &str) {
    assert_eq!(paths(there), paths(here), "{context}");
    let names = paths(there);
    let names =
        names.iter().filter(|name| !without.iter().any(|without| name.as_path() == Path::new(without)));
    for name in names.filter(|name| there.join(name).is_file()) {
        let same = fs::read(there.join(name)).unwrap() == fs::read(here.join(name)).unwrap();
        assert!(same, "{name:?}, {context}");
    }
}

/// Everything is captured, and a warning says why.
pub(crate) fn assert_whole(map: &DiskMap, why: &str, context: &str) {
    assert!(map.allocated.contains(map.window), "{context}, {why}");
    let told = map.warnings.iter().any(|warning| warning.contains(why));
    assert!(told, "{context}, {why}: {:?}", map.warnings);
}

/// The number after a name in what a tool prints.
pub(crate) fn number(text: &str, name: &str) -> u64 {
    let rest = text.lines().find_map(|line| line.trim_start().strip_prefix(name)).unwrap();
    rest.trim_start_matches([':', ' ', '\t']).split_whitespace().next().unwrap().parse().unwrap()
}

/// Each of `cases` (offset, bytes, words of the warning) makes the disk one that is captured whole.
pub(crate) fn assert_noticed(image: &Path, cases: &[(usize, &[u8], &str)]) {
    let (sound, warnings) = (fs::read(image).unwrap(), map_of(image).warnings);
    for &(offset, bytes, why) in cases {
        assert_ne!(&sound[offset..offset + bytes.len()], bytes, "bytes at {offset} change nothing");
        write_at(image, offset as u64, bytes);
        assert_whole(&map_of(image), why, &format!("bytes at {offset}"));
        write_at(image, offset as u64, &sound[offset..offset + bytes.len()]);
    }
    assert_eq!(map_of(image).warnings, warnings);
}
