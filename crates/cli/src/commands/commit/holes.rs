//! The parts of a disk that are known to be zeros without reading them: the holes of a raw file, and the clusters that
//! a disk in another form does not store.

use std::fs::File;
use std::ops::Range;

use disk::ReadAt;
use rustix::fs::SeekFrom;

/// The unit in which a disk in another form than raw is searched for zeros: a cluster of most QCOW2 files.
const CLUSTER_BYTES: u64 = 64 << 10;

/// A disk that is searched for holes.
pub(super) struct Holes<'a> {
    pub(super) disk: &'a dyn ReadAt,
    /// The file, if the disk is raw.
    pub(super) file: Option<&'a File>,
}

impl Holes<'_> {
    /// The holes in `range` (bytes of the disk), ascending. A file that became shorter has a hole there; the caller
    /// watches it for changes.
    pub(super) fn within(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        match self.file {
            Some(file) => of_file(file, range),
            None => self.known_zeros(range),
        }
    }

    /// What a disk in another form than raw knows to be zeros, piece by piece.
    fn known_zeros(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut zeros: Vec<Range<u64>> = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min((at / CLUSTER_BYTES + 1) * CLUSTER_BYTES);
            if self.disk.is_hole(at, end - at) {
                match zeros.last_mut() {
                    Some(last) if last.end == at => last.end = end,
                    _ => zeros.push(at..end),
                }
            }
            at = end;
        }
        zeros
    }
}

/// The holes of a raw file; none of a device.
fn of_file(file: &File, range: &Range<u64>) -> Vec<Range<u64>> {
    let mut holes = Vec::new();
    let (mut at, end) = (range.start, range.end);
    while at < end {
        // A filesystem that cannot report holes counts as having none. After the last data there is a hole up to the
        // end.
        let hole = rustix::fs::seek(file, SeekFrom::Hole(at)).unwrap_or(end);
        let data = rustix::fs::seek(file, SeekFrom::Data(hole)).map_or(end, |data| data.min(end));
        if hole < end {
            holes.push(hole..data);
        }
        at = data.max(hole).max(at + 1);
    }
    holes
}
