//! Damage on disks: bits that flip, files that vanish, parts that a device missed. All of it is found and mended.

use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use base::Chance;
use bytes::Bytes;
use lab::ClusterSite;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt as _};

fn content(seed: u64) -> Bytes {
    let mut content = vec![0; 30_000 + (seed as usize * 91_000) % 700_000];
    Chance::from_seed(seed).fill(&mut content);
    Bytes::from(content)
}

async fn put(store: &dyn ObjectStore, numbers: std::ops::Range<u64>) {
    for number in numbers {
        store.put(&Path::from(format!("data/{number}")), content(number).into()).await.unwrap();
    }
}

async fn check(store: &dyn ObjectStore, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let found = store.get(&Path::from(format!("data/{number}"))).await.unwrap().bytes().await.unwrap();
        assert!(found == content(number), "{number}");
    }
}

/// The files of a device's objects.
fn files(site: &ClusterSite, device: usize) -> Vec<PathBuf> {
    let mut folders = vec![site.device_folder(device).join("objects")];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            match entry.file_type().unwrap().is_dir() {
                true => folders.push(entry.path()),
                false => files.push(entry.path()),
            }
        }
    }
    files.sort();
    files
}

/// Flips a bit in every tenth part of 64 KiB.
fn rot(file: &std::path::Path) {
    let open = std::fs::File::options().read(true).write(true).open(file).unwrap();
    let length = open.metadata().unwrap().len();
    for at in (100..length).step_by(640 << 10) {
        let mut byte = [0];
        open.read_exact_at(&mut byte, at).unwrap();
        open.write_all_at(&[byte[0] ^ 4], at).unwrap();
    }
}

#[test]
fn what_rots_on_two_devices_is_mended() {
    let folder = tempfile::tempdir().unwrap();
    let mut site = ClusterSite::start(folder.path(), (3, 2), 5);
    for part in 0..3 {
        futures::executor::block_on(put(&site.client(1), part * 10..part * 10 + 10));
    }
    site.wait_for("all segments sealed", |status| status.segments_open == 0 && status.segments_sealed >= 3);
    let before: Vec<Vec<u8>> = [0, 1]
        .iter()
        .flat_map(|&device| files(&site, device))
        .map(|file| std::fs::read(file).unwrap())
        .collect();
    for device in [0, 1] {
        site.stop_device(device);
        let all = files(&site, device);
        assert!(all.len() >= 3);
        all[1..].iter().for_each(|file| rot(file));
        std::fs::remove_file(&all[0]).unwrap();
        site.start_device(device);
    }
    let damaged: Vec<PathBuf> = [0, 1].iter().flat_map(|&device| files(&site, device)).collect();
    assert!(damaged.len() < before.len(), "two files are gone");
    let store: Arc<dyn ObjectStore> = Arc::new(site.client(1));
    futures::executor::block_on(check(store.as_ref(), 0..30));
    // Also what nobody read: parity, and parts of segments without an entry.
    for _ in 0..600 {
        let now: Vec<Vec<u8>> = [0, 1]
            .iter()
            .flat_map(|&device| files(&site, device))
            .map(|file| std::fs::read(file).unwrap())
            .collect();
        if now == before {
            break;
        }
        std::thread::park_timeout(std::time::Duration::from_millis(50));
    }
    site.stop_device(2);
    site.stop_device(3);
    let store: Arc<dyn ObjectStore> = Arc::new(site.client(1));
    futures::executor::block_on(check(store.as_ref(), 0..30));
    let now: Vec<Vec<u8>> = [0, 1]
        .iter()
        .flat_map(|&device| files(&site, device))
        .map(|file| std::fs::read(file).unwrap())
        .collect();
    assert!(now == before, "the files are as they were, byte for byte");
}

/// Copies the files of a folder into another one, in the place of what is there.
fn replace(from: &std::path::Path, to: &std::path::Path) {
    let _ = std::fs::remove_dir_all(to);
    assert!(std::process::Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
}

#[test]
fn what_one_holder_of_the_index_has_forgotten_is_read_from_another() {
    let folder = tempfile::tempdir().unwrap();
    let mut site = ClusterSite::start(folder.path(), (2, 1), 3);
    let (now, older) = (site.device_folder(0), folder.path().join("older"));
    site.stop_device(0);
    replace(&now, &older);
    site.start_device(0);
    site.hear_all();
    let open = || cluster::client::Cluster::open(&site.access(1).of_repository()).unwrap();
    let names = |number: u64| Path::from(format!("chunks/{number}"));
    // A record whose content is too long to stand in it.
    let manifest = Path::from("versions/web/1");
    futures::executor::block_on(async {
        let store = open();
        for number in 0..20 {
            store.put(&names(number), content(number).into()).await.unwrap();
        }
        let create = object_store::PutOptions { mode: object_store::PutMode::Create, ..Default::default() };
        store.put_opts(&manifest, content(0).into(), create).await.unwrap();
    });
    // For a moment only, so that it counts as having all that it had.
    site.stop_device(0);
    replace(&older, &now);
    site.start_device(0);
    site.hear_all();
    let open = || cluster::client::Cluster::open(&site.access(1).of_repository()).unwrap();
    futures::executor::block_on(async {
        let store = open();
        for number in 0..20 {
            let found = store.get(&names(number)).await.unwrap().bytes().await.unwrap();
            assert!(found == content(number), "{number}");
        }
        assert!(store.get(&manifest).await.unwrap().bytes().await.unwrap() == content(0));
        let nothing = store.get(&names(99)).await.unwrap_err();
        assert!(matches!(nothing, object_store::Error::NotFound { .. }), "{nothing}");
    });
}
