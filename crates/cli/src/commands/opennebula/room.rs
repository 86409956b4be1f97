//! How much room there is.

use std::path::Path;

use crate::exit::Result;

const MIB: u64 = 1 << 20;

/// The space of the filesystem with `folder`, in OpenNebula's words.
pub(super) fn of_folder(folder: &Path) -> Result<String> {
    let failed = |error: rustix::io::Errno| {
        base::Error::from_io(format!("look at `{}`", folder.display()), std::io::Error::from(error))
    };
    let found = rustix::fs::statvfs(folder).map_err(failed)?;
    let mib = |blocks: u64| blocks * found.f_frsize / MIB;
    let used = mib(found.f_blocks - found.f_bfree);
    Ok(format!("USED_MB={used}\nFREE_MB={}\nTOTAL_MB={}\n", mib(found.f_bavail), mib(found.f_blocks)))
}
