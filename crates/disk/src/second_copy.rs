//! Begins a target as a copy of what this host holds already, without copying its bytes: a file that shares blocks
//! with another. A snapshot of a logical volume is made in `logical_volume.rs`, an overlay in QCOW2 in
//! `container/qcow2_target.rs`. What the copy holds is compared with the image afterwards, so the base may be any disk.

use std::fs::OpenOptions;
use std::path::Path;

use base::{Error, ErrorKind, Result};
use rustix::io::Errno;

use crate::file::{identify, io_error};
use crate::{SurveyOptions, open_source, writers};

/// Checks that `base` can be what `target` begins with. With `must_stay`, nobody may write to it: an overlay needs it
/// as it is. `Refused` if it is the target itself, or is written to; `NotFound`; `Io`.
pub fn check_base(base: &Path, target: &Path, must_stay: bool) -> Result<()> {
    let refused = |why: String| Err(Error::new(ErrorKind::Refused, format!("`{}` {why}", base.display())));
    let found = identify(base)?;
    if identify(target).is_ok_and(|target| target == found) {
        return refused("is the target itself".to_owned());
    }
    if must_stay {
        let source = open_source(base)?;
        if let Some(writer) = writers(&source, &SurveyOptions::default())?.first() {
            return refused(format!("{}, and an overlay needs its base as it is", writer.how));
        }
    }
    Ok(())
}

/// Makes the file `target` a copy of the file `base` that shares its blocks. A file that was there loses its content.
/// `Refused`, with nothing left behind, if their filesystem can't share blocks, or they lie on two; `Io`.
pub fn share_blocks(base: &Path, target: &Path) -> Result<()> {
    let from = std::fs::File::open(base).map_err(|e| io_error("open", base, e))?;
    let is_new = !target.exists();
    let to = OpenOptions::new().write(true).create(true).truncate(false).open(target);
    let to = to.map_err(|e| io_error("open", target, e))?;
    // Before the file loses its content.
    if let Err(error) = rustix::fs::ioctl_ficlone(&to, &from) {
        if is_new {
            let _ = std::fs::remove_file(target);
        }
        let (base, target) = (base.display(), target.display());
        return Err(match error {
            Errno::OPNOTSUPP | Errno::XDEV | Errno::INVAL | Errno::NOTTY | Errno::NOSYS => Error::new(
                ErrorKind::Refused,
                format!(
                    "`{target}` can't share blocks with `{base}`: both must lie on one filesystem that can, such as \
                     XFS or btrfs"
                ),
            ),
            error => {
                Error::from_io(format!("make `{target}` a copy of `{base}`"), std::io::Error::from(error))
            }
        });
    }
    let bytes = from.metadata().map_err(|e| io_error("look at", base, e))?.len();
    to.set_len(bytes).map_err(|e| io_error("resize", target, e))
}
