//! The blocking side of an object store: whole records in, whole records out, create-if-absent that survives a lost
//! reply. All that the repository knows of where it lies goes through here.

pub(crate) mod access;
pub(crate) mod cache;
pub(crate) mod capabilities;
mod executor;
pub(crate) mod files;
mod flush;
pub(crate) mod folder;
mod http;
mod listing;
pub(crate) mod location;
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
use crate::backend::scrubs::FileStamp;
use crate::backend::uploads::Uploads;
use crate::error::from_store;
use crate::record::mend::mend;

/// Records that a listing holds at a time: as many as S3 lists at once.
const LIST_BATCH: usize = 1000;
/// A longer object comes from a network in parts of this many bytes, all at once.
const PART_BYTES: u64 = 2 << 20;
/// How often a create is tried whose outcome is neither success nor anybody's record, and a read whose answer ends in
/// its middle. `object_store` tries a request again that meets no answer, but knows neither of these.
const TRIES_MAX: u32 = 5;
/// The least time between two of them, doubled each time.
const PAUSE: Duration = Duration::from_millis(50);

/// About as long as a writer takes between reading the newest version and publishing the next, in a network and here:
/// so long somebody rests who lost a race to others, doubled for each further race that was lost, up to this often.
const REST_FAR: Duration = Duration::from_millis(20);
const REST_HERE: Duration = Duration::from_millis(5);
const REST_DOUBLED_MAX: u32 = 5;

/// An object store, and the way to it.
#[derive(Debug)]
pub(crate) struct Backend {
    store: Arc<dyn ObjectStore>,
    executor: Executor,
    objects: Objects,
    check: CapabilityCheck,
    flush: SharedFlush,
}

/// How objects go in.
#[derive(Debug)]
enum Objects {
    /// One by one, each there when its put returns.
    Direct,
    /// In batches with a flush for each, where the folder's filesystem can do that.
    Folder(Folder),
    /// Several at once.
    Uploads(Uploads),
}

/// Who won a create-if-absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Created {
    /// The record is there and holds our bytes.
    Ours,
    /// Somebody else's record is there.
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

    /// A store whose futures do their work where they are waited for.
    pub(crate) fn here(store: Arc<dyn ObjectStore>, check: CapabilityCheck) -> Self {
        Self::new(store, Executor::Here, Objects::Direct, check)
    }

    /// A folder, as `object_store` sees it and as it takes in objects.
    pub(crate) fn folder(store: Arc<dyn ObjectStore>, folder: Folder, check: CapabilityCheck) -> Self {
        Self::new(store, Executor::Here, Objects::Folder(folder), check)
    }

    /// Any store that says when a put is done, one object after the other.
    pub(crate) fn any(store: Arc<dyn ObjectStore>, check: CapabilityCheck) -> Result<Self> {
        Ok(Self::new(store, Executor::network()?, Objects::Direct, check))
    }

    /// A store behind a network.
    pub(crate) fn network(store: Arc<dyn ObjectStore>, check: CapabilityCheck) -> Result<Self> {
        let executor = Executor::network()?;
        let uploads = Uploads::new(Arc::clone(&store), executor.clone());
        Ok(Self::new(store, executor, Objects::Uploads(uploads), check))
    }

    /// Whether every call costs a way through a network.
    pub(crate) fn is_far(&self) -> bool {
        matches!(self.objects, Objects::Uploads(_))
    }

    /// Whether records are files of this machine.
    pub(crate) fn is_folder(&self) -> bool {
        matches!(self.objects, Objects::Folder(_))
    }

    /// The folder of this machine that records are files of. None for one that a network filesystem shows, where what
    /// another machine changed may be seen late.
    pub(crate) fn local_folder(&self) -> Option<&std::path::Path> {
        match &self.objects {
            Objects::Folder(folder) if folder.takes_unnamed() => Some(folder.root()),
            _ => None,
        }
    }

    /// What tells the file at `path` from the same file after a change; none if there is no file that has its name.
    pub(crate) fn stamp(&self, path: &Path) -> Option<FileStamp> {
        match &self.objects {
            Objects::Folder(folder) if !folder.holds(path.as_ref()) => {
                files::stamp(folder.root(), path.as_ref())
            }
            _ => None,
        }
    }

    /// The record at `path` in one read. `Corrupt` if it is longer than `bytes_max`, before memory is taken.
    pub(crate) fn read(&self, path: &Path, bytes_max: u64) -> Result<Bytes> {
        // Asked first: what waits now may have its name by the time that a read has missed it.
        match &self.objects {
            Objects::Uploads(uploads) => {
                if let Some(bytes) = uploads.waiting(path) {
                    return Ok(bytes);
                }
            }
            // Until it has its name, what lies there may be the damaged file that it replaces.
            Objects::Folder(folder) if folder.holds(path.as_ref()) => folder.name_waiting()?,
            Objects::Folder(_) | Objects::Direct => {}
        }
        self.read_named(path, bytes_max)
    }

    /// The record at `path` as it was written, also where one bit of it changed since.
    pub(crate) fn read_record(&self, path: &Path, bytes_max: u64) -> Result<Bytes> {
        let stored = self.read(path, bytes_max)?;
        Ok(mend(&stored).unwrap_or(stored))
    }

    /// The object at `path`, which should have `bytes` bytes. A long one that comes from far comes in parts.
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
        // Also says what is wrong with an object whose parts did not come.
        self.read(path, bytes)
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

    /// The length of the record at `path` in bytes, `None` if there is none.
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

    /// Whether an object was put at `path` by [`Self::put`] and is not safe yet.
    pub(crate) fn waits(&self, path: &Path) -> bool {
        match &self.objects {
            Objects::Direct => false,
            Objects::Folder(folder) => folder.holds(path.as_ref()),
            Objects::Uploads(uploads) => uploads.waiting(path).is_some(),
        }
    }

    /// Stores the object `bytes` at `path`. It is durable after the next [`Self::flush`].
    pub(crate) fn put(&self, path: &Path, bytes: Bytes) -> Result<()> {
        match &self.objects {
            Objects::Folder(folder) if folder.takes_unnamed() => folder.put(path.as_ref(), &bytes),
            Objects::Uploads(uploads) => uploads.put(path, bytes),
            // Overwriting is harmless: the bytes are what the name says.
            Objects::Folder(_) | Objects::Direct => self
                .wait(self.store.put_opts(path, bytes.into(), PutOptions::default()))
                .map(drop)
                .map_err(|error| from_store(format!("write `{path}`"), error)),
        }
    }

    /// Puts the record at `path` right, of which one byte is not as in `bytes`, durable. What is deleted meanwhile
    /// stays deleted.
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
            // Not every store replaces on a condition.
            Err(_) => self.replace(path, bytes),
        }
    }

    /// Gives what is at `path` the name `to`, which is no record's.
    pub(crate) fn set_aside(&self, path: &Path, to: &Path) -> Result<()> {
        let failed = |error| from_store(format!("set `{path}` aside as `{to}`"), error);
        self.wait(self.store.rename(path, to)).map_err(failed)
    }

    /// Stores `bytes` at `path`, durable, whatever is there: only for what is there and damaged.
    pub(crate) fn replace(&self, path: &Path, bytes: Bytes) -> Result<()> {
        if let Objects::Folder(folder) = &self.objects {
            files::make_way_for(folder.root(), path.as_ref())?;
        }
        self.wait(self.store.put_opts(path, bytes.into(), PutOptions::default()))
            .map(drop)
            .map_err(|error| from_store(format!("replace `{path}`"), error))
    }

    /// Makes everything that was put before durable. Threads that call this at the same time share one flush.
    pub(crate) fn flush(&self) -> Result<()> {
        self.flush.flush(|| match &self.objects {
            Objects::Direct => Ok(()),
            Objects::Folder(folder) => folder.flush(),
            Objects::Uploads(uploads) => uploads.flush(),
        })
    }

    /// Creates the record `bytes` at `path`, durable, unless there is one. `bytes` must be unlike what any other
    /// writer would create there: after an error the record is read back, since the reply may be all that was lost.
    /// `Unsupported` if the store is not fit for a repository.
    pub(crate) fn create(&self, path: &Path, bytes: &Bytes) -> Result<Created> {
        self.ensure_supported()?;
        self.create_unproven(path, bytes)
    }

    /// Makes sure that the store is fit for a repository, by trying it if nobody has.
    pub(crate) fn ensure_supported(&self) -> Result<()> {
        self.check.require(self)
    }

    /// Tries the store, whatever is known of it.
    pub(crate) fn capabilities(&self) -> Result<Capabilities> {
        self.check.give(self)
    }

    /// [`Self::create`] in a store of which nothing is known yet.
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

    /// How long to wait before each further try.
    fn pauses(&self) -> impl Iterator<Item = Duration> + use<> {
        (1..TRIES_MAX).map(|turn| PAUSE * (1 << turn) / 2)
    }

    /// Lets others go on who write the same, after `losses` races that were lost to them.
    pub(crate) fn rest(&self, losses: u32) -> Result<()> {
        let base = if self.is_far() { REST_FAR } else { REST_HERE };
        self.executor.rest(base * (1 << losses.min(REST_DOUBLED_MAX)))
    }

    /// What `read` asks the store for, asked again if the answer was cut short.
    fn asked<T>(&self, what: impl Fn() -> String, read: impl Fn() -> object_store::Result<T>) -> Result<T> {
        let mut pauses = self.pauses();
        loop {
            match (read(), pauses.next()) {
                (Err(error), Some(pause)) if was_cut_short(&error) => self.executor.pause(pause)?,
                (answer, _) => return answer.map_err(|error| from_store(what(), error)),
            }
        }
    }

    /// The inner error: there is no record, and the next try may make one.
    fn create_once(&self, path: &Path, bytes: &Bytes) -> Result<Result<Created>> {
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        let error = match self.wait(self.store.put_opts(path, bytes.clone().into(), options)) {
            Ok(_) => return Ok(Ok(Created::Ours)),
            Err(error) => from_store(format!("create `{path}`"), error),
        };
        let taken = error.kind() == ErrorKind::Exists;
        match self.read_named(path, bytes.len() as u64) {
            Ok(found) if found == *bytes || mend(&found).as_ref() == Some(bytes) => {
                self.flush().map(|()| Ok(Created::Ours))
            }
            // It exists, and is another's: it has other bytes, or more of them.
            Ok(_) => Ok(Ok(Created::Taken)),
            Err(read) if read.kind() == ErrorKind::Corrupt => Ok(Ok(Created::Taken)),
            Err(read) if taken && read.kind() != ErrorKind::NotFound => Err(read),
            // S3 answers 409 to creates that meet, and then none of them may have made the record.
            Err(_) if taken || error.kind() == ErrorKind::Io => Ok(Err(error)),
            Err(_) => Err(error),
        }
    }

    /// Replaces the record at `path` if its entity tag is `expected`, or what the store says now. Returns the tag that
    /// it had, or `None` if the store did not do it for whatever reason. For probes.
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

    /// Deletes the record at `path` as far as the store allows. For probes.
    pub(crate) fn clear(&self, path: &Path) {
        // Who may not delete leaves it: nobody takes it for a record of the repository.
        let _ = self.wait(self.store.delete(path));
    }

    /// Whether there is a record at `path`.
    pub(crate) fn exists(&self, path: &Path) -> Result<bool> {
        Ok(self.size(path)?.is_some())
    }

    /// Deletes the records at `paths`; those that are not there are deleted already.
    pub(crate) fn delete(&self, paths: &[Path]) -> Result<()> {
        let mut pauses = self.pauses();
        loop {
            let owned: Vec<_> = paths.iter().cloned().map(Ok).collect();
            let stream = futures::stream::iter(owned).boxed();
            // The store looks at the thread that calls it for a runtime, as in `for_each`.
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

/// Whether the store began an answer and did not end it. Requests without any answer were tried again below.
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
