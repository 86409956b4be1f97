//! Records of the tokens that were made: what each grants, and whether it was revoked. They are files in the server's
//! folder, so that `diskcast token` and the running server share them. A token is valid without a record, too.

use std::path::{Path, PathBuf};

use base::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

pub use crate::auth::claims::TokenId;
use crate::auth::claims::{Claims, Right};
use crate::private_file::{make_folder, make_private, read_private, write_private};

const FOLDER: &str = "tokens";
/// Ending of the file that says that a token was revoked.
const REVOKED: &str = "revoked";
/// How long what is known of a token stays after its end: the clock may be wrong, and a token that was revoked must not
/// come back with the right time.
const FORGET_AFTER_SECONDS: u64 = 30 * 86_400;

/// What is known of a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRecord {
    /// Its name.
    pub id: TokenId,
    /// Patterns of the images that it grants.
    pub images: Vec<String>,
    /// What it grants.
    pub right: Right,
    /// When it was made, in seconds since 1970.
    pub made: u64,
    /// When it and its last renewal expire, in seconds since 1970.
    pub expires: u64,
    /// Whether it can be renewed.
    pub renewable: bool,
    /// Who made it, in words.
    pub note: String,
    /// Whether it was revoked.
    #[serde(skip)]
    pub revoked: bool,
}

/// All records.
#[derive(Debug, Clone)]
pub struct TokenRecords {
    folder: PathBuf,
}

impl TokenRecords {
    /// The records in the server's folder `state`.
    pub(crate) fn of(state: &Path) -> Self {
        Self { folder: state.join(FOLDER) }
    }

    /// Records that a token with these claims was made at `now`. Claims without a name leave no record.
    pub fn made(&self, claims: &Claims, note: &str, now: u64) -> Result<()> {
        let Some(id) = claims.id else { return Ok(()) };
        let record = TokenRecord {
            id,
            images: claims.images.clone(),
            right: claims.right,
            made: now,
            expires: claims.expires,
            renewable: claims.lasts.is_some(),
            note: note.to_owned(),
            revoked: false,
        };
        make_folder(&self.folder)?;
        make_private(&self.file(id), &encode(&record))
    }

    /// Records that the token was renewed until `expires`. One without a record stays without.
    pub(crate) fn renewed(&self, id: TokenId, expires: u64) -> Result<()> {
        let path = self.file(id);
        if !path.exists() {
            return Ok(());
        }
        let record = TokenRecord { expires, ..self.read(&path)? };
        write_private(&path, &String::from_utf8_lossy(&encode(&record)))
    }

    /// All tokens that are still valid at `now` or were revoked before they expired, in the order in which they were
    /// made. Forgets those that expired long ago.
    pub fn list(&self, now: u64) -> Result<Vec<TokenRecord>> {
        let entries = match std::fs::read_dir(&self.folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|error| self.failed(error))?,
        };
        let mut records = Vec::new();
        for entry in entries {
            let path = entry.map_err(|error| self.failed(error))?.path();
            let is_record = path.extension().is_none()
                && path
                    .file_name()
                    .and_then(|name| name.to_str())
                    .is_some_and(|name| name.parse::<TokenId>().is_ok());
            if !is_record {
                continue;
            }
            let mut record = self.read(&path)?;
            if record.expires.saturating_add(FORGET_AFTER_SECONDS) <= now {
                // The mark stays until then, so that the token is refused for as long as it would be valid.
                let _ = std::fs::remove_file(path.with_extension(REVOKED));
                let _ = std::fs::remove_file(&path);
            }
            if record.expires <= now {
                continue;
            }
            record.revoked = self.is_revoked(record.id);
            records.push(record);
        }
        records.sort_unstable_by_key(|record| (record.made, record.id));
        Ok(records)
    }

    /// Revokes the token and all its renewals. `NotFound` if there is no record of it.
    pub fn revoke(&self, id: TokenId) -> Result<()> {
        if !self.file(id).exists() {
            return Err(Error::new(ErrorKind::NotFound, format!("there is no token {id}")));
        }
        match make_private(&self.file(id).with_extension(REVOKED), b"") {
            Err(error) if error.kind() == ErrorKind::Refused => Ok(()),
            made => made,
        }
    }

    /// Whether the token was revoked.
    pub(crate) fn is_revoked(&self, id: TokenId) -> bool {
        self.file(id).with_extension(REVOKED).exists()
    }

    fn file(&self, id: TokenId) -> PathBuf {
        self.folder.join(id.to_string())
    }

    fn read(&self, path: &Path) -> Result<TokenRecord> {
        let bytes = read_private(path)?;
        serde_json::from_slice(&bytes).map_err(|error| {
            Error::from_source(ErrorKind::Malformed, format!("read `{}`", path.display()), error)
        })
    }

    fn failed(&self, error: std::io::Error) -> Error {
        Error::from_source(ErrorKind::Io, format!("list `{}`", self.folder.display()), error)
    }
}

fn encode(record: &TokenRecord) -> Vec<u8> {
    serde_json::to_vec(record).expect("a record is plain data")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims(expires: u64) -> Claims {
        let id = Some(TokenId::draw().unwrap());
        Claims { images: vec!["web".into()], right: Right::Read, expires, lasts: Some(100), id, brief: false }
    }

    #[test]
    fn tokens_are_listed_until_they_expire_and_revoked_ones_say_so() {
        let folder = tempfile::tempdir().unwrap();
        let records = TokenRecords::of(folder.path());
        assert_eq!(records.list(0).unwrap(), []);
        let (first, second) = (claims(200), claims(300));
        records.made(&first, "one", 5).unwrap();
        records.made(&second, "two", 6).unwrap();
        let names = |now| records.list(now).unwrap().iter().map(|one| one.note.clone()).collect::<Vec<_>>();
        assert_eq!(names(100), ["one", "two"]);
        let id = first.id.unwrap();
        assert!(!records.is_revoked(id));
        records.revoke(id).unwrap();
        records.revoke(id).unwrap();
        assert!(records.is_revoked(id) && records.list(100).unwrap()[0].revoked);
        records.renewed(second.id.unwrap(), 900).unwrap();
        assert_eq!(names(350), ["two"], "the first has expired");
        assert_eq!(records.list(350).unwrap()[0].expires, 900);
        // A clock that was ahead for a while has brought no token back that was revoked.
        assert!(records.is_revoked(id) && records.list(100).unwrap()[0].revoked);
        assert!(names(200 + FORGET_AFTER_SECONDS).is_empty());
        assert_eq!(
            std::fs::read_dir(folder.path().join(FOLDER)).unwrap().count(),
            1,
            "nothing is left of it"
        );
        let unknown = records.revoke("00000000000000ff".parse().unwrap()).unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::NotFound);
        for text in ["", "xyz", "00000000000000f", "../../../../etc/x"] {
            assert!(text.parse::<TokenId>().is_err(), "{text}");
        }
    }
}
