//! Copies versions from one repository to another; sends only objects that are missing there. formats/repository.md,
//! "Copies".

use std::collections::HashMap;

use base::{Digest, Error, ErrorKind, Result, Subject};
use image::manifest::{Copied, Parent};
use image::tree::NodeSource;
use image::{
    Child, ChunkRef, Differences, Leaf, Manifest, ObjectRef, ObjectSink, ObjectSource, Root, SignedManifest,
    Verified,
};

use crate::lease::writer::Writer;
use crate::names::{ImageName, Reference};
use crate::nodes::Nodes;
use crate::parallel::parallel_by;
use crate::record::Stamp;
use crate::repository::Repository;

mod reseal;
mod sent;

use sent::{READERS, Sent, WINDOW_CHUNKS};

/// Copies versions into one image.
pub struct Copier<'a> {
    from: &'a Repository,
    to: &'a Repository,
    image: ImageName,
    /// For the digest of each version in the source: number and digest of its copy in the target.
    known: HashMap<Digest, (u64, Digest)>,
    /// Whether the image's profile was copied already, or looked for.
    has_profile: bool,
    /// Whether copies of signed versions may be without a signature.
    drops_signatures: bool,
}

/// Result of copying a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyReport {
    /// The manifest in the target.
    pub manifest: Manifest,
    /// Whether it had been copied before.
    pub known: bool,
    /// Objects that were sent.
    pub objects: u64,
    /// Bytes of these objects.
    pub bytes: u64,
    /// Whether the version was signed in the source, and its new copy is not.
    pub lost_signature: bool,
}

impl<'a> Copier<'a> {
    /// Prepares copies from `from` into the image `image` of `to`. Reads which versions were copied before.
    pub fn new(from: &'a Repository, to: &'a Repository, image: &ImageName) -> Result<Self> {
        let mut known = HashMap::new();
        for number in to.numbers(image)?.live {
            let (sealed, _) = to.read_manifest(image, number)?;
            let digest = sealed.digest();
            // A version that is copied back to its source is known already.
            known.insert(digest, (number, digest));
            if let Some(copied) = sealed.manifest.copied {
                known.insert(copied.digest, (number, digest));
            }
        }
        let image = image.clone();
        Ok(Self { from, to, image, known, has_profile: false, drops_signatures: false })
    }

    /// The same, where a copy of a signed version has no signature if the target has no key that signs. A signature
    /// covers number and repository, so it can't be copied.
    #[must_use]
    pub fn without_signatures(mut self) -> Self {
        self.drops_signatures = true;
        self
    }

    /// Copies the version that `reference` names in the source: same content, next number in the target. A version
    /// that was copied before is not copied again. Every object is verified. If the repositories are encrypted
    /// differently, this machine decrypts and encrypts all objects again. The first call also copies the image's
    /// profile, if the target has none. `Refused` if the version is signed and the target has no key that signs
    /// ([`Self::without_signatures`] allows it).
    pub fn copy(&mut self, reference: &Reference) -> Result<CopyReport> {
        let (sealed, _) = self.from.signed_manifest(reference)?;
        let report = self.copy_version(reference, &sealed)?;
        if !std::mem::replace(&mut self.has_profile, true) {
            let version = Reference::Version(reference.image().clone(), sealed.manifest.number);
            self.to.take_profile(&self.image, report.manifest.number, self.from, &version)?;
        }
        Ok(report)
    }

    fn copy_version(&mut self, reference: &Reference, sealed: &SignedManifest) -> Result<CopyReport> {
        let origin = sealed.manifest.copied.as_ref().map(|copied| copied.digest);
        let known =
            [Some(sealed.digest()), origin].into_iter().flatten().find_map(|digest| self.known.get(&digest));
        if let Some(&(number, _)) = known {
            let manifest = self.to.resolve(&Reference::Version(self.image.clone(), number))?;
            return Ok(CopyReport { manifest, known: true, objects: 0, bytes: 0, lost_signature: false });
        }
        let lost_signature = self.to.keys.sign.is_none() && sealed.signed().has_signatures();
        if lost_signature && !self.drops_signatures {
            let text = format!("copy `{reference}`: it is signed, and no key is given that signs the copy");
            return Err(Error::new(ErrorKind::Refused, text).about(Subject::LostSignature));
        }
        let manifest = &sealed.manifest;
        let stamp = Stamp { created: manifest.created.clone(), creator: manifest.creator.clone() };
        let (manifest, sent) =
            Writer::retrying(self.to, &stamp, || (), |writer| self.copy_once(reference, sealed, writer))?;
        let number = manifest.number;
        let (copy, _) = self.to.read_manifest(&self.image, number)?;
        self.known.insert(sealed.digest(), (number, copy.digest()));
        Ok(CopyReport {
            manifest,
            known: false,
            objects: sent.objects.into_inner(),
            bytes: sent.bytes.into_inner(),
            lost_signature,
        })
    }

    fn copy_once(
        &self,
        reference: &Reference,
        sealed: &SignedManifest,
        writer: &Writer,
    ) -> Result<(Manifest, Sent)> {
        let sent = Sent::default();
        let failed = |error: Error| error.within(format!("copy `{reference}`"));
        let mut draft = self.describe(sealed).map_err(failed)?;
        if self.from.cipher().is_like(self.to.cipher()) {
            self.send(&sealed.manifest, writer, &sent).map_err(failed)?;
        } else {
            (draft.root, draft.statistics.encoded_bytes) =
                reseal::send(&sealed.manifest, self.from, writer, &sent).map_err(failed)?;
        }
        Ok((writer.publish(&self.image, draft)?, sent))
    }

    /// The manifest of the copy.
    fn describe(&self, sealed: &SignedManifest) -> Result<Manifest> {
        let from = &sealed.manifest;
        let parent = from.parent.as_ref().map(|parent| match self.known.get(&parent.digest) {
            Some(&(number, digest)) => Parent { image: self.image.to_string(), number, digest },
            None => parent.clone(),
        });
        let copied = Copied {
            repository: self.from.id().to_owned(),
            image: from.image.clone(),
            number: from.number,
            digest: sealed.digest(),
        };
        let draft = Manifest { repository: None, copied: Some(copied), ..from.clone() };
        // Here, where the versions are that it was made from.
        let made = self.from.made_of(&draft)?;
        Ok(Manifest { parent, made, ..draft })
    }

    /// Sends what differs from a version in the target, whose objects are all stored there.
    fn send(&self, manifest: &Manifest, to: &Writer, sent: &Sent) -> Result<()> {
        let layout = manifest.layout()?;
        let here = self.nearest(manifest);
        let there = Passing { from: self.from, to, sent };
        let mut missing: Vec<ChunkRef> = Vec::new();
        for difference in Differences::new(layout.chunk, (Nodes(self.to), &here), (there, &manifest.root)) {
            let Leaf::Data(_, chunk) = difference?.after else { continue };
            missing.push(chunk);
            if missing.len() >= WINDOW_CHUNKS {
                self.send_chunks(&mut missing, to, sent)?;
            }
        }
        self.send_chunks(&mut missing, to, sent)
    }

    fn send_chunks(&self, chunks: &mut Vec<ChunkRef>, to: &Writer, sent: &Sent) -> Result<()> {
        let done = parallel_by(
            READERS,
            chunks,
            || (),
            |(), chunk| {
                let object = chunk.object();
                if to.contains(&object)? {
                    return Ok(());
                }
                let bytes = self.from.verified(&object)?.bytes().clone();
                sent.count(&object);
                to.put(&object, bytes)
            },
        );
        chunks.clear();
        done.into_iter().collect()
    }

    /// The tree of a version in the target that is probably similar to `manifest`: the copy of its parent, or else
    /// the newest version. An empty tree if there is none with the same chunk size.
    fn nearest(&self, manifest: &Manifest) -> Root {
        let parent = manifest.parent.as_ref().and_then(|parent| self.known.get(&parent.digest));
        let newest = self.known.values().max_by_key(|(number, _)| *number);
        let found = parent.or(newest).and_then(|(number, _)| {
            let found = self.to.resolve(&Reference::Version(self.image.clone(), *number)).ok()?;
            (found.chunk_bytes == manifest.chunk_bytes).then_some(found.root)
        });
        found.unwrap_or(Root { child: Child::Free, ..manifest.root })
    }
}

/// Reads nodes from the source, and stores them in the target.
struct Passing<'a> {
    from: &'a Repository,
    to: &'a Writer,
    sent: &'a Sent,
}

impl NodeSource for Passing<'_> {
    fn node(&self, object: &ObjectRef) -> Result<Verified> {
        let node = self.from.verified(object)?;
        if !self.to.contains(object)? {
            self.to.put(object, node.bytes().clone())?;
            self.sent.count(object);
        }
        self.from.cipher().decrypt_object(object.kind, &node)
    }
}
