//! Verification of versions that are not in a repository of this machine but, say, on a server: everything is read
//! from there and checked here, so that damage of the medium, of the server and of the way here all show.

use std::collections::HashMap;
use std::sync::OnceLock;

use base::{Digest, Error, ErrorKind, Result};
use bytes::Bytes;
use image::{Cipher, ObjectRef, ObjectSource, Progress, SignedManifest, Stage, Verified};

use crate::layout;
use crate::maintain::findings::{Findings, Tree, VerifyReport};
use crate::maintain::trees::{Objects, Walk};
use crate::names::{ImageName, Reference, TagName};
use crate::versions::Judge;
use crate::versions::cut_over::Item;
use crate::versions::tags;

/// Where the objects of the versions are, and how to read them.
#[derive(Clone, Copy)]
pub struct Elsewhere<'a> {
    /// Has the objects. They are not verified before they come here.
    pub objects: &'a dyn ObjectSource,
    /// How everything is encrypted.
    pub cipher: &'a Cipher,
    /// With this, everything whose signatures do not count for it counts as damage.
    pub judge: Option<Judge<'a>>,
    /// Objects that are read at the same time.
    pub at_once: usize,
}

/// A verification of versions that are elsewhere: give it versions, then tags, and [`finish`](Self::finish).
pub struct Verification<'a> {
    from: Elsewhere<'a>,
    findings: Findings<'a>,
    trees: Vec<Tree>,
    /// Digests of the manifests that were read.
    manifests: HashMap<(ImageName, u64), Digest>,
    encoded_bytes: u64,
}

impl<'a> Verification<'a> {
    /// Of nothing yet.
    #[must_use]
    pub fn new(from: Elsewhere<'a>, progress: &'a dyn Progress) -> Self {
        Self {
            from,
            findings: Findings::new(from.judge, progress),
            trees: Vec::new(),
            manifests: HashMap::new(),
            encoded_bytes: 0,
        }
    }

    /// Checks the signatures of version `number` of `image`, and will check its tree. `read` is what came when its
    /// manifest was asked for.
    ///
    /// # Errors
    /// That in `read`, if it says nothing of the version: `Unreachable`, `Untrusted`, `Denied`, `Stopped`.
    pub fn version(&mut self, image: &ImageName, number: u64, read: Result<SignedManifest>) -> Result<()> {
        let read = judged(read)?;
        let reference = Reference::Version(image.clone(), number);
        if let Ok(sealed) = &read {
            self.manifests.insert((image.clone(), number), sealed.digest());
            self.encoded_bytes += sealed.manifest.statistics.encoded_bytes;
        }
        self.trees.extend(self.findings.version(reference, read));
        Ok(())
    }

    /// Reports that the versions of `image` could not be listed, because of `error`.
    ///
    /// # Errors
    /// As [`Self::version`].
    pub fn unlisted(&self, image: &ImageName, error: Error) -> Result<()> {
        if is_of_the_way(&error) {
            return Err(error);
        }
        let error = error.within(format!("list the versions of `{image}`, which were not checked"));
        self.findings.damage(layout::versions_of(image).to_string(), &error, Vec::new());
        Ok(())
    }

    /// Checks the signatures of `tag`, and that it names one of the versions that were given before. `read` is what
    /// came when its record was asked for; `NotFound` means that it was removed.
    ///
    /// # Errors
    /// As [`Self::version`].
    pub fn tag(&self, image: &ImageName, tag: &TagName, read: Result<Bytes>) -> Result<()> {
        let path = layout::tag_records(image, tag).to_string();
        let reference = Reference::Tagged(image.clone(), tag.clone());
        let opened = match judged(read)? {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            read => read.and_then(|bytes| tags::read_newest(image, tag, bytes, self.from.cipher)),
        };
        let checked = opened.and_then(|(newest, signed)| {
            let item = Item::Move(tag, newest.number());
            self.findings.signed(path.clone(), &reference, item, &signed, Vec::new());
            let Some((tag, digest)) = tags::tag_of(tag.clone(), newest) else { return Ok(()) };
            let number = tag.version;
            let found = self.manifests.get(&(image.clone(), number));
            if found == Some(&digest) {
                return Ok(());
            }
            let text = format!("`{reference}` names version {number} with another manifest than came");
            Err(Error::new(ErrorKind::Corrupt, text))
        });
        if let Err(error) = checked {
            self.findings.damage(path, &error, Vec::new());
        }
        Ok(())
    }

    /// Reads the trees of all versions, every distinct object once. Damage is in the report, not an error.
    ///
    /// # Errors
    /// `Unreachable`, `Untrusted`, `Denied` or `Stopped` if objects could not be asked for.
    pub fn finish(self) -> Result<VerifyReport> {
        let Self { from, findings, trees, encoded_bytes, .. } = self;
        // Chunks that versions share are read once, so this is the most that can be.
        findings.progress.begin(Stage::Verify, encoded_bytes);
        let objects = Far { source: from.objects, findings: &findings, broken: OnceLock::new() };
        let walk =
            Walk { objects: &objects, cipher: from.cipher, findings: &findings, threads: from.at_once };
        walk.check(&trees);
        walk.concern(&trees);
        if let Some(broken) = objects.broken.into_inner() {
            return Err(broken);
        }
        let mut report = VerifyReport::default();
        findings.report(&mut report, Vec::new());
        Ok(report)
    }
}

/// Objects of [`Elsewhere`].
struct Far<'a> {
    source: &'a dyn ObjectSource,
    findings: &'a Findings<'a>,
    /// Why objects can no longer be asked for.
    broken: OnceLock<Error>,
}

impl Objects for Far<'_> {
    fn read(&self, object: &ObjectRef) -> Result<Verified> {
        let found = self.read_again(object).inspect_err(|error| self.findings.count_bad(error))?;
        self.findings.count(found.bytes().len() as u64);
        Ok(found)
    }

    fn read_again(&self, object: &ObjectRef) -> Result<Verified> {
        // After a failure of the connection nothing else is asked for: each request would wait as long.
        if self.broken.get().is_some() {
            return Err(Error::new(ErrorKind::Stopped, "the verification has failed"));
        }
        match judged(self.source.verified(object)) {
            Ok(read) => read,
            Err(error) => {
                // The error of another thread says the same.
                let _ = self.broken.set(error);
                Err(Error::new(ErrorKind::Stopped, "the verification has failed"))
            }
        }
    }
}

/// Tells what says something of a record from what says only that it could not be asked for, which is an error.
fn judged<T>(read: Result<T>) -> Result<Result<T>> {
    match read {
        Err(error) if is_of_the_way(&error) => Err(error),
        read => Ok(read),
    }
}

/// Whether `error` is of the way to the record that was asked for, and says nothing of the record.
fn is_of_the_way(error: &Error) -> bool {
    use ErrorKind::{Denied, Stopped, Unreachable, Untrusted};
    matches!(error.kind(), Denied | Stopped | Unreachable | Untrusted)
}
