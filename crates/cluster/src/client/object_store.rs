//! The trait of `object_store`, over the names of the cluster.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt as _};
use object_store::path::Path;
use object_store::{
    Attributes, CopyMode, CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result,
};

use super::errors::{STORE, error};
use super::index::BATCH;
use super::multipart::Upload;
use super::names::{Found, Meta};
use super::{Cluster, Parts};
use crate::http::Reply;

/// A content is read in steps of this many bytes.
const STEP_BYTES: u64 = 16 << 20;

fn not_found(name: &str) -> Error {
    Error::NotFound { path: name.to_owned(), source: "there is nothing of this name".into() }
}

fn exists(name: &str) -> Error {
    Error::AlreadyExists { path: name.to_owned(), source: "the name is in use".into() }
}

fn put_result(tag: String) -> PutResult {
    PutResult { e_tag: Some(tag), version: None, extensions: Default::default() }
}

fn object_meta(meta: Meta) -> Result<ObjectMeta> {
    let modified = i64::try_from(meta.modified).unwrap_or(i64::MAX);
    Ok(ObjectMeta {
        location: Path::parse(&meta.name)?,
        last_modified: chrono::DateTime::from_timestamp_nanos(modified),
        size: meta.bytes,
        e_tag: Some(meta.tag),
        version: None,
    })
}

/// The text that all names below `prefix` begin with.
fn below(prefix: Option<&Path>) -> String {
    match prefix.map(AsRef::as_ref) {
        None | Some("") => String::new(),
        Some(prefix) => format!("{prefix}/"),
    }
}

impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.parts.name)
    }
}

impl Cluster {
    /// Runs work on the client's own threads.
    async fn on_own<T: Send + 'static>(
        &self,
        work: impl FnOnce(Arc<Parts>) -> futures::future::BoxFuture<'static, T>,
    ) -> Result<T> {
        let done = self.run(work(Arc::clone(&self.parts))).await;
        done.map_err(|source| Error::Generic { store: STORE, source: Box::new(source) })
    }

    async fn list_now(&self, prefix: String) -> Result<Vec<ObjectMeta>> {
        list(Arc::clone(&self.parts), self.run_handle(), prefix).await
    }

    fn run_handle(&self) -> tokio::runtime::Handle {
        self.runtime.as_ref().expect("it is taken when dropped").handle().clone()
    }
}

async fn list(parts: Arc<Parts>, own: tokio::runtime::Handle, prefix: String) -> Result<Vec<ObjectMeta>> {
    let named = prefix.clone();
    let listed: std::result::Result<Reply<Vec<Meta>>, _> =
        own.spawn(async move { parts.list(&prefix).await }).await;
    let listed = listed.map_err(|source| Error::Generic { store: STORE, source: Box::new(source) })?;
    listed.map_err(|failure| error(failure, &named))?.into_iter().map(object_meta).collect()
}

async fn delete(parts: Arc<Parts>, own: tokio::runtime::Handle, paths: Vec<Path>) -> Vec<Result<Path>> {
    let names: Vec<String> = paths.iter().map(|path| path.to_string()).collect();
    let deleting = own.spawn(async move { parts.delete(&names).await });
    match deleting.await {
        Ok(Ok(found)) => {
            let outcome =
                |(path, found): (Path, bool)| if found { Ok(path) } else { Err(not_found(path.as_ref())) };
            paths.into_iter().zip(found).map(outcome).collect()
        }
        Ok(Err(failure)) => {
            paths.into_iter().map(|path| Err(error(failure.clone(), path.as_ref()))).collect()
        }
        Err(source) => vec![Err(Error::Generic { store: STORE, source: Box::new(source) })],
    }
}

#[async_trait]
impl ObjectStore for Cluster {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        let name = location.to_string();
        let content = Bytes::from(payload);
        let named = name.clone();
        match opts.mode {
            PutMode::Overwrite => {
                let put = self.on_own(|parts| Box::pin(async move { parts.put(&name, content).await }));
                put.await?.map(put_result).map_err(|failure| error(failure, &named))
            }
            PutMode::Create => {
                let create = self.on_own(|parts| Box::pin(async move { parts.create(&name, content).await }));
                let created = create.await?.map_err(|failure| error(failure, &named))?;
                created.map(put_result).ok_or_else(|| exists(&named))
            }
            PutMode::Update(_) => Err(Error::NotImplemented {
                operation: "replace under a condition".to_owned(),
                implementer: STORE.to_owned(),
            }),
        }
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Ok(Box::new(Upload::new(Arc::clone(&self.parts), self.run_handle(), location.to_string())))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let name = location.to_string();
        let named = name.clone();
        let head = options.head;
        let find = self.on_own(move |parts| {
            Box::pin(
                async move { if head { parts.find(&name).await } else { parts.find_to_read(&name).await } },
            )
        });
        let found: Option<Found> = find.await?.map_err(|failure| error(failure, &named))?;
        let found = found.ok_or_else(|| not_found(&named))?;
        let meta = object_meta(found.meta(&named))?;
        options.check_preconditions(&meta)?;
        let invalid = |source| Error::Generic { store: STORE, source: Box::new(source) };
        let range = match &options.range {
            Some(range) => range.as_range(meta.size).map_err(invalid)?,
            None => 0..meta.size,
        };
        let stream = if head {
            futures::stream::empty().boxed()
        } else {
            content(Arc::clone(&self.parts), self.run_handle(), found, named, range.clone())
        };
        Ok(GetResult {
            payload: GetResultPayload::Stream(stream),
            meta,
            range,
            attributes: Attributes::default(),
            extensions: Default::default(),
        })
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let (parts, own) = (Arc::clone(&self.parts), self.run_handle());
        locations
            .chunks(BATCH)
            .then(move |batch| {
                let (parts, own) = (Arc::clone(&parts), own.clone());
                async move {
                    let (paths, failed): (Vec<_>, Vec<_>) = batch.into_iter().partition(Result::is_ok);
                    let paths: Vec<Path> = paths.into_iter().filter_map(Result::ok).collect();
                    let mut outcomes = delete(parts, own, paths).await;
                    outcomes.extend(failed);
                    futures::stream::iter(outcomes)
                }
            })
            .flatten()
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let listing = list(Arc::clone(&self.parts), self.run_handle(), below(prefix));
        let items = futures::stream::once(listing).map(|listed| match listed {
            Ok(items) => futures::stream::iter(items.into_iter().map(Ok).collect::<Vec<_>>()),
            Err(error) => futures::stream::iter(vec![Err(error)]),
        });
        items.flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let base = below(prefix);
        let mut common_prefixes: Vec<Path> = Vec::new();
        let mut objects = Vec::new();
        for meta in self.list_now(base.clone()).await? {
            let name = meta.location.to_string();
            match name[base.len()..].split_once('/') {
                None => objects.push(meta),
                Some((folder, _)) => {
                    let folder = Path::parse(format!("{base}{folder}"))?;
                    if common_prefixes.last() != Some(&folder) {
                        common_prefixes.push(folder);
                    }
                }
            }
        }
        Ok(ListResult { common_prefixes, objects, extensions: Default::default() })
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let content = self.get_opts(from, GetOptions::default()).await?.bytes().await?;
        let mode = match options.mode {
            CopyMode::Overwrite => PutMode::Overwrite,
            CopyMode::Create => PutMode::Create,
        };
        let options = PutOptions { mode, ..PutOptions::default() };
        self.put_opts(to, content.into(), options).await.map(drop)
    }
}

/// The content in steps: a long one never lies in memory as a whole.
fn content(
    parts: Arc<Parts>,
    own: tokio::runtime::Handle,
    found: Found,
    name: String,
    range: Range<u64>,
) -> BoxStream<'static, Result<Bytes>> {
    let found = Arc::new(found);
    let steps = std::iter::successors(Some(range.start), |at| at.checked_add(STEP_BYTES));
    let steps = steps.take_while(move |&at| at < range.end).map(move |at| at..range.end.min(at + STEP_BYTES));
    futures::stream::iter(steps)
        .then(move |step| {
            let (parts, own, found, name) =
                (Arc::clone(&parts), own.clone(), Arc::clone(&found), name.clone());
            async move {
                let wanted = name.clone();
                let read = own.spawn(async move { parts.read(&wanted, &found, step).await });
                let read =
                    read.await.map_err(|source| Error::Generic { store: STORE, source: Box::new(source) })?;
                read.map_err(|failure| error(failure, &name))
            }
        })
        .boxed()
}
