//! Makes disks with randomly stacked filesystems, swap spaces, members of arrays, containers and partition tables: new
//! ones over the remains of old ones, at starts and ends, and tables nested in partitions up to three deep. The same
//! seed makes the same disk, except for UUIDs that the tools choose.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use base::{Chance, Extent};

use super::{Bench, read_at, run, run_with_input, write_at};

/// The tools that [`stack`] runs.
pub(crate) const TOOLS: &[&str] = &["mke2fs", "mkfs.fat", "mkswap", "sfdisk", "sgdisk"];

/// A disk and the steps that made it.
pub(crate) struct Stacked {
    pub path: PathBuf,
    /// The steps, each with its sectors, for messages.
    pub story: Vec<String>,
}

/// How deep partition tables are nested.
const DEPTH_MAX: u64 = 3;
/// Size of the smallest partition, in sectors: 4 MiB.
const PARTITION_SECTORS_MIN: u64 = 4 << 11;

/// Programs that make a filesystem or swap space in a file. Some of them keep old bytes that they do not need.
const MAKERS: [&str; 8] = [
    "mke2fs -q -F -t ext4 -b 1024",
    "mke2fs -q -F -t ext4 -b 4096",
    "mke2fs -q -F -t ext2",
    "mkfs.fat -F 12 -s 64",
    "mkfs.fat -F 32 -s 1",
    "mkswap",
    "mkswap",
    "mkswap --pagesize 65536",
];

/// A bare signature: its magic bytes, and their offset as a function of the size of the volume, both in bytes.
type Magic = (&'static [u8], fn(u64) -> u64);

const MAGICS: [Magic; 22] = [
    (b"XFSB", |_| 0),
    (b"_BHRfS_M", |_| (64 << 10) + 0x40),
    (b"LUKS\xBA\xBE\0\x01aes", |_| 0),
    (b"CD001", |_| 32_769),
    (b"NTFS    ", |_| 3),
    (b"hsqs", |_| 0),
    (b"JFS1", |_| 32_768),
    (b"ReIsEr2Fs", |_| (64 << 10) + 0x34),
    (b"ReIsErFs", |_| 8192 + 0x34),
    (b"\x19\x01\x54\x19", |_| (64 << 10) + 0x55C),
    (b"\x19\x01\x54\x19", |_| (256 << 10) + 0x55C),
    (b"OCFSV2", |_| 4096),
    (b"\x0D\xD0\x01\xC0", |_| 1 << 20),
    (b"\x5E\xF1\xAB\x2F", |_| 2 << 20),
    (b"$DRBDmgr=q", |_| 0),
    (b"SnAp", |_| 0),
    (b"Intel Raid ISM Cfg Sig. 1.0.00\0\0", |len| len - 1024),
    (b"$XIDE$", |len| len - 512),
    (b"Promise Technology, Inc.", |len| len - 63 * 512),
    (b"\xF3\x16\x78\x5A", |len| len - 11 * 512),
    (b"EFI PART", |len| len - 512),
    (b"\x57\x45\x56\x82", |_| 512),
];

/// Makes the disk of `seed`, of 16 to 32 MiB.
pub(crate) fn stack(bench: &Bench, seed: u64) -> Stacked {
    let mut chance = Chance::from_seed(seed);
    let sectors = (16 << 11) + chance.below(16 << 11);
    let path = if chance.below(4) == 0 {
        bench.random_file("disk", sectors * 512, seed)
    } else {
        bench.sparse_file("disk", sectors * 512)
    };
    let mut stack = Stack { bench, disk: path.clone(), chance, story: Vec::new() };
    let whole = Extent::new(0, sectors);
    if stack.chance.below(8) == 0 {
        stack.fill(whole, 0);
    } else {
        // A typical disk: mostly only a table, sometimes with other signatures next to it.
        if stack.chance.below(4) == 0 {
            stack.layer(whole, 0);
        }
        stack.table(whole, 0);
        if stack.chance.below(8) == 0 {
            stack.magic(whole);
        }
    }
    Stacked { path, story: stack.story }
}

struct Stack<'a> {
    bench: &'a Bench,
    disk: PathBuf,
    chance: Chance,
    story: Vec<String>,
}

impl Stack<'_> {
    /// Writes one to three layers to `range`, one over the other.
    fn fill(&mut self, range: Extent, depth: u64) {
        let layers = [1, 1, 1, 2, 2, 3][self.chance.below(6) as usize];
        (0..layers).for_each(|_| self.layer(range, depth));
    }

    fn layer(&mut self, range: Extent, depth: u64) {
        match self.chance.below(16) {
            0..=7 => self.make(range),
            8 | 9 => self.magic(range),
            10 => self.raid(range),
            11 => self.lvm(range),
            12 | 13 if depth < DEPTH_MAX => self.table(range, depth),
            14 => self.zfs(range),
            _ => self.bytes(range),
        }
    }

    fn tell(&mut self, range: Extent, what: &str) {
        self.story.push(format!("{}+{}: {what}", range.start, range.count));
    }

    /// Makes a filesystem or swap space in `range`. Half of the time it is made in an empty file and written over the
    /// disk without its zeros, so that old bytes remain in their places.
    fn make(&mut self, range: Extent) {
        let maker = MAKERS[self.chance.below(MAKERS.len() as u64) as usize];
        let shorter = if self.chance.below(4) == 0 { self.chance.below(range.count / 2) } else { 0 };
        let range = Extent::new(range.start, range.count - shorter);
        let over = self.chance.below(2) == 0;
        self.tell(range, &format!("{maker}{}", if over { ", over what is there" } else { "" }));
        let file = self.bench.sparse_file("layer", range.len_bytes());
        if !over {
            fs::write(&file, read_at(&self.disk, range)).unwrap();
        }
        run(maker, &[&file]);
        self.put(&file, range, over);
    }

    /// Writes the sectors of `file` to `range`; with `over`, only those that are not all zeros.
    fn put(&self, file: &Path, range: Extent, over: bool) {
        let bytes = fs::read(file).unwrap();
        let disk = File::options().write(true).open(&self.disk).unwrap();
        for (index, sector) in (0..).zip(bytes.chunks(512)) {
            if !over || sector.iter().any(|&byte| byte != 0) {
                disk.write_all_at(sector, range.offset_bytes() + index * 512).unwrap();
            }
        }
    }

    /// Writes the magic bytes of a random format.
    fn magic(&mut self, range: Extent) {
        let (magic, place) = MAGICS[self.chance.below(MAGICS.len() as u64) as usize];
        let offset = place(range.len_bytes());
        self.tell(range, &format!("magic {:?} at {offset}", String::from_utf8_lossy(magic)));
        write_at(&self.disk, range.offset_bytes() + offset, magic);
    }

    /// Makes a partition table with up to three partitions, and fills each of them.
    fn table(&mut self, range: Extent, depth: u64) {
        let gpt = self.chance.below(3) > 0;
        let edge = 2048;
        let (mut at, mut script, mut partitions) = (edge, String::new(), Vec::new());
        for _ in 0..=self.chance.below(3) {
            at += self.chance.below(2048);
            let left = range.count.saturating_sub(at + edge);
            if left < PARTITION_SECTORS_MIN {
                break;
            }
            let count = PARTITION_SECTORS_MIN + self.chance.below(left - PARTITION_SECTORS_MIN + 1);
            script.push_str(&format!("start={at}, size={count}\n"));
            partitions.push(Extent::new(range.start + at, count));
            at += count;
        }
        let label = if gpt { "gpt" } else { "dos" };
        self.tell(range, &format!("table {label}: {}", script.trim().replace('\n', "; ")));
        let file = self.bench.path("table");
        fs::write(&file, read_at(&self.disk, range)).unwrap();
        let wipe = ["always", "never"][self.chance.below(2) as usize];
        let line = format!("sfdisk -q --force --wipe {wipe} --wipe-partitions never");
        run_with_input(&line, &file, &format!("label: {label}\n{script}"));
        self.put(&file, range, false);
        for partition in partitions {
            self.fill(partition, depth + 1);
        }
    }

    /// Writes a superblock of md: versions 0.90 and 1.0 at the end, 1.1 at the start, 1.2 at 4 KiB.
    fn raid(&mut self, range: Extent) {
        let len = range.len_bytes();
        let places = [(len & !0xFFFF) - 0x1_0000, (len & !0xFFF) - 0x2000, 0, 4096];
        let version = self.chance.below(4) as usize;
        let offset = places[version];
        self.tell(range, &format!("superblock of md at {offset}"));
        let block = if version == 0 {
            let mut block = vec![0; 4096];
            block[..4].copy_from_slice(&0xA92B_4EFCu32.to_le_bytes());
            block[8] = 90;
            block
        } else {
            raid_superblock(offset, range.count)
        };
        write_at(&self.disk, range.offset_bytes() + offset, &block);
    }

    /// Writes a label of LVM to one of the first four sectors.
    fn lvm(&mut self, range: Extent) {
        let sector = self.chance.below(4);
        self.tell(range, &format!("label of LVM in sector {sector}"));
        let mut label = vec![0; 512];
        label[..8].copy_from_slice(b"LABELONE");
        label[8] = sector as u8;
        label[20] = 32;
        label[24..32].copy_from_slice(b"LVM2 001");
        label[32..64].fill(b'a');
        let sum = crc32(0xF597_A6CF, &label[20..]);
        label[16..20].copy_from_slice(&sum.to_le_bytes());
        write_at(&self.disk, range.offset_bytes() + sector * 512, &label);
    }

    /// Writes uberblocks of ZFS, as they remain from one of its four labels.
    fn zfs(&mut self, range: Extent) {
        let end = range.len_bytes() & !0x3_FFFF;
        let ring =
            [128 << 10, 384 << 10, end - (384 << 10), end - (128 << 10)][self.chance.below(4) as usize];
        self.tell(range, &format!("uberblocks of ZFS at {ring}"));
        for index in 0..8 {
            let offset = range.offset_bytes() + ring + index * 1024;
            write_at(&self.disk, offset, b"\x0C\xB1\xBA\0\0\0\0\0");
        }
    }

    /// Writes random bytes, which belong to no format.
    fn bytes(&mut self, range: Extent) {
        let count = 1 + self.chance.below(64);
        let at = Extent::new(range.start + self.chance.below(range.count - count), count);
        self.tell(at, "random bytes");
        let mut bytes = vec![0; at.len_bytes() as usize];
        self.chance.fill(&mut bytes);
        write_at(&self.disk, at.offset_bytes(), &bytes);
    }
}

/// A superblock of md, version 1, for byte `offset` of a member with `sectors` sectors, whose data start at its first
/// sector (Linux, include/uapi/linux/raid/md_p.h).
pub(crate) fn raid_superblock(offset: u64, sectors: u64) -> Vec<u8> {
    let mut block = vec![0; 258];
    block[..4].copy_from_slice(&0xA92B_4EFCu32.to_le_bytes());
    block[4] = 1;
    block[16..32].fill(7);
    block[72] = 1;
    block[80..88].copy_from_slice(&(sectors - 16).to_le_bytes());
    block[92] = 2;
    block[136..144].copy_from_slice(&(sectors - 16).to_le_bytes());
    block[144..152].copy_from_slice(&(offset / 512).to_le_bytes());
    block[220] = 1;
    let words = block[..256].as_chunks().0.iter().map(|&word| u64::from(u32::from_le_bytes(word)));
    let sum: u64 = words.sum();
    block[216..220].copy_from_slice(&((sum & 0xFFFF_FFFF) as u32 + (sum >> 32) as u32).to_le_bytes());
    block
}

/// The checksum of LVM's labels: CRC-32 without the final inversion.
fn crc32(start: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(start, |sum, &byte| {
        (0..8).fold(sum ^ u32::from(byte), |sum, _| sum >> 1 ^ if sum & 1 == 1 { 0xEDB8_8320 } else { 0 })
    })
}
