//! Who gets an image that several programs want, and what goes.

use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, UNIX_EPOCH};

use base::{Digest, ErrorKind};

use super::{About, Base, Bounds, Filling, Found, ImageCache, There};

const BYTES: usize = 1 << 20;

fn key(number: u8) -> String {
    ImageCache::key(Digest([number; Digest::BYTES]))
}

fn missing(kept: &ImageCache, number: u8) -> Filling {
    match kept.find(&key(number)).unwrap() {
        Found::Missing(filling) => filling,
        Found::Here(_) => panic!("{number} is here"),
        Found::Busy => panic!("{number} is busy"),
    }
}

fn here(kept: &ImageCache, number: u8) -> Base {
    match kept.find(&key(number)).unwrap() {
        Found::Here(base) => base,
        _ => panic!("{number} is not here"),
    }
}

fn fill(kept: &ImageCache, number: u8) -> Base {
    let filling = missing(kept, number);
    std::fs::write(filling.part(), vec![number; BYTES]).unwrap();
    let about = About { reference: format!("image{number}@1"), size_bytes: BYTES as u64, sector_bytes: 512 };
    filling.complete(&about).unwrap()
}

/// Says when an image was used.
fn use_at(kept: &ImageCache, number: u8, seconds: u64) {
    let path = kept.place(&key(number)).join("about.json");
    let file = std::fs::File::options().append(true).open(path).unwrap();
    file.set_modified(UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
}

#[test]
fn one_fetches_and_the_others_wait() {
    let _alone = crate::STARTS.lock();
    let folder = tempfile::tempdir().unwrap();
    let (kept, other) = (ImageCache::open(folder.path()).unwrap(), ImageCache::open(folder.path()).unwrap());
    let filling = missing(&kept, 1);
    assert!(matches!(other.find(&key(1)).unwrap(), Found::Busy));
    std::fs::write(filling.part(), b"a part").unwrap();
    // Who fetches is gone: another one goes on with its part.
    drop(filling);
    let filling = missing(&other, 1);
    assert_eq!(std::fs::read(filling.part()).unwrap(), b"a part");
    drop(filling);
    let base = fill(&kept, 1);
    let second = here(&other, 1);
    assert_eq!(std::fs::read(second.path()).unwrap(), vec![1; BYTES]);
    assert_eq!(base.path(), second.path());
    assert_eq!(second.path().metadata().unwrap().mode() & 0o777, 0o444);
}

#[test]
fn the_images_used_least_recently_go_but_none_in_use() {
    let _alone = crate::STARTS.lock();
    let folder = tempfile::tempdir().unwrap();
    let kept = ImageCache::open(folder.path()).unwrap();
    let first = fill(&kept, 1);
    for number in 2..=4 {
        drop(fill(&kept, number));
    }
    for (number, seconds) in [(1, 10), (2, 40), (3, 20), (4, 30)] {
        use_at(&kept, number, seconds);
    }
    let bounds = Bounds { size: 2 * BYTES as u64, keep_free: 0 };
    assert_eq!(kept.clean(bounds).unwrap(), ["image3@1", "image4@1"], "1 is in use");
    drop(first);
    assert_eq!(kept.clean(Bounds { size: 0, ..bounds }).unwrap(), ["image1@1", "image2@1"]);
    assert!(matches!(kept.find(&key(1)).unwrap(), Found::Missing(_)));
}

#[test]
fn an_overlay_keeps_what_it_needs() {
    let _alone = crate::STARTS.lock();
    let folder = tempfile::tempdir().unwrap();
    let kept = ImageCache::open(&folder.path().join("kept")).unwrap();
    let base = fill(&kept, 1);
    let (target, renamed) = (folder.path().join("disk.0"), folder.path().join("another name"));
    base.overlay(&kept, &target, None, There::Nothing).unwrap();
    let again = base.overlay(&kept, &target, None, There::Nothing).map_err(|error| error.kind());
    assert_eq!(again, Err(ErrorKind::Refused), "what a machine has is not written over");
    drop(base);
    let nothing = Bounds { size: 0, keep_free: 0 };
    let beside = folder.path().join(format!(".diskcast-{}", key(1)));
    std::fs::rename(&target, &renamed).unwrap();
    assert!(kept.clean(nothing).unwrap().is_empty());
    assert_eq!(std::fs::read(&beside).unwrap(), vec![1; BYTES], "a file of another name needs it");
    std::fs::write(&renamed, b"no QCOW2").unwrap();
    assert_eq!(kept.clean(nothing).unwrap(), ["image1@1"]);
    assert!(!beside.exists());
}

#[test]
fn an_overlay_on_a_disk_that_is_not_mounted_keeps_its_image() {
    let _alone = crate::STARTS.lock();
    let folder = tempfile::tempdir().unwrap();
    let kept = ImageCache::open(&folder.path().join("kept")).unwrap();
    let datastore = folder.path().join("datastore");
    std::fs::create_dir(&datastore).unwrap();
    let target = datastore.join("disk.0");
    fill(&kept, 1).overlay(&kept, &target, None, There::Nothing).unwrap();
    // As on two filesystems: nothing is beside it, and it has the image in the cache alone.
    let records = std::fs::read_dir(folder.path().join("kept/overlays")).unwrap();
    let record = records.map(|entry| entry.unwrap().path()).next().unwrap();
    let own: serde_json::Value = serde_json::from_slice(&std::fs::read(&record).unwrap()).unwrap();
    let note = |filesystem: serde_json::Value| {
        let mut about = own.clone();
        (about["beside"], about["filesystem"]) = (serde_json::Value::Null, filesystem);
        std::fs::write(&record, about.to_string()).unwrap();
    };
    let nothing = Bounds { size: 0, keep_free: 0 };
    std::fs::remove_file(datastore.join(format!(".diskcast-{}", key(1)))).unwrap();
    std::fs::remove_dir_all(&datastore).unwrap();
    // Its folder is gone, as that of a machine that was removed; but something else is mounted there.
    note(serde_json::json!({"device": u64::MAX, "id": u64::MAX}));
    assert!(kept.clean(nothing).unwrap().is_empty());
    // An image whose record was lost is no part of a fetch that ended.
    let place = kept.place(&key(1));
    let about = std::fs::read(place.join("about.json")).unwrap();
    std::fs::remove_file(place.join("about.json")).unwrap();
    std::fs::File::open(&place).unwrap().set_modified(UNIX_EPOCH + Duration::from_secs(10)).unwrap();
    kept.clean(nothing).unwrap();
    assert!(place.join("disk.raw").exists());
    std::fs::write(place.join("about.json"), about).unwrap();
    note(own["filesystem"].clone());
    assert_eq!(kept.clean(nothing).unwrap(), ["image1@1"], "now it is gone");
}

#[test]
fn a_second_attempt_takes_nothing_from_a_machine() {
    let _alone = crate::STARTS.lock();
    let folder = tempfile::tempdir().unwrap();
    let kept = ImageCache::open(&folder.path().join("kept")).unwrap();
    let (base, other) = (fill(&kept, 1), fill(&kept, 2));
    let target = folder.path().join("disk.0");
    let make =
        |base: &Base, size, there| base.overlay(&kept, &target, size, there).map_err(|error| error.kind());
    let files = || {
        let entries = std::fs::read_dir(folder.path()).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    // What the first attempt made is there, as it was made.
    make(&base, None, There::Nothing).unwrap();
    let made = std::fs::read(&target).unwrap();
    assert_eq!(make(&base, None, There::Same), Ok(()));
    assert_eq!(std::fs::read(&target).unwrap(), made);
    // Of another image, or of another size, or changed since.
    let before = files();
    assert_eq!(make(&other, None, There::Same), Err(ErrorKind::Refused));
    assert_eq!(make(&base, Some(2 * BYTES as u64), There::Same), Err(ErrorKind::Refused));
    let mut changed = made.clone();
    *changed.last_mut().unwrap() ^= 1;
    std::fs::write(&target, &changed).unwrap();
    assert_eq!(make(&base, None, There::Same), Err(ErrorKind::Refused));
    assert_eq!(std::fs::read(&target).unwrap(), changed);
    assert_eq!(files(), before, "nothing is left behind");
    // It still needs its image.
    drop((base, other));
    assert_eq!(kept.clean(Bounds { size: 0, keep_free: 0 }).unwrap(), ["image2@1"]);
    assert_eq!(files(), before);
    let base = here(&kept, 1);
    let make = |there| base.overlay(&kept, &target, None, there).map_err(|error| error.kind());
    assert_eq!(make(There::Anything), Ok(()));
    assert_eq!(make(There::Same), Ok(()), "it is as new");
}

#[test]
fn an_image_that_begins_like_a_qcow2_is_a_disk_all_the_same() {
    let _alone = crate::STARTS.lock();
    let folder = tempfile::tempdir().unwrap();
    let kept = ImageCache::open(&folder.path().join("kept")).unwrap();
    let filling = missing(&kept, 1);
    // A machine wrote the file of another one to the beginning of its disk.
    let inner = folder.path().join("inner.qcow2");
    let geometry =
        disk::Geometry { size_bytes: 64 << 10, logical_sector_bytes: 512, physical_sector_bytes: 512 };
    disk::open_qcow2_target(&inner, geometry, false).unwrap();
    let mut content = std::fs::read(inner).unwrap();
    content.resize(BYTES, 7);
    std::fs::write(filling.part(), &content).unwrap();
    let about = About { reference: "image1@1".to_owned(), size_bytes: BYTES as u64, sector_bytes: 512 };
    let base = filling.complete(&about).unwrap();
    let target = folder.path().join("disk.qcow2");
    base.overlay(&kept, &target, None, There::Nothing).unwrap();
    let read = std::process::Command::new("qemu-img")
        .args(["convert", "-f", "qcow2", "-O", "raw", "disk.qcow2", "disk.raw"])
        .current_dir(folder.path())
        .status()
        .unwrap();
    assert!(read.success() && std::fs::read(folder.path().join("disk.raw")).unwrap() == content);
}
