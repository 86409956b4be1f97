//! The system calls that have no safe wrapper: discarding on a block device, freezing a filesystem (`linux/fs.h`), and
//! leases (fcntl(2)).
#![expect(unsafe_code, reason = "these calls pass pointers, or have no wrapper")]

use std::ffi::c_int;
use std::fs::File;
use std::os::fd::AsRawFd;

use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};

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
