//! An object store that fails on purpose, with every kind of fault that networks and disks have.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt as _};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use parking_lot::Mutex;

/// The fault of one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Nothing is done; the caller gets an error.
    Fails,
    /// The store answers "slow down"; nothing is done.
    Throttled,
    /// A put is done, but the caller gets an error.
    ReplyLost,
    /// A create succeeds, its reply is lost, and the retry finds its own record: `AlreadyExists`.
    RetriedBelow,
    /// A get returns the record with one flipped bit.
    WrongByte,
    /// A get returns a record without its last bytes.
    CutShort,
    /// A create replaces the existing record, as in stores without conditional writes.
    IgnoresConditions,
    /// A list omits all records created since the plan was set.
    Lagging,
}

/// Chooses the fault of an operation from its kind (`put`, `get`, `list`), its path, and the number of operations
/// before.
pub(crate) type Plan = Box<dyn FnMut(&'static str, &Path, u64) -> Option<Trouble> + Send>;

/// A wrapper around another store.
pub(crate) struct Faulty {
    inner: Arc<dyn ObjectStore>,
    plan: Mutex<Plan>,
    count: AtomicU64,
    /// Paths created since the plan was set.
    young: Mutex<HashSet<Path>>,
}

impl Faulty {
    pub(crate) fn new(inner: Arc<dyn ObjectStore>, plan: Plan) -> Arc<Self> {
        Arc::new(Self { inner, plan: Mutex::new(plan), count: AtomicU64::new(0), young: Mutex::default() })
    }

    /// Sets the faults of all later operations.
    pub(crate) fn set(&self, plan: Plan) {
        *self.plan.lock() = plan;
        self.count.store(0, Relaxed);
        self.young.lock().clear();
    }

    fn trouble(&self, operation: &'static str, path: &Path) -> Option<Trouble> {
        (self.plan.lock())(operation, path, self.count.fetch_add(1, Relaxed))
    }
}

/// A plan without faults.
pub(crate) fn no_trouble() -> Plan {
    Box::new(|_, _, _| None)
}

fn failed(what: &'static str) -> Error {
    Error::Generic { store: "faulty", source: what.into() }
}

fn spoil(bytes: &Bytes, trouble: Trouble) -> Bytes {
    let mut bytes = bytes.to_vec();
    match trouble {
        Trouble::CutShort => bytes.truncate(bytes.len() / 2),
        _ => {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
        }
    }
    bytes.into()
}

#[async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(&self, path: &Path, payload: PutPayload, mut options: PutOptions) -> Result<PutResult> {
        self.young.lock().insert(path.clone());
        match self.trouble("put", path) {
            None | Some(Trouble::Lagging) => self.inner.put_opts(path, payload, options).await,
            Some(Trouble::Throttled) => Err(failed("503 Slow Down")),
            Some(Trouble::IgnoresConditions) => {
                options.mode = PutMode::Overwrite;
                self.inner.put_opts(path, payload, options).await
            }
            Some(Trouble::ReplyLost) => {
                self.inner.put_opts(path, payload, options).await?;
                Err(failed("connection reset"))
            }
            Some(Trouble::RetriedBelow) => {
                self.inner.put_opts(path, payload.clone(), options.clone()).await?;
                self.inner.put_opts(path, payload, options).await
            }
            Some(_) => Err(failed("input/output error")),
        }
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let trouble = self.trouble("get", path);
        if matches!(trouble, Some(Trouble::Fails | Trouble::Throttled)) {
            return Err(failed("input/output error"));
        }
        let head = options.head;
        let mut found = self.inner.get_opts(path, options).await?;
        if let Some(trouble) = trouble.filter(|trouble| !head && *trouble != Trouble::Lagging) {
            let (meta, range) = (found.meta.clone(), found.range.clone());
            let bytes = spoil(&found.bytes().await?, trouble);
            let payload = GetResultPayload::Stream(Box::pin(futures::stream::once(async { Ok(bytes) })));
            found = GetResult {
                payload,
                meta,
                range,
                attributes: Default::default(),
                extensions: Default::default(),
            };
        }
        Ok(found)
    }

    async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        Err(failed("no record is that large"))
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        match self.trouble("list", prefix.unwrap_or(&Path::default())) {
            None => self.inner.list(prefix),
            Some(Trouble::Lagging) => {
                let young = self.young.lock().clone();
                let old = move |found: &Result<ObjectMeta>| {
                    let old = found.as_ref().map_or(true, |found| !young.contains(&found.location));
                    std::future::ready(old)
                };
                self.inner.list(prefix).filter(old).boxed()
            }
            Some(_) => Box::pin(futures::stream::once(async { Err(failed("input/output error")) })),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        match self.trouble("list", prefix.unwrap_or(&Path::default())) {
            None => self.inner.list_with_delimiter(prefix).await,
            Some(Trouble::Lagging) => {
                let mut found = self.inner.list_with_delimiter(prefix).await?;
                let young = self.young.lock();
                found.objects.retain(|found| !young.contains(&found.location));
                Ok(found)
            }
            Some(_) => Err(failed("input/output error")),
        }
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(failed("nothing here copies"))
    }
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faulty")
    }
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("faulty")
    }
}
