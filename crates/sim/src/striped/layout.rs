//! Where contents lie: the map of a cluster, its segments, and the entries of what was stored. Places are those that
//! the real writer and the real rules of placement choose.

use std::collections::HashMap;
use std::ops::Range;

use base::Chance;
use proto::cluster::{
    Command, Device, DeviceId, ItemId, Map, Piece, Run, RunKey, SegmentRight, State, UNIT_BYTES, Width,
    Writer, WriterSetting, choose_devices, directory_bytes, place_slots, slot_of,
};

/// Contents from this length on go to one of so many writers of their own.
const LONG_BYTES: u64 = 1 << 20;
const LONG_WRITERS: usize = 3;

/// A part of a component: its number, and bytes from its beginning.
pub(super) type Part = (u8, Range<u64>);

/// The name and the length of a content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) name: String,
    pub(super) bytes: u64,
}

/// What the metadata service and the index know.
pub(super) struct Catalog {
    map: Map,
    /// Number of the last segment before the first.
    before: u64,
    segments: HashMap<u64, Vec<DeviceId>>,
    pieces: HashMap<String, Piece>,
    runs: HashMap<RunKey, Run>,
}

/// The writers of a client, as in `cluster/src/client/write.rs`: several for long contents, in turn, and one for short
/// ones.
pub(super) struct Writers {
    pub(super) all: Vec<Writer>,
    turn: usize,
}

impl Writers {
    /// Segments end when their components have `component_bytes`.
    pub(super) fn new(component_bytes: u64) -> Self {
        let setting = WriterSetting { run_bytes: 4 << 20, short_runs_max: 2, runs_max: 8, component_bytes };
        Self { all: (0..=LONG_WRITERS).map(|_| Writer::new(setting)).collect(), turn: 0 }
    }

    /// Gives a content to a writer; returns which.
    pub(super) fn submit(&mut self, item: ItemId, content: &Content) -> usize {
        let writer = if content.bytes < LONG_BYTES { LONG_WRITERS } else { self.turn % LONG_WRITERS };
        self.turn += usize::from(writer < LONG_WRITERS);
        self.all[writer].submit(item, content.bytes, content.name.len());
        writer
    }
}

impl Catalog {
    /// A cluster of equal devices, numbered from 1, each in a failure domain of its own.
    pub(super) fn new(devices: u32, width: Width, seed: u64) -> Self {
        let device = |number| Device {
            device: DeviceId(number),
            address: String::new(),
            domain: number.to_string(),
            state: State::Up,
            bytes: 1 << 40,
            free: 1 << 40,
        };
        let mut map = Map {
            cluster: String::new(),
            epoch: 1,
            k: width.data,
            m: width.parity,
            unit: UNIT_BYTES,
            devices: (1..=devices).map(device).collect(),
            slots: Vec::new(),
        };
        place_slots(&mut map, true);
        // Somewhere in the life of a cluster.
        let before = Chance::from_seed(seed).below(1 << 32);
        Self { map, before, segments: HashMap::new(), pieces: HashMap::new(), runs: HashMap::new() }
    }

    /// A new segment.
    pub(super) fn open(&mut self, avoid: &[DeviceId]) -> SegmentRight {
        let segment = self.segments.len() as u64 + 1;
        let (width, devices) =
            choose_devices(&self.map, avoid, self.before + segment).expect("there are enough devices");
        self.segments.insert(segment, devices.clone());
        SegmentRight { segment, width, devices }
    }

    /// Contents were stored as a run: they have entries now.
    pub(super) fn insert(&mut self, segment: u64, run: Run, width: Width, contents: &[Content]) {
        self.runs.insert((segment, run.at), run);
        let mut offset = directory_bytes(contents.iter().map(|content| content.name.len())) as u64;
        for content in contents {
            let (at, length) = (offset as u32, content.bytes as u32);
            self.pieces
                .insert(content.name.clone(), Piece { segment, run, width, offset: at, length, sum: 0 });
            offset += content.bytes;
        }
        assert!(offset <= run.content_bytes(width), "the run was formed for these contents");
    }

    /// Where a content lies.
    pub(super) fn piece(&self, name: &str) -> Piece {
        self.pieces[name]
    }

    /// The run behind another one, if the segment has one.
    pub(super) fn next_run(&self, piece: &Piece) -> Option<Piece> {
        let run = *self.runs.get(&(piece.segment, piece.run.end()))?;
        Some(Piece { run, ..*piece })
    }

    /// The device of a component.
    pub(super) fn device(&self, segment: u64, component: u8) -> DeviceId {
        self.segments[&segment][usize::from(component)]
    }

    /// The devices that get the entry of a name.
    pub(super) fn holders(&self, name: &str) -> impl Iterator<Item = DeviceId> {
        self.map.holders(slot_of(name)).iter().map(|holder| holder.device)
    }

    /// The device that a client asks for an entry.
    pub(super) fn holder(&self, name: &str) -> DeviceId {
        let slot = slot_of(name);
        let holders = self.map.holders(slot);
        holders[slot % holders.len()].device
    }

    /// Stores contents at once, in no time: what was there before the run begins.
    pub(super) fn fill(&mut self, contents: &[Content], component_bytes: u64) {
        let mut writers = Writers::new(component_bytes);
        for (number, content) in contents.iter().enumerate() {
            writers.submit(ItemId(number as u64), content);
        }
        writers.all.iter_mut().for_each(|writer| self.obey(writer, contents));
    }

    fn obey(&mut self, writer: &mut Writer, contents: &[Content]) {
        while let Some(command) = writer.poll_command() {
            match command {
                Command::Open { avoid } => writer.opened(self.open(&avoid)),
                Command::Form { segment, place, width, items, .. } => {
                    let items: Vec<_> = items.iter().map(|item| contents[item.0 as usize].clone()).collect();
                    self.insert(segment, place, width, &items);
                }
                Command::Append { segment, component, .. } => writer.appended(segment, component),
                Command::Insert { run } => writer.inserted(run),
                Command::Forget { .. } | Command::Seal { .. } => {}
            }
        }
        assert!(writer.is_idle(), "nothing fails");
    }
}

/// What is to be read of which component for a part of a run's content, as `cluster/src/client/fetch.rs` asks for it.
pub(super) fn parts(piece: &Piece, range: Range<u64>) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for span in piece.run.spans(piece.width, range) {
        let from = piece.run.at + u64::from(span.in_part);
        let to = from + u64::from(span.bytes);
        match parts.iter_mut().find(|(component, _)| *component == span.component) {
            Some((_, part)) => *part = part.start.min(from)..part.end.max(to),
            None => parts.push((span.component, from..to)),
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn contents_lie_where_the_writer_puts_them() {
        let width = Width::new(8, 2).unwrap();
        let mut catalog = Catalog::new(20, width, 7);
        let content = |number| Content { name: format!("content/{number}"), bytes: 16 << 20 };
        let contents: Vec<_> = (0..70).map(content).collect();
        catalog.fill(&contents, 128 << 20);
        // Three writers, each with a third of the contents: a segment each.
        assert_eq!(catalog.segments.len(), 3);
        for content in &contents {
            let piece = catalog.piece(&content.name);
            let from = u64::from(piece.offset);
            let parts = parts(&piece, from..from + content.bytes);
            assert_eq!(parts.len(), 8);
            let devices: HashSet<_> =
                parts.iter().map(|(component, _)| catalog.device(piece.segment, *component)).collect();
            assert_eq!(devices.len(), 8);
            let bytes: u64 = parts.iter().map(|(_, range)| range.end - range.start).sum();
            assert!((content.bytes..content.bytes + (8 << 16)).contains(&bytes), "{bytes}");
            assert_eq!(catalog.holders(&content.name).count(), 3);
            assert!(catalog.holders(&content.name).any(|device| device == catalog.holder(&content.name)));
        }
    }
}
