//! The scope and the report of a verification, and what one has found so far.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use base::{Error, ErrorKind, Result};
use image::{ChunkSize, Progress, PublicKey, Root, Signed, SignedManifest, Stage};
use parking_lot::Mutex;

use crate::layout;
use crate::names::Reference;
use crate::versions::Judge;
use crate::versions::cut_over::Item;

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
    /// What holds it can't be reached: it may be as it was stored.
    Unreachable,
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

/// The tree of a version.
pub(super) struct Tree {
    pub(super) version: Reference,
    pub(super) root: Root,
    pub(super) size: ChunkSize,
}

/// What a verification has counted and found so far. Many threads use it at the same time.
pub(super) struct Findings<'a> {
    judge: Option<Judge<'a>>,
    pub(super) progress: &'a dyn Progress,
    versions: AtomicU64,
    objects: AtomicU64,
    bytes: AtomicU64,
    unsigned: AtomicU64,
    signers: Mutex<Vec<Signer>>,
    /// By path.
    pub(super) damaged: Mutex<HashMap<String, Damage>>,
}

impl<'a> Findings<'a> {
    /// Nothing yet. With a `judge`, everything whose signatures do not count for it counts as damage.
    pub(super) fn new(judge: Option<Judge<'a>>, progress: &'a dyn Progress) -> Self {
        Self {
            judge,
            progress,
            versions: AtomicU64::new(0),
            objects: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            unsigned: AtomicU64::new(0),
            signers: Mutex::default(),
            damaged: Mutex::default(),
        }
    }

    /// Counts a good object of `bytes` bytes.
    pub(super) fn count(&self, bytes: u64) {
        self.objects.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
        self.progress.advance(Stage::Verify, bytes);
    }

    /// Counts a copy that was read and is damaged.
    pub(super) fn count_bad(&self, error: &Error) {
        self.objects.fetch_add(u64::from(error.kind() == ErrorKind::Corrupt), Relaxed);
    }

    /// Counts `count` versions.
    pub(super) fn add_versions(&self, count: u64) {
        self.versions.fetch_add(count, Relaxed);
    }

    /// Counts the version `reference`, a version by number, checks the signatures of the manifest that was read for
    /// it, and returns its tree; `None` if there is no valid manifest.
    pub(super) fn version(&self, reference: Reference, read: Result<SignedManifest>) -> Option<Tree> {
        self.add_versions(1);
        let path = match &reference {
            Reference::Version(image, number) => layout::version(image, *number).to_string(),
            Reference::Newest(_) | Reference::Tagged(..) => reference.to_string(),
        };
        let read = read.and_then(|sealed| {
            let layout = sealed.manifest.layout();
            let layout = layout.map_err(|error| error.within(format!("read `{reference}`")))?;
            Ok((sealed, layout.chunk))
        });
        match read {
            Ok((sealed, size)) => {
                let item = Item::Version(sealed.manifest.number);
                let concerned = vec![reference.clone()];
                let signers = self.signed(path, &reference, item, sealed.signed(), concerned);
                self.count_signers(&signers);
                Some(Tree { version: reference, root: sealed.manifest.root, size })
            }
            Err(error) => {
                self.damage(path, &error, vec![reference]);
                None
            }
        }
    }

    /// The keys that signed the record of `reference` at `path`. An invalid signature, or none by a trusted key, is
    /// reported as damage.
    pub(super) fn signed(
        &self,
        path: String,
        reference: &Reference,
        item: Item<'_>,
        signed: &Signed,
        concerned: Vec<Reference>,
    ) -> Vec<PublicKey> {
        let what = format!("`{reference}`");
        let signers = signed.signers().map_err(|error| error.within(format!("check {what}")));
        let checked = signers.and_then(|signers| {
            let trusted =
                self.judge.map_or(Ok(()), |judge| judge.check(&what, reference.image(), item, signed));
            trusted.map_err(|error| error.within(format!("use {what}")))?;
            Ok(signers)
        });
        checked.unwrap_or_else(|error| {
            let why = if error.kind() == ErrorKind::Refused { Why::Untrusted } else { Why::Corrupt };
            self.damage_of(why, path, &error, concerned);
            signed.claims().collect()
        })
    }

    fn count_signers(&self, signers: &[PublicKey]) {
        self.unsigned.fetch_add(u64::from(signers.is_empty()), Relaxed);
        let mut all = self.signers.lock();
        for &key in signers {
            if let Some(known) = all.iter_mut().find(|known| known.key == key) {
                known.versions += 1;
                continue;
            }
            let name = self.judge.and_then(|judge| judge.trust.name_of(key)).map(str::to_owned);
            all.push(Signer { key, name, versions: 1 });
        }
    }

    /// Reports damage of the record at `path`, unless there is some already.
    pub(super) fn damage(&self, path: String, error: &Error, versions: Vec<Reference>) {
        self.damage_of(why(error), path, error, versions);
    }

    fn damage_of(&self, why: Why, path: String, error: &Error, versions: Vec<Reference>) {
        let damage = Damage { path: path.clone(), why, text: base::chain(error), versions };
        self.damaged.lock().entry(path).or_insert(damage);
    }

    /// Adds all findings to `report`, and `more` damage.
    pub(super) fn report(self, report: &mut VerifyReport, more: Vec<Damage>) {
        report.versions = self.versions.into_inner();
        report.objects = self.objects.into_inner();
        report.bytes = self.bytes.into_inner();
        report.unsigned = self.unsigned.into_inner();
        report.signers = self.signers.into_inner();
        report.damaged = self.damaged.into_inner().into_values().chain(more).collect();
        report.damaged.sort_by(|a, b| a.path.cmp(&b.path));
    }
}

/// What `error`, met while a record was read, says of the record.
pub(super) fn why(error: &Error) -> Why {
    match error.kind() {
        ErrorKind::NotFound => Why::Missing,
        ErrorKind::Corrupt => Why::Corrupt,
        ErrorKind::Unreachable => Why::Unreachable,
        _ => Why::Unreadable,
    }
}
