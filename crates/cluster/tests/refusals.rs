//! Every command of a device against every capability that does not allow it: clear refusals, and nothing changed.
//! The requests are made by hand, as another maker's client would.

#![allow(clippy::unwrap_used, reason = "tests fail by it")]

mod lone;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use lone::{Lone, all_rights, key, sealed};
use proto::cluster::{Capability, DeviceId, DeviceKey, ObjectId, rights};
use reqwest::Method;
use reqwest::blocking::Response;

const GROUP: u32 = 5;
const OBJECT: ObjectId = ObjectId { group: GROUP, number: 9 };

/// A device with an object.
struct Target {
    _folder: tempfile::TempDir,
    device: Lone,
}

impl Target {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let target = Self { device: Lone::start(folder.path()), _folder: folder };
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
