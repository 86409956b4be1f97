//! Contents that arrive in parts: each part is stored as it comes, and the name is there when all are.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use object_store::{Error, MultipartUpload, PutPayload, PutResult, Result, UploadPart};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::Parts;
use super::errors::{STORE, error};
use super::hold::Stored;
use crate::http::Reply;

/// One content in parts.
pub(super) struct Upload {
    parts: Arc<Parts>,
    own: Handle,
    name: String,
    stamp: u64,
    bytes: u64,
    stored: Vec<JoinHandle<Reply<Vec<Stored>>>>,
}

impl std::fmt::Debug for Upload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Upload({}, {} bytes)", self.name, self.bytes)
    }
}

impl Upload {
    pub(super) fn new(parts: Arc<Parts>, own: Handle, name: String) -> Self {
        let stamp = parts.session.stamp();
        Self { parts, own, name, stamp, bytes: 0, stored: Vec::new() }
    }
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (parts, name, stamp, from) = (Arc::clone(&self.parts), self.name.clone(), self.stamp, self.bytes);
        let content = Bytes::from(data);
        self.bytes += content.len() as u64;
        // The length of the whole is not known yet; the entry has it, the directory of the run says that it is a part.
        let stored = self
            .own
            .spawn(async move { parts.store_pieces(&name, stamp, u64::MAX - 1, from, content).await });
        // The outcome is told by `complete`; the caller may wait for the parts in any order.
        let (done, told) = tokio::sync::oneshot::channel();
        let name = self.name.clone();
        self.stored.push(self.own.spawn(async move {
            let outcome = stored.await.unwrap_or_else(|_| Ok(Vec::new()));
            let _ = done.send(outcome.as_ref().map(drop).map_err(Clone::clone));
            outcome
        }));
        Box::pin(async move {
            let ended = |source| Error::Generic { store: STORE, source: Box::new(source) };
            told.await.map_err(ended)?.map_err(|failure| error(failure, &name))
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let ended = |source| Error::Generic { store: STORE, source: Box::new(source) };
        let mut pieces = Vec::new();
        for stored in self.stored.drain(..) {
            pieces.extend(stored.await.map_err(ended)?.map_err(|failure| error(failure, &self.name))?);
        }
        let length: u64 = pieces.iter().map(|stored: &Stored| u64::from(stored.piece.length)).sum();
        if length != self.bytes {
            return Err(Error::Generic { store: STORE, source: "a part of the upload is missing".into() });
        }
        let (parts, name, stamp) = (Arc::clone(&self.parts), self.name.clone(), self.stamp);
        let finishing = self.own.spawn(async move { parts.finish(&name, stamp, pieces).await });
        finishing.await.map_err(ended)?.map_err(|failure| error(failure, &self.name))?;
        let tag = format!("{:016x}", self.stamp);
        Ok(PutResult { e_tag: Some(tag), version: None, extensions: Default::default() })
    }

    async fn abort(&mut self) -> Result<()> {
        // What was stored has no name. It goes when its segment is compacted.
        self.stored.drain(..).for_each(|stored| stored.abort());
        Ok(())
    }
}
