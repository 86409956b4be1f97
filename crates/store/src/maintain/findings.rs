//! What a verification looks at, and what it finds.

use image::PublicKey;

use crate::names::Reference;

/// What to verify.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// Every version and tag, and objects that no version names.
    All,
    /// One version.
    Version(Reference),
}

/// What is wrong with a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// It is not there.
    Missing,
    /// It is not what was stored.
    Corrupt,
    /// The store failed, or the record is of a newer format.
    Unreadable,
    /// Nobody who is trusted signed it.
    Untrusted,
}

/// One record that is not right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// Its path in the repository.
    pub path: String,
    /// What is wrong.
    pub why: Why,
    /// The same in words.
    pub text: String,
    /// The versions that cannot be installed for it. Empty if no version names the record, or it is a copy of an object
    /// that has a good one.
    pub versions: Vec<Reference>,
}

/// A key that signed versions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signer {
    /// The key.
    pub key: PublicKey,
    /// How it is called, if it is trusted.
    pub name: Option<String>,
    /// Versions that it signed.
    pub versions: u64,
}

/// What a verification found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Versions looked at.
    pub versions: u64,
    /// Distinct objects read.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Objects that no version names: of a capture under way or given up, or of removed versions.
    pub unreferenced: u64,
    /// Files among the objects and records that are neither.
    pub strangers: u64,
    /// The keys that signed versions, or are said to have; a signature that is not its key's own is damage, too.
    pub signers: Vec<Signer>,
    /// Versions that nobody signed.
    pub unsigned: u64,
    /// What is not right, in the order of paths.
    pub damaged: Vec<Damage>,
}
