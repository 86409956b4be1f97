//! JSON bodies of requests that write, read, clone and compare images in place.

use serde::{Deserialize, Serialize};

/// The body of `POST /api/v1/images/{name}`: creates an empty image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateRequest {
    /// Size of its disk, in bytes.
    pub size_bytes: u64,
    /// Size of a chunk in bytes; 256 KiB if absent.
    #[serde(default)]
    pub chunk_bytes: Option<u32>,
    /// Size of a logical sector in bytes; 512 if absent.
    #[serde(default)]
    pub logical_sector_bytes: Option<u32>,
}

/// The body of `POST /api/v1/images/{name}/clone`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloneRequest {
    /// The version that the new image starts from: `image`, `image:tag` or `image@version`.
    pub from: String,
}

/// The answer to a request that made a version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// The image.
    pub image: String,
    /// Number of the version.
    pub number: u64,
    /// Size of its disk, in bytes.
    pub disk_bytes: u64,
    /// Offset of the appended bytes; only for an append.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// How often another writer took the number first, so that the commit was repeated.
    pub retries: u32,
    /// Number of chunks that other writers changed at the same time, and that were merged.
    pub merged_chunks: u64,
    /// Bytes that were added to the repository; 0 if the request was a repetition.
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
    /// When it was made, RFC 3339.
    pub created: String,
    /// The program and machine that made it.
    pub creator: String,
    /// Size of its disk, in bytes.
    pub disk_bytes: u64,
    /// Bytes of the disk that are allocated.
    pub allocated_bytes: u64,
    /// Sum of the encoded bytes of its chunks.
    pub encoded_bytes: u64,
}

/// The body of `GET /api/v1/diff`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiffAnswer {
    /// The ranges that differ, ascending; at most 10,000.
    pub ranges: Vec<DiffRange>,
    /// Whether `ranges` has all of them. The sums below always include all.
    pub complete: bool,
    /// Bytes that are allocated in both versions, with different content.
    pub written_bytes: u64,
    /// Bytes that only the second version has allocated.
    pub allocated_bytes: u64,
    /// Bytes that only the first version has allocated.
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
