//! The HTTP API, version 1: paths and JSON bodies that the server and its clients share.
//!
//! Errors are `application/problem+json` (RFC 9457) with a [`Problem`]. Requests carry `Authorization: Bearer SECRET`
//! (RFC 6750). Manifests and objects travel as their bytes, `application/octet-stream`.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use image::{ObjectKind, ObjectRef};
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind};
use crate::token::Secret;

/// What every path of this version begins with.
pub const PREFIX: &str = "/api/v1";
/// Media type of a [`Problem`].
pub const PROBLEM_TYPE: &str = "application/problem+json";
/// Media type of objects and manifests.
pub const OBJECT_TYPE: &str = "application/octet-stream";
/// Header that names a publication, so that repeating it is safe.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// Header of a request for an object: the session that its client takes or took part in, for statistics only.
pub const SESSION_HEADER: &str = "diskcast-session";
/// Header of an answer with content: the version that it is of.
pub const VERSION_HEADER: &str = "diskcast-version";
/// Header that tells which requests belong to one upload: 32 hexadecimal digits that the client draws.
pub const UPLOAD_HEADER: &str = "diskcast-upload";
/// TCP port of a server, unless told otherwise.
pub const PORT_DEFAULT: u16 = 7717;

/// An error as RFC 9457 has it. `kind` is for programs, `detail` for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// A name of the kind of error, as an URI reference: see [`ProblemKind`].
    #[serde(rename = "type")]
    pub kind: ProblemKind,
    /// The same in words.
    pub title: String,
    /// The HTTP status code.
    pub status: u16,
    /// What happened to this request.
    pub detail: String,
}

/// The kinds of errors that clients tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProblemKind {
    /// 404: no such image, version, object or session.
    NotFound,
    /// 401: no token, or one that the server does not know.
    Unauthorized,
    /// 403: the token does not grant this, or has expired.
    Denied,
    /// 409: it exists already, or was changed in between.
    Exists,
    /// 412: a precondition refuses it.
    Refused,
    /// 400: the request cannot be understood.
    Invalid,
    /// 422: bytes that do not match their digest.
    Corrupt,
    /// 507: the repository has no space left.
    Full,
    /// 503: not now: the server is starting, ending or at a limit.
    Unavailable,
    /// 500: everything else.
    #[serde(other)]
    Internal,
}

impl ProblemKind {
    /// Its HTTP status code.
    #[must_use]
    pub fn status(self) -> u16 {
        match self {
            Self::Invalid => 400,
            Self::Unauthorized => 401,
            Self::Denied => 403,
            Self::NotFound => 404,
            Self::Exists => 409,
            Self::Refused => 412,
            Self::Corrupt => 422,
            Self::Internal => 500,
            Self::Unavailable => 503,
            Self::Full => 507,
        }
    }

    /// It in words, the same for every request.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Invalid => "the request cannot be understood",
            Self::Unauthorized => "a token that this server knows is needed",
            Self::Denied => "the token does not grant this",
            Self::NotFound => "not found",
            Self::Exists => "exists already",
            Self::Refused => "a precondition does not hold",
            Self::Corrupt => "bytes do not match their digest",
            Self::Internal => "the server failed",
            Self::Unavailable => "the server cannot do this now",
            Self::Full => "no space is left",
        }
    }

    /// The problem of this kind that `detail` describes.
    #[must_use]
    pub fn with(self, detail: impl Into<String>) -> Problem {
        Problem { kind: self, title: self.title().to_owned(), status: self.status(), detail: detail.into() }
    }
}

/// What a token grants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenGrant {
    /// Patterns of the images that it is good for.
    pub images: Vec<String>,
    /// `read` or `write`.
    pub right: String,
    /// When it ends, in seconds since 1970 by the server's clock.
    pub expires: u64,
    /// How long that is, in seconds.
    pub left_seconds: u64,
    /// For how long a token is good that it is renewed by, in seconds. `None` if it can't be renewed.
    #[serde(default)]
    pub lasts_seconds: Option<u64>,
    /// Its secret, if it is a new one.
    #[serde(default)]
    pub secret: Option<Secret>,
}

/// Paths of the API, escaped.
pub mod path {
    use super::{ObjectKind, ObjectRef, PREFIX};

    /// `GET`: which repository it is, and how it is encrypted.
    #[must_use]
    pub fn repository() -> String {
        format!("{PREFIX}/repository")
    }

    /// `GET`: what the request's token grants; `POST`: another one that grants the same.
    #[must_use]
    pub fn token() -> String {
        format!("{PREFIX}/token")
    }

    /// `GET`: all images.
    #[must_use]
    pub fn images() -> String {
        format!("{PREFIX}/images")
    }

    /// `GET`: the versions of an image; `POST` a manifest without number: publish it.
    #[must_use]
    pub fn versions(image: &str) -> String {
        format!("{PREFIX}/images/{}/versions", escape(image))
    }

    /// `POST` a manifest without number: publish it, if `expect` is the newest version; 0 if there is no such image.
    #[must_use]
    pub fn versions_onto(image: &str, expect: u64) -> String {
        format!("{}?expect={expect}", versions(image))
    }

    /// `GET`: the newest version of an image; `POST`: make an empty one.
    #[must_use]
    pub fn image(image: &str) -> String {
        format!("{PREFIX}/images/{}", escape(image))
    }

    /// `POST`: make an image that begins as a version of another.
    #[must_use]
    pub fn clone_of(image: &str) -> String {
        format!("{PREFIX}/images/{}/clone", escape(image))
    }

    /// `PUT`: write to an image at an offset; with `expect` only onto that version.
    #[must_use]
    pub fn content_at(image: &str, offset: u64, expect: Option<u64>) -> String {
        let expect = expect.map(|number| format!("&expect={number}")).unwrap_or_default();
        format!("{PREFIX}/images/{}/content?offset={offset}{expect}", escape(image))
    }

    /// `POST`: append to an image, which grows by `bytes` bytes.
    #[must_use]
    pub fn append(image: &str, bytes: u64) -> String {
        format!("{PREFIX}/images/{}/content?bytes={bytes}", escape(image))
    }

    /// `POST`: write and free pieces of an image; with `expect` only onto that version.
    #[must_use]
    pub fn commit(image: &str, expect: Option<u64>) -> String {
        let expect = expect.map(|number| format!("?expect={number}")).unwrap_or_default();
        format!("{PREFIX}/images/{}/commit{expect}", escape(image))
    }

    /// `GET`: bytes of a version.
    #[must_use]
    pub fn content(reference: &str, offset: u64, bytes: usize) -> String {
        format!("{PREFIX}/content/{}?offset={offset}&bytes={bytes}", escape(reference))
    }

    /// `GET`: what a machine that starts from a version is likely to read.
    #[must_use]
    pub fn profile(image: &str, version: u64) -> String {
        format!("{}?version={version}", boots(image))
    }

    /// `POST`: what a machine read when it started.
    #[must_use]
    pub fn boots(image: &str) -> String {
        format!("{PREFIX}/images/{}/profile", escape(image))
    }

    /// `POST`: what a machine that starts has just read, for what others have.
    #[must_use]
    pub fn reads(image: &str) -> String {
        format!("{PREFIX}/images/{}/reads", escape(image))
    }

    /// `GET`: the record that says where a tag is.
    #[must_use]
    pub fn tag(image: &str, tag: &str) -> String {
        format!("{PREFIX}/images/{}/tags/{}", escape(image), escape(tag))
    }

    /// `GET`: the manifest of `image`, `image:tag` or `image@version`.
    #[must_use]
    pub fn manifest(reference: &str) -> String {
        format!("{PREFIX}/manifests/{}", escape(reference))
    }

    /// `GET`, `HEAD`, `PUT`: an object of this length; one of another length is damaged, and counts as missing.
    #[must_use]
    pub fn object(object: &ObjectRef) -> String {
        format!("{PREFIX}/objects/{}/{}?bytes={}", segment(object.kind), object.digest, object.len)
    }

    /// A kind of object as it stands in a path: `chunks` or `nodes`.
    #[must_use]
    pub fn segment(kind: ObjectKind) -> &'static str {
        match kind {
            ObjectKind::Chunk => "chunks",
            ObjectKind::Node => "nodes",
        }
    }

    /// `GET`: statistics of all sessions; `POST`: take part in one.
    #[must_use]
    pub fn sessions() -> String {
        format!("{PREFIX}/sessions")
    }

    /// Percent-encodes all but the unreserved characters (RFC 3986, section 2.3), the slash too.
    #[must_use]
    pub fn escape(text: &str) -> String {
        text.bytes().fold(String::with_capacity(text.len()), |mut path, byte| {
            if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                path.push(char::from(byte));
            } else {
                path.push_str(&format!("%{byte:02X}"));
            }
            path
        })
    }
}

/// The body of `GET /api/v1/repository`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepositorySummary {
    /// 32 hexadecimal digits that tell it from all others.
    pub id: String,
    /// How objects and manifests are sealed; `none` if they are not.
    pub cipher: String,
    /// If they are, what tells the right key from others.
    #[serde(default)]
    pub key_check: Option<String>,
}

/// The body of `GET /api/v1/images`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Images {
    /// Ascending by name.
    pub images: Vec<ImageSummary>,
}

/// One image, in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageSummary {
    /// Its name.
    pub name: String,
    /// Number of its newest version.
    pub latest: u64,
    /// How many versions it has.
    pub versions: u64,
    /// Its tags with the version that each names.
    pub tags: std::collections::BTreeMap<String, u64>,
}

/// The body of `GET /api/v1/images/{name}/versions`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versions {
    /// Ascending by number.
    pub versions: Vec<VersionSummary>,
}

/// One version, in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionSummary {
    /// Its number, from 1.
    pub number: u64,
    /// Digest of its manifest, 64 hexadecimal digits.
    pub manifest: String,
    /// When it was made, RFC 3339.
    pub created: String,
    /// Size of the disk, in bytes.
    pub disk_bytes: u64,
    /// Bytes of it that are in use.
    pub allocated_bytes: u64,
    /// Bytes of its encoded chunks.
    pub encoded_bytes: u64,
}

/// The body of `POST /api/v1/sessions`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRequest {
    /// `image@version`: the version whose manifest the client holds.
    pub reference: String,
    /// Digest of that manifest, 64 hexadecimal digits: both sides speak of the same bytes. Empty for an attached disk, which
    /// knows its root.
    pub manifest: String,
    /// What the receiver calls itself in statistics, at most 64 bytes.
    pub receiver: String,
    /// Which addresses it can use, best first; empty for any.
    #[serde(default)]
    pub families: Vec<Family>,
    /// Largest IP packet that its interface takes, in bytes; a session's blocks are never larger.
    pub mtu: u32,
    /// Whether it is for a disk that is used meanwhile: those have sessions of their own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub attached: bool,
}

/// A family of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// The answer to a [`SessionRequest`]: all that a receiver needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionGrant {
    /// The session.
    pub session: SessionId,
    /// Which start of the server this is.
    pub epoch: u32,
    /// Multicast group and port of blocks and status.
    pub group: SocketAddr,
    /// The address that the server sends from, for source-specific joins.
    pub source: IpAddr,
    /// Where reports go, by unicast.
    pub report: SocketAddr,
    /// The number of this receiver.
    pub receiver: u32,
    /// Key of what the server sends to all.
    pub group_key: Key,
    /// Key of what this receiver and the server send each other.
    pub receiver_key: Key,
    /// Payload of a block, in bytes.
    pub block_bytes: u16,
    /// Objects of the session: tree nodes, each alone, then bundles of consecutive stored chunks.
    pub objects: u64,
    /// How many of them are tree nodes.
    pub heads: u64,
    /// Stored objects in them: tree nodes, then chunks, as the catalogue numbers them.
    pub stored_objects: u64,
    /// Chunks are packed while a bundle has at most so many blocks.
    pub bundle_blocks: u16,
    /// Receivers admitted so far, this one included.
    pub receivers: u32,
    /// In a session for attached disks: runs of chunks of the disk, index and count, which go first, in this order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<Vec<(u64, u32)>>,
}

/// A session's random 128-bit name; 32 hexadecimal digits as text.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SessionId(pub u128);

/// A 128-bit key; 32 hexadecimal digits as text. `Debug` does not show it.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Key(pub [u8; 16]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

impl From<Key> for String {
    fn from(key: Key) -> Self {
        crate::hex::encode(&key.0)
    }
}

impl TryFrom<String> for Key {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        let invalid = || Error::new(ErrorKind::Invalid, "expected a key of 32 hexadecimal digits");
        crate::hex::decode(&text).map(Self).ok_or_else(invalid)
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionId({self})")
    }
}

impl From<SessionId> for String {
    fn from(id: SessionId) -> Self {
        id.to_string()
    }
}

impl FromStr for SessionId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let invalid = || Error::new(ErrorKind::Invalid, "expected a session of 32 hexadecimal digits");
        crate::hex::decode(text).map(|bytes| Self(u128::from_be_bytes(bytes))).ok_or_else(invalid)
    }
}

impl TryFrom<String> for SessionId {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

/// The body of `GET /api/v1/sessions`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sessions {
    /// Sessions that run, then those that ended not long ago.
    pub sessions: Vec<SessionStatistics>,
}

/// What a session did so far. Every block sent again is booked with the cause that its requester gave.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionStatistics {
    /// The session.
    pub session: SessionId,
    /// Which start of the server this is.
    pub epoch: u32,
    /// `image@version`.
    pub reference: String,
    /// Where blocks go.
    pub group: SocketAddr,
    /// Whether it still runs.
    pub running: bool,
    /// Milliseconds since it began, or that it ran.
    pub runtime_ms: u64,
    /// Milliseconds that reading objects took, summed over the threads that read.
    pub read_ms: u64,
    /// Bytes read from the repository.
    pub read_bytes: u64,
    /// Bytes of objects read more than once.
    pub reread_bytes: u64,
    /// Objects that could not be read, or were damaged.
    pub read_failures: u64,
    /// Objects in the session: tree nodes, and bundles of chunks.
    pub objects: u64,
    /// Nodes and chunks in them.
    pub stored_objects: u64,
    /// Bytes of all its objects.
    pub image_bytes: u64,
    /// Blocks of all its objects.
    pub blocks_in_image: u64,
    /// Blocks sent, first and again.
    pub blocks_sent: u64,
    /// Blocks sent again because a receiver joined after they had gone.
    pub resent_late: u64,
    /// Blocks sent again because a receiver had no buffer for them.
    pub resent_buffer_full: u64,
    /// Blocks sent again, or symbols sent, because a receiver lost blocks.
    pub resent_lost: u64,
    /// Repair symbols among the blocks sent; those that receivers needed are counted as resent, too.
    pub symbols_sent: u64,
    /// Those of the symbols that went ahead of any loss that was reported.
    pub symbols_ahead: u64,
    /// At what rate it sends if it has something to send, in bits per second on the wire.
    pub rate_bits_per_second: u64,
    /// Bytes of objects that its receivers got by unicast.
    pub unicast_bytes: u64,
    /// Payload bytes of all blocks sent.
    pub payload_bytes: u64,
    /// Bytes of all packets sent, without IP and UDP headers.
    pub packet_bytes: u64,
    /// Packets of status and other control sent.
    pub control_packets: u64,
    /// Packets received from receivers.
    pub reports: u64,
    /// Packets received that were not from a receiver, or broken.
    pub rejected: u64,
    /// Why nothing can be sent at the moment, in words.
    pub trouble: Option<String>,
    /// Every receiver that ever joined, at most [`base::limits::SESSION_RECEIVERS_MAX`].
    pub receivers: Vec<ReceiverStatistics>,
}

/// What one receiver did in a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReceiverStatistics {
    /// Its number.
    pub receiver: u32,
    /// What it calls itself.
    pub name: String,
    /// Milliseconds from the session's begin until it joined.
    pub joined_ms: u64,
    /// Milliseconds that it has taken part.
    pub runtime_ms: u64,
    /// Whether it left, and did not just fall silent.
    pub left: bool,
    /// The part of its runtime, 0 to 1, in which another receiver took part, too.
    pub concurrency: f64,
    /// Blocks that it says it received, each once.
    pub blocks_received: u64,
    /// Blocks that it says it received again.
    pub blocks_duplicate: u64,
    /// Blocks that it says were lost on their way.
    pub blocks_lost: u64,
    /// Blocks that it says it had no buffer for.
    pub blocks_refused: u64,
}

/// The body of `POST /api/v1/images/{name}`: an empty image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateRequest {
    /// Size of its disk.
    pub size_bytes: u64,
    /// Size of a chunk; 256 KiB if absent.
    #[serde(default)]
    pub chunk_bytes: Option<u32>,
    /// Logical sector; 512 if absent.
    #[serde(default)]
    pub logical_sector_bytes: Option<u32>,
}

/// The body of `POST /api/v1/images/{name}/clone`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloneRequest {
    /// The version to begin as: `image`, `image:tag` or `image@version`.
    pub from: String,
}

/// The answer to what made a version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// The image.
    pub image: String,
    /// Number of the version.
    pub number: u64,
    /// Size of its disk.
    pub disk_bytes: u64,
    /// Where an append went.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// How often another process had taken the number.
    pub retries: u32,
    /// Chunks that others wrote at the same time.
    pub merged_chunks: u64,
    /// Bytes that went into the store; 0 where a repeated request is answered.
    pub stored_bytes: u64,
}

/// The body of `GET /api/v1/images/{name}/log`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogAnswer {
    /// Newest first.
    pub versions: Vec<LogEntry>,
}

/// One version in a log, and the body of `GET /api/v1/images/{name}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEntry {
    /// Number of the version.
    pub number: u64,
    /// Digest of its manifest, 64 hexadecimal digits.
    pub manifest: String,
    /// The version that it was made from, as `image@version`.
    pub parent: Option<String>,
    /// When, RFC 3339.
    pub created: String,
    /// By whom.
    pub creator: String,
    /// Size of its disk.
    pub disk_bytes: u64,
    /// Of that, allocated.
    pub allocated_bytes: u64,
    /// Encoded bytes of all its chunks.
    pub encoded_bytes: u64,
}

/// The body of `GET /api/v1/diff`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiffAnswer {
    /// Ascending; at most 10,000.
    pub ranges: Vec<DiffRange>,
    /// Whether these are all.
    pub complete: bool,
    /// Bytes allocated in both, with other content.
    pub written_bytes: u64,
    /// Bytes that were free before.
    pub allocated_bytes: u64,
    /// Bytes that are free after.
    pub freed_bytes: u64,
}

/// A range in which two versions differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiffRange {
    /// Offset of its first byte on the disk.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
    /// `written`, `allocated` or `freed`.
    pub change: String,
}

#[cfg(test)]
mod tests {
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
            "session": "000102030405060708090a0b0c0d0e0f", "epoch": 7, "group": "239.1.2.3:7000",
            "source": "10.0.0.1", "report": "10.0.0.1:7001", "receiver": 3,
            "group_key": "00000000000000000000000000000001", "receiver_key": "ff000000000000000000000000000000",
            "block_bytes": 1424, "objects": 10, "heads": 1, "stored_objects": 30, "bundle_blocks": 256, "receivers": 4,
        });
        let parsed: SessionGrant = serde_json::from_value(grant.clone()).unwrap();
        assert_eq!(parsed.receiver_key.0[0], 0xff);
        assert!(!format!("{parsed:?}").contains("ff00"), "keys must not reach a log");
        assert_eq!(serde_json::to_value(&parsed).unwrap(), grant);
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
