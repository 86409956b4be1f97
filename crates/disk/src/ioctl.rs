//! The one system call that has no safe wrapper: discarding on a block device (`linux/fs.h`, BLKDISCARD).
#![expect(unsafe_code, reason = "an ioctl passes a pointer")]

use std::fs::File;

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
