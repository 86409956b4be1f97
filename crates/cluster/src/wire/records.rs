//! Records of the metadata service, as they travel. formats/cluster.md, section 7.

use serde::{Deserialize, Serialize};

/// How a record is put.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PutMode {
    /// Only if there is none.
    Create,
    /// In any case.
    Put,
}

/// `PUT /records`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RecordRequest {
    /// The group.
    pub group: u32,
    /// The name.
    pub name: String,
    /// Its value, in base64.
    pub value: String,
    /// Tells the maker's record from others with the same value.
    pub nonce: String,
    /// Whether there may be one.
    pub mode: PutMode,
}

/// A record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The name.
    pub name: String,
    /// Its value, in base64.
    pub value: String,
    /// That of its maker.
    pub nonce: String,
    /// Nanoseconds since 1970.
    pub modified: u64,
}

/// `POST /records/remove`; the answer is [`Records`]: those that were there.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RecordNames {
    /// The group.
    pub group: u32,
    /// The names.
    pub names: Vec<String>,
}

/// `POST /records/get`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RecordName {
    /// The group.
    pub group: u32,
    /// The name.
    pub name: String,
}

/// `POST /records/list`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RecordList {
    /// The group.
    pub group: u32,
    /// What the names begin with.
    pub prefix: String,
    /// Names behind this one.
    pub after: String,
    /// At most so many.
    pub limit: usize,
}

/// The answer: records in order of their names.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Records {
    /// The records.
    pub records: Vec<Record>,
    /// Whether there are more.
    pub more: bool,
}
