//! The scope and the report of a verification.

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
    /// It does not exist.
    Missing,
    /// Its content has changed since it was stored.
    Corrupt,
    /// The store failed, or the record is of a newer format.
    Unreadable,
    /// No trusted key signed it.
    Untrusted,
}

/// A damaged or missing record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// Its path in the repository.
    pub path: String,
    /// What is wrong with it.
    pub why: Why,
    /// The error as text.
    pub text: String,
    /// The versions that cannot be installed because of this damage. Empty if no version names the record, or if it
    /// is one copy of an object that also has a good copy.
    pub versions: Vec<Reference>,
}

/// A key that signed versions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signer {
    /// The key.
    pub key: PublicKey,
    /// Its name, if it is a trusted key.
    pub name: Option<String>,
    /// Number of versions that it signed.
    pub versions: u64,
}

/// Result of a verification.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Versions checked.
    pub versions: u64,
    /// Distinct objects read.
    pub objects: u64,
    /// Bytes of these objects.
    pub bytes: u64,
    /// Objects that no version names: from captures that run now or were aborted, or from removed versions.
    pub unreferenced: u64,
    /// Files that are neither objects nor records.
    pub strangers: u64,
    /// The keys in signatures of versions. An invalid signature is counted for the key that it names, and reported as
    /// damage.
    pub signers: Vec<Signer>,
    /// Versions without a signature.
    pub unsigned: u64,
    /// Damaged records, sorted by path.
    pub damaged: Vec<Damage>,
}
