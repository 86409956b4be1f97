//! Tests sources that are in use or written during a capture: which writers are found before it, and which changes are
//! detected after it. Also tests freezing, recognition of container formats, and places.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use base::ErrorKind;
use disk::{Freezer, ReadAt, SurveyOptions, Watch, container_of, open_source, place_of, writers};

use crate::common::{self, Bench, Loop, at_last, have, is_root, output, run};

/// The changes that a watch of the source at `path` reports after `act`.
fn changes(path: &Path, act: impl FnOnce()) -> Vec<String> {
    let (source, options) = (open_source(path).unwrap(), SurveyOptions::default());
    let known = writers(&source, &options).unwrap();
    let watch = Watch::begin(&source, &options, known).unwrap();
    assert!(watch.sees_writes());
    act();
    watch.changes().unwrap()
}

/// The uses of `path` that may write to it, as phrases.
fn uses(path: &Path) -> Vec<String> {
    let found = writers(&open_source(path).unwrap(), &SurveyOptions::default()).unwrap();
    found.into_iter().map(|writer| writer.how).collect()
}

fn write(path: &Path, bytes: &[u8], offset: u64) {
    File::options().write(true).open(path).unwrap().write_all_at(bytes, offset).unwrap();
}

/// A process in a mount namespace of its own, which ends when this is dropped.
struct Elsewhere {
    child: Child,
    /// What it said.
    line: String,
}

impl Elsewhere {
    /// Runs `script`, whose last command is to print a line.
    fn run(script: &str, paths: &[&Path]) -> Self {
        let mut child = Command::new("unshare")
            .args(["--mount", "sh", "-c", &format!("{script} && read end")])
            .args(paths)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.ends_with('\n'), "{script} failed");
        Self { child, line: line.trim().to_owned() }
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        self.child.wait().unwrap();
    }
}

/// A filesystem that is mounted until this is dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn new(device: &Path, place: PathBuf, options: &str) -> Self {
        fs::create_dir_all(&place).unwrap();
        run(&format!("mount {options}"), &[&device, &place]);
        Self(place)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let gone = at_last(|| output("umount", &[&self.0]).status.success());
        // A second panic would hide the first.
        assert!(gone || std::thread::panicking());
    }
}

#[test]
fn what_a_truncated_file_has_lost_is_no_hole() {
    let bench = Bench::new();
    for path in [bench.path("file"), bench.tree("file")] {
        fs::write(&path, vec![7; 1 << 20]).unwrap();
        let source = open_source(&path).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
        assert_eq!(source.next_data(512 << 10), 512 << 10, "may hold anything");
        assert!(!source.is_hole(512 << 10, 4096));
        let mut buf = [1; 4096];
        assert_eq!(source.read_exact_at(&mut buf, 512 << 10).unwrap_err().kind(), ErrorKind::Io);
        assert!(source.read_exact_at(&mut buf, 0).is_ok());
    }
}

#[test]
fn every_change_of_a_file_is_seen() {
    let bench = Bench::new();
    for path in [bench.path("file"), bench.tree("file")] {
        // The next change may come within the same tick of the clock as this one, and must still be seen.
        fs::write(&path, vec![7; 1 << 20]).unwrap();
        assert_eq!(changes(&path, || {}), [""; 0]);
        assert_eq!(changes(&path, || drop(fs::read(&path).unwrap())), [""; 0]);
        assert_eq!(changes(&path, || write(&path, b"x", 99)), ["was written meanwhile"]);
        let cut = changes(&path, || File::options().write(true).open(&path).unwrap().set_len(4096).unwrap());
        assert_eq!(cut, ["was cut from 1.0 MiB to 4.0 KiB (1048576 and 4096 bytes)"]);
        let grown = changes(&path, || write(&path, b"x", 4096));
        assert_eq!(grown, ["grew from 4.0 KiB to 4.0 KiB (4096 and 4097 bytes)"]);
        // `rsync --times` and `cp --preserve` set back the time of modification like this.
        let back = changes(&path, || {
            let modified = fs::metadata(&path).unwrap().modified().unwrap();
            write(&path, b"y", 0);
            File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
        });
        assert_eq!(back, ["was written meanwhile"]);
    }
}

fn assert_unused(path: &Path) {
    assert!(at_last(|| uses(path).is_empty()), "{:?}", uses(path));
}

#[test]
fn a_file_that_somebody_has_open_for_writing_is_in_use() {
    let bench = Bench::new();
    for path in [bench.path("file"), bench.tree("file")] {
        fs::write(&path, vec![7; 4096]).unwrap();
        assert_unused(&path);
        let reader = File::open(&path).unwrap();
        assert_unused(&path);
        let writer = File::options().write(true).open(&path).unwrap();
        let found = uses(&path);
        let own = format!("(process {})", std::process::id());
        assert!(found[0].starts_with("is open for writing by `") && found[0].ends_with(&own), "{found:?}");
        // A writer that opens the file after the watch began.
        drop(writer);
        let mut late = None;
        let found = changes(&path, || late = Some(File::options().append(true).open(&path).unwrap()));
        assert!(
            found[0].starts_with("is open for writing by `") && found[0].ends_with(" by now"),
            "{found:?}"
        );
        drop((reader, late));
        assert_unused(&path);
    }
}

#[test]
fn writes_to_a_device_are_seen() {
    if !is_root() || !have(&["losetup", "blkdiscard"]) {
        return;
    }
    let bench = Bench::new();
    let file = bench.random_file("file", 8 << 20, 3);
    let device = Loop::over(&file, "");
    write(&device.0, &[1; 4096], 0);
    assert_eq!(changes(&device.0, || {}), [""; 0], "what was written before does not count");
    let mut buf = vec![0; 1 << 20];
    let read = || open_source(&device.0).unwrap().read_exact_at(&mut buf, 1 << 20).unwrap();
    assert_eq!(changes(&device.0, read), [""; 0]);
    let written = changes(&device.0, || write(&device.0, &[9; 4096], 4096));
    assert_eq!(written, ["was written meanwhile (4.0 KiB)"]);
    // The bytes are still in the page cache when the watch ends.
    let mut open = None;
    let written = changes(&device.0, || {
        let file = File::options().write(true).open(&device.0).unwrap();
        file.write_all_at(&[8; 4096], 8192).unwrap();
        open = Some(file);
    });
    assert_eq!(written, ["was written meanwhile (4.0 KiB)"]);
    let discarded = changes(&device.0, || drop(run("blkdiscard -o 1048576 -l 1048576", &[&device.0])));
    assert_eq!(discarded, ["was written meanwhile (1.0 MiB)"]);
    let grown = changes(&device.0, || {
        File::options().write(true).open(&file).unwrap().set_len(16 << 20).unwrap();
        run("losetup -c", &[&device.0]);
    });
    assert!(grown[0].starts_with("grew from 8.0 MiB to 16.0 MiB"), "{grown:?}");
    // A write to the loop device also changes its file.
    let through = changes(&file, || write(&device.0, &[3; 4096], 0));
    assert_eq!(through, ["was written meanwhile"]);
}

#[test]
fn writes_past_the_block_layer_are_seen() {
    let control = Path::new("/sys/class/zram-control");
    if !is_root() || !control.exists() {
        return;
    }
    // A read of `hot_add` creates a device. Its driver counts writes itself.
    let number = fs::read_to_string(control.join("hot_add")).unwrap().trim().to_owned();
    fs::write(format!("/sys/block/zram{number}/disksize"), "8M").unwrap();
    let device = PathBuf::from(format!("/dev/zram{number}"));
    let seen = std::panic::catch_unwind(|| {
        (
            changes(&device, || {}),
            changes(&device, || write(&device, &[1; 8192], 0)),
            place_of(&device).unwrap(),
        )
    });
    assert!(at_last(|| fs::write(control.join("hot_remove"), &number).is_ok()));
    let (idle, written, place) = seen.unwrap();
    assert_eq!((idle, written), (vec![], vec!["was written meanwhile (8.0 KiB)".to_owned()]));
    assert_eq!(place.start_sector, 0);
}

#[test]
fn what_a_filesystem_wrote_past_the_pages_of_its_disk_is_read() {
    if !is_root() || !have(&["losetup", "mke2fs", "mount", "umount"]) {
        return;
    }
    let bench = Bench::new();
    let file = bench.sparse_file("file", 32 << 20);
    let device = Loop::over(&file, "");
    run("mke2fs -q -F -t ext4 -b 4096", &[&device.0]);
    let mounted = Mounted::new(&device.0, bench.tree("here"), "");
    fs::write(mounted.0.join("file"), vec![1; 4096]).unwrap();
    // The first call fills the page cache with the whole disk, and the mount keeps those pages in it.
    let whole = || {
        let (source, options) = (open_source(&device.0).unwrap(), SurveyOptions::default());
        let freezer = Freezer::default();
        freezer.freeze(&mounted.0, &[]).unwrap();
        let _watch = Watch::begin(&source, &options, Vec::new()).unwrap();
        let mut bytes = vec![0; 32 << 20];
        source.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    };
    let pattern = [0xA5; 4096];
    assert!(!whole().chunks(4096).any(|block| block == pattern));
    let inner = File::options().write(true).open(mounted.0.join("file")).unwrap();
    inner.write_all_at(&pattern, 0).unwrap();
    assert!(whole().chunks(4096).any(|block| block == pattern), "and not what was read before");
}

#[test]
fn filesystems_that_are_mounted_for_writing_are_in_use() {
    if !is_root() || !have(&["losetup", "mke2fs", "mkfs.xfs", "mkfs.btrfs", "mount", "umount"]) {
        return;
    }
    for make in ["mke2fs -q -F -t ext4", "mkfs.xfs -q -f", "mkfs.btrfs -q -f"] {
        let bench = Bench::new();
        let file = bench.sparse_file("file", 320 << 20);
        let device = Loop::over(&file, "");
        run(make, &[&device.0]);
        let name = device.0.file_name().unwrap().display().to_string();
        assert_eq!((uses(&device.0), uses(&file)), (vec![], vec![]), "{make}");
        let mounted = Mounted::new(&device.0, bench.tree("here"), "");
        let how = format!("is mounted at `{}` for writing", mounted.0.display());
        assert_eq!(uses(&device.0), std::slice::from_ref(&how), "{make}");
        assert_eq!(uses(&file), [format!("is attached to `{name}`, which {how}")]);
        drop(mounted);
        let mut late = None;
        let seen = changes(&device.0, || late = Some(Mounted::new(&device.0, bench.tree("here"), "")));
        assert!(seen.contains(&format!("{how} by now")), "{make}: {seen:?}");
        drop(late);
        // Mounted, written and unmounted during the watch.
        let seen = changes(&device.0, || {
            let mounted = Mounted::new(&device.0, bench.tree("here"), "");
            fs::write(mounted.0.join("file"), "x").unwrap();
        });
        assert!(seen[0].starts_with("was written meanwhile"), "{make}: {seen:?}");
        let reading = Mounted::new(&device.0, bench.tree("here"), "-o ro");
        assert_eq!((uses(&device.0), uses(&file)), (vec![], vec![]), "{make}: read-only");
        drop(reading);
    }
}

#[test]
fn a_filesystem_on_two_devices_uses_both() {
    if !is_root() || !have(&["losetup", "mkfs.btrfs", "mount", "umount"]) {
        return;
    }
    let bench = Bench::new();
    let files = [bench.sparse_file("a", 320 << 20), bench.sparse_file("b", 320 << 20)];
    let devices = files.each_ref().map(|file| Loop::over(file, ""));
    run("mkfs.btrfs -q -f", &[&devices[0].0, &devices[1].0]);
    run("btrfs device scan", &[&devices[0].0]);
    run("btrfs device scan", &[&devices[1].0]);
    let mounted = Mounted::new(&devices[0].0, bench.tree("here"), "");
    let how = format!("is mounted at `{}` for writing", mounted.0.display());
    for device in &devices {
        assert_eq!(uses(&device.0), std::slice::from_ref(&how));
    }
    drop(mounted);
    run("btrfs device scan --forget", &[]);
}

#[test]
fn what_is_mounted_elsewhere_or_lies_on_devices_on_devices_is_in_use() {
    if !is_root() || !have(&["losetup", "mke2fs", "mount", "umount", "unshare", "swapon", "swapoff"]) {
        return;
    }
    let bench = Bench::new();
    let file = bench.sparse_file("file", 32 << 20);
    let (below, place) = (Loop::over(&file, ""), bench.tree("here"));
    fs::create_dir_all(&place).unwrap();
    run("mke2fs -q -F -t ext4", &[&below.0]);
    {
        let above = Loop::over(&below.0, "");
        let mounted = Mounted::new(&above.0, place.clone(), "");
        let name = |device: &Loop| device.0.file_name().unwrap().display().to_string();
        let how = format!(
            "is attached to `{}`, which is mounted at `{}` for writing",
            name(&above),
            mounted.0.display()
        );
        assert_eq!(uses(&below.0), std::slice::from_ref(&how));
        assert_eq!(uses(&file), [format!("is attached to `{}`, which {how}", name(&below))]);
    }
    // Mounted in another namespace, which this process cannot see.
    let claimed = "is in use by the kernel, though no filesystem of it is mounted here";
    let there = Elsewhere::run("mount \"$0\" \"$1\" && echo", &[&below.0, &place]);
    let found = [uses(&below.0), uses(&file)];
    drop(there);
    let name = below.0.file_name().unwrap().display().to_string();
    assert_eq!(found, [[claimed.to_owned()], [format!("is attached to `{name}`, which {claimed}")]]);
    assert_eq!([uses(&below.0), uses(&file)], [[""; 0], [""; 0]]);
    run("mkswap -q", &[&below.0]);
    if output("swapon", &[&below.0]).status.success() {
        let found = std::panic::catch_unwind(|| uses(&below.0));
        run("swapoff", &[&below.0]);
        assert_eq!(found.unwrap(), ["is used as swap space"]);
    }
}

/// A container mounts a disk of its own: the path that the kernel names for its file leads nowhere here.
#[test]
fn a_file_that_another_namespace_has_mounted_is_in_use() {
    if !is_root() || !have(&["losetup", "mkfs.ext4", "mkfs.xfs", "mkfs.btrfs", "mount", "umount", "unshare"])
    {
        return;
    }
    for make in ["mkfs.ext4 -q -F", "mkfs.xfs -q", "mkfs.btrfs -q"] {
        let bench = Bench::new();
        let folder = bench.tree("disks");
        let [inside, place] = ["inside", "place"].map(|name| bench.tree(name));
        for folder in [&folder, &inside, &place] {
            fs::create_dir_all(folder).unwrap();
        }
        let file = folder.join("disk");
        File::create(&file).unwrap().set_len(320 << 20).unwrap();
        run(make, &[&file]);
        // Detached at once, so that the kernel removes it when its filesystem is unmounted.
        let script = "mount --bind \"$0\" \"$1\" && device=$(losetup --find --show \"$1/disk\") && \
                      mount $device \"$2\" && losetup --detach $device && echo $device";
        let there = Elsewhere::run(script, &[&folder, &inside, &place]);
        let found = uses(&file);
        let name = there.line.rsplit('/').next().unwrap().to_owned();
        drop(there);
        let claimed = "is in use by the kernel, though no filesystem of it is mounted here";
        assert_eq!(found, [format!("is attached to `{name}`, which {claimed}")], "{make}");
        assert_unused(&file);
    }
}

#[test]
fn a_frozen_filesystem_stays_still_and_is_thawed() {
    if !is_root() || !have(&["losetup", "mke2fs", "mount", "umount"]) {
        return;
    }
    let bench = Bench::new();
    let file = bench.sparse_file("file", 32 << 20);
    let device = Loop::over(&file, "");
    run("mke2fs -q -F -t ext4", &[&device.0]);
    let mounted = Mounted::new(&device.0, bench.tree("here"), "");
    fs::write(mounted.0.join("before"), "x").unwrap();
    let freezer = Freezer::default();
    let refusal = |place: &Path, needed: &[PathBuf]| {
        let error = freezer.freeze(place, needed).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        error.to_string()
    };
    assert!(refusal(Path::new("/"), &[]).contains("holds the system's root"));
    assert!(refusal(&mounted.0, &[mounted.0.join("repo/to/be/made")]).contains("could not be written"));
    freezer.freeze(&mounted.0, &[bench.tree("repo")]).unwrap();
    assert!(refusal(&mounted.0, &[]).contains("is frozen already"));
    let writer = std::thread::spawn({
        let path = mounted.0.join("late");
        move || fs::write(path, vec![1; 1 << 20]).unwrap()
    });
    assert_eq!(changes(&device.0, || {}), [""; 0]);
    // The journal of a frozen filesystem is empty.
    assert!(common::map_of(&device.0).partitions[0].filesystem.as_ref().unwrap().understood);
    freezer.thaw().unwrap();
    writer.join().unwrap();
    assert!(refusal(&mounted.0, &[]).contains("is not frozen any more"), "a signal may have thawed it");
    // Dropping the freezer thaws the filesystem.
    let freezer = Freezer::default();
    freezer.freeze(&mounted.0, &[]).unwrap();
    drop(freezer);
    fs::write(mounted.0.join("after"), "x").unwrap();
    // A filesystem stored in a file of the frozen one blocks as well, so the freeze is refused.
    let inner = mounted.0.join("inner");
    File::create(&inner).unwrap().set_len(8 << 20).unwrap();
    let within = Loop::over(&inner, "");
    run("mke2fs -q -F", &[&within.0]);
    let nested = Mounted::new(&within.0, bench.tree("nested"), "");
    let error = Freezer::default().freeze(&mounted.0, &[nested.0.join("repo")]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
}

#[test]
fn disks_of_virtual_machines_and_compressed_files_are_recognised() {
    if !have(&["qemu-img", "gzip", "xz", "zstd", "bzip2", "mkntfs", "ntfsclone", "tar", "xorriso"]) {
        return;
    }
    let bench = Bench::new();
    let raw = bench.random_file("raw", 4 << 20, 11);
    let name = |path: &Path| container_of(&open_source(path).unwrap()).map(|found| found.name);
    assert_eq!(name(&raw), None);
    let forms = [
        ("qcow2", "QCOW2"),
        ("qcow2 -o compat=0.10", "QCOW2"),
        ("qcow", "QCOW2"),
        ("qed", "QED"),
        ("vdi", "VDI"),
        ("vdi -o static=on", "VDI"),
        ("vmdk", "VMDK"),
        ("vmdk -o subformat=monolithicFlat", "VMDK"),
        ("vmdk -o subformat=twoGbMaxExtentSparse", "VMDK"),
        ("vmdk -o subformat=twoGbMaxExtentFlat", "VMDK"),
        ("vmdk -o subformat=streamOptimized", "VMDK"),
        ("vpc", "VHD"),
        ("vpc -o subformat=fixed", "VHD"),
        ("vhdx", "VHDX"),
        ("vhdx -o subformat=fixed", "VHDX"),
        ("parallels", "Parallels"),
    ];
    for (index, (form, expected)) in forms.into_iter().enumerate() {
        // Test an empty disk and one with contents.
        let (empty, full) = (bench.path(&format!("empty{index}")), bench.path(&format!("full{index}")));
        run(&format!("qemu-img create -q -f {form}"), &[&empty, &"4M"]);
        assert_eq!(name(&empty), Some(expected), "{form}");
        run(&format!("qemu-img convert -f raw -O {form}"), &[&raw, &full]);
        assert_eq!(name(&full), Some(expected), "{form}");
    }
    let part = bench.sparse_file("ntfs", 8 << 20);
    run("mkntfs -Q -F -q", &[&part]);
    let clone = bench.path("clone");
    run("ntfsclone --quiet --save-image --output", &[&clone, &part]);
    assert_eq!(name(&clone), Some("an ntfsclone image"));
    for (form, expected) in [("v7", "a tar archive"), ("pax", "a tar archive"), ("gnu", "a tar archive")] {
        let packed = bench.path("packed.tar");
        run(&format!("tar --format={form} --absolute-names -cf"), &[&packed, &raw]);
        assert_eq!(name(&packed), Some(expected), "{form}");
    }
    // An ISO image that starts from a stick, too, is a disk.
    let (tree, iso) = (bench.tree("iso"), bench.path("iso"));
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), "text").unwrap();
    run("xorriso -as mkisofs -quiet -partition_offset 16 -o", &[&iso, &tree]);
    assert_eq!(name(&iso), None);
    for tool in ["gzip", "xz", "zstd", "bzip2"] {
        let packed = bench.path(&format!("packed.{tool}"));
        fs::write(&packed, output(&format!("{tool} -c"), &[&raw]).stdout).unwrap();
        assert_eq!(name(&packed), Some(tool));
    }
}

#[test]
fn a_place_is_the_same_through_a_loop_device_and_after_a_new_name() {
    let bench = Bench::new();
    let (file, other) = (bench.random_file("file", 8 << 20, 1), bench.path("other"));
    fs::copy(&file, &other).unwrap();
    let place = place_of(&file).unwrap();
    assert_eq!(place.start_sector, 0);
    assert!(!place.marks.is_empty(), "{place:?}");
    let copy = place_of(&other).unwrap();
    assert!(!place.marks.iter().any(|mark| copy.marks.contains(mark)), "a copy is another disk");
    if is_root() && have(&["losetup"]) {
        let device = Loop::over(&file, "-o 1048576");
        let through = place_of(&device.0).unwrap();
        assert_eq!((through.start_sector, &through.marks), (2048, &place.marks));
    }
    let renamed = bench.path("renamed");
    fs::rename(&file, &renamed).unwrap();
    assert_eq!(place_of(&renamed).unwrap(), place);
    assert_eq!(place_of(&file).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(place_of(Path::new("/dev/null")).unwrap_err().kind(), ErrorKind::Refused);
}
