//! A repository: opening and creating one, and the objects in it. Versions and tags are in modules of their own.

use std::sync::Arc;

use base::limits::OBJECT_BYTES_MAX;
use bytes::Bytes;
use image::cipher::CIPHER_NAME;
use image::{Cipher, ObjectRef, ObjectSink, ObjectSource, SealKey, Signed, SigningKey, Trust};
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use serde::{Deserialize, Serialize};

use crate::backend::{Backend, Created};
use crate::blob::Blobs;
use crate::error::{Error, ErrorKind, Result, from_io, from_store};
use crate::folder::Folder;
use crate::layout;
use crate::location::Location;
use crate::record::{self, RECORD_BYTES_MAX};
use crate::versions::from_image;

const FORMAT: &str = "diskcast-repository";

/// The body of the record `format`.
#[derive(Debug, Serialize, Deserialize)]
struct Format {
    /// 128 random bits: which repository it is, wherever it is copied.
    id: String,
    /// Whoever does not know the cipher of an encrypted repository must keep out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    critical: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cipher: Option<String>,
    /// Tells the right key from others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key_check: Option<String>,
}

impl Format {
    fn new(id: String, key: Option<&SealKey>) -> Self {
        let key_check = key.map(|key| key.check(&id).to_hex());
        let critical = key.map(|_| record::CIPHER.to_owned()).into_iter().collect();
        Self { id, critical, cipher: key.map(|_| CIPHER_NAME.to_owned()), key_check }
    }

    /// How the repository `name` is kept, as far as it says.
    fn cipher(&self, name: &str) -> Result<Cipher> {
        match (&self.cipher, &self.key_check, self.critical.is_empty()) {
            (None, None, true) => Ok(Cipher::None),
            (Some(cipher), Some(_), false) if cipher == CIPHER_NAME => Ok(Cipher::Locked),
            (Some(cipher), ..) => {
                let text = format!("`{name}` is encrypted by `{}`, unknown here", cipher.escape_debug());
                Err(Error::new(ErrorKind::Unsupported, text))
            }
            _ => {
                let text = format!("`{name}` does not say in full how it is encrypted");
                Err(Error::new(ErrorKind::Corrupt, text))
            }
        }
    }
}

/// What a repository is used with besides its bytes. The default signs nothing and takes everything.
#[derive(Debug, Clone, Default)]
pub struct Keys {
    /// Signs every version and every move of a tag that is made.
    pub sign: Option<SigningKey>,
    /// Opens and seals what an encrypted repository holds.
    pub seal: Option<SealKey>,
    /// If there is a list, versions and tags resolve only where one of its keys, or `sign`, signed them.
    pub trust: Option<Trust>,
}

/// Versioned images in an object store. Calls block; any number of threads and processes may make them at once.
#[derive(Debug)]
pub struct Repository {
    pub(crate) backend: Backend,
    name: String,
    id: String,
    /// `None` if it is not encrypted.
    key_check: Option<String>,
    pub(crate) cipher: Cipher,
    pub(crate) keys: Keys,
    pub(crate) blobs: Arc<Blobs>,
}

impl Repository {
    /// Makes a repository at `location`, and its folder if need be. `Exists` if there is one.
    pub fn create(location: &Location) -> Result<Self> {
        make_folder(location)?;
        Self::create_on(backend(location)?, location.to_string(), None)
    }

    /// The same, encrypted by `key`: all that is put there is sealed, and can be read with that key only.
    pub fn create_sealed(location: &Location, key: &SealKey) -> Result<Self> {
        make_folder(location)?;
        Self::create_on(backend(location)?, location.to_string(), Some(key))
    }

    /// Opens the repository at `location`. `NotFound` if there is none, `Unsupported` if its format is newer. An encrypted
    /// one is locked until it has its key: see [`Repository::with_keys`].
    pub fn open(location: &Location) -> Result<Self> {
        Self::open_on(backend(location)?, location.to_string())
    }

    /// Opens the repository at `location`, or makes one if there is none.
    pub fn open_or_create(location: &Location) -> Result<Self> {
        if *location == Location::Memory {
            return Self::create(location);
        }
        let opened = match Self::open(location) {
            Err(error) if error.kind() == ErrorKind::NotFound => Self::create(location),
            result => return result,
        };
        match opened {
            // Another process made it at this moment.
            Err(error) if error.kind() == ErrorKind::Exists => Self::open(location),
            result => result,
        }
    }

    /// Opens the repository in `store`, or makes one if there is none, after proving that the store can refuse to
    /// replace a record. `name` is for errors. What the store acknowledges must be durable.
    pub fn over(store: Arc<dyn ObjectStore>, name: &str) -> Result<Self> {
        let backend = Backend::new(store, None);
        if backend.size(&layout::format())?.is_none() {
            return Self::create_on(backend, name.to_owned(), None);
        }
        let repository = Self::open_on(backend, name.to_owned())?;
        repository.prove_create_only()?;
        Ok(repository)
    }

    /// The same repository, used with `keys`. `Refused` if it is encrypted by another key than `keys.seal`, or not at all:
    /// whoever gives a key means to write nothing that others can read.
    pub fn with_keys(self, keys: Keys) -> Result<Self> {
        let mut keys = keys;
        if let (Some(trust), Some(own)) = (&mut keys.trust, &keys.sign) {
            trust.add(own.into(), "this program's own key");
        }
        let refused = |why: &str| Err(Error::new(ErrorKind::Refused, format!("`{}` {why}", self.name)));
        let cipher = match (&self.key_check, &keys.seal) {
            (None, None) => Cipher::None,
            (Some(_), None) => Cipher::Locked,
            (Some(check), Some(key)) if *check == key.check(&self.id).to_hex() => Cipher::Key(key.clone()),
            (Some(_), Some(_)) => return refused("is encrypted by another key than this"),
            (None, Some(_)) => return refused("is not encrypted, though a key for it was given"),
        };
        // Benches know how chunks are kept.
        Ok(Self { cipher, keys, blobs: Arc::default(), ..self })
    }

    /// Whether it is encrypted and has no key: its objects can be passed on and checked, its versions can't be read.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        matches!(self.cipher, Cipher::Locked)
    }

    /// How its objects are kept.
    #[must_use]
    pub fn cipher(&self) -> &Cipher {
        &self.cipher
    }

    /// If it is encrypted, the value by which [`SealKey::check`] tells its key.
    #[must_use]
    pub fn key_check(&self) -> Option<&str> {
        self.key_check.as_deref()
    }

    /// What it is used with.
    #[must_use]
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// `Refused` if `what` is signed by nobody who is trusted, `Corrupt` if a signature is forged.
    pub(crate) fn check_signed(&self, what: &dyn std::fmt::Display, signed: &Signed) -> Result<()> {
        let trust = self.keys.trust.as_ref();
        let checked = trust.map_or(Ok(()), |trust| trust.check(what, signed));
        checked.map_err(|error| from_image(format!("use {what}"), error))
    }

    /// 32 hexadecimal digits that tell this repository from every other, wherever it is copied.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Where it lies, for people.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Makes every object that was put through this value durable. Publishing does it first.
    pub fn settle(&self) -> Result<()> {
        self.backend.settle()
    }

    fn create_on(backend: Backend, name: String, key: Option<&SealKey>) -> Result<Self> {
        let id = record::nonce()?;
        let format = Format::new(id, key);
        let bytes = record::seal(FORMAT, &format);
        if backend.create(&layout::format(), &bytes)? == Created::Taken {
            return Err(Error::new(ErrorKind::Exists, format!("`{name}` is a repository already")));
        }
        let cipher = key.cloned().map_or(Cipher::None, Cipher::Key);
        let Format { id, key_check, .. } = format;
        let repository =
            Self { backend, name, id, key_check, cipher, keys: Keys::default(), blobs: Arc::default() };
        repository.prove_create_only()?;
        Ok(repository)
    }

    fn open_on(backend: Backend, name: String) -> Result<Self> {
        let bytes =
            backend.read(&layout::format(), RECORD_BYTES_MAX).map_err(|error| match error.kind() {
                ErrorKind::NotFound => Error::from_source(
                    ErrorKind::NotFound,
                    format!("`{name}` is no repository: it has no record `format`"),
                    error,
                ),
                _ => error,
            })?;
        let format: Format = record::unseal(FORMAT, layout::FORMAT, &bytes)?;
        let cipher = format.cipher(&name)?;
        let Format { id, key_check, .. } = format;
        Ok(Self { backend, name, id, key_check, cipher, keys: Keys::default(), blobs: Arc::default() })
    }

    /// Creates `format` a second time with other bytes that mean the same: a store that lets that pass ignores
    /// conditions, and two writers would overwrite each other's versions there.
    fn prove_create_only(&self) -> Result<()> {
        #[derive(Serialize)]
        struct Probe<'a> {
            id: &'a str,
            probe: String,
        }
        let bytes = record::seal(FORMAT, &Probe { id: &self.id, probe: record::nonce()? });
        match self.backend.create(&layout::format(), &bytes)? {
            Created::Taken => Ok(()),
            Created::Ours => Err(Error::new(
                ErrorKind::Unsupported,
                format!("`{}` replaces records that it was told to create only if absent", self.name),
            )),
        }
    }
}

fn make_folder(location: &Location) -> Result<()> {
    let Location::Folder(path) = location else { return Ok(()) };
    std::fs::create_dir_all(path).map_err(|error| from_io(format!("create folder `{location}`"), error))
}

fn backend(location: &Location) -> Result<Backend> {
    match location {
        Location::Memory => Ok(Backend::new(Arc::new(InMemory::new()), None)),
        Location::Folder(path) => {
            let folder = Folder::open(path)?;
            let store = LocalFileSystem::new_with_prefix(path)
                .map_err(|error| from_store(format!("open folder `{location}`"), error))?;
            Ok(Backend::new(Arc::new(store.with_fsync(true)), Some(folder)))
        }
    }
}

impl ObjectSource for Repository {
    /// Reads one object in one go. Its length is checked, its content is the caller's to verify.
    fn fetch(&self, object: &ObjectRef) -> image::Result<Bytes> {
        self.read_object(object).map_err(into_image)
    }

    fn cipher(&self) -> Cipher {
        self.cipher.clone()
    }
}

impl ObjectSink for Repository {
    fn contains(&self, object: &ObjectRef) -> image::Result<bool> {
        let path = layout::object(object.kind, &object.digest);
        // An object of another length is damaged, and a capture that has the right bytes heals it.
        let found = || Ok(self.backend.size(&path)? == Some(u64::from(object.len)));
        if self.backend.waits(&path) { Ok(true) } else { found().map_err(into_image) }
    }

    /// Takes in the object; it is durable once a version is published or [`Repository::settle`] was called. `Refused` if
    /// the repository is encrypted and the object is not.
    fn put(&self, object: &ObjectRef, bytes: Bytes) -> image::Result<()> {
        if !self.cipher.takes(object.kind, &bytes) {
            let text = format!("`{}` is encrypted, {object} is not", self.name);
            return Err(image::Error::new(image::ErrorKind::Refused, text));
        }
        self.backend.put(&layout::object(object.kind, &object.digest), bytes).map_err(into_image)
    }

    fn cipher(&self) -> Cipher {
        self.cipher.clone()
    }
}

impl Repository {
    pub(crate) fn read_object(&self, object: &ObjectRef) -> Result<Bytes> {
        let path = layout::object(object.kind, &object.digest);
        let bytes = self.backend.read(&path, u64::from(object.len.min(OBJECT_BYTES_MAX)))?;
        if bytes.len() as u64 != u64::from(object.len) {
            let found = bytes.len();
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!("`{path}` has {found} bytes instead of {}", object.len),
            ));
        }
        Ok(bytes)
    }
}

/// An error of ours as one of `image`, whose seams the repository fills.
pub(crate) fn into_image(error: Error) -> image::Error {
    let kind = match error.kind() {
        ErrorKind::NotFound => image::ErrorKind::NotFound,
        ErrorKind::Corrupt => image::ErrorKind::Corrupt,
        ErrorKind::Unsupported => image::ErrorKind::Unsupported,
        ErrorKind::Refused => image::ErrorKind::Refused,
        ErrorKind::Full => image::ErrorKind::Full,
        ErrorKind::Io | ErrorKind::Exists | ErrorKind::Invalid => image::ErrorKind::Io,
    };
    image::Error::from_source(kind, "use the repository", error)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOLDEN: &str = include_str!("../../../golden/repository/v1/good/format");

    #[test]
    fn the_format_is_still_written_as_it_was() {
        let format: Format = record::unseal(FORMAT, "golden", GOLDEN.as_bytes()).unwrap();
        assert_eq!(record::seal(FORMAT, &format), GOLDEN);
    }
}
