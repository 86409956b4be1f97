//! One worker: it fetches an object from a source, verifies and decodes it, and writes it to the local file.

use std::sync::Arc;

use base::{Error, ErrorKind, Result, is_zero, limits::TREE_FANOUT};
use disk::{ReadAt, WriteAt};
use image::catalogue::Catalogue;
use image::tree::NodeSource;
use image::{ChunkExtents, ChunkRef, Cipher, Decoder, Leaf, ObjectRef, Verified};

use super::local::bytes_of;
use super::shared::Shared;
use super::tree::Found;
use crate::machine::{Done, Failure, Io, Item, NodePlace, Sectors};

/// A chunk is written in pieces of this size. The page cache keeps each piece as one folio, and when a guest later
/// writes a few blocks of it, ext4 examines all blocks of the folio (Linux 6.18: 15 us for a write of 4 KiB into a
/// folio of 256 KiB, 3.5 us into one of 64 KiB).
const FILL_BYTES: usize = 64 << 10;

pub(super) struct Worker {
    shared: Arc<Shared>,
    /// One for each source, since sources may be encrypted differently.
    decoders: Vec<Decoder>,
    /// The bytes of the chunk's allocated sectors.
    plain: Vec<u8>,
    /// All bytes of the chunk. Empty if no object was fetched: the fill then writes zeros.
    whole: Vec<u8>,
}

impl Worker {
    pub(super) fn new(shared: Arc<Shared>) -> Result<Self> {
        let decoder = |source: &crate::Source| Ok(Decoder::new()?.decrypting(source.cipher.clone()));
        let decoders = shared.sources.iter().map(decoder).collect::<Result<_>>()?;
        Ok(Self { shared, decoders, plain: Vec::new(), whole: Vec::new() })
    }

    /// A worker for objects that arrive by multicast, encrypted as `cipher` says.
    pub(super) fn of_arrivals(shared: Arc<Shared>, cipher: Cipher) -> Result<Self> {
        let decoders = vec![Decoder::new()?.decrypting(cipher)];
        Ok(Self { shared, decoders, plain: Vec::new(), whole: Vec::new() })
    }

    /// Fills `chunk`, whose object arrived by multicast, unless it is already local or its leaf names another object
    /// now.
    pub(super) fn take_arrived(&mut self, chunk: u64, object: &ObjectRef, bytes: &Verified) {
        let shared = Arc::clone(&self.shared);
        let leaf = {
            let state = shared.lock();
            let is_here = state.core.is_here(&state.core.cut().chunk(chunk));
            state.tree.leaf(chunk).filter(|_| !is_here)
        };
        let Some(Leaf::Data(extents, reference)) = leaf else { return };
        if reference.object() == *object && self.open(0, bytes, &extents, &reference).is_ok() {
            let came = Done::Chunk(reference.encoded_len);
            shared.arrived(Item::Chunk(chunk), came, &mut |task| self.carry_out(task));
        }
    }

    /// Gives the core all nodes of `catalogue`. Stops if the disk has another tree by now.
    pub(super) fn load_tree(&mut self, catalogue: &Catalogue) {
        let shared = Arc::clone(&self.shared);
        let height = shared.lock().core.cut().height;
        let mut places = vec![NodePlace { level: height - 1, number: 0 }];
        while let Some(place) = places.pop() {
            let mut state = shared.lock();
            let Found::Object(object) = state.tree.find(place) else { continue };
            let Ok(opened) = catalogue.node(&object) else { return };
            let Ok((node, empty)) = state.tree.open(place, &opened) else { return };
            let known = state.core.knows(place);
            if place.level > 0 {
                let full = (0..).zip(&empty).filter(|(_, empty)| !**empty);
                let first = place.number * TREE_FANOUT;
                places
                    .extend(full.map(|(slot, _)| NodePlace { level: place.level - 1, number: first + slot }));
            }
            if !known {
                state.tree.keep(place, node);
                drop(state);
                let came = Done::Node { empty, bytes: object.len };
                shared.arrived(Item::Node(place), came, &mut |task| self.carry_out(task));
            }
        }
    }

    /// Works until the mirror is stopped.
    pub(super) fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        shared.work(&mut |task| self.carry_out(task));
    }

    fn carry_out(&mut self, task: &Io) -> Done {
        match task {
            Io::Fetch { item, source } => {
                self.whole.clear();
                match self.fetch(*item, *source) {
                    Ok(done) => {
                        if matches!(done, Done::Chunk(_) | Done::Node { .. }) {
                            self.shared.lock().note_good(*item, *source);
                        }
                        done
                    }
                    Err(error) => self.complain(*item, *source, &error),
                }
            }
            Io::Check(chunk) => {
                self.whole.clear();
                Done::Checked(self.check(*chunk).unwrap_or(false))
            }
            Io::Fill { chunk, parts } => match self.fill(*chunk, parts) {
                Ok(()) => Done::Well,
                Err(_) => Done::Failed(Failure::Local),
            },
            _ => unreachable!("nothing else is asked of a worker"),
        }
    }

    /// Remembers the error for the reads that wait, and returns the kind of failure.
    fn complain(&self, item: Item, source: usize, error: &Error) -> Done {
        let (what, name) = (item.to_string(), &self.shared.sources[source].name);
        let failure = match error.kind() {
            ErrorKind::NotFound => Failure::Missing,
            ErrorKind::Corrupt | ErrorKind::Verification => Failure::Damaged,
            _ => Failure::Dead,
        };
        let why = base::chain(error);
        let mut state = self.shared.lock();
        state.complaint = Some(format!("{what} from {name}: {why}"));
        if failure != Failure::Dead {
            state.note_damage(item, source, why);
        }
        Done::Failed(failure)
    }

    fn fetch(&mut self, item: Item, source: usize) -> Result<Done> {
        match item {
            Item::Node(place) => self.fetch_node(place, source),
            Item::Chunk(chunk) => {
                let leaf = self.shared.lock().tree.leaf(chunk);
                // The tree has just changed: the core starts again at the new tree's nodes.
                let Some(Leaf::Data(extents, reference)) = leaf else {
                    return Ok(Done::Failed(Failure::Missing));
                };
                let object = reference.object();
                let object = self.shared.sources[source].objects.verified(&object)?;
                self.open(source, &object, &extents, &reference)?;
                Ok(Done::Chunk(reference.encoded_len))
            }
        }
    }

    /// Decodes a chunk's object, and puts its sectors into `whole` at their places.
    fn open(
        &mut self,
        source: usize,
        object: &Verified,
        extents: &ChunkExtents,
        reference: &ChunkRef,
    ) -> Result<()> {
        self.plain.resize(extents.len_bytes() as usize, 0);
        self.decoders[source].decode(object, extents, reference.plain, &mut self.plain)?;
        self.whole.clear();
        self.whole.resize(self.shared.layout.chunk.bytes() as usize, 0);
        let mut rest = &self.plain[..];
        for run in extents.runs() {
            let (from, count) = (usize::from(run.start) * 512, usize::from(run.count) * 512);
            let (bytes, behind) = rest.split_at(count);
            self.whole[from..from + count].copy_from_slice(bytes);
            rest = behind;
        }
        Ok(())
    }

    fn fetch_node(&mut self, place: NodePlace, source: usize) -> Result<Done> {
        let (found, epoch) = {
            let state = self.shared.lock();
            (state.tree.find(place), state.tree.epoch)
        };
        let object = match found {
            Found::Object(object) => object,
            Found::Empty => return Ok(Done::Node { empty: Vec::new(), bytes: 0 }),
            Found::Unknown => return Ok(Done::Failed(Failure::Missing)),
        };
        let source = &self.shared.sources[source];
        let verified: Verified = source.objects.verified(&object)?;
        let opened = source.cipher.decrypt_object(object.kind, &verified)?;
        let mut state = self.shared.lock();
        let (node, empty) = state.tree.open(place, &opened)?;
        if state.tree.epoch != epoch {
            return Ok(Done::Failed(Failure::Missing));
        }
        state.tree.keep(place, node);
        Ok(Done::Node { empty, bytes: object.len })
    }

    /// Whether the chunk in the local file has the content that its leaf says, and zeros in free sectors.
    fn check(&mut self, chunk: u64) -> Result<bool> {
        let Some(leaf) = self.shared.lock().tree.leaf(chunk) else { return Ok(false) };
        let extent = self.shared.layout.chunk_extent(chunk);
        let mut whole = vec![0; usize::try_from(extent.len_bytes()).expect("a chunk fits memory")];
        if self.shared.local.data().read_exact_at(&mut whole, extent.offset_bytes()).is_err() {
            return Ok(false);
        }
        let Leaf::Data(extents, reference) = leaf else { return Ok(is_zero(&whole)) };
        self.plain.clear();
        for run in extents.runs() {
            let part = usize::from(run.start) * 512..usize::from(run.end()) * 512;
            self.plain.extend_from_slice(&whole[part.clone()]);
            whole[part].fill(0);
        }
        let digest = self.decoders[0].plain_digest(&extents, &self.plain);
        Ok(digest == reference.plain && is_zero(&whole))
    }

    fn fill(&self, chunk: u64, parts: &[Sectors]) -> Result<()> {
        let data = self.shared.local.data();
        let start = self.shared.layout.chunk_offset(chunk);
        let _turn = self.shared.local.fill_turn();
        for part in parts {
            let (offset, count) = bytes_of(part);
            if self.whole.is_empty() {
                data.write_zeroes(offset, count)?;
                continue;
            }
            let from = usize::try_from(offset - start).expect("inside the chunk");
            let until = from + usize::try_from(count).expect("inside the chunk");
            data.reserve(offset, count)?;
            for (at, piece) in (offset..).step_by(FILL_BYTES).zip(self.whole[from..until].chunks(FILL_BYTES))
            {
                data.write_all_at(piece, at)?;
            }
        }
        Ok(())
    }
}
