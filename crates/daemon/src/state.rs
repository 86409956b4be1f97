//! The server's own folder. It has the secret that seals tokens and the certificate with its key; the server makes
//! both at its first start, and only their owner can read them.

use std::fs::File;
use std::io::ErrorKind as IoKind;
use std::path::{Path, PathBuf};

use base::{Error, ErrorKind, Result};

use crate::auth::authority::Authority;
use crate::auth::identity::Identity;
use crate::auth::token_records::TokenRecords;
use crate::files::Checksums;
use crate::private_file::{io_error, make_draft, make_folder, read_open, read_private};

const SECRET_FILE: &str = "secret";
const IDENTITY_FILE: &str = "identity.pem";
const CHECKSUMS_FOLDER: &str = "checksums";

/// The folder with a server's secret and certificate.
#[derive(Debug, Clone)]
pub struct StateFolder {
    path: PathBuf,
}

impl StateFolder {
    /// The folder at `path`, made with mode 0700 if it is missing.
    pub fn open(path: &Path) -> Result<Self> {
        make_folder(path)?;
        Ok(Self { path: path.to_owned() })
    }

    /// The folder at `path` of a server that has run. `Refused` if none has.
    pub fn of_server(path: &Path) -> Result<Self> {
        if path.join(SECRET_FILE).exists() {
            return Ok(Self { path: path.to_owned() });
        }
        let text = format!(
            "no server has its secret in `{}`, so no server would accept a token made from it",
            path.display()
        );
        Err(Error::new(ErrorKind::Refused, text))
    }

    /// The part that makes and checks tokens, with the server's secret.
    pub fn authority(&self) -> Result<Authority> {
        Ok(Authority::new(&self.secret()?).with_records(self.tokens()))
    }

    /// The server's secret, from which keys are derived.
    pub(crate) fn secret(&self) -> Result<[u8; Authority::SECRET_BYTES]> {
        let secret = self.read_or_make(SECRET_FILE, || {
            let mut secret = vec![0; Authority::SECRET_BYTES];
            getrandom::fill(&mut secret)
                .map_err(|error| Error::from_source(ErrorKind::Io, "make a secret", error))?;
            Ok(secret)
        })?;
        secret.try_into().map_err(|_| self.corrupt(SECRET_FILE, "has the wrong length"))
    }

    /// The records of tokens.
    #[must_use]
    pub fn tokens(&self) -> TokenRecords {
        TokenRecords::of(&self.path)
    }

    /// The digests of files that others read.
    pub(crate) fn checksums(&self) -> Result<Checksums> {
        Checksums::of(self.path.join(CHECKSUMS_FOLDER))
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

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

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
