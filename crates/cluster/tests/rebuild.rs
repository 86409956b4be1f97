//! A device is erased: what it held is computed and stored on others, and then any two more may go.

use std::sync::Arc;
use std::time::Duration;

use base::Chance;
use bytes::Bytes;
use cluster::State;
use cluster::client::Cluster;
use lab::ClusterSite;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt as _};

fn content(seed: u64) -> Bytes {
    let mut content = vec![0; 50_000 + (seed as usize * 37_000) % 2_000_000];
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

#[test]
fn an_erased_device_is_rebuilt_on_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let mut site = ClusterSite::start(folder.path(), (3, 2), 9);
    // Several segments, so that each device has some of their parts.
    for part in 0..6 {
        let store = site.client(1);
        futures::executor::block_on(put(&store, part * 10..part * 10 + 10));
    }
    site.wait_for("all segments sealed", |status| status.segments_open == 0 && status.segments_sealed >= 6);
    let victim = site.status().devices.iter().max_by_key(|device| device.used).unwrap().device.clone();
    let number = (0..9).find(|&device| site.device_address(device) == victim.address).unwrap();
    site.stop_device(number);
    std::fs::remove_dir_all(site.device_folder(number)).unwrap();
    // One that answers is not given up.
    let refused = Cluster::declare_lost(&site.access(1), victim.device.0).map_err(|error| error.kind());
    assert!(refused.is_ok() || refused == Err(base::ErrorKind::Revoked), "{refused:?}");
    site.wait_for("its silence to be noticed", |status| {
        status.devices.iter().any(|device| device.device.state == State::Down)
    });
    Cluster::declare_lost(&site.access(1), victim.device.0).unwrap();
    site.wait_for("the rebuild", |status| {
        let settled = status.devices.iter().all(|device| device.copying == 0);
        let seen = status.devices.iter().any(|device| device.device.state == State::Lost);
        seen && settled && status.rebuilding == 0 && status.epoch > 10
    });
    // The same place with a new disk is another device.
    site.start_device(number);
    site.wait_for("the new device", |status| status.devices.len() == 10);
    // Whatever two go now, nothing is missing: the lost parts are somewhere else.
    let store: Arc<dyn ObjectStore> = Arc::new(site.client(1));
    for pair in [(0, 1), (2, 3), (4, 5), (6, 7), (7, 8)] {
        let others = [pair.0, pair.1];
        others.iter().for_each(|&device| site.stop_device(device));
        futures::executor::block_on(check(store.as_ref(), 0..60));
        others.iter().for_each(|&device| site.start_device(device));
        site.wait_for("all are back", |status| {
            let well = |device: &cluster::wire::DeviceView| {
                device.device.state == State::Lost
                    || (device.device.state == State::Up && device.copying == 0)
            };
            status.devices.iter().all(well)
        });
    }
}

#[test]
fn a_drained_device_can_be_taken_away() {
    let folder = tempfile::tempdir().unwrap();
    let mut site = ClusterSite::start(folder.path(), (2, 1), 5);
    for part in 0..5 {
        let store = site.client(1);
        futures::executor::block_on(put(&store, part * 5..part * 5 + 5));
    }
    site.wait_for("all segments sealed", |status| status.segments_open == 0);
    let leaving = site.status().devices.iter().max_by_key(|device| device.used).unwrap().device.clone();
    Cluster::drain(&site.access(1), leaving.device.0).unwrap();
    site.wait_for("nothing is left there", |status| {
        let view = status.devices.iter().find(|device| device.device.device == leaving.device).unwrap();
        status.rebuilding == 0 && view.slots == 0 && status.devices.iter().all(|device| device.copying == 0)
    });
    let number = (0..5).find(|&device| site.device_address(device) == leaving.address).unwrap();
    site.stop_device(number);
    // One more may go, as ever.
    let other = (number + 1) % 5;
    site.stop_device(other);
    let store: Arc<dyn ObjectStore> = Arc::new(site.client(1));
    futures::executor::block_on(check(store.as_ref(), 0..25));
}

#[test]
fn new_devices_get_their_share() {
    let folder = tempfile::tempdir().unwrap();
    let mut site = ClusterSite::start_reclaiming(folder.path(), (2, 1), 4, Duration::from_secs(6));
    let groups = [(1, 0), (2, 6)];
    let readers = groups.map(|(group, first)| (Arc::new(site.client(group)), first));
    // No group has so many short segments that they are put together, which takes the place of moves.
    for ((group, first), part) in groups.iter().flat_map(|group| (0..6).map(move |part| (group, part))) {
        let from = (first + part) * 4;
        futures::executor::block_on(put(&site.client(*group), from..from + 4));
    }
    let check_all = |readers: &[(Arc<Cluster>, u64)]| {
        for (reader, first) in readers {
            futures::executor::block_on(check(reader.as_ref(), first * 4..(first + 6) * 4));
        }
    };
    // They know where everything was.
    check_all(&readers);
    site.wait_for("all segments sealed", |status| status.segments_open == 0);
    let held = |status: &cluster::wire::ClusterStatus| -> Vec<u64> {
        status.devices.iter().map(|device| device.used).collect()
    };
    site.hear_all();
    let before: u64 = held(&site.status()).iter().sum();
    let new = site.add_device();
    site.wait_for("the space of the new one to be known", |status| status.devices[new].device.free > 0);
    let moves = Cluster::rebalance(&site.access(1)).unwrap();
    assert!(moves > 2, "{moves}");
    // Its moves wait for one that is away for a moment.
    site.stop_device(new);
    let is_down = |status: &cluster::wire::ClusterStatus| status.devices[new].device.state == State::Down;
    site.wait_for("the silence of the new one to be noticed", is_down);
    site.start_device(new);
    site.wait_for("all moves, and the removal of what was moved", |status| {
        status.rebuilding == 0 && status.devices[new].used > 0 && held(status).iter().sum::<u64>() <= before
    });
    let after = held(&site.status());
    // Segments that were begun anew, since a device was slow to answer, are put together before they are moved.
    let mean = before / 5;
    assert!(after[new] > mean / 4 && after[new] < mean * 3 / 2, "{after:?} where the mean is {mean}");
    check_all(&readers);
    // Any one may go, as ever: also the new one.
    for away in [new, 0] {
        site.stop_device(away);
        check_all(&groups.map(|(group, first)| (Arc::new(site.client(group)), first)));
        site.start_device(away);
        site.wait_for("it is back", |status| {
            status.devices.iter().all(|device| device.device.state == State::Up && device.copying == 0)
        });
    }
}

/// A client died after it had sent a run to two of three devices, and one of these is lost: what only one device has
/// can't be computed, and was never acknowledged. The rebuild ends where the rest can be computed.
#[test]
fn a_tail_that_too_few_have_does_not_keep_a_rebuild_going() {
    let folder = tempfile::tempdir().unwrap();
    let mut site = ClusterSite::start(folder.path(), (2, 1), 4);
    let access = site.access(1);
    let body = folder.path().join("body");
    std::fs::write(&body, vec![7; 8192]).unwrap();
    let send = |url: &str, header: &str, data: &str| -> serde_json::Value {
        let words = ["--silent", "--insecure", "--fail-with-body", "--header", header];
        let epoch = format!("diskcast-epoch: {}", site.status().epoch);
        let words = words.iter().copied().chain(["--header", &epoch, "--data-binary", data, url]);
        let words = words.chain(["--header", "content-type: application/json"]);
        let done = std::process::Command::new("curl").args(words).output().unwrap();
        assert!(done.status.success(), "{url}: {}", String::from_utf8_lossy(&done.stdout));
        serde_json::from_slice(&done.stdout).unwrap_or_default()
    };
    let bearer = format!("Authorization: Bearer {}", access.token.as_str());
    let service =
        |path: &str, data: &str| send(&format!("{}/metadata/v1/{path}", access.metadata[0]), &bearer, data);
    let client = service("clients", r#"{"group":1}"#)["client"].clone();
    let opened = service("segments", &format!(r#"{{"client":{client},"group":1,"avoid":[]}}"#));
    let segment = opened["segment"].as_u64().unwrap();
    let devices: Vec<u64> =
        opened["devices"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
    let addresses: Vec<String> = devices
        .iter()
        .map(|&id| {
            let known = site.status().devices;
            known.iter().find(|view| u64::from(view.device.device.0) == id).unwrap().device.address.clone()
        })
        .collect();
    let layout = format!(r#"{{"devices":{},"k":2,"m":1,"segment":{segment}}}"#, opened["devices"]);
    for component in 0..3 {
        let capability =
            format!("diskcast-capability: {}", opened["capabilities"][component].as_str().unwrap());
        let object = format!("{}/device/v1/objects/00000001.{segment:016x}", addresses[component]);
        send(&object, &capability, &layout);
        if component < 2 {
            send(&format!("{object}/append?at=0"), &capability, &format!("@{}", body.display()));
        }
    }
    site.wait_for("the segment to be taken from its client", |status| status.segments_sealed == 1);
    let number = (0..4).find(|&device| site.device_address(device) == addresses[0]).unwrap();
    site.stop_device(number);
    site.wait_for("its silence to be noticed", |status| {
        status.devices.iter().any(|device| device.device.state == State::Down)
    });
    Cluster::declare_lost(&site.access(1), u32::try_from(devices[0]).unwrap()).unwrap();
    site.wait_for("the end of the rebuild", |status| status.rebuilding == 0);
}
