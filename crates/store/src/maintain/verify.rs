//! Verification: reads all objects that versions name, checks their digests, decodes every chunk, and reports what is
//! damaged, which versions are affected, and who signed them. Every copy of an object is checked. Uses all cores.
//! Memory is bounded, except for 24 bytes per distinct chunk.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use base::limits::{OBJECT_BYTES_MAX, TREE_HEIGHT_MAX};
use base::{Digest, Error, ErrorKind, Result};
use image::node::Node;
use image::{
    Child, ChunkExtents, ChunkRef, ChunkSize, Decoder, Leaf, ObjectKind, ObjectRef, Progress, PublicKey,
    Root, Signed, Stage,
};
use parking_lot::Mutex;

use crate::layout;
pub use crate::maintain::findings::{Damage, Scope, Signer, VerifyReport, Why};
use crate::maintain::records::Name;
use crate::names::{ImageName, Reference, TagName};
use crate::objects::Copy;
use crate::parallel::parallel;
use crate::repository::Repository;
use crate::versions::Numbers;
use crate::versions::cut_over::Item;

/// Leaf nodes whose chunks are verified together: limits memory, and gives enough work for many cores.
const WINDOW_NODES: usize = 64;
/// Unreferenced objects that are verified together.
const WINDOW_OBJECTS: usize = 4096;

impl Repository {
    /// Verifies `scope`: all copies of every object, or for one version the copies that an install reads. Damage is
    /// in the report, not an error; errors are those of listing the repository. Without its key, an encrypted
    /// repository is verified as far as possible: the digest of every object and the checksum of every record.
    pub fn verify(&self, scope: &Scope, progress: &dyn Progress) -> Result<VerifyReport> {
        let mut run = Run::new(self, progress);
        match scope {
            Scope::All if self.is_locked() => run.all_locked()?,
            Scope::All => run.all()?,
            Scope::Version(reference) => run.one(reference)?,
        }
        run.report()
    }
}

struct Run<'a> {
    repository: &'a Repository,
    progress: &'a dyn Progress,
    roots: Vec<(ImageName, u64, Root, ChunkSize)>,
    versions: u64,
    objects: AtomicU64,
    bytes: AtomicU64,
    unreferenced: u64,
    strangers: u64,
    signers: Vec<Signer>,
    unsigned: u64,
    nodes: HashSet<Digest>,
    chunks: HashSet<ChunkKey>,
    damaged: Mutex<HashMap<String, Damage>>,
    /// Bad copies of objects that also have a good copy.
    spoilt: Mutex<Vec<Damage>>,
    /// For objects without a good copy in slot 0: the slot of the first good copy, or `SLOTS` if there is none.
    looked_at: Mutex<HashMap<Digest, u8>>,
}

/// The first half of a chunk's encoded digest, and a quarter of its plain digest: enough to recognize it.
type ChunkKey = ([u8; 16], [u8; 8]);

/// A node to check, and the chunk size of its tree.
type NodeItem = (ObjectRef, ChunkSize);

impl<'a> Run<'a> {
    fn new(repository: &'a Repository, progress: &'a dyn Progress) -> Self {
        Self {
            repository,
            progress,
            roots: Vec::new(),
            versions: 0,
            objects: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            unreferenced: 0,
            strangers: 0,
            signers: Vec::new(),
            unsigned: 0,
            nodes: HashSet::new(),
            chunks: HashSet::new(),
            damaged: Mutex::default(),
            spoilt: Mutex::default(),
            looked_at: Mutex::default(),
        }
    }

    fn one(&mut self, reference: &Reference) -> Result<()> {
        let (sealed, _) = self.repository.look(reference)?;
        if let Reference::Tagged(image, tag) = reference {
            self.tag(image, tag);
        }
        self.progress.begin(Stage::Verify, sealed.manifest.statistics.encoded_bytes);
        let image = reference.image();
        self.version(image, sealed.manifest.number);
        self.trees();
        Ok(())
    }

    fn all(&mut self) -> Result<()> {
        self.progress.begin(Stage::Verify, self.stored_bytes()?);
        self.records()?;
        for image in self.repository.images()? {
            let numbers = self.repository.numbers(&image)?;
            self.lost(&image, &numbers);
            for number in numbers.live {
                self.version(&image, number);
            }
            self.tags(&image)?;
        }
        self.trees();
        self.rest(ObjectKind::Chunk)?;
        self.rest(ObjectKind::Node)
    }

    /// Checks what can be checked without the key.
    fn all_locked(&mut self) -> Result<()> {
        self.progress.begin(Stage::Verify, self.stored_bytes()?);
        self.records()?;
        for image in self.repository.images()? {
            let numbers = self.repository.numbers(&image)?;
            self.lost(&image, &numbers);
            self.versions += numbers.live.len() as u64;
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
            this.damage(name.path().to_string(), error, concerned);
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
            self.damage(path, &Error::new(ErrorKind::NotFound, text), concerned);
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
        self.versions += 1;
        let read = self.repository.read_manifest(image, number).and_then(|(sealed, _)| {
            let layout = sealed.manifest.layout();
            let layout = layout.map_err(|error| error.within(format!("read `{image}@{number}`")))?;
            Ok((sealed, layout.chunk))
        });
        let reference = Reference::Version(image.clone(), number);
        let path = layout::version(image, number).to_string();
        match read {
            Ok((sealed, size)) => {
                self.roots.push((image.clone(), number, sealed.manifest.root, size));
                let item = Item::Version(number);
                let signers = self.signed(path, &reference, item, sealed.signed(), vec![reference.clone()]);
                self.count_signers(&signers);
            }
            Err(error) => self.damage(path, &error, vec![reference]),
        }
    }

    /// The keys that signed the record of `reference` at `path`. An invalid signature, or none by a trusted key, is
    /// reported as damage.
    fn signed(
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
            self.repository.check_signed(&what, reference.image(), item, signed)?;
            Ok(signers)
        });
        checked.unwrap_or_else(|error| {
            let why = if error.kind() == ErrorKind::Refused { Why::Untrusted } else { Why::Corrupt };
            self.damage_of(why, path, &error, concerned);
            signed.claims().collect()
        })
    }

    fn count_signers(&mut self, signers: &[PublicKey]) {
        self.unsigned += u64::from(signers.is_empty());
        for &key in signers {
            if let Some(known) = self.signers.iter_mut().find(|known| known.key == key) {
                known.versions += 1;
                continue;
            }
            let trust = self.repository.keys.trust.as_ref();
            let name = trust.and_then(|trust| trust.name_of(key)).map(str::to_owned);
            self.signers.push(Signer { key, name, versions: 1 });
        }
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
            self.signed(path.clone(), &reference, item, &signed, Vec::new());
            if newest.is_away() { Ok(()) } else { self.repository.look(&reference).map(drop) }
        });
        if let Err(error) = read {
            self.damage(path, &error, Vec::new());
        }
    }

    /// Visits the trees of all roots, level by level from the top, each distinct object once.
    fn trees(&mut self) {
        let mut levels: Vec<Vec<NodeItem>> = vec![Vec::new(); usize::from(TREE_HEIGHT_MAX)];
        for (_, _, root, size) in &self.roots {
            let node = root.child.object().map(|object| (object, *size));
            levels[usize::from(root.height) - 1].extend(node);
        }
        for level in (1..TREE_HEIGHT_MAX).rev() {
            let nodes = self.unseen(std::mem::take(&mut levels[usize::from(level)]));
            let below = parallel(&nodes, || (), |(), item| self.node(item, level));
            for (node, (_, size)) in below.into_iter().zip(&nodes) {
                let Some(Node::Children(children)) = node else { continue };
                let objects = children.iter().filter_map(Child::object).map(|object| (object, *size));
                levels[usize::from(level) - 1].extend(objects);
            }
        }
        let leaf_nodes = self.unseen(std::mem::take(&mut levels[0]));
        for window in leaf_nodes.chunks(WINDOW_NODES) {
            let read = parallel(window, || (), |(), item| self.node(item, 0));
            let chunks = self.unseen_chunks(read.into_iter().flatten());
            parallel(&chunks, Scratch::default, |scratch, (extents, chunk)| {
                self.chunk(scratch, extents, chunk)
            });
        }
    }

    fn unseen(&mut self, mut nodes: Vec<NodeItem>) -> Vec<NodeItem> {
        nodes.retain(|(object, _)| self.nodes.insert(object.digest));
        nodes
    }

    fn unseen_chunks(&mut self, nodes: impl Iterator<Item = Node>) -> Vec<(ChunkExtents, ChunkRef)> {
        let mut chunks = Vec::new();
        for node in nodes {
            let Node::Leaves(leaves) = node else { continue };
            for leaf in leaves {
                if let Leaf::Data(extents, chunk) = leaf
                    && self.chunks.insert(key(&chunk))
                {
                    chunks.push((extents, chunk));
                }
            }
        }
        chunks
    }

    fn node(&self, (object, size): &NodeItem, level: u8) -> Option<Node> {
        let opened = self.object(object).and_then(|object| self.open(ObjectKind::Node, &object));
        let read = opened.and_then(|opened| Node::decode(&opened, level, *size));
        self.or_damage(object, read)
    }

    fn chunk(&self, scratch: &mut Scratch, extents: &ChunkExtents, chunk: &ChunkRef) {
        let object = chunk.object();
        let opened = self.object(&object).and_then(|object| self.open(ObjectKind::Chunk, &object));
        let decoded = opened.and_then(|opened| scratch.decode(&opened, extents, chunk));
        self.or_damage(&object, decoded);
    }

    /// Reads a good copy of an object. Bad copies in lower slots are reported as damage too. If there is no good
    /// copy, the object as a whole is reported.
    fn object(&self, object: &ObjectRef) -> Result<image::Verified> {
        let mut bad = Vec::new();
        let found = self.repository.read_first(object, |slot, error| {
            self.count_bad(error);
            bad.push(damage_of_copy(object, slot, error));
        });
        let slot = found.as_ref().map_or(layout::SLOTS, |(slot, _)| *slot);
        if slot > 0 {
            self.looked_at.lock().insert(object.digest, slot);
        }
        let (_, found) = found?;
        self.spoilt.lock().append(&mut bad);
        self.count(found.bytes().len() as u64);
        Ok(found)
    }

    /// Checks a further copy of an object, or an object that no version names.
    fn copy(&self, (object, slot): &(ObjectRef, u8)) {
        let read = match self.repository.read_in(object, *slot) {
            Ok(Copy::Good(found)) => {
                self.count(found.bytes().len() as u64);
                return;
            }
            // It was deleted after it was listed.
            Ok(Copy::Missing(_)) => return,
            Ok(Copy::Bad(error)) => {
                self.count_bad(&error);
                error
            }
            Err(error) => error,
        };
        self.spoilt.lock().push(damage_of_copy(object, *slot, &read));
    }

    fn open(&self, kind: ObjectKind, object: &image::Verified) -> Result<image::Verified> {
        self.repository.cipher.decrypt_object(kind, object)
    }

    fn count(&self, bytes: u64) {
        self.objects.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
        self.progress.advance(Stage::Verify, bytes);
    }

    /// Counts a copy that was read and is damaged.
    fn count_bad(&self, error: &Error) {
        self.objects.fetch_add(u64::from(error.kind() == ErrorKind::Corrupt), Relaxed);
    }

    fn or_damage<T>(&self, object: &ObjectRef, result: Result<T>) -> Option<T> {
        result
            .map_err(|error| {
                let path = layout::object(object.kind, &object.digest).to_string();
                self.damage(path, &error.within(format!("verify {object}")), Vec::new());
            })
            .ok()
    }

    fn damage(&self, path: String, error: &Error, versions: Vec<Reference>) {
        self.damage_of(why(error), path, error, versions);
    }

    fn damage_of(&self, why: Why, path: String, error: &Error, versions: Vec<Reference>) {
        let damage = Damage { path: path.clone(), why, text: base::chain(error), versions };
        self.damaged.lock().entry(path).or_insert(damage);
    }

    /// Checks the digests of objects that no version names and of copies that were not checked yet, in windows.
    fn rest(&mut self, kind: ObjectKind) -> Result<()> {
        let seen: HashSet<[u8; 16]> = match kind {
            ObjectKind::Chunk => self.chunks.iter().map(|(encoded, _)| *encoded).collect(),
            ObjectKind::Node => self.nodes.iter().map(|digest| *digest.first_half()).collect(),
        };
        let (mut window, mut unreferenced, mut strangers) = (Vec::new(), 0, 0);
        let this = &*self;
        let check = |window: &mut Vec<(ObjectRef, u8)>| {
            parallel(window, || (), |(), copy| this.copy(copy));
            window.clear();
        };
        let is_looked_at = |digest: &Digest, slot: u8| {
            seen.contains(digest.first_half())
                && (slot == 0 || this.looked_at.lock().get(digest).is_some_and(|&last| slot <= last))
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

    fn report(self) -> Result<VerifyReport> {
        let mut damaged = self.damaged.into_inner();
        let spoilt = self.spoilt.into_inner();
        if !damaged.is_empty() {
            for (image, number, root, size) in &self.roots {
                let concerned = Reference::Version(image.clone(), *number);
                let mut visited = HashSet::new();
                let level = root.height - 1;
                self.repository.mark(&mut damaged, &mut visited, root.child, level, *size, &concerned);
            }
        }
        let mut damaged: Vec<Damage> = damaged.into_values().chain(spoilt).collect();
        damaged.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(VerifyReport {
            versions: self.versions,
            objects: self.objects.into_inner(),
            bytes: self.bytes.into_inner(),
            unreferenced: self.unreferenced,
            strangers: self.strangers,
            signers: self.signers,
            unsigned: self.unsigned,
            damaged,
        })
    }
}

impl Repository {
    /// Adds `concerned` to all damage at or below `child`.
    fn mark(
        &self,
        damaged: &mut HashMap<String, Damage>,
        visited: &mut HashSet<Digest>,
        child: Child,
        level: u8,
        size: ChunkSize,
        concerned: &Reference,
    ) {
        let Some(object) = child.object().filter(|object| visited.insert(object.digest)) else { return };
        mark_one(damaged, &object, concerned);
        let read = self.read_object(&object).ok();
        let opened = read.and_then(|verified| self.cipher.decrypt_object(ObjectKind::Node, &verified).ok());
        match opened.and_then(|opened| Node::decode(&opened, level, size).ok()) {
            None => {}
            Some(Node::Children(children)) => {
                for child in children {
                    self.mark(damaged, visited, child, level - 1, size, concerned);
                }
            }
            Some(Node::Leaves(leaves)) => {
                for leaf in leaves {
                    if let Leaf::Data(_, chunk) = leaf {
                        mark_one(damaged, &chunk.object(), concerned);
                    }
                }
            }
        }
    }
}

fn mark_one(damaged: &mut HashMap<String, Damage>, object: &ObjectRef, concerned: &Reference) {
    let path = layout::object(object.kind, &object.digest);
    if let Some(damage) = damaged.get_mut(path.as_ref())
        && damage.versions.last() != Some(concerned)
    {
        damage.versions.push(concerned.clone());
    }
}

/// Damage of one copy of an object that has other copies, or that no version names.
fn damage_of_copy(object: &ObjectRef, slot: u8, error: &Error) -> Damage {
    let path = layout::object_in(object.kind, &object.digest, slot).to_string();
    Damage { path, why: why(error), text: base::chain(error), versions: Vec::new() }
}

fn why(error: &Error) -> Why {
    match error.kind() {
        ErrorKind::NotFound => Why::Missing,
        ErrorKind::Corrupt => Why::Corrupt,
        _ => Why::Unreadable,
    }
}

fn key(chunk: &ChunkRef) -> ChunkKey {
    (*chunk.encoded.first_half(), *chunk.plain.0.first_chunk().expect("a digest has 32 bytes"))
}

/// What one thread needs to decode chunks.
#[derive(Default)]
struct Scratch {
    decoder: Option<Decoder>,
    plain: Vec<u8>,
}

impl Scratch {
    fn decode(&mut self, object: &image::Verified, extents: &ChunkExtents, chunk: &ChunkRef) -> Result<()> {
        let decoder = match &mut self.decoder {
            Some(decoder) => decoder,
            none => none.insert(Decoder::new()?),
        };
        self.plain.resize(extents.len_bytes() as usize, 0);
        decoder.decode(object, extents, chunk.plain, &mut self.plain)
    }
}
