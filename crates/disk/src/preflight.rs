//! What must hold before the first byte is written to a target.

use std::path::Path;

use base::units::show_bytes;

use crate::file::{Identity, device_geometry, identify, io_error};
use crate::{Error, ErrorKind, Geometry, Result};

/// Checks that an image of geometry `needed` may be written to `target`, without writing anything. `source` is what the
/// image is being captured from at the same time, if it is. A file that is missing or too short is fine, since
/// opening it with a size makes it so. `Refused`, with the reason, if the target is no good; `NotFound`, `Io`.
pub fn preflight(target: &Path, needed: Geometry, source: Option<Identity>) -> Result<()> {
    let identity = match identify(target) {
        Err(error) if error.kind() == ErrorKind::NotFound => return check_parent(target),
        other => other?,
    };
    if source == Some(identity) {
        return Err(refused(target, "is the source itself"));
    }
    match identity {
        Identity::File { .. } => Ok(()),
        Identity::Device { .. } => check_size(target, needed),
    }
}

fn refused(target: &Path, why: &str) -> Error {
    Error::new(ErrorKind::Refused, format!("`{}` {why}", target.display()))
}

/// A file can be made where its folder is.
fn check_parent(target: &Path) -> Result<()> {
    let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::metadata(parent).map(drop).map_err(|e| io_error("look at the folder", parent, e))
}

fn check_size(target: &Path, needed: Geometry) -> Result<()> {
    let file = std::fs::File::open(target).map_err(|e| io_error("open", target, e))?;
    let found = device_geometry(&file, target)?;
    if found.size_bytes < needed.size_bytes {
        let (has, wants) = (show_bytes(found.size_bytes), show_bytes(needed.size_bytes));
        let (bytes, least) = (found.size_bytes, needed.size_bytes);
        return Err(refused(
            target,
            &format!("is too small: {has} ({bytes} bytes), image {wants} ({least} bytes)"),
        ));
    }
    if found.logical_sector_bytes != needed.logical_sector_bytes {
        let (has, wants) = (found.logical_sector_bytes, needed.logical_sector_bytes);
        return Err(refused(target, &format!("has logical sectors of {has} bytes, the image {wants}")));
    }
    Ok(())
}
