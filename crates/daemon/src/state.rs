//! The server's own folder. It has the secret that seals tokens and the certificate with its key; the server makes
//! both at its first start, and only their owner can read them.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{ErrorKind as IoKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use base::{Error, ErrorKind, Result};

use crate::authority::Authority;
use crate::identity::Identity;

const SECRET_FILE: &str = "secret";
const IDENTITY_FILE: &str = "identity.pem";
const FILE_BYTES_MAX: u64 = 64 << 10;

/// The folder with a server's secret and certificate.
#[derive(Debug, Clone)]
pub struct StateFolder {
    path: PathBuf,
}

impl StateFolder {
    /// The folder at `path`, made with mode 0700 if it is missing.
    pub fn open(path: &Path) -> Result<Self> {
        let io =
            |error| Error::from_source(ErrorKind::Io, format!("make the folder `{}`", path.display()), error);
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(io)?;
        Ok(Self { path: path.to_owned() })
    }

    /// The folder at `path` of a server that has run. `Refused` if none has.
    pub fn of_server(path: &Path) -> Result<Self> {
        if path.join(SECRET_FILE).exists() {
            return Ok(Self { path: path.to_owned() });
        }
        let text = format!(
            "no server has kept its secret in `{}`, so it would know no token from here",
            path.display()
        );
        Err(Error::new(ErrorKind::Refused, text))
    }

    /// The part that makes and checks tokens, with the server's secret.
    pub fn authority(&self) -> Result<Authority> {
        let secret = self.read_or_make(SECRET_FILE, || {
            let mut secret = vec![0; Authority::SECRET_BYTES];
            getrandom::fill(&mut secret)
                .map_err(|error| Error::from_source(ErrorKind::Io, "make a secret", error))?;
            Ok(secret)
        })?;
        let secret = secret.try_into().map_err(|_| self.corrupt(SECRET_FILE, "has the wrong length"))?;
        Ok(Authority::new(&secret))
    }

    /// The server's certificate and its key.
    pub fn identity(&self) -> Result<Identity> {
        let pem = self.read_or_make(IDENTITY_FILE, Identity::make_pem)?;
        Identity::from_pem(&pem).map_err(|why| self.corrupt(IDENTITY_FILE, why))
    }

    fn corrupt(&self, file: &str, why: &str) -> Error {
        Error::new(ErrorKind::Malformed, format!("`{}` {why}", self.path.join(file).display()))
    }

    /// Reads the file, or makes it if it is missing. Two servers that start at the same time get the same bytes: the
    /// file appears complete, and only one of them can create it.
    fn read_or_make(&self, name: &str, make: impl FnOnce() -> Result<Vec<u8>>) -> Result<Vec<u8>> {
        let path = self.path.join(name);
        match File::open(&path) {
            Ok(file) => return read_open(&path, file),
            Err(error) if error.kind() == IoKind::NotFound => {}
            Err(error) => return Err(io_error("open", &path, error)),
        }
        match make_draft(&path, &make()?) {
            Err(error) if error.kind() != IoKind::AlreadyExists => Err(io_error("make", &path, error)),
            Ok(()) | Err(_) => read_private(&path),
        }
    }
}

/// Makes the file at `path`, of mode 0600, with `bytes` in it. `Refused` if there is one.
pub fn make_private(path: &Path, bytes: &[u8]) -> Result<()> {
    make_draft(path, bytes).map_err(|error| match error.kind() {
        IoKind::AlreadyExists => {
            Error::new(ErrorKind::Refused, format!("`{}` exists already", path.display()))
        }
        _ => io_error("make", path, error),
    })
}

/// Writes `bytes` to a draft of mode 0600, makes it durable, then links it to `path`, which fails if that exists.
fn make_draft(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let draft = path.with_extension(format!("draft-{}", std::process::id()));
    let _ = std::fs::remove_file(&draft);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    let linked = std::fs::hard_link(&draft, path);
    std::fs::remove_file(&draft)?;
    linked?;
    sync_folder_of(path)
}

/// The bytes of the file at `path`, at most 64 KiB. `Refused` if others than its owner may read or write it.
pub fn read_private(path: &Path) -> Result<Vec<u8>> {
    read_open(path, File::open(path).map_err(|error| io_error("open", path, error))?)
}

fn read_open(path: &Path, file: File) -> Result<Vec<u8>> {
    let metadata = file.metadata().map_err(|error| io_error("look at", path, error))?;
    if metadata.permissions().mode() & 0o077 != 0 {
        return Err(Error::new(
            ErrorKind::Refused,
            format!("`{}` can be read by others: its mode must be 0600", path.display()),
        ));
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(|error| io_error("read", path, error))?;
    Ok(bytes)
}

/// Writes `text` to the file at `path`, which has mode 0600 afterwards, also if it existed. A concurrent reader sees
/// the old or the new content, never a mixture. Special files (`/dev/stdout`) are written directly.
pub(crate) fn write_private(path: &Path, text: &str) -> Result<()> {
    let is_special = std::fs::metadata(path).is_ok_and(|found| !found.is_file());
    let write = || -> std::io::Result<()> {
        if !is_special {
            return replace_private(path, text.as_bytes());
        }
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        file.set_permissions(Permissions::from_mode(0o600))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    write().map_err(|error| io_error("write", path, error))
}

fn replace_private(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    // If `path` is a symbolic link, its target is replaced, not the link.
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let draft = path.with_extension(format!("draft-{}", std::process::id()));
    let _ = std::fs::remove_file(&draft);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    if let Err(error) = written.and_then(|()| std::fs::rename(&draft, &path)) {
        let _ = std::fs::remove_file(&draft);
        return Err(error);
    }
    sync_folder_of(&path)
}

fn sync_folder_of(path: &Path) -> std::io::Result<()> {
    // The parent of a bare file name is the empty path, which means the current folder.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

fn io_error(doing: &str, path: &Path, error: std::io::Error) -> Error {
    Error::from_source(ErrorKind::Io, format!("{doing} `{}`", path.display()), error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn what_is_made_once_stays_and_is_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let first = StateFolder::open(&path).unwrap();
        let fingerprint = first.identity().unwrap().fingerprint();
        first.authority().unwrap();
        let secret = std::fs::read(path.join(SECRET_FILE)).unwrap();

        let second = StateFolder::open(&path).unwrap();
        assert_eq!(second.identity().unwrap().fingerprint(), fingerprint);
        second.authority().unwrap();
        assert_eq!(std::fs::read(path.join(SECRET_FILE)).unwrap(), secret);
        assert_eq!((mode(&path), mode(&path.join(SECRET_FILE))), (0o700, 0o600));
        assert_eq!(mode(&path.join(IDENTITY_FILE)), 0o600);
        assert_eq!(std::fs::read_dir(&path).unwrap().count(), 2, "no drafts are left");
    }

    #[test]
    fn a_secret_that_others_can_read_or_that_is_cut_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateFolder::open(folder.path()).unwrap();
        state.authority().unwrap();
        let path = folder.path().join(SECRET_FILE);
        std::fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        assert_eq!(state.authority().err().unwrap().kind(), ErrorKind::Refused);
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        std::fs::write(&path, b"short").unwrap();
        assert_eq!(state.authority().err().unwrap().kind(), ErrorKind::Malformed);
    }
}
