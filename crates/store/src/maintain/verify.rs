//! Verification: reads all objects that versions name, checks their digests, decodes every chunk, and reports what is
//! damaged, which versions are affected, and who signed them. Every copy of an object is checked. Uses all cores.
//! Memory is bounded, except for 24 bytes per distinct chunk.

use std::collections::{HashMap, HashSet};

use base::limits::OBJECT_BYTES_MAX;
use base::{Digest, Error, ErrorKind, Result};
use image::{ObjectKind, ObjectRef, Progress, Stage, Verified};
use parking_lot::Mutex;

use crate::layout;
pub use crate::maintain::findings::{Damage, Scope, Signer, VerifyReport, Why};
use crate::maintain::findings::{Findings, Tree, why};
use crate::maintain::records::Name;
use crate::maintain::trees::{Objects, Visited, Walk};
use crate::names::{ImageName, Reference, TagName};
use crate::objects::Copy;
use crate::parallel::{cores, parallel};
use crate::repository::Repository;
use crate::versions::Numbers;
use crate::versions::cut_over::Item;

/// Unreferenced objects that are verified together.
const WINDOW_OBJECTS: usize = 4096;

impl Repository {
    /// Verifies `scope`: all copies of every object, or for one version the copies that an install reads. Damage is
    /// in the report, not an error; errors are those of listing the repository. Without its key, an encrypted
    /// repository is verified as far as possible: the digest of every object and the checksum of every record.
    pub fn verify(&self, scope: &Scope, progress: &dyn Progress) -> Result<VerifyReport> {
        let cut_over = |image: &ImageName| self.cut_over_record(image);
        let judge = self.keys.trust.as_ref().map(|trust| self.judge(trust, &cut_over));
        let findings = Findings::new(judge, progress);
        let mut run = Run::new(self, &findings);
        match scope {
            Scope::All if self.is_locked() => run.all_locked()?,
            Scope::All => run.all()?,
            Scope::Version(reference) => run.one(reference)?,
        }
        let (mut report, spoilt) = run.report();
        findings.report(&mut report, spoilt);
        Ok(report)
    }
}

struct Run<'a> {
    repository: &'a Repository,
    findings: &'a Findings<'a>,
    copies: Copies<'a>,
    trees: Vec<Tree>,
    visited: Visited,
    unreferenced: u64,
    strangers: u64,
}

impl<'a> Run<'a> {
    fn new(repository: &'a Repository, findings: &'a Findings<'a>) -> Self {
        let copies = Copies { repository, findings, spoilt: Mutex::default(), looked_at: Mutex::default() };
        Self {
            repository,
            findings,
            copies,
            trees: Vec::new(),
            visited: Visited::default(),
            unreferenced: 0,
            strangers: 0,
        }
    }

    fn one(&mut self, reference: &Reference) -> Result<()> {
        let (sealed, _) = self.repository.look(reference)?;
        if let Reference::Tagged(image, tag) = reference {
            self.tag(image, tag);
        }
        self.findings.progress.begin(Stage::Verify, sealed.manifest.statistics.encoded_bytes);
        let image = reference.image();
        self.version(image, sealed.manifest.number);
        self.walk();
        Ok(())
    }

    fn all(&mut self) -> Result<()> {
        self.findings.progress.begin(Stage::Verify, self.stored_bytes()?);
        self.records()?;
        for image in self.repository.images()? {
            let numbers = self.repository.numbers(&image)?;
            self.lost(&image, &numbers);
            for number in numbers.live {
                self.version(&image, number);
            }
            self.tags(&image)?;
        }
        self.walk();
        self.rest(ObjectKind::Chunk)?;
        self.rest(ObjectKind::Node)
    }

    /// Checks what can be checked without the key.
    fn all_locked(&mut self) -> Result<()> {
        self.findings.progress.begin(Stage::Verify, self.stored_bytes()?);
        self.records()?;
        for image in self.repository.images()? {
            let numbers = self.repository.numbers(&image)?;
            self.lost(&image, &numbers);
            self.findings.add_versions(numbers.live.len() as u64);
        }
        self.rest(ObjectKind::Chunk)?;
        self.rest(ObjectKind::Node)?;
        // Without the key it is not known which objects versions name.
        self.unreferenced = 0;
        Ok(())
    }

    /// Checks all records except objects.
    fn records(&mut self) -> Result<()> {
        let this = &*self;
        let strangers = this.repository.each_damaged(&|name, error| {
            let concerned = match name {
                Name::Version(image, number) => vec![Reference::Version(image.clone(), *number)],
                _ => Vec::new(),
            };
            this.findings.damage(name.path().to_string(), error, concerned);
        })?;
        self.strangers += strangers;
        Ok(())
    }

    fn lost(&self, image: &ImageName, numbers: &Numbers) {
        for (first, last) in &numbers.lost {
            let text =
                format!("versions {first} to {last} of `{image}` have neither a manifest nor a tombstone");
            let concerned = vec![Reference::Version(image.clone(), *first)];
            let path = layout::version(image, *first).to_string();
            self.findings.damage(path, &Error::new(ErrorKind::NotFound, text), concerned);
        }
    }

    fn stored_bytes(&self) -> Result<u64> {
        let mut bytes = 0;
        for kind in [ObjectKind::Chunk, ObjectKind::Node] {
            self.repository.backend.for_each(&layout::objects(kind), &mut |found| bytes += found.size)?;
        }
        Ok(bytes)
    }

    fn version(&mut self, image: &ImageName, number: u64) {
        let read = self.repository.read_manifest(image, number).map(|(sealed, _)| sealed);
        self.trees.extend(self.findings.version(Reference::Version(image.clone(), number), read));
    }

    fn tags(&self, image: &ImageName) -> Result<()> {
        self.repository.tag_names(image)?.iter().for_each(|tag| self.tag(image, tag));
        Ok(())
    }

    fn tag(&self, image: &ImageName, tag: &TagName) {
        let reference = Reference::Tagged(image.clone(), tag.clone());
        let path = match self.repository.newest_number(&layout::tag_records(image, tag)) {
            Ok(Some(number)) => layout::tag_record(image, tag, number).to_string(),
            _ => layout::tag_records(image, tag).to_string(),
        };
        let read = self.repository.newest_move(image, tag).and_then(|newest| {
            let Some((newest, signed)) = newest else { return Ok(()) };
            let item = Item::Move(tag, newest.number());
            self.findings.signed(path.clone(), &reference, item, &signed, Vec::new());
            if newest.is_away() { Ok(()) } else { self.repository.look(&reference).map(drop) }
        });
        if let Err(error) = read {
            self.findings.damage(path, &error, Vec::new());
        }
    }

    /// Checks the trees of all versions, and which of them need what is damaged.
    fn walk(&mut self) {
        let (objects, cipher) = (&self.copies, &self.repository.cipher);
        let walk = Walk { objects, cipher, findings: self.findings, threads: cores() };
        self.visited = walk.check(&self.trees);
        walk.concern(&self.trees);
    }

    /// Checks the digests of objects that no version names and of copies that were not checked yet, in windows.
    fn rest(&mut self, kind: ObjectKind) -> Result<()> {
        let seen: HashSet<[u8; 16]> = match kind {
            ObjectKind::Chunk => self.visited.chunks.iter().map(|(encoded, _)| *encoded).collect(),
            ObjectKind::Node => self.visited.nodes.iter().map(|digest| *digest.first_half()).collect(),
        };
        let (mut window, mut unreferenced, mut strangers) = (Vec::new(), 0, 0);
        let this = &*self;
        let check = |window: &mut Vec<(ObjectRef, u8)>| {
            parallel(window, || (), |(), copy| this.copies.check(copy));
            window.clear();
        };
        let is_looked_at = |digest: &Digest, slot: u8| {
            seen.contains(digest.first_half())
                && (slot == 0 || this.copies.looked_at.lock().get(digest).is_some_and(|&last| slot <= last))
        };
        this.repository.backend.for_each(&layout::objects(kind), &mut |found| {
            match layout::object_at(kind, &found.location) {
                None => strangers += 1,
                Some((digest, slot)) if is_looked_at(&digest, slot) => {}
                Some((digest, slot)) => {
                    unreferenced += u64::from(!seen.contains(digest.first_half()));
                    let len = u32::try_from(found.size).unwrap_or(u32::MAX).min(OBJECT_BYTES_MAX);
                    window.push((ObjectRef { kind, len, digest }, slot));
                }
            }
            if window.len() >= WINDOW_OBJECTS {
                check(&mut window);
            }
        })?;
        check(&mut window);
        self.unreferenced += unreferenced;
        self.strangers += strangers;
        Ok(())
    }

    fn report(self) -> (VerifyReport, Vec<Damage>) {
        let Self { unreferenced, strangers, copies, .. } = self;
        (VerifyReport { unreferenced, strangers, ..VerifyReport::default() }, copies.spoilt.into_inner())
    }
}

/// The copies of objects in the repository.
struct Copies<'a> {
    repository: &'a Repository,
    findings: &'a Findings<'a>,
    /// Bad copies of objects that also have a good copy.
    spoilt: Mutex<Vec<Damage>>,
    /// For objects without a good copy in slot 0: the slot of the first good copy, or `SLOTS` if there is none.
    looked_at: Mutex<HashMap<Digest, u8>>,
}

impl Objects for Copies<'_> {
    /// Reads a good copy of an object. Bad copies in lower slots are reported as damage too. If there is no good
    /// copy, the object as a whole is reported.
    fn read(&self, object: &ObjectRef) -> Result<Verified> {
        let mut bad = Vec::new();
        let found = self.repository.read_first(object, |slot, error| {
            self.findings.count_bad(error);
            bad.push(damage_of_copy(object, slot, error));
        });
        let slot = found.as_ref().map_or(layout::SLOTS, |(slot, _)| *slot);
        if slot > 0 {
            self.looked_at.lock().insert(object.digest, slot);
        }
        let (_, found) = found?;
        self.spoilt.lock().append(&mut bad);
        self.findings.count(found.bytes().len() as u64);
        Ok(found)
    }

    fn read_again(&self, object: &ObjectRef) -> Result<Verified> {
        self.repository.read_object(object)
    }
}

impl Copies<'_> {
    /// Checks a further copy of an object, or an object that no version names.
    fn check(&self, (object, slot): &(ObjectRef, u8)) {
        let read = match self.repository.read_in(object, *slot) {
            Ok(Copy::Good(found)) => {
                self.findings.count(found.bytes().len() as u64);
                return;
            }
            // It was deleted after it was listed.
            Ok(Copy::Missing(_)) => return,
            Ok(Copy::Bad(error)) => {
                self.findings.count_bad(&error);
                error
            }
            Err(error) => error,
        };
        self.spoilt.lock().push(damage_of_copy(object, *slot, &read));
    }
}

/// Damage of one copy of an object that has other copies, or that no version names.
fn damage_of_copy(object: &ObjectRef, slot: u8, error: &Error) -> Damage {
    let path = layout::object_in(object.kind, &object.digest, slot).to_string();
    Damage { path, why: why(error), text: base::chain(error), versions: Vec::new() }
}
