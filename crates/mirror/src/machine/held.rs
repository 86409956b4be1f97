//! The sets that say which parts of the local file are valid, and how.

use base::RunSet;

use crate::machine::types::{Cut, Sectors};

/// Which parts of the local file are valid, as sets of sectors and chunks. The journal records exactly this.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Held {
    /// Sectors written since the base version.
    pub dirty: RunSet,
    /// Of these, the freed ones: they hold zeros, and are free in the next version.
    pub freed: RunSet,
    /// Sectors that are being committed.
    pub frozen: RunSet,
    /// Of these, those that are free in the version being committed.
    pub frozen_freed: RunSet,
    /// Sectors that were committed, in chunks that are not completely local.
    pub kept: RunSet,
    /// Chunks that are completely local.
    pub clean: RunSet,
    /// Chunks that were clean before a power cut, and must be checked before use.
    pub suspect: RunSet,
}

impl Held {
    /// The parts of `range` that are not in the local file.
    #[must_use]
    pub fn missing(&self, cut: &Cut, range: &Sectors) -> RunSet {
        let mut missing = RunSet::new();
        for chunks in self.clean.gaps(cut.chunks_of(range)) {
            let sectors = cut.sectors_of(chunks);
            missing.insert(sectors.start.max(range.start)..sectors.end.min(range.end));
        }
        for set in [&self.dirty, &self.frozen, &self.kept] {
            set.within(range.clone()).for_each(|run| missing.remove(run));
        }
        missing
    }

    /// Makes all dirty sectors frozen: a commit begins.
    pub fn freeze(&mut self) {
        debug_assert!(self.frozen.is_empty(), "one generation ends before the next one begins");
        self.frozen = std::mem::take(&mut self.dirty);
        self.frozen_freed = std::mem::take(&mut self.freed);
    }

    /// Makes the frozen sectors dirty again. Those that were freed stay freed unless they were written since.
    pub fn abandon(&mut self) {
        let mut freed = std::mem::take(&mut self.frozen_freed);
        self.dirty.iter().for_each(|run| freed.remove(run));
        self.freed.extend(&freed);
        let frozen = std::mem::take(&mut self.frozen);
        self.dirty.extend(&frozen);
        debug_assert!(self.freed.iter().all(|run| self.dirty.contains(&run)), "freed sectors are dirty");
    }

    /// Makes these sectors dirty and not freed.
    pub fn write(&mut self, range: Sectors) {
        self.freed.remove(range.clone());
        self.dirty.insert(range);
    }

    /// Makes these sectors dirty and freed.
    pub fn free(&mut self, range: Sectors) {
        self.dirty.insert(range.clone());
        self.freed.insert(range);
    }

    /// The frozen sectors are in the new base. Chunks that are now completely local become clean; in other chunks
    /// the sectors become kept.
    pub fn commit(&mut self, cut: &Cut) {
        self.frozen_freed = RunSet::new();
        let frozen = std::mem::take(&mut self.frozen);
        for run in frozen.iter() {
            let chunks = cut.chunks_of(&run);
            // The last chunk of the disk may be shorter, so a run up to the end of the disk covers it completely.
            let whole = run.start.div_ceil(cut.chunk_sectors)..if run.end == cut.size_sectors {
                chunks.end
            } else {
                run.end / cut.chunk_sectors
            };
            if !whole.is_empty() {
                self.clean.insert(whole);
            }
            // The first and the last chunk may be covered only in part: keep that part, unless other parts complete
            // the chunk.
            for chunk in [chunks.start, chunks.end - 1] {
                let sectors = cut.chunk(chunk);
                self.kept.insert(run.start.max(sectors.start)..run.end.min(sectors.end));
                if self.missing(cut, &sectors).is_empty() {
                    self.clean.insert(chunk..chunk + 1);
                }
            }
        }
        let here: Vec<Sectors> = self.clean.iter().map(|chunks| cut.sectors_of(chunks)).collect();
        here.into_iter().for_each(|run| self.kept.remove(run));
        let dirty: Vec<Sectors> = self.dirty.iter().collect();
        dirty.into_iter().for_each(|run| self.kept.remove(run));
        debug_assert!(
            !self.clean.iter().any(|chunks| self.kept.touches(&cut.sectors_of(chunks))),
            "kept sectors lie outside clean chunks"
        );
    }

    /// Whether all of `range` is in the local file.
    #[must_use]
    pub fn is_here(&self, cut: &Cut, range: &Sectors) -> bool {
        self.clean.contains(&cut.chunks_of(range))
            || self.dirty.contains(range)
            || self.missing(cut, range).is_empty()
    }
}
