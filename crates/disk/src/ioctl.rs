//! The system calls that have no safe wrapper: discarding on a block device, freezing a filesystem (`linux/fs.h`),
//! what a loop device is attached to (`linux/loop.h`), where a file lies (`linux/fiemap.h`), and leases (fcntl(2)).
#![expect(unsafe_code, reason = "these calls pass pointers, or have no wrapper")]

use std::ffi::c_int;
use std::fs::File;
use std::os::fd::AsRawFd;

use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode, Setter, Updater, ioctl, opcode};

use crate::file::Identity;

/// `_IO(0x12, 119)`; its argument points to two 64-bit numbers.
const BLKDISCARD: Opcode = opcode::none(0x12, 119);

/// Discards `len` bytes from `offset` of the block device `file`; both are multiples of its logical sector size.
pub(crate) fn discard(file: &File, offset: u64, len: u64) -> Result<(), Errno> {
    // SAFETY: BLKDISCARD reads `uint64_t range[2]` from its argument, as `linux/fs.h` and block/ioctl.c have it;
    // the array outlives the call.
    unsafe { ioctl(file, Setter::<BLKDISCARD, [u64; 2]>::new([offset, len])) }
}

/// `_IOWR('X', 119, int)`, fsfreeze(8); its argument is not used.
const FIFREEZE: Opcode = opcode::read_write::<c_int>(b'X', 119);
/// `_IOWR('X', 120, int)`.
const FITHAW: Opcode = opcode::read_write::<c_int>(b'X', 120);

/// Freezes the filesystem that holds `place`: the kernel writes all dirty data, then blocks changes. `BUSY` if it is
/// frozen already.
pub(crate) fn freeze(place: &File) -> Result<(), Errno> {
    // SAFETY: FIFREEZE takes no argument (fs/ioctl.c); the number that the pointer leads to outlives the call.
    unsafe { ioctl(place, Setter::<FIFREEZE, c_int>::new(0)) }
}

/// Undoes [`freeze`]. `INVAL` if the filesystem is not frozen.
pub(crate) fn thaw(place: &File) -> Result<(), Errno> {
    // SAFETY: as for FIFREEZE.
    unsafe { ioctl(place, Setter::<FITHAW, c_int>::new(0)) }
}

/// `LOOP_GET_STATUS64`; its argument points to a `struct loop_info64`.
const LOOP_GET_STATUS64: Opcode = 0x4C05;
/// The length of that structure, in words of 64 bits: three of them are the backing file's device, inode and number.
const LOOP_INFO_WORDS: usize = 29;

/// What the loop device `device` is attached to. The path in sysfs may mean another file here, or none.
pub(crate) fn behind_loop(device: &File) -> Result<Identity, Errno> {
    // SAFETY: LOOP_GET_STATUS64 writes a `struct loop_info64`, 232 bytes that are valid for every content
    // (`linux/loop.h`, drivers/block/loop.c).
    let [dev, ino, rdev, ..] =
        unsafe { ioctl(device, Getter::<LOOP_GET_STATUS64, [u64; LOOP_INFO_WORDS]>::new()) }?;
    Ok(if rdev == 0 { Identity::File { dev, ino } } else { Identity::Device { rdev } })
}

/// `_IOWR('f', 11, struct fiemap)`, whose fixed part has 32 bytes.
const FIEMAP: Opcode = opcode::read_write::<[u8; 32]>(b'f', 11);
/// Extents that one call returns.
const FIEMAP_EXTENTS: u32 = 64;
/// `FIEMAP_EXTENT_LAST`.
const EXTENT_LAST: u32 = 1;
/// `FIEMAP_EXTENT_UNKNOWN`, `_DELALLOC` and `_ENCODED`: it has no place on the device, or holds something else there.
const EXTENT_ELSEWHERE: u32 = 2 | 4 | 8;

/// `struct fiemap`.
#[repr(C)]
struct Fiemap {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extents: [FiemapExtent; FIEMAP_EXTENTS as usize],
}

/// `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct FiemapExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    reserved_more: [u32; 3],
}

/// Where the content of `file` lies on its filesystem's device: pairs of byte offset and length. `OPNOTSUPP` if the
/// filesystem does not tell.
pub(crate) fn places_of(file: &File) -> Result<Vec<(u64, u64)>, Errno> {
    let mut places = Vec::new();
    let mut start = 0;
    loop {
        let mut map = Fiemap {
            start,
            length: u64::MAX - start,
            flags: 0,
            mapped_extents: 0,
            extent_count: FIEMAP_EXTENTS,
            reserved: 0,
            extents: [FiemapExtent::default(); FIEMAP_EXTENTS as usize],
        };
        // SAFETY: FIEMAP reads and fills in a `struct fiemap` with room for `extent_count` extents behind it; `Fiemap`
        // is laid out so, and outlives the call.
        unsafe { ioctl(file, Updater::<FIEMAP, Fiemap>::new(&mut map)) }?;
        let found = &map.extents[..FIEMAP_EXTENTS.min(map.mapped_extents) as usize];
        let there = found.iter().filter(|extent| extent.flags & EXTENT_ELSEWHERE == 0);
        places.extend(there.map(|extent| (extent.physical, extent.length)));
        match found.last() {
            Some(last) if last.flags & EXTENT_LAST == 0 => start = last.logical + last.length,
            _ => return Ok(places),
        }
    }
}

/// `asm-generic/fcntl.h`: chooses the signal that the kernel sends when another process breaks a lease.
const F_SETSIG: c_int = 10;

/// Whether any process has the regular file `file` open for writing; `file` itself must be open for reading only. The
/// test is a read lease, which the kernel grants only if there is no such process. `None` if it never grants one here:
/// the file belongs to another user, or its filesystem has no leases.
pub(crate) fn is_open_for_writing(file: &File) -> Option<bool> {
    let fd = file.as_raw_fd();
    // SAFETY: these commands of fcntl(2) take a number and no pointer.
    // If another process breaks the lease before its release below, the kernel sends a signal. The default is SIGIO,
    // which would end this process; SIGURG is ignored by default.
    let granted = unsafe {
        libc::fcntl(fd, F_SETSIG, libc::SIGURG);
        libc::fcntl(fd, libc::F_SETLEASE, libc::F_RDLCK)
    };
    if granted == 0 {
        // SAFETY: as above.
        unsafe { libc::fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK) };
        return Some(false);
    }
    (std::io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN)).then_some(true)
}
