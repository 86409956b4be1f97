//! Every command of a device against every capability that does not allow it: clear refusals, and nothing changed.
//! The requests are made by hand, as another maker's client would.

use std::path::{Path, PathBuf};

use base::ErrorKind;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use cluster::Opening;
use cluster::device::Device;
use proto::cluster::{
    BatchItem, Capability, DeviceId, DeviceKey, Entry, ObjectId, Piece, Run, Width, encode_batch, rights,
};
use reqwest::Method;
use reqwest::blocking::Response;

use crate::lone::{Lone, all_rights, key, sealed};

const GROUP: u32 = 5;
const OBJECT: ObjectId = ObjectId { group: GROUP, number: 9 };

/// A device with an object.
struct Target {
    folder: tempfile::TempDir,
    device: Lone,
}

impl Target {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let target = Self { device: Lone::start(folder.path()), folder };
        assert_eq!(target.send(&Command::create(), &all()).status(), 201);
        assert_eq!(target.send(&Command::append(0), &all()).status(), 200);
        target
    }

    fn send(&self, command: &Command, capability: &str) -> Response {
        let request = self.device.request(command.method.clone(), &command.path, capability);
        let request = request.body(command.body.clone());
        let request = match command.range {
            Some(range) => request.header("range", range),
            None => request,
        };
        request.send().unwrap()
    }

    fn problem(&self, command: &Command, capability: &str) -> (u16, String) {
        let answer = self.send(command, capability);
        let status = answer.status().as_u16();
        let body: serde_json::Value = serde_json::from_str(&answer.text().unwrap()).unwrap_or_default();
        assert!(
            status < 400 || !body["detail"].as_str().unwrap_or_default().is_empty(),
            "{command:?}: {body}"
        );
        (status, body["problem"].as_str().unwrap_or_default().to_owned())
    }

    fn content(&self) -> Vec<u8> {
        let read = Command { range: Some("bytes=0-"), ..Command::new(Method::GET, "objects/ID", &[]) };
        self.send(&read, &all()).bytes().unwrap().to_vec()
    }
}

#[derive(Debug, Clone)]
struct Command {
    method: Method,
    path: String,
    range: Option<&'static str>,
    body: Vec<u8>,
}

impl Command {
    fn new(method: Method, path: &str, body: &[u8]) -> Self {
        Self { method, path: path.replace("ID", &OBJECT.to_string()), range: None, body: body.to_vec() }
    }

    fn create() -> Self {
        Self::new(Method::POST, "objects/ID?bytes=100", b"")
    }

    fn append(at: u64) -> Self {
        Self::new(Method::POST, &format!("objects/ID/append?at={at}"), &[7; 100])
    }
}

/// Every command, and the right that it needs.
fn commands() -> Vec<(Command, u32)> {
    let read = Command { range: Some("bytes=10-19"), ..Command::new(Method::GET, "objects/ID", b"") };
    vec![
        (Command::create(), rights::CREATE),
        (read, rights::READ),
        (Command::new(Method::PUT, "objects/ID?at=0", &[1; 10]), rights::WRITE),
        (Command::append(100), rights::APPEND),
        (Command::new(Method::POST, "objects/ID/flush", b""), rights::APPEND),
        (Command::new(Method::POST, "objects/ID/truncate?bytes=50", b""), rights::WRITE),
        (Command::new(Method::POST, "objects/ID/fence?fence=1", b""), rights::MANAGE),
        (Command::new(Method::POST, "objects/ID/seal?bytes=100", b""), rights::APPEND),
        (Command::new(Method::DELETE, "objects/ID", b""), rights::REMOVE),
        (Command::new(Method::GET, "objects?group=5", b""), rights::LIST),
        (Command::new(Method::GET, "objects/ID/attributes", b""), rights::READ_ATTRIBUTES),
        (Command::new(Method::PUT, "objects/ID/attributes/300/1", b"x"), rights::WRITE_ATTRIBUTES),
        (Command::new(Method::DELETE, "objects/ID/attributes/300/1", b""), rights::WRITE_ATTRIBUTES),
        (
            Command::new(Method::PUT, "objects/00000005.0000000000000000/attributes/1/0", b"500"),
            rights::MANAGE,
        ),
        (Command::new(Method::POST, "index/get", &batch()), rights::READ_INDEX),
        (Command::new(Method::POST, "index", &batch()), rights::WRITE_INDEX),
        (Command::new(Method::POST, "index/replace", &batch()), rights::WRITE_INDEX),
        (Command::new(Method::GET, "index?group=5&slots=0-3", b""), rights::LIST),
        (Command::new(Method::GET, "index/copy?group=5&slots=0-3", b""), rights::READ_INDEX),
    ]
}

fn batch() -> Vec<u8> {
    let item = proto::cluster::BatchItem { group: GROUP, name: "a".to_owned(), entry: Vec::new() };
    proto::cluster::encode_batch(&[item])
}

fn capability() -> Capability {
    all_rights(GROUP)
}

fn all() -> String {
    sealed(&capability())
}

#[test]
fn no_command_without_its_right() {
    let device = Target::start();
    let before = device.content();
    assert_eq!(before, [7; 100]);
    let forged = {
        let mut bytes = capability().seal(&key());
        bytes[36] ^= 1;
        BASE64.encode(bytes)
    };
    let of_other_key = BASE64.encode(capability().seal(&DeviceKey::from_bytes([4; 32])));
    for (command, right) in commands() {
        let narrower = |change: fn(&mut Capability)| {
            let mut narrower = capability();
            change(&mut narrower);
            sealed(&narrower)
        };
        let without = sealed(&Capability {
            rights: rights::ALL & !right & !rights::MANAGE & !rights::WRITE,
            ..capability()
        });
        let refused: &[(&str, String, u16, &str)] = &[
            ("none", String::new(), 401, "capability"),
            ("garbage", "!!!".to_owned(), 401, "capability"),
            ("forged", forged.clone(), 401, "capability"),
            ("of another key", of_other_key.clone(), 401, "capability"),
            ("of another device", narrower(|own| own.device = DeviceId(2)), 401, "capability"),
            ("revoked", narrower(|own| own.key_epoch = 0), 401, "capability"),
            ("expired", narrower(|own| own.expires = 1), 401, "expired"),
            ("without the right", without, 403, "rights"),
            ("of another group", narrower(|own| own.group = Some(6)), 403, "rights"),
            ("of another object", narrower(|own| own.number = Some(8)), 403, "rights"),
        ];
        for (what, capability, status, word) in refused {
            let found = device.problem(&command, capability);
            assert_eq!(found, (*status, (*word).to_owned()), "{what}: {command:?}");
        }
    }
    assert_eq!(device.content(), before, "nothing was changed");
}

#[test]
fn ranges_lengths_fences_and_quotas_are_kept() {
    let device = Target::start();
    let told = |command: &Command, capability: &str| device.problem(command, capability);
    let read = |range| Command { range: Some(range), ..Command::new(Method::GET, "objects/ID", b"") };
    let short = sealed(&Capability { range: 20..30, ..capability() });
    assert_eq!(device.send(&read("bytes=20-29"), &short).bytes().unwrap(), vec![7; 10]);
    for (range, status, word) in [
        ("bytes=19-29", 403, "rights"),
        ("bytes=20-30", 403, "rights"),
        ("bytes=5-3", 400, "invalid"),
        ("bytes=x-3", 400, "invalid"),
    ] {
        assert_eq!(told(&read(range), &short), (status, word.to_owned()), "{range}");
    }
    assert_eq!(told(&read("bytes=100-110"), &all()), (416, "range".to_owned()));
    assert_eq!(told(&Command::append(90), &all()), (409, "length".to_owned()));
    assert_eq!(told(&Command::append(200), &all()), (409, "length".to_owned()));
    assert_eq!(told(&Command::append(0), &all()).0, 200, "a repetition");
    assert_eq!(told(&Command::create(), &all()), (409, "exists".to_owned()));
    assert_eq!(
        told(&Command::new(Method::PUT, "objects/ID?at=101", &[1]), &all()),
        (409, "length".to_owned())
    );
    assert_eq!(
        told(&Command::new(Method::POST, "objects/ID/append?at=18446744073709551615", &[1]), &all()).0,
        400
    );
    for wrong in [
        "objects/0000",
        "objects/00000000.0000000000000000",
        "objects/00000005.0000000000000000",
        "objects/..%2f..",
    ] {
        assert_eq!(
            told(
                &Command::new(Method::GET, wrong, b""),
                &sealed(&Capability { group: None, ..capability() })
            )
            .0,
            400,
            "{wrong}"
        );
    }
    // Over what is there, and back.
    assert_eq!(told(&Command::new(Method::PUT, "objects/ID?at=95", &[9; 10]), &all()).0, 200);
    assert_eq!(device.content(), [vec![7; 95], vec![9; 10]].concat());
    assert_eq!(told(&Command::new(Method::POST, "objects/ID/truncate?bytes=100", b""), &all()).0, 200);
    // A quota in the way of an append, and away again.
    let quota = "objects/00000005.0000000000000000/attributes/1/0";
    assert_eq!(told(&Command::new(Method::PUT, quota, b"150"), &all()).0, 204);
    assert_eq!(told(&Command::append(100), &all()), (507, "quota".to_owned()));
    assert_eq!(told(&Command::new(Method::PUT, quota, b"many"), &all()).0, 400);
    assert_eq!(told(&Command::new(Method::DELETE, quota, b""), &all()).0, 204);
    assert_eq!(told(&Command::append(100), &all()).0, 200);
    // Who lost the object to another can't go on.
    let old = sealed(&Capability { fence: 3, ..capability() });
    assert_eq!(told(&Command::new(Method::POST, "objects/ID/fence?fence=4", b""), &all()).0, 200);
    assert_eq!(told(&Command::append(200), &old), (403, "fenced".to_owned()));
    assert_eq!(told(&Command::append(200), &all()).0, 200);
    assert_eq!(told(&Command::new(Method::POST, "objects/ID/seal?bytes=200", b""), &all()).0, 200);
    assert_eq!(told(&Command::append(200), &all()), (403, "fenced".to_owned()));
    assert_eq!(device.content().len(), 200);
    assert_eq!(told(&Command::new(Method::DELETE, "objects/ID", b""), &all()).0, 204);
    assert_eq!(told(&Command::new(Method::DELETE, "objects/ID", b""), &all()), (404, "missing".to_owned()));
}

#[test]
fn entries_are_written_only_of_what_lies_in_the_writers_own_segments() {
    let device = Target::start();
    let batch = |items: Vec<Entry>| {
        let item = |entry: &Entry| BatchItem { group: GROUP, name: "a".to_owned(), entry: entry.encode() };
        encode_batch(&items.iter().map(item).collect::<Vec<_>>())
    };
    let stored = |segments: &[u64]| {
        let (run, width) = (Run { at: 0, bytes: 4096 }, Width::new(2, 1).unwrap());
        let piece = |&segment: &u64| Piece { segment, run, width, offset: 0, length: 10, sum: 1 };
        let pieces: Vec<_> = segments.iter().map(piece).collect();
        Entry { stamp: 1, moves: 0, bytes: Some(10 * pieces.len() as u64), pieces }
    };
    let own = |number| Capability { number, rights: rights::WRITE_INDEX, ..capability() };
    let told = |capability: &str, path: &str, items: Vec<Entry>| {
        device.problem(&Command::new(Method::POST, path, &batch(items)), capability).1
    };
    let (ninth, eighth, whole) = (sealed(&own(Some(9))), sealed(&own(Some(8))), sealed(&own(None)));
    // This device holds no part of the index: whoever is let in hears that.
    assert_eq!(told(&ninth, "index", vec![stored(&[9])]), "not-ready");
    assert_eq!(told(&whole, "index", vec![stored(&[9, 8]), Entry::tombstone(2)]), "not-ready");
    assert_eq!(told(&format!("{ninth},{eighth}"), "index", vec![stored(&[9, 8])]), "not-ready");
    for items in [vec![stored(&[8])], vec![stored(&[9, 8])], vec![Entry::tombstone(2)], vec![stored(&[])]] {
        assert_eq!(told(&ninth, "index", items.clone()), "rights", "{items:?}");
    }
    assert_eq!(told(&format!("{ninth},{eighth}"), "index", vec![Entry::tombstone(2)]), "rights");
    assert_eq!(told(&format!("{ninth},!!"), "index", vec![stored(&[9])]), "capability");
    assert_eq!(told(&ninth, "index/replace", vec![stored(&[9]), stored(&[9])]), "rights");
    assert_eq!(told(&whole, "index/replace", vec![stored(&[9]), stored(&[9])]), "not-ready");
    // What every client gets that joins.
    let reads = rights::READ | rights::READ_ATTRIBUTES | rights::LIST | rights::READ_INDEX;
    let reader = sealed(&Capability { rights: reads, ..capability() });
    for items in [vec![stored(&[9])], vec![Entry::tombstone(2)]] {
        assert_eq!(told(&reader, "index", items), "rights");
    }
}

/// All files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let paths = std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// Opens the device as soon as the tasks of the one before have let its database go.
fn reopened(folder: &Path) -> Result<(), base::Error> {
    loop {
        match Device::open(folder, Opening::Existing) {
            Err(error) if error.to_string().contains("open the database") => std::thread::yield_now(),
            opened => return opened.map(drop),
        }
    }
}

#[test]
fn a_folder_without_its_database_is_no_empty_device() {
    let mount_point = tempfile::tempdir().unwrap();
    let empty = Device::open(mount_point.path(), Opening::Existing).unwrap_err();
    assert!(empty.kind() == ErrorKind::Refused && empty.to_string().contains("--new"), "{empty}");
    assert!(files(mount_point.path()).is_empty(), "nothing is made");

    let target = Target::start();
    let folder = target.folder.path().to_owned();
    let objects = files(&folder.join("objects"));
    assert_eq!(objects.len(), 1);
    let content = std::fs::read(&objects[0]).unwrap();
    drop(target.device);
    reopened(&folder).unwrap();
    let (database, kept) = (folder.join("device.redb"), folder.join("kept"));
    std::fs::rename(&database, &kept).unwrap();
    for opening in [Opening::Existing, Opening::OrNew] {
        // An empty file is no database either.
        for is_emptied in [false, true] {
            if is_emptied {
                std::fs::write(&database, b"").unwrap();
            }
            let lost = Device::open(&folder, opening).unwrap_err();
            assert_eq!(lost.kind(), ErrorKind::Refused, "{lost}");
            assert!(lost.to_string().contains("diskcast cluster lost"), "{lost}");
            let _ = std::fs::remove_file(&database);
        }
    }
    assert_eq!(std::fs::read(&objects[0]).unwrap(), content);
    std::fs::rename(&kept, &database).unwrap();
    reopened(&folder).unwrap();
    assert_eq!(std::fs::read(&objects[0]).unwrap(), content);
}

#[test]
fn files_that_an_older_database_does_not_know_are_set_aside() {
    let target = Target::start();
    let (folder, device) = (target.folder, target.device);
    let (database, old) = (folder.path().join("device.redb"), folder.path().join("old"));
    drop(device);
    reopened(folder.path()).unwrap();
    let known = files(&folder.path().join("objects"));
    std::fs::copy(&database, &old).unwrap();
    let target = Target { device: Lone::start(folder.path()), folder };
    for number in [30, 31] {
        let path = |what: &str| format!("objects/00000005.{number:016x}{what}");
        assert_eq!(target.send(&Command::new(Method::POST, &path(""), b""), &all()).status(), 201);
        let append = Command::new(Method::POST, &path("/append?at=0"), &[number; 5000]);
        assert_eq!(target.send(&append, &all()).status(), 200);
    }
    let (folder, device) = (target.folder, target.device);
    drop(device);
    reopened(folder.path()).unwrap();
    // Two starts, as after a second crash.
    for _ in 0..2 {
        std::fs::copy(&old, &database).unwrap();
        reopened(folder.path()).unwrap();
    }
    assert_eq!(files(&folder.path().join("objects")), known);
    let mut aside: Vec<_> =
        files(&folder.path().join("orphans")).iter().map(|path| std::fs::read(path).unwrap()).collect();
    aside.sort();
    assert_eq!(aside, [vec![30; 5000], vec![31; 5000]]);
    let target = Target { device: Lone::start(folder.path()), folder };
    let status =
        target.send(&Command::new(Method::GET, "status", b""), "").json::<serde_json::Value>().unwrap();
    assert_eq!(status["orphans"], 2);
}
