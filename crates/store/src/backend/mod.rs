//! Blocking access to an object store: reads and writes whole records, with a create-if-absent that survives a lost
//! reply. All store access of the repository goes through this module.

pub(crate) mod access;
pub(crate) mod cache;
pub(crate) mod capabilities;
mod claim;
mod executor;
pub(crate) mod files;
mod flush;
pub(crate) mod folder;
mod http;
mod listing;
pub(crate) mod location;
mod reserve;
pub(crate) mod s3;
pub(crate) mod scrubs;
mod uploads;

use std::sync::Arc;
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use futures::future::try_join_all;
use object_store::path::Path;
use object_store::{
    GetOptions, GetResultPayload, ObjectMeta, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions,
    UpdateVersion,
};

use crate::backend::capabilities::{Capabilities, CapabilityCheck};
use crate::backend::executor::Executor;
use crate::backend::flush::SharedFlush;
use crate::backend::folder::Folder;
use crate::backend::http::CutShort;
use crate::backend::reserve::Reserve;
use crate::backend::scrubs::FileStamp;
use crate::backend::uploads::Uploads;
use crate::error::from_store;
use crate::record::mend::mend;

/// Records per batch of a listing; S3 returns at most this many per request.
const LIST_BATCH: usize = 1000;
/// Over a network, an object longer than this is read in parts of this many bytes, all requested at the same time.
const PART_BYTES: u64 = 2 << 20;
/// Most tries of a create that neither succeeded nor found another record, and of a read whose answer ended early.
/// `object_store` retries requests that got no answer, but handles neither of these cases.
const TRIES_MAX: u32 = 5;
/// Shortest wait between two tries, doubled each time.
const PAUSE: Duration = Duration::from_millis(50);

/// How long a writer waits after it lost a race, over a network and locally: about the time between reading the
/// newest version and publishing the next. Doubled for each further lost race, at most `REST_DOUBLED_MAX` times.
const REST_FAR: Duration = Duration::from_millis(20);
const REST_HERE: Duration = Duration::from_millis(5);
const REST_DOUBLED_MAX: u32 = 5;

/// An object store, and the threads that run its futures.
#[derive(Debug)]
pub(crate) struct Backend {
    store: Arc<dyn ObjectStore>,
    executor: Executor,
    objects: Objects,
    check: CapabilityCheck,
    flush: SharedFlush,
}

/// How objects are written.
#[derive(Debug)]
enum Objects {
    /// One at a time; each is stored when its put returns.
    Direct,
    /// In batches with one flush each, if the folder's filesystem supports files without names.
    Folder(Folder),
    /// Several at the same time.
    Uploads(Uploads),
}

/// A removal or a prune, which frees space: see [`Backend::freeing`].
#[derive(Debug)]
pub(crate) struct Freeing<'a>(Option<&'a Reserve>);

impl Drop for Freeing<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|reserve| reserve.end());
    }
}

/// Which writer's record a create-if-absent left at the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Created {
    /// The record exists and has our bytes.
    Ours,
    /// Another writer's record exists.
    Taken,
}

impl Backend {
    fn new(
        store: Arc<dyn ObjectStore>,
        executor: Executor,
        objects: Objects,
        check: CapabilityCheck,
    ) -> Self {
        Self { store, executor, objects, check, flush: SharedFlush::default() }
    }

    /// A store whose futures do their work on the thread that waits for them.
    pub(crate) fn here(store: Arc<dyn ObjectStore>, check: CapabilityCheck) -> Self {
        Self::new(store, Executor::Here, Objects::Direct, check)
    }

    /// A folder: `store` reads and lists it, `folder` writes objects to it.
    pub(crate) fn folder(store: Arc<dyn ObjectStore>, folder: Folder, check: CapabilityCheck) -> Self {
        Self::new(store, Executor::Here, Objects::Folder(folder), check)
    }

    /// Any store; puts one object at a time.
    pub(crate) fn any(store: Arc<dyn ObjectStore>, check: CapabilityCheck) -> Result<Self> {
        Ok(Self::new(store, Executor::network()?, Objects::Direct, check))
    }

    /// A store in a network; puts up to `uploads_max` objects at the same time.
    pub(crate) fn network(
        store: Arc<dyn ObjectStore>,
        check: CapabilityCheck,
        uploads_max: usize,
    ) -> Result<Self> {
        let executor = Executor::network()?;
        let uploads = Uploads::new(Arc::clone(&store), executor.clone(), uploads_max);
        Ok(Self::new(store, executor, Objects::Uploads(uploads), check))
    }

    /// Whether every call goes through a network.
    pub(crate) fn is_far(&self) -> bool {
        matches!(self.objects, Objects::Uploads(_))
    }

    /// Whether records are files in a folder.
    pub(crate) fn is_folder(&self) -> bool {
        matches!(self.objects, Objects::Folder(_))
    }

    /// The folder whose files are the records. `None` for other stores and for a folder of a network filesystem,
    /// where changes by another machine may be seen late.
    pub(crate) fn local_folder(&self) -> Option<&std::path::Path> {
        match &self.objects {
            Objects::Folder(folder) if folder.takes_unnamed() => Some(folder.root()),
            _ => None,
        }
    }

    /// Inode, length and ctime of the file at `path`, which show whether it has changed. `None` if there is no file
    /// yet.
    pub(crate) fn stamp(&self, path: &Path) -> Option<FileStamp> {
        match &self.objects {
            Objects::Folder(folder) if !folder.holds(path.as_ref()) => {
                files::stamp(folder.root(), path.as_ref())
            }
            _ => None,
        }
    }

    /// Reads the record at `path` in one request. `Corrupt` if it is longer than `bytes_max`, checked before memory
    /// is allocated.
    pub(crate) fn read(&self, path: &Path, bytes_max: u64) -> Result<Bytes> {
        // Check waiting puts first: after a failed read, a waiting object could have moved to the store, and both
        // would miss it.
        match &self.objects {
            Objects::Uploads(uploads) => {
                if let Some(bytes) = uploads.waiting(path) {
                    return Ok(bytes);
                }
            }
            // A waiting object may replace a damaged file at this path, which must not be read instead.
            Objects::Folder(folder) if folder.holds(path.as_ref()) => folder.name_waiting()?,
            Objects::Folder(_) | Objects::Direct => {}
        }
        self.read_named(path, bytes_max)
    }

    /// Reads the record at `path` and repairs it in memory if one bit has changed.
    pub(crate) fn read_record(&self, path: &Path, bytes_max: u64) -> Result<Bytes> {
        let stored = self.read(path, bytes_max)?;
        Ok(mend(&stored).unwrap_or(stored))
    }

    /// Reads the object at `path`, which should have `bytes` bytes. Over a network, a long object is read in parallel
    /// parts.
    pub(crate) fn read_object(&self, path: &Path, bytes: u64) -> Result<Bytes> {
        if self.is_far() && bytes > PART_BYTES && !self.waits(path) {
            let starts = (0..bytes.div_ceil(PART_BYTES)).map(|part| part * PART_BYTES);
            let part = |start| self.store.get_range(path, start..bytes.min(start + PART_BYTES));
            if let Ok(parts) = self.wait(async { try_join_all(starts.map(part)).await }) {
                let mut whole = BytesMut::with_capacity(parts.iter().map(Bytes::len).sum());
                parts.iter().for_each(|part| whole.extend_from_slice(part));
                return Ok(whole.freeze());
            }
        }
        // Also the fallback if a part failed: this read returns the error.
        self.read(path, bytes)
    }

    /// Lets the kernel begin to read the object at `path`, if it is a file here.
    pub(crate) fn read_ahead(&self, path: &Path) {
        if let Objects::Folder(folder) = &self.objects {
            files::read_ahead(folder.root(), path.as_ref());
        }
    }

    fn read_named(&self, path: &Path, bytes_max: u64) -> Result<Bytes> {
        if let Objects::Folder(folder) = &self.objects {
            return files::read(folder.root(), path.as_ref(), bytes_max);
        }
        let what = || format!("read `{path}`");
        let found = self.asked(what, || self.wait(self.store.get_opts(path, GetOptions::default())))?;
        let bytes = found.meta.size;
        if bytes > bytes_max {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!("`{path}` has {bytes} bytes, more than the {bytes_max} that it could have"),
            ));
        }
        if let GetResultPayload::File(file, _) = found.payload {
            return files::read_open(&file, bytes)
                .map_err(|error| Error::from_io(format!("read `{path}`"), error));
        }
        self.wait(found.bytes()).map_err(|error| from_store(what(), error))
    }

    /// The length in bytes of the record at `path`, or `None` if there is none.
    pub(crate) fn size(&self, path: &Path) -> Result<Option<u64>> {
        if let Objects::Folder(folder) = &self.objects {
            return files::size(folder.root(), path.as_ref());
        }
        Ok(self.found(path)?.map(|found| found.size))
    }

    fn found(&self, path: &Path) -> Result<Option<ObjectMeta>> {
        match self.wait(self.store.head(path)) {
            Ok(found) => Ok(Some(found)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(from_store(format!("look for `{path}`"), error)),
        }
    }

    /// Whether [`Self::put`] was called for `path` and the object is not safely stored yet.
    pub(crate) fn waits(&self, path: &Path) -> bool {
        match &self.objects {
            Objects::Direct => false,
            Objects::Folder(folder) => folder.holds(path.as_ref()),
            Objects::Uploads(uploads) => uploads.waiting(path).is_some(),
        }
    }

    /// Stores the object `bytes` at `path`. It is durable only after the next [`Self::flush`].
    pub(crate) fn put(&self, path: &Path, bytes: Bytes) -> Result<()> {
        match &self.objects {
            Objects::Folder(folder) if folder.takes_unnamed() => folder.put(path.as_ref(), &bytes),
            Objects::Uploads(uploads) => uploads.put(path, bytes),
            // Overwriting is harmless: the path is the digest of the bytes.
            Objects::Folder(_) | Objects::Direct => self
                .wait(self.store.put_opts(path, bytes.into(), PutOptions::default()))
                .map(drop)
                .map_err(|error| from_store(format!("write `{path}`"), error)),
        }
    }

    /// Repairs the record at `path`, which differs from `bytes` in one byte, durably. A record that is deleted at the
    /// same time stays deleted.
    pub(crate) fn renew(&self, path: &Path, bytes: Bytes) -> Result<()> {
        if let Objects::Folder(folder) = &self.objects {
            return files::renew(folder.root(), path.as_ref(), &bytes);
        }
        let Some(found) = self.found(path)? else { return Ok(()) };
        let version = UpdateVersion { e_tag: found.e_tag, version: found.version };
        let options = PutOptions { mode: PutMode::Update(version), ..PutOptions::default() };
        match self.wait(self.store.put_opts(path, bytes.clone().into(), options)) {
            Ok(_) | Err(object_store::Error::NotFound { .. } | object_store::Error::Precondition { .. }) => {
                Ok(())
            }
            // Not every store supports conditional replacement.
            Err(_) => self.replace(path, bytes),
        }
    }

    /// Renames what is at `path` to `to`, which is not the path of any record.
    pub(crate) fn set_aside(&self, path: &Path, to: &Path) -> Result<()> {
        let failed = |error| from_store(format!("set `{path}` aside as `{to}`"), error);
        self.wait(self.store.rename(path, to)).map_err(failed)
    }

    /// Stores `bytes` at `path`, durably, and overwrites what is there. Only for damaged records.
    pub(crate) fn replace(&self, path: &Path, bytes: Bytes) -> Result<()> {
        if let Objects::Folder(folder) = &self.objects {
            files::make_way_for(folder.root(), path.as_ref())?;
        }
        self.wait(self.store.put_opts(path, bytes.into(), PutOptions::default()))
            .map(drop)
            .map_err(|error| from_store(format!("replace `{path}`"), error))
    }

    /// Makes everything durable that was put before. Threads that call this at the same time share one flush.
    pub(crate) fn flush(&self) -> Result<()> {
        self.flush.flush(|| match &self.objects {
            Objects::Direct => Ok(()),
            Objects::Folder(folder) => folder.flush(),
            Objects::Uploads(uploads) => uploads.flush(),
        })
    }

    /// Creates the record `bytes` at `path`, durably, if there is none. `bytes` must differ from what any other
    /// writer would create there: after an error the record is read back and compared, since perhaps only the reply
    /// was lost. `Unsupported` if the store lacks a required capability.
    pub(crate) fn create(&self, path: &Path, bytes: &Bytes) -> Result<Created> {
        self.ensure_supported()?;
        self.create_unproven(path, bytes)
    }

    /// Makes sure that the store has the required capabilities; tests it if there is no stored result. `Unsupported`
    /// if not.
    pub(crate) fn ensure_supported(&self) -> Result<()> {
        self.check.require(self)
    }

    /// Tests the store's capabilities, even if there is a stored result.
    pub(crate) fn capabilities(&self) -> Result<Capabilities> {
        self.check.give(self)
    }

    /// [`Self::create`] in a store whose capabilities are not known yet.
    pub(crate) fn create_unproven(&self, path: &Path, bytes: &Bytes) -> Result<Created> {
        let mut pauses = self.pauses();
        loop {
            match (self.create_once(path, bytes)?, pauses.next()) {
                (Err(error), None) => return Err(error),
                (Ok(created), _) => return Ok(created),
                (Err(_), Some(pause)) => self.executor.pause(pause)?,
            }
        }
    }

    /// The wait before each further try.
    fn pauses(&self) -> impl Iterator<Item = Duration> + use<> {
        (1..TRIES_MAX).map(|turn| PAUSE * (1 << turn) / 2)
    }

    /// Waits after this writer lost `losses` races in a row, so that the other writers can proceed.
    pub(crate) fn rest(&self, losses: u32) -> Result<()> {
        let base = if self.is_far() { REST_FAR } else { REST_HERE };
        self.executor.rest(base * (1 << losses.min(REST_DOUBLED_MAX)))
    }

    /// Runs `read`, and repeats it if the answer was cut short.
    fn asked<T>(&self, what: impl Fn() -> String, read: impl Fn() -> object_store::Result<T>) -> Result<T> {
        let mut pauses = self.pauses();
        loop {
            match (read(), pauses.next()) {
                (Err(error), Some(pause)) if was_cut_short(&error) => self.executor.pause(pause)?,
                (answer, _) => return answer.map_err(|error| from_store(what(), error)),
            }
        }
    }

    /// One try of a create. The outer error is final. After the inner error there is no record, and another try may
    /// succeed.
    fn create_once(&self, path: &Path, bytes: &Bytes) -> Result<Result<Created>> {
        let created = match &self.objects {
            Objects::Folder(folder) => folder.create(path.as_ref(), bytes),
            Objects::Direct | Objects::Uploads(_) => {
                let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
                self.wait(self.store.put_opts(path, bytes.clone().into(), options))
                    .map(drop)
                    .map_err(|error| from_store(format!("create `{path}`"), error))
            }
        };
        let Err(error) = created else { return Ok(Ok(Created::Ours)) };
        let taken = error.kind() == ErrorKind::Exists;
        match self.read_named(path, bytes.len() as u64) {
            Ok(found) if found == *bytes || mend(&found).as_ref() == Some(bytes) => {
                self.flush().map(|()| Ok(Created::Ours))
            }
            // The record exists and another writer made it: it has other bytes, or more of them.
            Ok(_) => Ok(Ok(Created::Taken)),
            Err(read) if read.kind() == ErrorKind::Corrupt => Ok(Ok(Created::Taken)),
            Err(read) if taken && read.kind() != ErrorKind::NotFound => Err(read),
            // S3 answers 409 to concurrent creates, and then it is possible that none of them made the record.
            Err(_) if taken || error.kind() == ErrorKind::Io => Ok(Err(error)),
            Err(_) => Err(error),
        }
    }

    /// Replaces the record at `path` if its entity tag is `expected`, or its present tag if that is `None`. Returns
    /// the tag before, or `None` if the store did not replace it, for any reason. For capability tests.
    pub(crate) fn replace_if(
        &self,
        path: &Path,
        expected: Option<String>,
        text: &'static str,
    ) -> Option<String> {
        let now = || self.wait(self.store.head(path)).ok()?.e_tag;
        let expected = expected.or_else(now)?;
        let version = UpdateVersion { e_tag: Some(expected.clone()), version: None };
        let options = PutOptions { mode: PutMode::Update(version), ..PutOptions::default() };
        let done = self.wait(self.store.put_opts(path, Bytes::from_static(text.as_bytes()).into(), options));
        done.ok().map(|_| expected)
    }

    /// Deletes the record at `path` if the store allows it. For capability tests.
    pub(crate) fn clear(&self, path: &Path) {
        // Without permission to delete, the record stays: its path is not one that readers of a repository look at.
        let _ = self.wait(self.store.delete(path));
    }

    /// Until the value is dropped, records that are created may use the space that is kept for a full disk.
    pub(crate) fn freeing(&self) -> Freeing<'_> {
        let reserve = self.reserve();
        reserve.iter().for_each(|reserve| reserve.begin());
        Freeing(reserve)
    }

    /// Keeps some space for a full disk, if there is any.
    pub(crate) fn keep_reserve(&self) {
        self.reserve().iter().for_each(|reserve| reserve.keep());
    }

    fn reserve(&self) -> Option<&Reserve> {
        match &self.objects {
            Objects::Folder(folder) => Some(folder.reserve()),
            Objects::Direct | Objects::Uploads(_) => None,
        }
    }

    /// Whether there is a record at `path`.
    pub(crate) fn exists(&self, path: &Path) -> Result<bool> {
        Ok(self.size(path)?.is_some())
    }

    /// Deletes the records at `paths`. A record that does not exist is not an error.
    pub(crate) fn delete(&self, paths: &[Path]) -> Result<()> {
        let mut pauses = self.pauses();
        loop {
            let owned: Vec<_> = paths.iter().cloned().map(Ok).collect();
            let stream = futures::stream::iter(owned).boxed();
            // `object_store` looks for a runtime on the calling thread, so this must run inside `wait`, as in
            // `for_each`.
            let outcomes: Vec<_> = self.wait(async { self.store.delete_stream(stream).collect().await });
            let is_failure =
                |error: &object_store::Error| !matches!(error, object_store::Error::NotFound { .. });
            let failed = outcomes.into_iter().filter_map(object_store::Result::err).find(is_failure);
            match (failed, pauses.next()) {
                (None, _) => return Ok(()),
                (Some(_), Some(pause)) => self.executor.pause(pause)?,
                (Some(error), None) => return Err(from_store("delete records", error)),
            }
        }
    }

    pub(super) fn wait<T: Send>(&self, future: impl Future<Output = T> + Send) -> T {
        self.executor.wait(future)
    }
}

/// Whether an answer began and did not end. `object_store` itself retries requests that got no answer.
fn was_cut_short(error: &object_store::Error) -> bool {
    let mut next = std::error::Error::source(error);
    while let Some(cause) = next {
        if cause.is::<CutShort>() {
            return true;
        }
        next = cause.source();
    }
    false
}
