//! Listens on Unix sockets with a path. It replaces a socket that a dead process left, but never one at which a
//! process answers.

use std::io::ErrorKind as IoKind;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use base::{Error, ErrorKind, Result};

/// Listens at `path`.
///
/// # Errors
/// `Refused` if a process answers there, or the path is not a socket; `Io`.
pub(super) fn listen(path: &Path) -> Result<UnixListener> {
    let failed = |error| Error::from_source(ErrorKind::Io, format!("listen on `{}`", path.display()), error);
    let refused = |why: &str| Err(Error::new(ErrorKind::Refused, format!("`{}` {why}", path.display())));
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == IoKind::NotFound => {}
        Err(error) => return Err(failed(error)),
        Ok(found) if !found.file_type().is_socket() => return refused("is not a socket"),
        Ok(_) => match UnixStream::connect(path) {
            Ok(_) => return refused("is in use: somebody answers there"),
            Err(error) if error.kind() == IoKind::ConnectionRefused => {
                std::fs::remove_file(path).map_err(failed)?;
            }
            Err(error) => return Err(failed(error)),
        },
    }
    UnixListener::bind(path).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_or_a_file_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let first = listen(&path).unwrap();
        assert_eq!(listen(&path).unwrap_err().kind(), ErrorKind::Refused);
        UnixStream::connect(&path).unwrap();
        // As if its process had died: the path stays.
        drop(first);
        assert!(path.exists());
        let _second = listen(&path).unwrap();
        UnixStream::connect(&path).unwrap();

        let file = folder.path().join("file");
        std::fs::write(&file, "precious").unwrap();
        assert_eq!(listen(&file).unwrap_err().kind(), ErrorKind::Refused);
        assert_eq!(std::fs::read(&file).unwrap(), b"precious");
    }
}
