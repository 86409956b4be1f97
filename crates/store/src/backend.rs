//! The blocking side of an object store: whole records in, whole records out, create-if-absent that survives a lost
//! reply. All that the repository knows of where it lies goes through here.

use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::path::Path;
use object_store::{
    GetOptions, GetResultPayload, ListResult, ObjectMeta, ObjectStore, ObjectStoreExt as _, PutMode,
    PutOptions,
};
use rustix::buffer::spare_capacity;

use crate::error::{Error, ErrorKind, Result, from_store};
use crate::folder::Folder;

/// Records that a listing holds at a time.
const LIST_BATCH: usize = 1024;

/// An object store, and the folder that it is if it is one.
#[derive(Debug)]
pub(crate) struct Backend {
    store: Arc<dyn ObjectStore>,
    folder: Option<Folder>,
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
    pub(crate) fn new(store: Arc<dyn ObjectStore>, folder: Option<Folder>) -> Self {
        Self { store, folder }
    }

    /// The record at `path` in one read. `Corrupt` if it is longer than `bytes_max`, before memory is taken.
    pub(crate) fn read(&self, path: &Path, bytes_max: u64) -> Result<Bytes> {
        // Asked first: what waits now may have its name by the time that a read has missed it.
        let waited = self.waits(path);
        match self.read_named(path, bytes_max) {
            Err(error) if waited && error.kind() == ErrorKind::NotFound => {
                self.folder.as_ref().map_or(Ok(()), Folder::name_waiting)?;
                self.read_named(path, bytes_max)
            }
            result => result,
        }
    }

    fn read_named(&self, path: &Path, bytes_max: u64) -> Result<Bytes> {
        let failed = |error| from_store(format!("read `{path}`"), error);
        let found = wait(self.store.get_opts(path, GetOptions::default())).map_err(failed)?;
        let bytes = found.meta.size;
        if bytes > bytes_max {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!("`{path}` has {bytes} bytes, more than the {bytes_max} that it could have"),
            ));
        }
        if let GetResultPayload::File(file, _) = found.payload {
            return read_file(&file, bytes)
                .map_err(|error| crate::error::from_io(format!("read `{path}`"), error));
        }
        wait(found.bytes()).map_err(failed)
    }

    /// The length of the record at `path` in bytes, `None` if there is none.
    pub(crate) fn size(&self, path: &Path) -> Result<Option<u64>> {
        match wait(self.store.head(path)) {
            Ok(found) => Ok(Some(found.size)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(from_store(format!("look for `{path}`"), error)),
        }
    }

    /// Whether an object was put at `path` by [`Self::put`] and waits for its flush.
    pub(crate) fn waits(&self, path: &Path) -> bool {
        self.folder.as_ref().is_some_and(|folder| folder.holds(path.as_ref()))
    }

    /// Stores the object `bytes` at `path`. It is durable after the next [`Self::settle`].
    pub(crate) fn put(&self, path: &Path, bytes: Bytes) -> Result<()> {
        if let Some(folder) = self.folder.as_ref().filter(|folder| folder.takes_unnamed()) {
            return folder.put(path.as_ref(), &bytes);
        }
        // Overwriting is harmless: the bytes are what the name says.
        wait(self.store.put_opts(path, bytes.into(), PutOptions::default()))
            .map(drop)
            .map_err(|error| from_store(format!("write `{path}`"), error))
    }

    /// Stores `bytes` at `path`, durable, whatever is there: only for what is there and damaged.
    pub(crate) fn replace(&self, path: &Path, bytes: Bytes) -> Result<()> {
        wait(self.store.put_opts(path, bytes.into(), PutOptions::default()))
            .map(drop)
            .map_err(|error| from_store(format!("replace `{path}`"), error))
    }

    /// Makes everything that was put before durable.
    pub(crate) fn settle(&self) -> Result<()> {
        self.folder.as_ref().map_or(Ok(()), Folder::settle)
    }

    /// Creates the record `bytes` at `path`, durable, unless there is one. `bytes` must be unlike what any other
    /// writer would create there: after an error the record is read back, since the reply may be all that was lost.
    pub(crate) fn create(&self, path: &Path, bytes: &Bytes) -> Result<Created> {
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        let error = match wait(self.store.put_opts(path, bytes.clone().into(), options)) {
            Ok(_) => return Ok(Created::Ours),
            Err(error) => error,
        };
        let taken = matches!(
            error,
            object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }
        );
        match self.read_named(path, bytes.len() as u64) {
            Ok(found) if found == *bytes => self.settle().map(|()| Created::Ours),
            // It exists, and is another's: it has other bytes, or more of them.
            Ok(_) => Ok(Created::Taken),
            Err(read) if read.kind() == ErrorKind::Corrupt => Ok(Created::Taken),
            Err(read) if taken && read.kind() != ErrorKind::NotFound => Err(read),
            Err(_) => Err(from_store(format!("create `{path}`"), error)),
        }
    }

    /// Calls `each` for every record below `folder`, in no order, without holding them all.
    pub(crate) fn for_each(&self, folder: &Path, each: &mut dyn FnMut(ObjectMeta)) -> Result<()> {
        // The store looks at the thread that calls it for a runtime, so this call must not be made on the caller's.
        let mut records = wait(async { self.store.list(Some(folder)) });
        loop {
            let batch: Vec<ObjectMeta> = wait(records.by_ref().take(LIST_BATCH).try_collect())
                .map_err(|error| from_store(format!("list `{folder}`"), error))?;
            if batch.is_empty() {
                return Ok(());
            }
            batch.into_iter().for_each(&mut *each);
        }
    }

    /// The names of the folders in `folder`, ascending.
    pub(crate) fn folders(&self, folder: &Path) -> Result<Vec<String>> {
        let mut names: Vec<String> = self
            .look_into(folder)?
            .common_prefixes
            .iter()
            .filter_map(|path| path.filename().map(str::to_owned))
            .collect();
        names.sort();
        Ok(names)
    }

    /// The paths of the records in `folder`, without those in folders of it.
    pub(crate) fn records(&self, folder: &Path) -> Result<Vec<Path>> {
        if let Some(here) = &self.folder {
            // The object store would ask for the size of each, ten thousand versions for one number.
            let names = here.names(folder.as_ref())?;
            return Ok(names.into_iter().map(|name| folder.clone().join(name)).collect());
        }
        Ok(self.look_into(folder)?.objects.into_iter().map(|found| found.location).collect())
    }

    fn look_into(&self, folder: &Path) -> Result<ListResult> {
        wait(self.store.list_with_delimiter(Some(folder)))
            .map_err(|error| from_store(format!("list `{folder}`"), error))
    }
}

/// Reads what an open file holds by one system call, into memory that is not cleared before. `object_store` streams in
/// pieces of 8 KiB, and `read_to_end` would begin with as little.
fn read_file(file: &std::fs::File, bytes: u64) -> std::io::Result<Bytes> {
    let length = usize::try_from(bytes).map_err(|_| std::io::ErrorKind::FileTooLarge)?;
    let mut content = Vec::with_capacity(length);
    while content.len() < length {
        let read = rustix::io::retry_on_intr(|| rustix::io::read(file, spare_capacity(&mut content)))?;
        if read == 0 {
            break;
        }
    }
    content.truncate(length);
    Ok(content.into())
}

/// Runs `future` to its end on this thread, which is where `object_store` does the work of folders and memory.
///
/// Inside a tokio runtime it would hand that work to a thread of the runtime's pool, and a pool whose threads all wait
/// for one more thread stands still; a thread of our own has no runtime.
fn wait<T: Send>(future: impl Future<Output = T> + Send) -> T {
    if tokio::runtime::Handle::try_current().is_err() {
        return futures::executor::block_on(future);
    }
    std::thread::scope(|scope| {
        let run = scope.spawn(|| futures::executor::block_on(future));
        run.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
