//! The repository handle: creating and opening a repository, and the keys it is used with. Versions and tags have
//! modules of their own.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::sync::Arc;

use base::{Error, ErrorKind, Result};
use image::cipher::CIPHER_NAME;
use image::{Cipher, EncryptionKey, SigningKey, Trust};
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use serde::{Deserialize, Serialize};

use crate::backend::access::S3Access;
use crate::backend::cache::{Cache, CacheSetting};
use crate::backend::capabilities::{Capabilities, CapabilityCheck};
use crate::backend::folder::Folder;
use crate::backend::location::Location;
use crate::backend::scrubs::{ScrubSetting, Scrubs};
use crate::backend::{Backend, Created, s3};
use crate::error::from_store;
use crate::layout;
use crate::memory::Memory;
use crate::process::{Process, Processes};
use crate::record::{self, RECORD_BYTES_MAX, Stamp};

/// Value of the field `record` in the record `format`.
const FORMAT: &str = "diskcast-repository";

/// Objects that are put at the same time: into S3, one request each, and into a cluster, whose client stores many of
/// them with one flush.
const UPLOADS_S3: usize = 32;
const UPLOADS_CLUSTER: usize = 256;

/// The body of the record `format`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Format {
    /// 128 random bits in hexadecimal. A copy of the repository keeps its id.
    id: String,
    /// What a reader must understand. A program that does not know the cipher must not use an encrypted repository.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    critical: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cipher: Option<String>,
    /// Distinguishes the right key from all others, without revealing it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key_check: Option<String>,
}

impl Format {
    fn new(id: String, key: Option<&EncryptionKey>) -> Self {
        let key_check = key.map(|key| key.check(&id).to_hex());
        let critical = key.map(|_| record::CIPHER.to_owned()).into_iter().collect();
        Self { id, critical, cipher: key.map(|_| CIPHER_NAME.to_owned()), key_check }
    }

    /// The cipher of the repository `name`: `None`, or `Locked` if it is encrypted. `Unsupported` if the cipher is
    /// unknown, `Corrupt` if the fields contradict each other.
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

/// The keys that a repository is used with. The default signs nothing, decrypts nothing and trusts every version.
#[derive(Debug, Clone, Default)]
pub struct Keys {
    /// Signs every version and every tag move that this handle creates.
    pub sign: Option<SigningKey>,
    /// Encrypts and decrypts the contents of an encrypted repository.
    pub encryption: Option<EncryptionKey>,
    /// If set, versions and tags resolve only if one of these keys, or `sign`, signed them.
    pub trust: Option<Trust>,
}

/// Versioned images in an object store. Calls block; any number of threads and processes may call at the same time. A
/// clone is another handle for the same repository.
#[derive(Debug, Clone)]
pub struct Repository {
    pub(crate) backend: Arc<Backend>,
    pub(crate) cache: Option<Arc<Cache>>,
    pub(crate) scrubs: Option<Arc<Scrubs>>,
    name: String,
    id: String,
    /// `None` if it is not encrypted.
    key_check: Option<String>,
    pub(crate) cipher: Cipher,
    pub(crate) keys: Keys,
    /// Caches of the modules that use this handle (newest versions, nodes, profiles).
    pub(crate) memory: Arc<Memory>,
    pub(crate) processes: Processes,
}

/// Settings for opening a repository, in addition to its location.
#[derive(Debug, Clone, Default)]
pub struct Setting {
    /// Endpoint and credentials of the store, needed for an `s3://` location.
    pub s3: Option<S3Access>,
    /// The store of a `cluster://` location, which the caller has joined.
    pub cluster: Option<Arc<dyn ObjectStore>>,
    /// Cache on this machine for objects read over a network. Ignored for a folder and for memory.
    pub cache: Option<CacheSetting>,
    /// Who opens the repository and when: stored with the results of a capability test. Without it they are not
    /// stored.
    pub stamp: Option<Stamp>,
}

impl Repository {
    /// Creates a repository at `location`, and its folder if that does not exist. `Exists` if there is a repository
    /// already, `Unsupported` if the store does not have the required capabilities.
    pub fn create(location: &Location) -> Result<Self> {
        Self::create_with(location, &Setting::default())
    }

    /// [`Self::create`] with a setting.
    pub fn create_with(location: &Location, setting: &Setting) -> Result<Self> {
        Self::create_at(location, setting, None)
    }

    /// [`Self::create`], encrypted with `key`: everything stored there is encrypted and can be read only with that
    /// key.
    pub fn create_sealed(location: &Location, key: &EncryptionKey) -> Result<Self> {
        Self::create_sealed_with(location, key, &Setting::default())
    }

    /// [`Self::create_sealed`] with a setting.
    pub fn create_sealed_with(location: &Location, key: &EncryptionKey, setting: &Setting) -> Result<Self> {
        Self::create_at(location, setting, Some(key))
    }

    /// Opens the repository at `location`. `NotFound` if there is none, `Unsupported` if its format is newer. An
    /// encrypted repository stays locked until it gets its key: see [`Repository::with_keys`].
    pub fn open(location: &Location) -> Result<Self> {
        Self::open_with(location, &Setting::default())
    }

    /// [`Self::open`] with a setting.
    pub fn open_with(location: &Location, setting: &Setting) -> Result<Self> {
        Self::open_on(backend(location, setting)?, location.to_string())?.cached(setting)
    }

    /// Opens the repository at `location`, or creates it if there is none.
    pub fn open_or_create(location: &Location) -> Result<Self> {
        Self::open_or_create_with(location, &Setting::default())
    }

    /// [`Self::open_or_create`] with a setting. For writers: `Unsupported` if the store does not have the required
    /// capabilities.
    pub fn open_or_create_with(location: &Location, setting: &Setting) -> Result<Self> {
        if *location == Location::Memory {
            return Self::create_with(location, setting);
        }
        let created = match Self::open_with(location, setting) {
            Err(error) if error.kind() == ErrorKind::NotFound => Self::create_with(location, setting),
            Err(error) => return Err(error),
            Ok(repository) => return repository.backend.ensure_supported().map(|()| repository),
        };
        match created {
            // Another process created it between our open and our create.
            Err(error) if error.kind() == ErrorKind::Exists => Self::open_with(location, setting),
            result => result,
        }
    }

    /// Opens the repository in `store`, or creates it if there is none. Tests the store's capabilities first. `name`
    /// is used in errors, and distinguishes this store from others to which the repository may have been copied. A
    /// write that `store` acknowledged must be durable.
    pub fn over(store: Arc<dyn ObjectStore>, name: &str) -> Result<Self> {
        Self::over_with(store, name, &Setting::default())
    }

    /// [`Self::over`] with a setting.
    pub fn over_with(store: Arc<dyn ObjectStore>, name: &str, setting: &Setting) -> Result<Self> {
        let backend = Backend::any(store, CapabilityCheck::new(name.to_owned(), setting.stamp.clone()))?;
        if backend.size(&layout::format())?.is_none() {
            return Self::create_on(backend, name.to_owned(), None);
        }
        let repository = Self::open_on(backend, name.to_owned())?;
        repository.backend.ensure_supported().map(|()| repository)
    }

    /// The same repository, used with `keys`. `Refused` if it is encrypted with a key other than `keys.encryption`.
    /// Also `Refused` if a key is given and the repository is not encrypted: that caller does not want to write
    /// anything in plain.
    pub fn with_keys(self, keys: Keys) -> Result<Self> {
        let mut keys = keys;
        if let (Some(trust), Some(own)) = (&mut keys.trust, &keys.sign) {
            trust.add(own.into(), "this program's own key");
        }
        let refused = |why: &str| Err(Error::new(ErrorKind::Refused, format!("`{}` {why}", self.name)));
        let cipher = match (&self.key_check, &keys.encryption) {
            (None, None) => Cipher::None,
            (Some(_), None) => Cipher::Locked,
            (Some(check), Some(key)) if *check == key.check(&self.id).to_hex() => Cipher::Key(key.clone()),
            (Some(_), Some(_)) => return refused("is encrypted by another key than this"),
            (None, Some(_)) => return refused("is not encrypted, though a key for it was given"),
        };
        // The caches may hold values that depend on the cipher.
        Ok(Self { cipher, keys, memory: Arc::default(), ..self })
    }

    /// The same repository, whose writers do not read files again that this machine's scrub log covers. Only for
    /// short-lived processes, since all checks count as made at `setting.now`. It has no effect in S3, in memory and
    /// in network folders: there, no local ctime shows whether a file has changed.
    #[must_use]
    pub fn with_scrubs(mut self, setting: &ScrubSetting) -> Self {
        let folder = self.backend.local_folder();
        self.scrubs = folder.map(|root| Arc::new(Scrubs::of(setting, &self.id, root)));
        self
    }

    /// Whether it is encrypted and the key is missing: its objects can be copied and checked, its versions can't be
    /// read.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        matches!(self.cipher, Cipher::Locked)
    }

    /// How its objects are encrypted.
    #[must_use]
    pub fn cipher(&self) -> &Cipher {
        &self.cipher
    }

    /// If it is encrypted, the value that [`EncryptionKey::check`] returns for its key.
    #[must_use]
    pub fn key_check(&self) -> Option<&str> {
        self.key_check.as_deref()
    }

    /// The keys it is used with.
    #[must_use]
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// 32 hexadecimal digits that identify this repository; copies of it have the same id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The location as text, for messages.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Checks that the repository can be read now, at the price of one small record: the record `format`, and its id.
    ///
    /// # Errors
    /// Those of the store; `Corrupt` if the record is damaged or another repository is there.
    pub fn check_readable(&self) -> Result<()> {
        let format = read_format(&self.backend)?;
        if format.id == self.id {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Corrupt,
            format!("`{}` is another repository now: {}", self.name, format.id),
        ))
    }

    /// Makes every object put through this handle durable. Publishing a version does this first.
    pub fn flush(&self) -> Result<()> {
        self.backend.flush()
    }

    /// The stored result of the last capability test of this store; `None` if there is no stored result.
    pub fn known_capabilities(&self) -> Result<Option<Capabilities>> {
        Ok(crate::backend::capabilities::newest(&self.backend)?.map(|(_, probe)| probe))
    }

    /// Tests the store's capabilities again and stores the result. `Unsupported` says which capability is missing.
    pub fn capabilities(&self) -> Result<Capabilities> {
        self.backend.capabilities()
    }

    /// The bytes in the cache, and its folder; `None` if there is no cache.
    #[must_use]
    pub fn cache_bytes(&self) -> Option<(u64, &Path)> {
        self.cache.as_ref().map(|cache| (cache.bytes(), cache.folder()))
    }

    /// The repository in `store`, which answers at once and has all capabilities; created if there is none. For
    /// simulations only: `process` replaces the process that uses the repository, and `is_dead` replaces what the
    /// kernel says about other processes.
    #[doc(hidden)]
    pub fn simulated(
        store: Arc<dyn ObjectStore>,
        process: Process,
        is_dead: Arc<dyn Fn(&Process) -> bool + Send + Sync>,
    ) -> Result<Self> {
        const NAME: &str = "simulated";
        let backend = Backend::here(store, CapabilityCheck::given());
        let repository = match backend.size(&layout::format())? {
            None => Self::create_on(backend, NAME.to_owned(), None)?,
            Some(_) => Self::open_on(backend, NAME.to_owned())?,
        };
        Ok(Self { processes: Processes::Simulated(process, is_dead), ..repository })
    }

    fn cached(mut self, setting: &Setting) -> Result<Self> {
        if self.backend.is_far() {
            self.cache = setting.cache.as_ref().map(Cache::open).transpose()?.map(Arc::new);
        }
        Ok(self)
    }

    fn create_at(location: &Location, setting: &Setting, key: Option<&EncryptionKey>) -> Result<Self> {
        if let Location::Folder(path) = location {
            private_folder(path)
                .map_err(|error| Error::from_io(format!("create folder `{location}`"), error))?;
        }
        Self::create_on(backend(location, setting)?, location.to_string(), key)?.cached(setting)
    }

    pub(crate) fn create_on(backend: Backend, name: String, key: Option<&EncryptionKey>) -> Result<Self> {
        let exists = || Error::new(ErrorKind::Exists, format!("`{name}` is a repository already"));
        if backend.size(&layout::format())?.is_some() {
            return Err(exists());
        }
        backend.ensure_supported()?;
        let format = Format::new(record::nonce()?, key);
        if backend.create(&layout::format(), &record::encode(FORMAT, &format))? == Created::Taken {
            return Err(exists());
        }
        backend.keep_reserve();
        let cipher = key.cloned().map_or(Cipher::None, Cipher::Key);
        Ok(Self::new(backend, name, format, cipher))
    }

    fn new(backend: Backend, name: String, format: Format, cipher: Cipher) -> Self {
        let Format { id, key_check, .. } = format;
        let (keys, memory) = (Keys::default(), Arc::default());
        let backend = Arc::new(backend);
        Self {
            backend,
            cache: None,
            scrubs: None,
            name,
            id,
            key_check,
            cipher,
            keys,
            memory,
            processes: Processes::default(),
        }
    }

    fn open_on(backend: Backend, name: String) -> Result<Self> {
        let format = read_format(&backend).map_err(|error| match error.kind() {
            ErrorKind::NotFound => Error::from_source(
                ErrorKind::NotFound,
                format!("`{name}` is not a repository: it has no record `format`"),
                error,
            ),
            _ => error,
        })?;
        let cipher = format.cipher(&name)?;
        Ok(Self::new(backend, name, format, cipher))
    }
}

/// Reads the record `format`.
pub(crate) fn read_format(backend: &Backend) -> Result<Format> {
    record::decode(FORMAT, layout::FORMAT, &backend.read_record(&layout::format(), RECORD_BYTES_MAX)?)
}

fn backend(location: &Location, setting: &Setting) -> Result<Backend> {
    let check = |place: String| CapabilityCheck::new(place, setting.stamp.clone());
    match location {
        Location::Memory => Ok(Backend::here(Arc::new(InMemory::new()), check("memory".to_owned()))),
        Location::Folder(path) => {
            let folder = Folder::open(path)?;
            let store = LocalFileSystem::new_with_prefix(path)
                .map_err(|error| from_store(format!("open folder `{location}`"), error))?;
            // The folder may be moved or mounted elsewhere: its path must not be part of the stored result.
            let check = check("a folder".to_owned());
            Ok(Backend::folder(Arc::new(store.with_fsync(true).with_automatic_cleanup(true)), folder, check))
        }
        Location::Cluster(text) => {
            let joined = setting.cluster.clone().ok_or_else(|| {
                Error::new(
                    ErrorKind::Invalid,
                    format!("`{location}` can be used only after joining the cluster"),
                )
            })?;
            Backend::network(joined, check(text.clone()), UPLOADS_CLUSTER)
        }
        Location::S3(bucket) => {
            let access = setting.s3.as_ref().ok_or_else(|| {
                let text = format!("`{location}` needs an endpoint or a region, and credentials");
                Error::new(ErrorKind::Invalid, text)
            })?;
            Backend::network(s3::connect(bucket, access)?, check(s3::place(bucket, access)), UPLOADS_S3)
        }
    }
}

/// Creates the folder of a repository, which only its owner may enter, whatever the umask is: it holds the content of
/// disks. A folder that exists keeps its permissions.
fn private_folder(path: &Path) -> std::io::Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        made => made,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOLDEN: &str = include_str!("../../../golden/repository/v1/good/format");

    #[test]
    fn the_format_is_still_written_as_it_was() {
        let format: Format = record::decode(FORMAT, "golden", GOLDEN.as_bytes()).unwrap();
        assert_eq!(record::encode(FORMAT, &format), GOLDEN);
    }
}
