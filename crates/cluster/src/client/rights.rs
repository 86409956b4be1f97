//! A client's rights to write the index: to entries of what lies in its own segments, and, only if it deletes or moves
//! something, to all names of its group. formats/cluster.md, section 5.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use proto::cluster::{DeviceId, Entry};

use crate::http::Failure;
use crate::problem::Word;

type Capabilities = Arc<BTreeMap<DeviceId, String>>;

/// The rights that a client was given.
#[derive(Debug, Default)]
pub(super) struct Rights {
    /// By segment.
    segments: Mutex<HashMap<u64, Capabilities>>,
    group: Mutex<Option<Capabilities>>,
}

/// What entries need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Need {
    /// Rights to these segments.
    Segments(BTreeSet<u64>),
    /// A right to all names.
    Group,
}

impl Need {
    /// What these entries need.
    pub(super) fn of<'a>(entries: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut segments = BTreeSet::new();
        for entry in entries {
            let pieces = Entry::decode(entry).map(|entry| entry.pieces).unwrap_or_default();
            if pieces.is_empty() {
                return Self::Group;
            }
            segments.extend(pieces.iter().map(|piece| piece.segment));
        }
        Self::Segments(segments)
    }
}

impl Rights {
    /// A segment was opened, with these rights.
    pub(super) fn opened(&self, segment: u64, capabilities: BTreeMap<DeviceId, String>) {
        self.segments.lock().insert(segment, Arc::new(capabilities));
    }

    /// The right to a segment on a device, if it is known.
    pub(super) fn to_segment(&self, segment: u64, device: DeviceId) -> Option<String> {
        self.segments.lock().get(&segment)?.get(&device).cloned()
    }

    /// The right to all names on a device, if it is known.
    pub(super) fn to_group(&self, device: DeviceId) -> Option<String> {
        self.group.lock().as_ref()?.get(&device).cloned()
    }

    /// This client may write all names, with these rights.
    pub(super) fn given_group(&self, capabilities: BTreeMap<DeviceId, String>) {
        *self.group.lock() = Some(Arc::new(capabilities));
    }

    /// Nothing is inserted for a segment any more.
    pub(super) fn closed(&self, segment: u64) {
        self.segments.lock().remove(&segment);
    }

    /// A device refused: if that is for want of rights, they are asked for again.
    pub(super) fn refused(&self, failure: &Failure) {
        if matches!(failure.word(), Some(Word::Capability | Word::Expired | Word::Rights)) {
            self.segments.lock().values_mut().for_each(|known| *known = Capabilities::default());
            *self.group.lock() = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use proto::cluster::{Piece, Run, Width};

    use super::*;

    #[test]
    fn what_is_stored_needs_its_segments_and_what_is_deleted_all() {
        let piece = |segment| Piece {
            segment,
            run: Run { at: 0, bytes: 4096 },
            width: Width::new(2, 1).unwrap(),
            offset: 0,
            length: 10,
            sum: 1,
        };
        let entry = |segments: &[u64]| {
            let pieces: Vec<_> = segments.iter().map(|&segment| piece(segment)).collect();
            Entry { stamp: 1, moves: 0, bytes: Some(10 * pieces.len() as u64), pieces }.encode()
        };
        let need = |entries: &[Vec<u8>]| Need::of(entries.iter().map(Vec::as_slice));
        assert_eq!(need(&[entry(&[3]), entry(&[3, 4])]), Need::Segments(BTreeSet::from([3, 4])));
        assert_eq!(need(&[entry(&[3]), Entry::tombstone(1).encode()]), Need::Group);
        assert_eq!(need(&[entry(&[])]), Need::Group, "an empty content hides another one");
    }
}
