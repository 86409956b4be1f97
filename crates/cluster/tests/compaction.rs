//! What was deleted gives its space back, and what is in use stays readable all the time.

use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::Duration;

use base::Chance;
use bytes::Bytes;
use cluster::client::Cluster;
use lab::ClusterSite;
use object_store::path::Path;
use object_store::{Error, MultipartUpload as _, ObjectStore, ObjectStoreExt as _};

/// How long capabilities last: the shortest time that fits the lease of a site.
const LIFETIME: Duration = Duration::from_secs(6);

fn content(seed: u64, bytes: usize) -> Bytes {
    let mut content = vec![0; bytes];
    Chance::from_seed(seed).fill(&mut content);
    Bytes::from(content)
}

fn path(number: u64) -> Path {
    Path::from(format!("data/{number}"))
}

fn length(number: u64) -> usize {
    20_000 + number as usize * 7919 % 150_000
}

async fn read(store: &dyn ObjectStore, path: &Path) -> Result<Bytes, Error> {
    store.get(path).await?.bytes().await
}

/// Bytes that the filesystem has allocated for the objects of a device.
fn allocated(folder: &FilePath) -> u64 {
    let files = |folder: &FilePath| std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let mut bytes = 0;
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for path in files(&folder) {
            let Ok(about) = std::fs::metadata(&path) else { continue };
            match about.is_dir() {
                true => folders.push(path),
                false if path.extension().is_some_and(|ending| ending == "redb") => {}
                false => bytes += std::os::unix::fs::MetadataExt::blocks(&about) * 512,
            }
        }
    }
    bytes
}

#[test]
fn deleted_contents_give_their_space_back() {
    let folder = tempfile::tempdir().unwrap();
    let site = ClusterSite::start_reclaiming(folder.path(), (2, 1), 4, LIFETIME);
    let used = || (0..4).map(|device| allocated(&site.device_folder(device))).sum::<u64>();
    {
        // One that ends: its segments are sealed.
        let store: Arc<dyn ObjectStore> = Arc::new(site.client(1));
        site.runtime.block_on(async {
            for number in 0..200 {
                store.put(&path(number), content(number, length(number)).into()).await.unwrap();
            }
            store.put(&path(500), content(500, 40_000_000).into()).await.unwrap();
            let mut upload = store.put_multipart(&path(501)).await.unwrap();
            upload.put_part(content(501, 6_000_000).into()).await.unwrap();
            upload.put_part(content(502, 100).into()).await.unwrap();
            upload.complete().await.unwrap();
        });
    }
    let full = used();
    let store: Arc<dyn ObjectStore> = Arc::new(site.client(1));
    let kept = |number: u64| number.is_multiple_of(10);
    // A reader that is slow: it found its content before it moves.
    let slow = site.runtime.block_on(async { store.get(&path(10)).await.unwrap() });
    site.runtime.block_on(async {
        for number in (0..200).filter(|&number| !kept(number)) {
            store.delete(&path(number)).await.unwrap();
        }
        store.delete(&path(500)).await.unwrap();
        store.put(&path(20), content(1020, 5000).into()).await.unwrap();
    });
    site.wait_for("all garbage to go", |status| {
        status.compacting == 0 && status.segments_emptied == 0 && used() < full / 4
    });
    let kept_bytes: usize = (0..200).filter(|&number| kept(number)).map(length).sum::<usize>() + 6_000_100;
    let most = kept_bytes as u64 * 3 / 2 * 5 / 4;
    assert!(used() < most, "{} bytes are used for {kept_bytes}", used());
    let slow = site.runtime.block_on(slow.bytes()).unwrap();
    assert!(slow == content(10, length(10)), "what a slow reader found before");
    let fresh: Arc<dyn ObjectStore> = Arc::new(site.client(1));
    for store in [store, fresh] {
        site.runtime.block_on(async {
            for number in (0..200).filter(|&number| number != 20) {
                match read(store.as_ref(), &path(number)).await {
                    Ok(found) => {
                        assert!(kept(number) && found == content(number, length(number)), "{number}")
                    }
                    Err(Error::NotFound { .. }) => assert!(!kept(number), "{number} is gone"),
                    Err(error) => panic!("{number}: {error}"),
                }
            }
            assert!(read(store.as_ref(), &path(20)).await.unwrap() == content(1020, 5000), "the newer one");
            let parts = [content(501, 6_000_000), content(502, 100)].concat();
            assert!(read(store.as_ref(), &path(501)).await.unwrap() == parts);
        });
    }
    // The directories of what is left say the same.
    let rebuilt = Cluster::rebuild_index(&site.access(1), |_| {}).unwrap();
    assert_eq!((rebuilt.restored, rebuilt.unreadable), (0, 0), "{rebuilt:?}");
    assert!(rebuilt.names < 60, "{rebuilt:?}");
}

#[test]
fn short_segments_are_put_together() {
    let folder = tempfile::tempdir().unwrap();
    let site = ClusterSite::start_reclaiming(folder.path(), (2, 1), 4, LIFETIME);
    // Each leaves a segment that is nearly empty.
    let clients = 20;
    for number in 0..clients {
        let store = site.client(1);
        let (path, content) = (path(number), content(number, length(number)));
        site.runtime.block_on(store.put(&path, content.into())).unwrap();
    }
    site.wait_for("few segments", |status| {
        status.segments_sealed < 8 && status.segments_emptied == 0 && status.compacting == 0
    });
    let store = site.client(1);
    for number in 0..clients {
        let found = site.runtime.block_on(read(&store, &path(number))).unwrap();
        assert!(found == content(number, length(number)), "{number}");
    }
}

#[test]
fn parts_of_an_upload_that_goes_on_keep_their_space() {
    let folder = tempfile::tempdir().unwrap();
    let site = ClusterSite::start_reclaiming(folder.path(), (2, 1), 4, LIFETIME);
    let store: Arc<dyn ObjectStore> = Arc::new(site.client(1));
    let mut upload = site.runtime.block_on(async {
        let mut upload = store.put_multipart(&path(1)).await.unwrap();
        upload.put_part(content(1, 6_000_000).into()).await.unwrap();
        // In other segments: these are emptied meanwhile, so the devices were asked and the names looked at.
        for number in 10..60 {
            store.put(&path(number), content(number, 100_000).into()).await.unwrap();
        }
        upload
    });
    site.wait_for("segments with short contents to be sealed", |status| status.segments_sealed > 0);
    site.runtime.block_on(async {
        for number in 10..60 {
            store.delete(&path(number)).await.unwrap();
        }
    });
    let sealed = site.status().segments_sealed;
    site.wait_for("their space to be free", |status| {
        status.compacting == 0 && status.segments_emptied == 0 && status.segments_sealed < sealed
    });
    site.runtime.block_on(async {
        upload.put_part(content(2, 1_000).into()).await.unwrap();
        upload.complete().await.unwrap();
    });
    let fresh = site.client(1);
    let found = site.runtime.block_on(read(&fresh, &path(1))).unwrap();
    assert!(found == [content(1, 6_000_000), content(2, 1_000)].concat());
}
