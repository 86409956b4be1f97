//! Copies between repositories with different encryption. The tree is built again, since objects have other digests
//! in the target.

use base::Result;
use bytes::Bytes;
use image::{
    ChunkRef, Leaf, LeafRun, Leaves, Manifest, ObjectKind, ObjectRef, ObjectSink, Root, TreeBuilder,
};

use super::sent::{READERS, Sent, WINDOW_CHUNKS};
use crate::lease::writer::Writer;
use crate::nodes::Nodes;
use crate::parallel::parallel_by;
use crate::repository::Repository;

/// Sends all objects that `manifest` names in `from`, encrypted for `to`. Returns the new root, and the bytes of its
/// chunks.
pub(super) fn send(manifest: &Manifest, from: &Repository, to: &Writer, sent: &Sent) -> Result<(Root, u64)> {
    let layout = manifest.layout()?;
    let arriving = Arriving { to, sent };
    let mut tree = TreeBuilder::new(layout.chunk, layout.chunk_count(), &arriving, to.cipher());
    let mut runs = Leaves::new(Nodes(from), layout.chunk, &manifest.root);
    let mut encoded_bytes = 0;
    loop {
        let window = runs.by_ref().take(WINDOW_CHUNKS).collect::<Result<Vec<_>>>()?;
        if window.is_empty() {
            return Ok((tree.finish()?, encoded_bytes));
        }
        let moved = parallel_by(READERS, &window, || (), |(), run| move_leaf(&run.leaf, from, &arriving));
        for (run, leaf) in window.into_iter().zip(moved) {
            let leaf = leaf?;
            if let Leaf::Data(_, chunk) = &leaf {
                encoded_bytes += u64::from(chunk.encoded_len);
            }
            tree.push_run(&LeafRun { leaf, ..run })?;
        }
    }
}

/// Sends the object of `leaf`; returns the leaf as it is in the target.
fn move_leaf(leaf: &Leaf, from: &Repository, arriving: &Arriving<'_>) -> Result<Leaf> {
    let Leaf::Data(extents, chunk) = leaf else { return Ok(leaf.clone()) };
    let object = chunk.object();
    let stored = image::ObjectSource::verified(from, &object)?;
    let plain = from.cipher().decrypt_object(ObjectKind::Chunk, &stored)?;
    let sealed = arriving.to.cipher().encrypt_object(ObjectKind::Chunk, plain.bytes().to_vec())?;
    let name = ObjectRef::of(ObjectKind::Chunk, &sealed);
    arriving.put(&name, sealed)?;
    let chunk = ChunkRef { encoded_len: name.len, encoded: name.digest, plain: chunk.plain };
    Ok(Leaf::Data(extents.clone(), chunk))
}

/// Stores objects that the target does not have yet.
struct Arriving<'a> {
    to: &'a Writer,
    sent: &'a Sent,
}

impl ObjectSink for Arriving<'_> {
    fn contains(&self, object: &ObjectRef) -> Result<bool> {
        self.to.contains(object)
    }

    fn put(&self, object: &ObjectRef, bytes: Bytes) -> Result<()> {
        if self.to.contains(object)? {
            return Ok(());
        }
        self.sent.count(object);
        self.to.put(object, bytes)
    }
}
