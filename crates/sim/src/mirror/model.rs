//! The allowed content of a disk, independent of the mirror: a plain disk that remembers which writes were
//! acknowledged, in flight and flushed.

use std::collections::BTreeMap;

use mirror::machine::Sectors;

use super::medium::Value;

/// A write to one sector.
#[derive(Debug, Clone, Copy)]
struct Written {
    value: Value,
    write: u64,
    /// Time of its acknowledgement on the model's clock; `None` while it is in flight.
    acknowledged: Option<u64>,
}

/// The model of a disk.
#[derive(Debug)]
pub(super) struct Model {
    /// The content without the writes in flight.
    stable: Vec<Value>,
    /// The content that certainly survives a power cut.
    durable: Vec<Value>,
    /// Writes that are not certainly durable, in the order of their acknowledgement; those in flight are last.
    since: BTreeMap<u64, Vec<Written>>,
    clock: u64,
    reads: BTreeMap<u64, (Sectors, Vec<Vec<Value>>)>,
}

impl Model {
    pub(super) fn new(content: Vec<Value>) -> Self {
        let durable = content.clone();
        Self { stable: content, durable, since: BTreeMap::new(), clock: 0, reads: BTreeMap::new() }
    }

    fn flying(&self, sector: u64) -> impl Iterator<Item = Value> + '_ {
        let since = self.since.get(&sector).map_or(&[][..], |since| since.as_slice());
        since.iter().filter(|written| written.acknowledged.is_none()).map(|written| written.value)
    }

    /// The values that a read of the sector may return now.
    pub(super) fn visible(&self, sector: u64) -> Vec<Value> {
        std::iter::once(self.stable[sector as usize]).chain(self.flying(sector)).collect()
    }

    /// The values that the sector may have after a power cut.
    fn after_cut(&self, sector: u64) -> Vec<Value> {
        let since = self.since.get(&sector).map_or(&[][..], |since| since.as_slice());
        std::iter::once(self.durable[sector as usize])
            .chain(since.iter().map(|written| written.value))
            .collect()
    }

    pub(super) fn write_begins(&mut self, write: u64, start: u64, values: &[Value]) {
        for (sector, &value) in (start..).zip(values) {
            self.since.entry(sector).or_default().push(Written { value, write, acknowledged: None });
            for (range, allowed) in self.reads.values_mut() {
                if range.contains(&sector) {
                    allowed[(sector - range.start) as usize].push(value);
                }
            }
        }
    }

    pub(super) fn write_ends(&mut self, write: u64, range: &Sectors) {
        self.clock += 1;
        for sector in range.clone() {
            let since = self.since.get_mut(&sector).expect("it began");
            let at = since.iter().position(|written| written.write == write).expect("it began");
            let mut written = since.remove(at);
            written.acknowledged = Some(self.clock);
            self.stable[sector as usize] = written.value;
            let behind = since.iter().take_while(|other| other.acknowledged.is_some()).count();
            since.insert(behind, written);
        }
    }

    /// The time of a flush that begins now: it covers writes acknowledged until then.
    pub(super) fn flush_begins(&self) -> u64 {
        self.clock
    }

    /// Ends a flush of `range`, or of all sectors, that began at `moment`.
    pub(super) fn flush_ends(&mut self, moment: u64, range: Option<&Sectors>) {
        let durable = &mut self.durable;
        self.since.retain(|&sector, since| {
            if range.is_some_and(|range| !range.contains(&sector)) {
                return true;
            }
            let before = |written: &Written| written.acknowledged.is_some_and(|at| at <= moment);
            let count = since.iter().take_while(|written| before(written)).count();
            if count > 0 {
                durable[sector as usize] = since[count - 1].value;
                since.drain(..count);
            }
            !since.is_empty()
        });
    }

    pub(super) fn read_begins(&mut self, read: u64, range: &Sectors) {
        let allowed = range.clone().map(|sector| self.visible(sector)).collect();
        self.reads.insert(read, (range.clone(), allowed));
    }

    /// Ends a read. Returns a description of the first sector whose value was not allowed.
    pub(super) fn read_ends(&mut self, read: u64, values: &[Value]) -> Option<String> {
        let (range, allowed) = self.reads.remove(&read).expect("it began");
        let wrong = range.clone().zip(values).zip(&allowed);
        wrong
            .filter(|((_, value), allowed)| !allowed.contains(value))
            .map(|((sector, value), allowed)| {
                format!("sector {sector} held {value:#x}, not one of {allowed:x?}")
            })
            .next()
    }

    pub(super) fn read_fails(&mut self, read: u64) {
        self.reads.remove(&read);
    }

    /// Restarts after the end of the process or a power cut, when the disk has `content`. Returns a description of
    /// the first sector whose value is not allowed. From here on the model has this content.
    pub(super) fn restarts(&mut self, content: &[Value], power: bool) -> Option<String> {
        let mut wrong = None;
        for (sector, &value) in (0..).zip(content) {
            let allowed = if power { self.after_cut(sector) } else { self.visible(sector) };
            if !allowed.contains(&value) && wrong.is_none() {
                wrong = Some(format!("sector {sector} holds {value:#x}, not one of {allowed:x?}"));
            }
        }
        *self = Self::new(content.to_vec());
        wrong
    }
}
