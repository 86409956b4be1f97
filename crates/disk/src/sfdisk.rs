//! Runs sfdisk on a loop device over a whole disk, of which the kernel need not know the partitions.

use std::path::Path;

use base::{Error, ErrorKind, Result};

use crate::tools::run;

/// Types of extended partitions, as sfdisk prints them.
const EXTENDED: [&str; 3] = ["type=5", "type=f", "type=85"];

/// The partition table as text.
pub(crate) fn dump(device: &Path) -> Result<String> {
    run("sfdisk", &["--dump"], &[device], None)
}

/// Changes the table as `script` says, and leaves alone what lies in the partitions. `more`: further arguments. `Io`
/// with sfdisk's words if it fails.
pub(crate) fn apply(device: &Path, more: &[&str], script: &str) -> Result<()> {
    let arguments = ["--quiet", "--no-reread", "--no-tell-kernel", "--wipe=never", "--wipe-partitions=never"];
    run("sfdisk", &[&arguments[..], more].concat(), &[device], Some(script)).map(drop)
}

/// The value of a field in a line of a dump, such as `start=`.
pub(crate) fn field(line: &str, name: &str) -> Option<u64> {
    let found = line.split([',', ':']).find_map(|field| field.trim().strip_prefix(name))?;
    found.trim().parse().ok()
}

/// The lines of a dump that describe partitions.
pub(crate) fn partitions(dump: &str) -> impl Iterator<Item = &str> {
    dump.lines().filter(|line| is_partition(line))
}

/// Whether a line of a dump describes a partition.
pub(crate) fn is_partition(line: &str) -> bool {
    line.contains(" : start=")
}

/// The error about a line that has not what a dump's should.
pub(crate) fn unreadable(line: &str) -> Error {
    Error::new(ErrorKind::Io, format!("sfdisk printed `{line}`"))
}

/// The number of the partition in a line of a dump: `/dev/loop0p4 : start=`.
pub(crate) fn number_of(line: &str) -> Option<u32> {
    line.split_whitespace().next()?.rsplit('p').next()?.parse().ok()
}

/// Whether a line of a dump is that of an extended partition.
pub(crate) fn is_extended(line: &str) -> bool {
    line.split(',').any(|field| EXTENDED.contains(&field.trim()))
}
