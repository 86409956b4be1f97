//! Tests that the backup of a GPT moves to the end of a larger target like with `sgdisk -e`, and that the tools of
//! gdisk and util-linux find no problem.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use disk::{SurveyOptions, TargetOptions, WriteAt, open_source, open_target, survey};
use image::{
    CaptureOptions, Catalogue, Cipher, InstallOptions, InstallReport, Installer, Manifest, MemoryObjects,
    NoProgress, Reuse, capture,
};

use crate::common::{install, small};
use crate::tools::{Bench, have, output, run};

const SIZE: u64 = 8 << 20;

fn captured(path: &Path) -> (Manifest, MemoryObjects) {
    let (source, objects) = (open_source(path).unwrap(), MemoryObjects::new());
    let map = survey(&source, &SurveyOptions::default()).unwrap();
    let options = CaptureOptions { chunk: small(), ..CaptureOptions::default() };
    let done = capture(&source, &map, &objects, &options, &NoProgress).unwrap();
    (Manifest::draft("test", &map, &done, "2026-11-20T14:00:00Z"), objects)
}

fn target(path: &Path) -> Arc<dyn WriteAt> {
    Arc::new(open_target(path, &TargetOptions::default()).unwrap())
}

fn installed(
    manifest: &Manifest,
    objects: &MemoryObjects,
    path: &Path,
    options: InstallOptions,
) -> InstallReport {
    install(manifest, (objects, &Cipher::None), target(path), options).unwrap()
}

fn disk(bench: &Bench) -> std::path::PathBuf {
    let disk = bench.sparse_file("disk", SIZE);
    run("sgdisk -o -n 1:1M:+2M -c 1:one -n 2:4M:+3M -t 2:8200", &[&disk]);
    disk
}

#[test]
fn the_backup_of_a_gpt_moves_to_the_end_of_a_larger_target() {
    if !have(&["sgdisk", "sfdisk", "blkid", "wipefs"]) {
        return;
    }
    let bench = Bench::new();
    let disk = disk(&bench);
    let (manifest, objects) = captured(&disk);
    for (larger, seed) in [(SIZE + 512, 1), (SIZE + (4 << 10), 2), (SIZE + (5 << 20), 3)] {
        let copy = bench.random_file("copy", larger, seed);
        let report = installed(&manifest, &objects, &copy, InstallOptions::default());
        assert!(report.moved_gpt);
        let verified = run("sgdisk -v", &[&copy]);
        assert!(verified.contains("No problems found"), "{verified}");
        let sfdisk = output("sfdisk --verify", &[&copy]);
        let text = [sfdisk.stdout, sfdisk.stderr].concat();
        assert!(sfdisk.status.success() && !String::from_utf8_lossy(&text).contains("mismatch"));
        // For comparison, sgdisk moves the backup on a copy of the disk that was only extended.
        let theirs = bench.path("theirs");
        fs::copy(&disk, &theirs).unwrap();
        fs::File::options().write(true).open(&theirs).unwrap().set_len(larger).unwrap();
        run("sgdisk -e", &[&theirs]);
        let table = |path: &Path| run("sgdisk -p", &[&path]).replace(path.to_str().unwrap(), "");
        assert_eq!(table(&copy), table(&theirs));
        let (ours, theirs) = (fs::read(&copy).unwrap(), fs::read(&theirs).unwrap());
        let tail = usize::try_from(larger).unwrap() - 33 * 512;
        assert!(ours[512..1024] == theirs[512..1024] && ours[tail..] == theirs[tail..]);
        assert_eq!(run("wipefs -n", &[&copy]).matches("gpt").count(), 2);
        assert!(!run("blkid -p", &[&copy]).contains("ambivalent"));
    }
}

/// A resumed install recognises the backup that the first install moved, and does not erase it as an old signature. If
/// the resumed install is interrupted, the primary header still names a complete backup.
#[test]
fn going_on_spares_the_backup_that_was_moved() {
    if !have(&["sgdisk"]) {
        return;
    }
    let bench = Bench::new();
    let (manifest, objects) = captured(&disk(&bench));
    let copy = bench.random_file("copy", SIZE + (1 << 20), 4);
    installed(&manifest, &objects, &copy, InstallOptions::default());
    let done = fs::read(&copy).unwrap();
    let options = InstallOptions { reuse: Reuse::Always, ..InstallOptions::default() };
    let catalogue = Arc::new(Catalogue::load(&manifest, &objects, &Cipher::None).unwrap());
    let begun = Installer::begin(catalogue, target(&copy), options, Arc::new(NoProgress)).unwrap();
    drop(begun);
    assert!(fs::read(&copy).unwrap() == done, "the install erased the backup that was moved");
    let report = installed(&manifest, &objects, &copy, options);
    assert!(report.moved_gpt && report.written_bytes <= 65_536, "{report:?}");
    assert!(fs::read(&copy).unwrap() == done);
    // A new disk GUID makes it the backup of another disk: an old signature.
    run("sgdisk -G", &[&copy]);
    assert_eq!(installed(&manifest, &objects, &copy, InstallOptions::default()).erased_signatures, 1);
    assert!(fs::read(&copy).unwrap() == done);
}

#[test]
fn a_gpt_stays_where_it_is_told_to_or_where_it_is_not_whole() {
    if !have(&["sgdisk"]) {
        return;
    }
    let bench = Bench::new();
    let disk = disk(&bench);
    let (manifest, objects) = captured(&disk);
    let copy = bench.random_file("copy", SIZE + (1 << 20), 5);
    let options = InstallOptions { keep_gpt: true, ..InstallOptions::default() };
    assert!(!installed(&manifest, &objects, &copy, options).moved_gpt);
    let same = |copy: &Path| fs::read(copy).unwrap()[..1 << 20] == fs::read(&disk).unwrap()[..1 << 20];
    assert!(same(&copy));
    // If the backup is damaged, the install does not write a new one.
    let file = fs::File::options().write(true).open(&disk).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0xFF], SIZE - 512 + 20).unwrap();
    let (manifest, objects) = captured(&disk);
    let copy = bench.random_file("copy", SIZE + (1 << 20), 6);
    assert!(!installed(&manifest, &objects, &copy, InstallOptions::default()).moved_gpt);
    assert!(same(&copy));
}
