//! An older copy of the state of the metadata service is put in its place, in a file and in etcd: devices tell what
//! it does not know, and what was stored after the copy can be read all the same.

use std::path::Path as Folder;
use std::time::Duration;

use base::Chance;
use bytes::Bytes;
use cluster::State;
use cluster::client::Cluster;
use futures::executor::block_on;
use lab::{ClusterSite, EtcdSite};
use object_store::path::Path;
use object_store::{Error, ObjectStore as _, ObjectStoreExt as _, PutMode, PutOptions};

const DEVICES: usize = 6;

fn content(name: &str) -> Bytes {
    let mut chance = Chance::from_seed(name.bytes().map(u64::from).sum());
    let mut content = vec![0; 1000 + chance.below(40_000) as usize];
    chance.fill(&mut content);
    Bytes::from(content)
}

fn put(client: &Cluster, names: &[String]) {
    for name in names {
        block_on(client.put(&Path::from(name.as_str()), content(name).into())).unwrap();
    }
}

fn create(client: &Cluster, name: &str) {
    let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
    block_on(client.put_opts(&Path::from(name), Bytes::from_static(b"record").into(), options)).unwrap();
}

fn get(client: &Cluster, name: &str) -> Option<Bytes> {
    match block_on(async { client.get(&Path::from(name)).await?.bytes().await }) {
        Ok(bytes) => Some(bytes),
        Err(Error::NotFound { .. }) => None,
        Err(error) => panic!("{name}: {error:?}"),
    }
}

fn names(prefix: &str) -> Vec<String> {
    (0..40).map(|at| format!("{prefix}/{at}")).collect()
}

fn wait_until_well(site: &ClusterSite) {
    site.wait_for("all devices", |status| {
        let well = |view: &cluster::wire::DeviceView| view.device.state == State::Up && view.copying == 0;
        status.waits_for.is_empty() && status.devices.iter().all(well)
    });
}

/// Whether all devices are there, and lack nothing.
fn is_whole(status: &cluster::wire::ClusterStatus) -> bool {
    let is_whole = |view: &cluster::wire::DeviceView| {
        let health = view.health;
        let lacks_nothing = (health.searching, health.missing, health.orphans) == (false, 0, 0);
        view.device.state == State::Up && view.copying == 0 && lacks_nothing
    };
    status.devices.iter().all(is_whole)
}

/// Stores things before and after the copy; in between, other devices become holders of the index.
fn store_before(site: &ClusterSite) {
    let client = site.client(1);
    put(&client, &names("before"));
    put(&client, &names("deleted"));
    create(&client, "kept");
}

fn store_after(site: &mut ClusterSite) -> u64 {
    site.stop_device(5);
    site.wait_for("the device to be missed", |status| {
        status.devices.iter().any(|view| view.device.state == State::Down)
    });
    let client = site.client(1);
    put(&client, &names("after"));
    create(&client, "forgotten");
    for name in names("deleted") {
        block_on(client.delete(&Path::from(name))).unwrap();
    }
    site.start_device(5);
    wait_until_well(site);
    put(&client, &names("late"));
    drop(client);
    site.status().epoch
}

fn check(site: &mut ClusterSite, epoch: u64) {
    let now = site.status().epoch;
    assert!(now > epoch + 1000, "no device has seen such an epoch: {now}");
    let client = site.client(1);
    let stored = [names("before"), names("after"), names("late")].concat();
    let all_are_there = |client: &Cluster| {
        for name in &stored {
            assert!(get(client, name) == Some(content(name)), "{name}");
        }
        assert!(names("deleted").iter().all(|name| get(client, name).is_none()));
        assert!(get(client, "kept").is_some());
    };
    all_are_there(&client);
    assert!(get(&client, "forgotten").is_none(), "records are as old as the copy");
    put(&client, &names("new"));
    // Segments that the copy did not know are known again, and sealed when nobody appends to them.
    drop(client);
    site.wait_for("segments to be sealed", |status| status.segments_open == 0);
    let fresh = site.client(1);
    site.stop_device(0);
    site.stop_device(3);
    all_are_there(&fresh);
    assert!(names("new").iter().all(|name| get(&fresh, name) == Some(content(name))));
}

/// Keeps a copy of the state as it is now.
fn copy(site: &mut ClusterSite, folder: &Folder) {
    site.stop_metadata();
    std::fs::copy(folder.join("metadata.redb"), folder.join("copy.redb")).unwrap();
    site.start_metadata();
    wait_until_well(site);
}

/// Puts the copy in the place of the state; the service is not started.
fn put_back(site: &mut ClusterSite, folder: &Folder) {
    site.stop_metadata();
    std::fs::remove_file(folder.join("metadata.redb")).unwrap();
    std::fs::copy(folder.join("copy.redb"), folder.join("metadata.redb")).unwrap();
}

fn over_a_file(folder: &Folder) -> (ClusterSite, u64) {
    let mut site = ClusterSite::start(folder, (3, 2), DEVICES);
    store_before(&site);
    copy(&mut site, folder);
    let epoch = store_after(&mut site);
    put_back(&mut site, folder);
    (site, epoch)
}

#[test]
fn an_older_file_is_completed_by_all_devices() {
    let folder = tempfile::tempdir().unwrap();
    let (mut site, epoch) = over_a_file(folder.path());
    // One does not answer: nothing is promised without it.
    site.stop_device(4);
    site.start_metadata();
    site.wait_for("all but one to tell", |status| status.waits_for.len() == 1);
    site.start_device(4);
    wait_until_well(&site);
    check(&mut site, epoch);
}

#[test]
fn a_device_that_is_lost_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let (mut site, epoch) = over_a_file(folder.path());
    site.stop_device(4);
    site.start_metadata();
    site.wait_for("all but one to tell", |status| status.waits_for.len() == 1);
    let lost = site.status().waits_for[0];
    Cluster::declare_lost(&site.access(1), lost.0).unwrap();
    site.wait_for("the others", |status| status.waits_for.is_empty() && status.rebuilding == 0);
    let now = site.status().epoch;
    assert!(now > epoch + 1000);
    let client = site.client(1);
    for name in [names("before"), names("after"), names("late")].concat() {
        assert!(get(&client, &name) == Some(content(&name)), "{name}");
    }
}

#[test]
fn an_older_snapshot_of_etcd_is_completed_by_all_devices() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut etcd) = EtcdSite::start_or_skip(folder.path(), 3, &[]) else { return };
    let mut site = ClusterSite::start_over(etcd.addresses(), folder.path(), (3, 2), DEVICES);
    store_before(&site);
    let snapshot = folder.path().join("snapshot");
    let _ = etcd.ctl(0, &["snapshot", "save", snapshot.to_str().unwrap()]);
    let epoch = store_after(&mut site);
    site.stop_metadata();
    etcd.restore(&snapshot);
    site.start_metadata();
    site.wait_for("the newest map", |status| status.epoch > epoch);
    wait_until_well(&site);
    check(&mut site, epoch);
}

/// An older copy of a device's folder, or of its database alone, is put in its place: it hides nothing that was
/// acknowledged since, although the device is back before anybody missed it, and what it lacks is computed anew.
#[test]
fn an_older_copy_of_a_device_hides_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut site = ClusterSite::start(folder.path(), (3, 2), DEVICES);
    let mut stored = names("before");
    put(&site.client(1), &stored);
    for (device, only_database) in [(2, false), (4, true)] {
        let (own, old) = (site.device_folder(device), folder.path().join(format!("old-{device}")));
        site.stop_device(device);
        site.copy_device(device, &old);
        site.start_device(device);
        wait_until_well(&site);
        let (round, before) = (format!("since-{device}"), site.status().epoch);
        put(&site.client(1), &names(&round));
        stored.extend(names(&round));
        site.wait_for("segments to be sealed", |status| status.segments_open == 0);
        site.hear_all();
        site.stop_device(device);
        if only_database {
            site.copy_device(device, &folder.path().join("newest"));
            std::fs::copy(old.join("device.redb"), own.join("device.redb")).unwrap();
        } else {
            site.copy_device(device, &folder.path().join("newest"));
            std::fs::remove_dir_all(&own).unwrap();
            std::fs::rename(&old, &own).unwrap();
        }
        site.start_device(device);
        let client = site.client(1);
        for name in &stored {
            assert!(get(&client, name) == Some(content(name)), "{name}, with an older copy of {device}");
        }
        site.wait_for("the device to have all", |status| is_whole(status) && status.epoch > before);
        assert!(
            !own.join("orphans").exists() || std::fs::read_dir(own.join("orphans")).unwrap().count() == 0
        );
    }
    assert_whole_without_two(&mut site, &stored);
}

/// The device has what it is to have: others may go.
fn assert_whole_without_two(site: &mut ClusterSite, stored: &[String]) {
    site.stop_device(0);
    site.stop_device(1);
    let client = site.client(1);
    for name in stored {
        assert!(get(&client, name) == Some(content(name)), "{name}, without two others");
    }
}

/// As before, but of a segment that is still open when the older copy comes back: its client has gone without a word,
/// and only when the service takes the segment it is known what the device lacks.
#[test]
fn an_older_copy_of_a_device_gets_what_was_not_sealed_yet() {
    let folder = tempfile::tempdir().unwrap();
    let mut site = ClusterSite::start(folder.path(), (3, 2), DEVICES);
    put(&site.client(1), &names("before"));
    let (own, old) = (site.device_folder(2), folder.path().join("old"));
    site.stop_device(2);
    site.copy_device(2, &old);
    site.start_device(2);
    wait_until_well(&site);
    // Segments of different devices.
    let clients: Vec<_> = (0..DEVICES).map(|_| site.client(1)).collect();
    let stored = names("since");
    let parts = stored.chunks(stored.len().div_ceil(DEVICES));
    clients.iter().zip(parts).for_each(|(client, some)| put(client, some));
    site.hear_all();
    site.stop_metadata();
    drop(clients);
    site.stop_device(2);
    std::fs::remove_dir_all(&own).unwrap();
    std::fs::rename(&old, &own).unwrap();
    site.start_metadata();
    site.start_device(2);
    site.wait_for("the device to have all", is_whole);
    assert_whole_without_two(&mut site, &stored);
}

/// The copy knows nothing of a device that joined since, and was given components that others have no more.
#[test]
fn what_was_moved_since_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let mut site = ClusterSite::start_reclaiming(folder.path(), (2, 1), 4, Duration::from_secs(6));
    let names = names("moved");
    // A segment each; more of them would be put together.
    names.chunks(names.len().div_ceil(7)).for_each(|some| put(&site.client(1), some));
    site.wait_for("segments to be sealed", |status| status.segments_open == 0);
    site.hear_all();
    let held =
        |status: &cluster::wire::ClusterStatus| status.devices.iter().map(|view| view.used).sum::<u64>();
    let before = held(&site.status());
    copy(&mut site, folder.path());
    let old = places(&site);
    let new = site.add_device();
    site.wait_for("the new device", |status| {
        status.devices.len() > new && status.devices[new].device.free > 0
    });
    assert!(Cluster::rebalance(&site.access(1)).unwrap() > 2);
    site.wait_for("all moves, and the removal of what was moved", |status| {
        status.rebuilding == 0 && status.devices[new].used > 0 && held(status) <= before
    });
    let (now, epoch) = (places(&site), site.status().epoch);
    assert_ne!(now, old);
    put_back(&mut site, folder.path());
    site.start_metadata();
    site.wait_for("the newest map", |status| status.epoch > epoch && status.waits_for.is_empty());
    assert_eq!(places(&site), now);
    site.stop_device(0);
    let client = site.client(1);
    assert!(names.iter().all(|name| get(&client, name) == Some(content(name))));
}

/// The devices of the first segments, as the service tells.
fn places(site: &ClusterSite) -> Vec<serde_json::Value> {
    let access = site.access(1);
    let told = |segment: u64| {
        let url = format!("{}/metadata/v1/segments/{segment}", access.metadata[0]);
        let words = [
            "--silent",
            "--insecure",
            "--header",
            &format!("Authorization: Bearer {}", access.token.as_str()),
            &url,
        ];
        let done = std::process::Command::new("curl").args(words).output().unwrap();
        serde_json::from_slice::<serde_json::Value>(&done.stdout).unwrap()["devices"].clone()
    };
    (1..20).map(told).collect()
}
