//! What `object_store` promises, on a real cluster: whole, and with devices that are gone.

use std::sync::Arc;

use base::Chance;
use bytes::Bytes;
use cluster::client::Cluster;
use cluster::wire::Limits;
use futures::StreamExt as _;
use lab::ClusterSite;
use object_store::path::Path;
use object_store::{
    CopyMode, CopyOptions, Error, GetOptions, GetRange, MultipartUpload as _, ObjectStore,
    ObjectStoreExt as _, PutMode, PutOptions,
};

fn content(seed: u64, bytes: usize) -> Bytes {
    let mut content = vec![0; bytes];
    Chance::from_seed(seed).fill(&mut content);
    Bytes::from(content)
}

fn path(name: &str) -> Path {
    Path::from(name)
}

fn create() -> PutOptions {
    PutOptions { mode: PutMode::Create, ..PutOptions::default() }
}

/// Lengths around units, stripes and pieces.
const LENGTHS: &[usize] = &[
    0,
    1,
    4095,
    4096,
    65_536,
    65_537,
    76_000,
    524_288,
    524_289,
    3_000_000,
    16 << 20,
    (16 << 20) + 1,
    40_000_000,
];

async fn put_all(store: &dyn ObjectStore) {
    for (seed, &bytes) in LENGTHS.iter().enumerate() {
        store.put(&path(&format!("data/{bytes}")), content(seed as u64, bytes).into()).await.unwrap();
    }
}

async fn check_all(store: &dyn ObjectStore, what: &str) {
    for (seed, &bytes) in LENGTHS.iter().enumerate() {
        let name = path(&format!("data/{bytes}"));
        let found = store.get(&name).await.unwrap_or_else(|error| panic!("{what}, {bytes} bytes: {error:?}"));
        assert_eq!(found.meta.size, bytes as u64);
        let read = found.bytes().await.unwrap_or_else(|error| panic!("{what}, {bytes} bytes: {error:?}"));
        assert!(read == content(seed as u64, bytes), "{what}: {bytes} bytes came back wrong");
        for (from, to) in [(0, 1), (bytes / 2, bytes / 2 + 70_000), (bytes.saturating_sub(1), bytes)] {
            if from < bytes && bytes > 0 {
                let part = store.get_range(&name, from as u64..to as u64).await.unwrap();
                assert!(
                    part == content(seed as u64, bytes).slice(from..to.min(bytes)),
                    "{what}: {from} to {to}"
                );
            }
        }
    }
}

#[test]
fn what_was_put_comes_back_also_without_two_devices() {
    let folder = tempfile::tempdir().unwrap();
    let mut site = ClusterSite::start(folder.path(), (8, 2), 10);
    let client = site.client(1);
    futures::executor::block_on(async {
        put_all(&client).await;
        check_all(&client, "whole").await;
    });
    let other = site.client(1);
    for lost in [(0, 1), (4, 9)] {
        site.stop_device(lost.0);
        site.stop_device(lost.1);
        // At once, while the map still counts them, by a client that knows nothing; and by one that knew them.
        futures::executor::block_on(async {
            check_all(&other, "two devices gone").await;
            check_all(&client, "two devices gone").await;
            let name = path(&format!("later/{}", lost.0));
            client.put(&name, content(99, 300_000).into()).await.unwrap();
            assert!(client.get(&name).await.unwrap().bytes().await.unwrap() == content(99, 300_000));
        });
        site.start_device(lost.0);
        site.start_device(lost.1);
        site.wait_for("all devices up and ready", |status| {
            status
                .devices
                .iter()
                .all(|device| device.device.state == cluster::State::Up && device.copying == 0)
        });
    }
    futures::executor::block_on(check_all(&client, "all are back"));
}

#[test]
fn names_are_put_created_listed_and_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let site = ClusterSite::start(folder.path(), (2, 1), 3);
    let store: Arc<dyn ObjectStore> = Arc::new(site.client(1));
    site.runtime.block_on(async {
        let names = ["a/1", "a/2", "a/b/3", "ab/4", "c"];
        for name in names {
            store.put(&path(name), name.to_owned().into()).await.unwrap();
        }
        // A record, short and long.
        store.put_opts(&path("a/record"), "short".into(), create()).await.unwrap();
        store.put_opts(&path("a/long"), content(1, 5000).into(), create()).await.unwrap();
        for taken in ["a/1", "a/record", "a/long"] {
            let error = store.put_opts(&path(taken), "no".into(), create()).await.unwrap_err();
            assert!(matches!(error, Error::AlreadyExists { .. }), "{taken}: {error:?}");
        }
        let long = store.get(&path("a/long")).await.unwrap();
        assert_eq!(long.meta.size, 5000);
        assert_eq!(long.bytes().await.unwrap(), content(1, 5000));

        let listed = |prefix: Option<&'static str>| {
            let store = Arc::clone(&store);
            async move {
                let prefix = prefix.map(path);
                let items: Vec<_> = store.list(prefix.as_ref()).collect().await;
                let mut names: Vec<_> =
                    items.into_iter().map(|item| item.unwrap().location.to_string()).collect();
                names.sort();
                names
            }
        };
        assert_eq!(listed(Some("a")).await, ["a/1", "a/2", "a/b/3", "a/long", "a/record"]);
        assert_eq!(listed(None).await.len(), 7, "the content of the long record is not listed");
        let level = store.list_with_delimiter(Some(&path("a"))).await.unwrap();
        assert_eq!(level.common_prefixes, [path("a/b")]);
        assert_eq!(level.objects.len(), 4);

        // Over a record, and over a content.
        store.put(&path("a/record"), "new".into()).await.unwrap();
        store.put(&path("a/1"), "newer".into()).await.unwrap();
        assert_eq!(store.get(&path("a/record")).await.unwrap().bytes().await.unwrap(), "new");
        assert_eq!(store.get(&path("a/1")).await.unwrap().bytes().await.unwrap(), "newer");

        for name in ["a/record", "a/long", "a/1"] {
            store.delete(&path(name)).await.unwrap();
            assert!(matches!(store.head(&path(name)).await, Err(Error::NotFound { .. })), "{name}");
            assert!(matches!(store.get(&path(name)).await, Err(Error::NotFound { .. })), "{name}");
            assert!(matches!(store.delete(&path(name)).await, Err(Error::NotFound { .. })), "{name}");
        }
        store.put_opts(&path("a/record"), "again".into(), create()).await.unwrap();
        assert_eq!(listed(Some("a")).await, ["a/2", "a/b/3", "a/record"]);

        store.copy(&path("a/2"), &path("copied")).await.unwrap();
        assert_eq!(store.get(&path("copied")).await.unwrap().bytes().await.unwrap(), "a/2");
        let only_new = CopyOptions { mode: CopyMode::Create, ..CopyOptions::default() };
        let error = store.copy_opts(&path("a/2"), &path("copied"), only_new).await.unwrap_err();
        assert!(matches!(error, Error::AlreadyExists { .. }));
        store.rename(&path("copied"), &path("renamed")).await.unwrap();
        assert!(matches!(store.head(&path("copied")).await, Err(Error::NotFound { .. })));
    });
}

#[test]
fn of_many_that_create_a_name_one_succeeds() {
    let folder = tempfile::tempdir().unwrap();
    let site = ClusterSite::start(folder.path(), (2, 1), 3);
    let clients: Vec<Arc<dyn ObjectStore>> =
        (0..4).map(|_| Arc::new(site.client(1)) as Arc<dyn ObjectStore>).collect();
    site.runtime.block_on(async {
        for round in 0..10 {
            let bytes = if round % 2 == 0 { 50 } else { 3000 };
            let tries = (0..16usize).map(|who| {
                let store = Arc::clone(&clients[who % clients.len()]);
                async move {
                    let name = path(&format!("race/{round}"));
                    store.put_opts(&name, content(who as u64, bytes).into(), create()).await
                }
            });
            let outcomes = futures::future::join_all(tries).await;
            let winners: Vec<_> = (0..).zip(&outcomes).filter(|(_, outcome)| outcome.is_ok()).collect();
            assert_eq!(winners.len(), 1, "{outcomes:?}");
            let found = clients[0].get(&path(&format!("race/{round}"))).await.unwrap().bytes().await.unwrap();
            assert_eq!(found, content(winners[0].0, bytes));
        }
    });
}

#[test]
fn long_contents_arrive_in_parts_and_leave_in_ranges() {
    let folder = tempfile::tempdir().unwrap();
    let site = ClusterSite::start(folder.path(), (4, 2), 6);
    let store: Arc<dyn ObjectStore> = Arc::new(site.client(3));
    site.runtime.block_on(async {
        let whole = content(5, 90_000_000);
        let mut upload = store.put_multipart(&path("big")).await.unwrap();
        let parts: Vec<_> = (0..9)
            .map(|part| upload.put_part(whole.slice(part * 10_000_000..(part + 1) * 10_000_000).into()))
            .collect();
        // Their order is that in which they were given, whatever they are waited for.
        for part in futures::future::join_all(parts.into_iter().rev()).await {
            part.unwrap();
        }
        assert!(
            matches!(store.head(&path("big")).await, Err(Error::NotFound { .. })),
            "not there before the end"
        );
        upload.complete().await.unwrap();
        let other: Arc<dyn ObjectStore> = Arc::new(site.client(3));
        assert!(other.get(&path("big")).await.unwrap().bytes().await.unwrap() == whole);
        let options = GetOptions { range: Some(GetRange::Suffix(123_456)), ..GetOptions::default() };
        let tail = other.get_opts(&path("big"), options).await.unwrap().bytes().await.unwrap();
        assert!(tail == whole.slice(whole.len() - 123_456..));
        let ranges = [5..10u64, 9_999_990..10_000_010, 70_000_000..70_100_000];
        let read = other.get_ranges(&path("big"), &ranges).await.unwrap();
        for (range, read) in ranges.iter().zip(read) {
            assert!(read == whole.slice(range.start as usize..range.end as usize));
        }
        let stranger: Arc<dyn ObjectStore> = Arc::new(site.client(4));
        assert!(matches!(stranger.head(&path("big")).await, Err(Error::NotFound { .. })), "another group");
    });
}

#[test]
fn what_a_reader_knows_of_is_read_while_no_metadata_service_answers() {
    let folder = tempfile::tempdir().unwrap();
    let mut site = ClusterSite::start(folder.path(), (2, 1), 3);
    let reader = site.client(1);
    futures::executor::block_on(async {
        let writer = site.client(1);
        for (name, bytes) in [("versions/web/1", 100), ("versions/web/2", 5000), ("tags/web/new/1", 40)] {
            writer.put_opts(&path(name), content(1, bytes).into(), create()).await.unwrap();
        }
        writer.put(&path("chunks/a"), content(2, 90_000).into()).await.unwrap();
        writer.put(&path("chunks/b"), content(3, 90_000).into()).await.unwrap();
        let read = reader.get(&path("chunks/a")).await.unwrap().bytes().await.unwrap();
        assert!(read == content(2, 90_000));
        let listed: Vec<_> = reader.list(Some(&path("versions"))).collect().await;
        assert_eq!(listed.len(), 2);
    });
    site.stop_metadata();
    futures::executor::block_on(async {
        // None of this was read before, nor is it in memory.
        for (name, seed, bytes) in
            [("versions/web/1", 1, 100), ("versions/web/2", 1, 5000), ("chunks/b", 3, 90_000)]
        {
            let read = reader.get(&path(name)).await.unwrap_or_else(|error| panic!("{name}: {error:?}"));
            assert!(read.bytes().await.unwrap() == content(seed, bytes), "{name}");
        }
        let listed: Vec<_> = reader.list(Some(&path("versions"))).collect().await;
        assert!(listed.len() == 2 && listed.iter().all(Result::is_ok), "{listed:?}");
        let missing = reader.head(&path("versions/web/3")).await.unwrap_err();
        assert!(matches!(missing, Error::NotFound { .. }), "{missing}");
    });
    site.start_metadata();
    site.hear_all();
    futures::executor::block_on(async {
        reader.put(&path("chunks/c"), content(4, 9000).into()).await.unwrap();
        assert!(reader.get(&path("tags/web/new/1")).await.is_ok());
    });
}

#[test]
fn a_quota_that_was_ordered_is_kept_by_all_devices_until_it_is_taken_back() {
    let folder = tempfile::tempdir().unwrap();
    let site = ClusterSite::start(folder.path(), (2, 1), 3);
    let (client, other) = (site.client(6), site.client(7));
    let limit = |quota| Cluster::limit(&site.access(6), 6, Limits { quota, rate: Some(1 << 30) }).unwrap();
    limit(Some(1 << 20));
    assert_eq!(site.status().limits[0].limits, Limits { quota: Some(1 << 20), rate: Some(1 << 30) });
    site.hear_all();
    let put = |client: &Cluster, name: &str| {
        futures::executor::block_on(client.put(&path(name), content(1, 2 << 20).into()))
    };
    let refused = base::chain(&put(&client, "a").unwrap_err());
    assert!(refused.contains("group 6 may use 349526 bytes of this device"), "{refused}");
    put(&other, "a").unwrap();
    limit(None);
    site.hear_all();
    put(&client, "a").unwrap();
    let nobody = Cluster::limit(&site.access(6), 0, Limits::default()).unwrap_err();
    assert_eq!(nobody.kind(), base::ErrorKind::Invalid);
}
