//! Checks that all objects of a draft that a client sent are stored. Parts that the draft shares with its parent are
//! stored already, so only the differences are checked.

use base::{Error, ErrorKind, Result};
use image::tree::NodeSource;
use image::{Child, Differences, Leaf, LeafRun, Manifest, ObjectRef, Root, Verified};
use parking_lot::Mutex;

use crate::lease::writer::Writer;
use crate::names::{ImageName, Reference};
use crate::nodes::Nodes;

impl Writer {
    /// Makes sure that every object of the tree of `draft` is stored and that no prune deletes it. `Refused` with the
    /// name of a missing object, `Corrupt` if the tree is invalid. The parent must be resolved after this writer
    /// began, so that no prune deletes its objects.
    pub fn check_complete(&self, draft: &Manifest) -> Result<()> {
        let failed = |error: Error| match error.kind() {
            ErrorKind::NotFound => {
                let text = "an object of this version was never sent";
                Error::from_source(ErrorKind::Refused, text, error)
            }
            _ => error.within(format!("look at a draft of `{}`", draft.image)),
        };
        let layout = draft.layout().map_err(failed)?;
        let parent = self.parent_of(draft)?.unwrap_or(Root { child: Child::Free, ..draft.root });
        let seen = Mutex::new(Vec::new());
        let nodes = || Nodes(self.repository());
        let noting = Noting { nodes: nodes(), seen: &seen };
        for difference in Differences::new(layout.chunk, (nodes(), &parent), (noting, &draft.root)) {
            let difference = difference.map_err(failed)?;
            let leaf = difference.after;
            // After the end of a draft that is shorter than its parent there must be no data.
            if difference.first < draft.root.chunk_count || leaf != Leaf::Free {
                let count = difference.count.min(draft.root.chunk_count.saturating_sub(difference.first));
                let run = LeafRun { first: difference.first, count, leaf: leaf.clone() };
                layout.check_run(&run).map_err(failed)?;
            }
            if let Leaf::Data(_, chunk) = leaf {
                self.check_held(&chunk.object())?;
            }
        }
        let seen = seen.into_inner();
        seen.iter().try_for_each(|node| self.check_held(node))
    }

    fn check_held(&self, object: &ObjectRef) -> Result<()> {
        if self.holds(object)? {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Refused, format!("{object} of this version was never sent")))
    }

    /// The tree of the parent of `draft`, if that version is in this repository and has chunks of the same size.
    fn parent_of(&self, draft: &Manifest) -> Result<Option<Root>> {
        let Some(parent) = &draft.parent else { return Ok(None) };
        let Ok(image) = parent.image.parse::<ImageName>() else { return Ok(None) };
        match self.repository().look(&Reference::Version(image, parent.number)) {
            Ok((sealed, _)) => {
                let is_it =
                    sealed.digest() == parent.digest && sealed.manifest.chunk_bytes == draft.chunk_bytes;
                Ok(is_it.then_some(sealed.manifest.root))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Reads nodes of a repository and notes which ones.
struct Noting<'a> {
    nodes: Nodes<'a>,
    seen: &'a Mutex<Vec<ObjectRef>>,
}

impl NodeSource for Noting<'_> {
    fn node(&self, object: &ObjectRef) -> Result<Verified> {
        self.seen.lock().push(*object);
        self.nodes.node(object)
    }
}
