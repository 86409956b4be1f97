//! The repository, its images and their versions.

use serde::{Deserialize, Serialize};

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
