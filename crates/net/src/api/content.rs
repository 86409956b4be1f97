//! Images that are written, read, cloned and compared in place.

use serde::{Deserialize, Serialize};

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
