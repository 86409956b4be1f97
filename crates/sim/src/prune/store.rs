//! The store of an actor: each operation is passed to the simulated world, and returns when it is the actor's turn.

use std::fmt;
use std::ops::Range;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::{BoxStream, iter, once};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt as _, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    Result,
};

use crate::prune::world::{Answer, Operation, Stage};

/// An object store that asks the world.
#[derive(Debug)]
pub(super) struct ActorStore {
    stage: Stage,
    /// Metadata of a record of one byte, a template for answers, since the type has no constructor.
    meta: ObjectMeta,
}

impl ActorStore {
    pub(super) fn new(stage: Stage) -> Self {
        let meta = futures::executor::block_on(async {
            let (memory, path) = (InMemory::new(), Path::from("a"));
            memory.put(&path, Bytes::from_static(b"a").into()).await?;
            memory.head(&path).await
        });
        Self { stage, meta: meta.expect("memory works") }
    }

    fn meta(&self, path: &str, size: u64) -> ObjectMeta {
        ObjectMeta { location: Path::from(path), size, ..self.meta.clone() }
    }

    fn list_below(&self, prefix: Option<&Path>) -> Result<Vec<ObjectMeta>> {
        match self.stage.ask(Operation::List(prefix.map(ToString::to_string).unwrap_or_default())) {
            Answer::Listed(found) => Ok(found.iter().map(|(path, size)| self.meta(path, *size)).collect()),
            _ => Err(failed()),
        }
    }
}

fn failed() -> Error {
    Error::Generic { store: "simulated", source: "connection reset".into() }
}

fn refused(path: &Path, answer: &Answer) -> Error {
    let (path, source) = (path.to_string(), "simulated".into());
    match answer {
        Answer::Missing => Error::NotFound { path, source },
        Answer::Exists => Error::AlreadyExists { path, source },
        _ => failed(),
    }
}

#[async_trait]
impl ObjectStore for ActorStore {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let create = options.mode == PutMode::Create;
        let operation = Operation::Put { path: path.to_string(), bytes: payload.into(), create };
        match self.stage.ask(operation) {
            Answer::Done => {
                Ok(PutResult { e_tag: None, version: None, extensions: object_store::Extensions::default() })
            }
            answer => Err(refused(path, &answer)),
        }
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let bytes = match self.stage.ask(Operation::Get(path.to_string())) {
            Answer::Found(bytes) => bytes,
            answer => return Err(refused(path, &answer)),
        };
        let size = bytes.len() as u64;
        let bytes = if options.head { Bytes::new() } else { bytes };
        Ok(GetResult {
            payload: GetResultPayload::Stream(once(async { Ok(bytes) }).boxed()),
            meta: self.meta(path.as_ref(), size),
            range: Range { start: 0, end: size },
            attributes: object_store::Attributes::default(),
            extensions: object_store::Extensions::default(),
        })
    }

    async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        Err(failed())
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let stage = self.stage.clone();
        let delete = move |path: Result<Path>| {
            let path = path?;
            match stage.ask(Operation::Delete(path.to_string())) {
                Answer::Done => Ok(path),
                answer => Err(refused(&path, &answer)),
            }
        };
        paths.map(delete).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        match self.list_below(prefix) {
            Ok(found) => iter(found.into_iter().map(Ok)).boxed(),
            Err(error) => once(async { Err(error) }).boxed(),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let folder = prefix.map(ToString::to_string).unwrap_or_default();
        let (mut objects, mut common_prefixes) = (Vec::new(), Vec::new());
        for found in self.list_below(prefix)? {
            let rest = &found.location.as_ref()[folder.len() + 1..];
            match rest.split_once('/') {
                None => objects.push(found),
                Some((name, _)) => common_prefixes.push(Path::from(format!("{folder}/{name}"))),
            }
        }
        common_prefixes.dedup();
        Ok(ListResult { objects, common_prefixes, extensions: object_store::Extensions::default() })
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(failed())
    }
}

impl fmt::Display for ActorStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("simulated")
    }
}
