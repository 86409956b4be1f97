//! Temporary folders: what lies in them is of disks, and nobody else's.

use std::fs::Permissions;
use std::io::Result;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use tempfile::{Builder, TempDir};

/// A new folder of mode 0700 in `place`, or in the system's folder for temporary files. Removed when it is dropped.
pub fn private_folder(place: Option<&Path>) -> Result<TempDir> {
    let mut builder = Builder::new();
    builder.prefix("diskcast-").permissions(Permissions::from_mode(0o700));
    match place {
        Some(place) => builder.tempdir_in(place),
        None => builder.tempdir(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_can_not_look_into_it() {
        let within = private_folder(None).unwrap();
        let folder = private_folder(Some(within.path())).unwrap();
        for folder in [&within, &folder] {
            let mode = folder.path().metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o700);
        }
        assert!(folder.path().starts_with(within.path()));
    }
}
