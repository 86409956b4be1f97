//! Metadata contexts: the kinds of block status that clients can choose by name.

use crate::nbd::wire::allocation;
use crate::{Status, StatusRun};

/// A property that is reported for each run of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Context {
    /// `base:allocation`: bit 0 a hole, bit 1 zeros.
    Allocation,
    /// `diskcast:local`: bit 0 if the bytes are local, so that reading them needs no source.
    Local,
    /// `diskcast:dirty`: bit 0 if the bytes were written since the disk's base version.
    Dirty,
}

impl Context {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Allocation, Self::Local, Self::Dirty];

    /// The name that clients use.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Allocation => "base:allocation",
            Self::Local => "diskcast:local",
            Self::Dirty => "diskcast:dirty",
        }
    }

    /// The number that replies carry.
    #[must_use]
    pub fn id(self) -> u32 {
        self as u32
    }

    /// Converts runs of a disk into runs of this context: length in bytes and flags. Neighbours differ.
    #[must_use]
    pub fn tell(self, runs: &[StatusRun]) -> Vec<(u32, u32)> {
        let mut told: Vec<(u32, u32)> = Vec::with_capacity(runs.len());
        for run in runs {
            let flags = self.flags(run.status);
            let bytes = u32::try_from(run.bytes).expect("inside a range of 32 bits");
            match told.last_mut() {
                Some(last) if last.1 == flags => last.0 += bytes,
                _ => told.push((bytes, flags)),
            }
        }
        told
    }

    fn flags(self, status: Status) -> u32 {
        match self {
            Self::Allocation => {
                let hole = if status.hole { allocation::HOLE } else { 0 };
                hole | if status.zero { allocation::ZERO } else { 0 }
            }
            Self::Local => u32::from(status.local),
            Self::Dirty => u32::from(status.dirty),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_context_joins_what_is_equal_to_it() {
        let run =
            |bytes, hole, dirty| StatusRun { bytes, status: Status { zero: hole, hole, dirty, local: true } };
        let runs = [run(512, true, false), run(1024, false, false), run(512, false, true)];
        assert_eq!(Context::Allocation.tell(&runs), [(512, 3), (1536, 0)]);
        assert_eq!(Context::Dirty.tell(&runs), [(1536, 0), (512, 1)]);
        assert_eq!(Context::Local.tell(&runs), [(2048, 1)]);
    }
}
