//! JSON bodies about the repository, its images and their versions.

use serde::{Deserialize, Serialize};

/// The body of `GET /api/v1/repository`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepositorySummary {
    /// 32 hexadecimal digits that identify the repository.
    pub id: String,
    /// How objects and manifests are encrypted; `none` if they are not.
    pub cipher: String,
    /// For an encrypted repository: a value by which a client checks its key.
    #[serde(default)]
    pub key_check: Option<String>,
}

/// The query of `GET /api/v1/images`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImagesQuery {
    /// Whether manifests of newest versions are wanted, too.
    #[serde(default)]
    pub manifests: bool,
    /// Only images whose names come after this one are wanted.
    #[serde(default)]
    pub after: Option<String>,
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
    /// Number of its versions.
    pub versions: u64,
    /// Its tags, with the number of the version that each one names.
    pub tags: std::collections::BTreeMap<String, u64>,
    /// The manifest of its newest version as it is stored, in base64, if it was asked for and there was room: if there
    /// was none, no further image has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest: Option<String>,
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
    /// Bytes of the disk that are allocated.
    pub allocated_bytes: u64,
    /// Sum of the encoded bytes of its chunks.
    pub encoded_bytes: u64,
}
