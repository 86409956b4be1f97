//! The HTTP API, version 1: paths and JSON bodies that the server and its clients share. Specified in
//! `formats/api.md`.
//!
//! Errors are `application/problem+json` (RFC 9457) with a [`Problem`]. Requests carry `Authorization: Bearer SECRET`
//! (RFC 6750). Manifests and objects are sent as they are stored, `application/octet-stream`.

mod content;
mod deploy;
mod hosts;
mod images;
mod machines;
mod meaning;
pub mod path;
mod power;
mod probes;
mod problem;
mod sessions;
mod set;
mod statistics;
mod swarms;
mod tokens;

pub use content::{CloneRequest, CreateRequest, DiffAnswer, DiffRange, LogAnswer, LogEntry, Written};
pub use deploy::{Copies, FROM_HERE, GO, HostJob, HostWord, MACHINE, Put, WORK_FORMAT};
pub use hosts::{HostReport, HostStage, HostStatus, NextReport, SessionStatus, Status, SwarmStatus};
pub use images::{ImageSummary, Images, ImagesQuery, RepositorySummary, VersionSummary, Versions};
pub(crate) use machines::proof_text;
pub use machines::{
    After, DiskFacts, JobOutcome, JobProgress, JobRequest, JobStage, JobStatus, JobsMade, KeyStatus,
    MachineAnswer, MachineCall, MachineChange, MachineFacts, MachineLog, MachineStatus, Machines, NewMachine,
    Order, PROVES_NOTHING_MS, Power, Work,
};
pub use meaning::Meaning;
pub use power::{Switch, SwitchRequest, Switched};
pub use probes::{ProbeGrant, ProbeRequest, ProbeView};
pub use problem::{Problem, ProblemKind};
pub use sessions::{Family, Key, MULTICAST_VERSION, PublicKey, SessionGrant, SessionId, SessionRequest};
pub use set::{MemberJob, MemberWord, ORDER_SILENCE_SECONDS, SetOrder};
pub use statistics::{ReceiverStatistics, SessionStatistics, Sessions};
pub use swarms::{Name, SwarmGrant, SwarmRequest, TransferKey};
pub use tokens::TokenGrant;

/// The beginning of every path of this version.
pub const PREFIX: &str = "/api/v1";
/// Media type of a [`Problem`].
pub const PROBLEM_TYPE: &str = "application/problem+json";
/// Media type of objects and manifests.
pub const OBJECT_TYPE: &str = "application/octet-stream";
/// Header that names a publication, so that repeating it is safe.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// Header of a request for an object: the session in which the client takes or took part, for statistics only.
pub const SESSION_HEADER: &str = "diskcast-session";
/// Header of an answer with content: the version of the content.
pub const VERSION_HEADER: &str = "diskcast-version";
/// Header that assigns a request to an upload: 32 random hexadecimal digits.
pub const UPLOAD_HEADER: &str = "diskcast-upload";
/// Default TCP port of a server.
pub const PORT_DEFAULT: u16 = 7717;

#[cfg(test)]
mod tests {
    use image::{ObjectKind, ObjectRef};

    use super::*;

    #[test]
    fn paths_are_escaped() {
        assert_eq!(path::manifest("debian/12:stable@x"), "/api/v1/manifests/debian%2F12%3Astable%40x");
        let path = path::object(&ObjectRef::of(ObjectKind::Node, b"node"));
        assert!(path.starts_with("/api/v1/objects/nodes/") && path.ends_with("?bytes=4"), "{path}");
    }

    #[test]
    fn names_and_keys_travel_as_hexadecimal() {
        let grant = serde_json::json!({
            "multicast": 3, "session": "000102030405060708090a0b0c0d0e0f", "epoch": 7, "group": "239.1.2.3:7000",
            "source": "10.0.0.1", "report": "10.0.0.1:7001", "receiver": 3,
            "group_key": "00000000000000000000000000000001", "receiver_key": "ff000000000000000000000000000000",
            "server_key": "0000000000000000000000000000000000000000000000000000000000000000",
            "block_bytes": 1424, "objects": 10, "heads": 1, "stored_objects": 30, "bundle_blocks": 256, "receivers": 4,
        });
        let parsed: SessionGrant = serde_json::from_value(grant.clone()).unwrap();
        assert_eq!(parsed.receiver_key.0[0], 0xff);
        assert!(!format!("{parsed:?}").contains("ff00"), "keys must not reach a log");
        assert_eq!(serde_json::to_value(&parsed).unwrap(), grant);
        let mut before = grant;
        before.as_object_mut().unwrap().remove("multicast");
        assert_eq!(
            serde_json::from_value::<SessionGrant>(before).unwrap().multicast,
            2,
            "programs before did not say"
        );
        assert!(serde_json::from_str::<Key>("\"00\"").is_err());
        assert!("xyz".parse::<SessionId>().is_err());
    }

    #[test]
    fn an_unknown_problem_of_a_newer_server_is_still_a_problem() {
        let text = r#"{"type":"out-of-tea","title":"","status":418,"detail":"no tea"}"#;
        assert_eq!(serde_json::from_str::<Problem>(text).unwrap().kind, ProblemKind::Internal);
        let text = serde_json::to_string(&ProblemKind::NotFound.with("no image `x`")).unwrap();
        assert!(text.starts_with(r#"{"type":"not-found""#), "{text}");
    }
}
