//! The index is erased on all devices, and found again in the segments.

use std::sync::Arc;

use base::Chance;
use bytes::Bytes;
use cluster::client::Cluster;
use lab::ClusterSite;
use object_store::path::Path;
use object_store::{Error, MultipartUpload as _, ObjectStore, ObjectStoreExt as _};
use redb::{Database, TableDefinition};

/// As in `device/tables.rs`.
const INDEX: TableDefinition<(u32, &str), &[u8]> = TableDefinition::new("index-1");

fn content(seed: u64, bytes: usize) -> Bytes {
    let mut content = vec![0; bytes];
    Chance::from_seed(seed).fill(&mut content);
    Bytes::from(content)
}

fn path(number: u64) -> Path {
    Path::from(format!("data/{number}"))
}

#[test]
fn an_index_that_is_erased_everywhere_is_found_in_the_segments() {
    let folder = tempfile::tempdir().unwrap();
    let mut site = ClusterSite::start(folder.path(), (2, 1), 4);
    {
        let store: Arc<dyn ObjectStore> = Arc::new(site.client(1));
        let other: Arc<dyn ObjectStore> = Arc::new(site.client(2));
        site.runtime.block_on(async {
            for number in 0..40 {
                store
                    .put(&path(number), content(number, 20_000 + number as usize * 3000).into())
                    .await
                    .unwrap();
            }
            store.put(&path(7), content(1007, 5000).into()).await.unwrap();
            store.put(&path(99), content(99, 40_000_000).into()).await.unwrap();
            let mut upload = store.put_multipart(&path(98)).await.unwrap();
            upload.put_part(content(98, 6_000_000).into()).await.unwrap();
            upload.put_part(content(97, 100).into()).await.unwrap();
            upload.complete().await.unwrap();
            other.put(&path(1), content(2001, 777).into()).await.unwrap();
        });
    }
    site.wait_for("all segments sealed", |status| status.segments_open == 0 && status.segments_sealed > 0);
    (0..4).for_each(|device| site.stop_device(device));
    for device in 0..4 {
        let database = loop {
            // The tasks of the device may still hold it for a moment.
            match Database::open(site.device_folder(device).join("device.redb")) {
                Ok(database) => break database,
                Err(_) => std::thread::yield_now(),
            }
        };
        let write = database.begin_write().unwrap();
        write.delete_table(INDEX).unwrap();
        write.commit().unwrap();
    }
    (0..4).for_each(|device| site.start_device(device));
    let store: Arc<dyn ObjectStore> = Arc::new(site.client(1));
    let lost = site.runtime.block_on(async { store.head(&path(3)).await });
    assert!(matches!(lost, Err(Error::NotFound { .. })), "{lost:?}");

    let done = Cluster::rebuild_index(&site.access(1), |_| {}).unwrap();
    assert_eq!((done.names, done.restored, done.unreadable), (43, 43, 0));
    let other: Arc<dyn ObjectStore> = Arc::new(site.client(2));
    let read = |store: &Arc<dyn ObjectStore>, number: u64| {
        site.runtime.block_on(async { store.get(&path(number)).await.unwrap().bytes().await.unwrap() })
    };
    for number in (0..40).filter(|&number| number != 7) {
        assert!(read(&store, number) == content(number, 20_000 + number as usize * 3000), "{number}");
    }
    assert!(read(&store, 7) == content(1007, 5000), "the newer one");
    assert!(read(&store, 99) == content(99, 40_000_000));
    assert!(read(&store, 98) == [content(98, 6_000_000), content(97, 100)].concat());
    assert!(read(&other, 1) == content(2001, 777), "another group");
    let again = Cluster::rebuild_index(&site.access(1), |_| {}).unwrap();
    assert_eq!((again.names, again.restored), (43, 0), "nothing is done twice");
    // What was deleted stays deleted.
    site.runtime.block_on(async { store.delete(&path(3)).await.unwrap() });
    Cluster::rebuild_index(&site.access(1), |_| {}).unwrap();
    let gone = site.runtime.block_on(async { store.head(&path(3)).await });
    assert!(matches!(gone, Err(Error::NotFound { .. })), "{gone:?}");
}
