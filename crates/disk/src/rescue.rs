//! Reads disks of which some sectors can't be read. What the disk refuses is asked for again in halves, down to single
//! sectors, and each of these [`TRIES`] times. Such a sector is an error that names it, or counts as zeros and is
//! noted. Reads that succeed cost nothing more than before.

use std::error::Error as StdError;
use std::fmt;

use base::limits::SECTOR_BYTES;
use base::{Error, ErrorKind, Extent, ExtentSet, Result};
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::{Geometry, ReadAt};

/// How often a single sector is read before it counts as one that can't be. Drives and the kernel try again, too.
const TRIES: u32 = 3;

/// What the kernel answers for sectors that can't be read. Other errors, such as a disk that was pulled out, concern
/// all of the disk, and a file that ends too early is none of the disk's.
const OF_SECTORS: [Errno; 5] = [Errno::IO, Errno::NODATA, Errno::ILSEQ, Errno::TIMEDOUT, Errno::REMOTEIO];

/// A disk of which some sectors may be unreadable. Where one is, a read fails; see [`Rescue::filled`].
pub struct Rescue<'a> {
    disk: &'a dyn ReadAt,
    unreadable: Mutex<ExtentSet>,
}

/// The same disk with zeros where it can't be read.
struct Filled<'a>(&'a Rescue<'a>);

/// The cause of an error: a sector of a disk that can't be read.
#[derive(Debug)]
struct Unreadable {
    /// Its number, in units of 512 bytes.
    sector: u64,
    disk: String,
    source: Error,
}

/// The sector, in units of 512 bytes, that could not be read, if `error` came from one.
#[must_use]
pub fn unreadable_sector(error: &Error) -> Option<u64> {
    causes(error).find_map(|cause| cause.downcast_ref::<Unreadable>()).map(|cause| cause.sector)
}

/// The chain of causes that begins with `error`.
fn causes(error: &Error) -> impl Iterator<Item = &(dyn StdError + 'static)> {
    std::iter::successors(Some(error as &(dyn StdError + 'static)), |&error| error.source())
}

/// Whether only the sectors that were read are concerned.
fn is_of_sectors(error: &Error) -> bool {
    let system = causes(error).find_map(|cause| cause.downcast_ref::<std::io::Error>());
    system.and_then(Errno::from_io_error).is_some_and(|found| OF_SECTORS.contains(&found))
}

impl<'a> Rescue<'a> {
    /// `disk`, whose unreadable sectors are not known yet.
    #[must_use]
    pub fn new(disk: &'a dyn ReadAt) -> Self {
        Self { disk, unreadable: Mutex::new(ExtentSet::new()) }
    }

    /// The disk with zeros in sectors that can't be read.
    #[must_use]
    pub fn filled(&self) -> impl ReadAt {
        Filled(self)
    }

    /// The sectors that could not be read so far, in units of 512 bytes.
    #[must_use]
    pub fn unreadable(&self) -> ExtentSet {
        self.unreadable.lock().clone()
    }

    /// Reads as [`ReadAt::read_exact_at`] does. `fills`: a sector that can't be read counts as zeros.
    fn read(&self, buf: &mut [u8], offset: u64, fills: bool) -> Result<()> {
        match self.disk.read_exact_at(buf, offset) {
            Err(error) if is_of_sectors(&error) => {}
            read => return read,
        }
        let unit = self.unit();
        let start = offset / unit * unit;
        let end = (offset + buf.len() as u64).next_multiple_of(unit).min(self.disk.geometry().size_bytes);
        let size = |bytes: u64| usize::try_from(bytes).expect("little more than the buffer");
        let mut sectors = vec![0; size(end - start)];
        self.halve(&mut sectors, start, fills)?;
        buf.copy_from_slice(&sectors[size(offset - start)..][..buf.len()]);
        Ok(())
    }

    /// Reads whole sectors as far as they can be read.
    fn halve(&self, sectors: &mut [u8], offset: u64, fills: bool) -> Result<()> {
        let extent = Extent::new(offset / SECTOR_BYTES, sectors.len() as u64 / SECTOR_BYTES);
        let is_known = self.unreadable.lock().within(extent).next().is_some();
        let unit = usize::try_from(self.unit()).expect("32 bits");
        let is_single = sectors.len() <= unit;
        let tries = if is_known {
            0
        } else if is_single {
            TRIES
        } else {
            1
        };
        let mut failed = None;
        for _ in 0..tries {
            match self.disk.read_past_cache_at(sectors, offset) {
                Err(error) if is_of_sectors(&error) => failed = Some(error),
                read => return read,
            }
        }
        if !is_single {
            let (front, back) = sectors.split_at_mut((sectors.len() / unit).div_ceil(2) * unit);
            self.halve(front, offset, fills)?;
            return self.halve(back, offset + front.len() as u64, fills);
        }
        self.unreadable.lock().insert(extent);
        if fills {
            sectors.fill(0);
            return Ok(());
        }
        let source = failed.unwrap_or_else(|| Error::new(ErrorKind::Io, "it could not be read before"));
        let cause = Unreadable { sector: extent.start, disk: self.name().to_owned(), source };
        Err(Error::from_source(ErrorKind::Io, format!("read offset {offset}"), cause))
    }

    /// Size of a logical sector in bytes.
    fn unit(&self) -> u64 {
        u64::from(self.disk.geometry().logical_sector_bytes).max(SECTOR_BYTES)
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sector {} of `{}` can't be read", self.sector, self.disk)
    }
}

impl StdError for Unreadable {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        // Without what was read, which this one says.
        self.source.source()
    }
}

impl ReadAt for Rescue<'_> {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.read(buf, offset, false)
    }

    fn name(&self) -> &str {
        self.disk.name()
    }

    fn next_data(&self, offset: u64) -> u64 {
        self.disk.next_data(offset)
    }
}

impl ReadAt for Filled<'_> {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.0.read(buf, offset, true)
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn next_data(&self, offset: u64) -> u64 {
        self.0.next_data(offset)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use base::Chance;

    use super::*;
    use crate::device::MemoryDisk;

    /// A disk with sectors that can't be read.
    struct Failing {
        disk: MemoryDisk,
        bad: ExtentSet,
        how: Errno,
        /// As often as this, each read of a bad sector alone fails; after that it succeeds.
        reads: AtomicU64,
        /// How many reads of a single sector fail.
        fails: u64,
    }

    impl Failing {
        fn new(len: usize, sector_bytes: u32, bad: ExtentSet) -> Self {
            let mut bytes = vec![0; len];
            Chance::from_seed(9).fill(&mut bytes);
            let disk = MemoryDisk::with_sectors(bytes, sector_bytes);
            Self { disk, bad, how: Errno::IO, reads: AtomicU64::new(0), fails: u64::MAX }
        }
    }

    impl ReadAt for Failing {
        fn geometry(&self) -> Geometry {
            self.disk.geometry()
        }

        fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
            let end = (offset + buf.len() as u64).div_ceil(SECTOR_BYTES);
            let read = Extent::between(offset / SECTOR_BYTES, end);
            if self.bad.within(read).next().is_some() && self.reads.fetch_add(1, Relaxed) < self.fails {
                return Err(Error::from_io("read", std::io::Error::from(self.how)));
            }
            self.disk.read_exact_at(buf, offset)
        }

        fn name(&self) -> &'static str {
            "failing"
        }
    }

    #[test]
    fn all_that_can_be_read_is_read_and_the_rest_is_known() {
        for seed in 0..200 {
            let mut chance = Chance::from_seed(seed);
            let unit = if seed % 2 == 0 { 1 } else { 8 };
            let sectors = 512;
            let bad: ExtentSet = (0..chance.below(5))
                .map(|_| Extent::new(chance.below(sectors / unit) * unit, unit * (1 + chance.below(4))))
                .collect();
            let bad: ExtentSet = bad.within(Extent::new(0, sectors)).collect();
            let disk = Failing::new(512 * 512, u32::try_from(512 * unit).unwrap(), bad.clone());
            let rescue = Rescue::new(&disk);
            let (mut found, mut expected) = (vec![7; 512 * 512], disk.disk.contents());
            rescue.filled().read_exact_at(&mut found, 0).unwrap();
            for run in bad.runs() {
                let range = run.offset_bytes()..run.end() * 512;
                expected[usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap()].fill(0);
            }
            assert!(found == expected, "seed {seed}");
            assert_eq!(rescue.unreadable(), bad, "seed {seed}");
            // Parts of sectors, too.
            let at = chance.below(500 * 512);
            let mut part = vec![7; 1000];
            rescue.filled().read_exact_at(&mut part, at).unwrap();
            let at = usize::try_from(at).unwrap();
            assert!(part == expected[at..at + 1000], "seed {seed}");
        }
    }

    #[test]
    fn the_number_of_reads_is_bounded() {
        let all = ExtentSet::of(Extent::new(0, 512));
        let disk = Failing::new(512 * 512, 512, all.clone());
        let rescue = Rescue::new(&disk);
        let mut bytes = vec![7; 512 * 512];
        rescue.filled().read_exact_at(&mut bytes, 0).unwrap();
        // The first read, halves down to pairs, and single sectors.
        assert_eq!(disk.reads.load(Relaxed), 1 + 511 + 512 * u64::from(TRIES));
        assert_eq!(rescue.unreadable(), all);
        // What is known is not asked for again, except by the first read.
        rescue.filled().read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(disk.reads.load(Relaxed), 2 + 511 + 512 * u64::from(TRIES));
    }

    #[test]
    fn the_first_unreadable_sector_is_named() {
        let disk = Failing::new(512 * 512, 512, ExtentSet::of(Extent::new(300, 9)));
        let rescue = Rescue::new(&disk);
        let error = rescue.read_exact_at(&mut vec![0; 100 * 512], 256 * 512).unwrap_err();
        assert_eq!(unreadable_sector(&error.within("deeper")), Some(300));
        assert_eq!(rescue.unreadable(), ExtentSet::of(Extent::new(300, 1)));
        rescue.read_exact_at(&mut vec![0; 44 * 512], 256 * 512).unwrap();
    }

    #[test]
    fn a_sector_that_is_read_at_last_is_sound() {
        let mut disk = Failing::new(512 * 512, 512, ExtentSet::of(Extent::new(300, 1)));
        // One read of all, nine of halves, and one fewer than are tried.
        disk.fails = 10 + u64::from(TRIES) - 1;
        let rescue = Rescue::new(&disk);
        let mut bytes = vec![7; 512 * 512];
        rescue.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes == disk.disk.contents() && rescue.unreadable().is_empty());
    }

    #[test]
    fn a_disk_that_is_gone_is_an_error() {
        let mut disk = Failing::new(512 * 512, 512, ExtentSet::of(Extent::new(300, 9)));
        disk.how = Errno::NODEV;
        let rescue = Rescue::new(&disk);
        let error = rescue.filled().read_exact_at(&mut vec![0; 512 * 512], 0).unwrap_err();
        assert_eq!(unreadable_sector(&error), None);
        assert!(rescue.unreadable().is_empty());
    }
}
