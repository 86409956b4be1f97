//! A simulated local disk with a journal, which lose data that was not synced. The content of a sector is a number
//! instead of bytes; 0 stands for zeros.

use std::collections::BTreeMap;

use base::Chance;
use mirror::machine::Sectors;

/// The content of a sector.
pub(super) type Value = u64;

/// The disk and the journal.
#[derive(Debug, Clone, Default)]
pub(super) struct Medium {
    /// The content that the process sees.
    now: Vec<Value>,
    /// The content that survives a power cut.
    stable: Vec<Value>,
    /// Values written since the last sync, by sector, in order.
    pending: BTreeMap<u64, Vec<Value>>,
    journal: Vec<u8>,
    journal_stable: usize,
}

/// The writes that a sync covers: for each sector, the number of pending values when the sync began.
pub(super) type Mark = Vec<(u64, usize)>;

impl Medium {
    pub(super) fn new(sectors: u64, journal: Vec<u8>) -> Self {
        let blank = vec![0; sectors as usize];
        let journal_stable = journal.len();
        Self { now: blank.clone(), stable: blank, pending: BTreeMap::new(), journal, journal_stable }
    }

    pub(super) fn read(&self, range: &Sectors) -> Vec<Value> {
        self.now[range.start as usize..range.end as usize].to_vec()
    }

    pub(super) fn write(&mut self, start: u64, values: &[Value]) {
        for (sector, &value) in (start..).zip(values) {
            self.now[sector as usize] = value;
            self.pending.entry(sector).or_default().push(value);
        }
    }

    /// The writes that a sync covers if it begins now.
    pub(super) fn mark(&self) -> Mark {
        self.pending.iter().map(|(&sector, values)| (sector, values.len())).collect()
    }

    /// Ends a sync that began at `mark`.
    pub(super) fn synced(&mut self, mark: &Mark) {
        for &(sector, count) in mark {
            let Some(values) = self.pending.get_mut(&sector) else { continue };
            let count = count.min(values.len());
            if let Some(&last) = values[..count].last() {
                self.stable[sector as usize] = last;
            }
            values.drain(..count);
            if values.is_empty() {
                self.pending.remove(&sector);
            }
        }
    }

    pub(super) fn journal(&self) -> &[u8] {
        &self.journal
    }

    pub(super) fn append(&mut self, record: &[u8]) -> u64 {
        self.journal.extend_from_slice(record);
        self.journal.len() as u64
    }

    pub(super) fn journal_synced(&mut self, bytes: u64) {
        self.journal_stable = self.journal_stable.max(bytes as usize);
    }

    /// Replaces the journal by another one, which is synced.
    pub(super) fn replace_journal(&mut self, journal: Vec<u8>) {
        self.journal_stable = journal.len();
        self.journal = journal;
    }

    /// Cuts the power: of the unsynced writes to a sector, a random prefix survives; the journal ends anywhere after
    /// its synced part, perhaps with random bytes.
    pub(super) fn cut(&mut self, chance: &mut Chance) {
        for (sector, values) in std::mem::take(&mut self.pending) {
            let kept = chance.below(values.len() as u64 + 1) as usize;
            if kept > 0 {
                self.stable[sector as usize] = values[kept - 1];
            }
        }
        self.now.clone_from(&self.stable);
        let loose = self.journal.len() - self.journal_stable;
        self.journal.truncate(self.journal_stable + chance.below(loose as u64 + 1) as usize);
        if chance.hits(300_000) {
            let mut noise = vec![0; chance.below(60) as usize];
            chance.fill(&mut noise);
            self.journal.extend(noise);
        }
        self.journal_stable = self.journal.len();
    }
}
