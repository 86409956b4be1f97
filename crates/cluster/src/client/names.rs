//! What `store` asks for, by name: contents in segments, and records over them.
//!
//! A name may have a content in the index, a record, or both; the index comes first. So a put that overwrites needs no
//! question to the metadata service.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use futures::stream::{StreamExt as _, TryStreamExt as _};
use proto::cluster::{Entry, NAME_BYTES_MAX, PIECE_BYTES_MAX, PIECES_MAX};

use super::Parts;
use super::form::NewPiece;
use super::hold::Stored;
use super::records::{HIDDEN, Value};
use crate::http::{Failure, Reply};
use crate::problem::{Problem, Word};
use crate::wire::Record;

/// Pieces of one content that are stored at the same time.
const PIECES_AT_ONCE: usize = 4;

/// What is known of a name.
#[derive(Debug, Clone)]
pub(super) struct Meta {
    pub(super) name: String,
    pub(super) bytes: u64,
    /// Nanoseconds since 1970.
    pub(super) modified: u64,
    pub(super) tag: String,
}

/// Where the content of a name is.
#[derive(Debug, Clone)]
pub(super) enum Found {
    Entry(Entry),
    Record(Record, Value),
}

impl Found {
    pub(super) fn meta(&self, name: &str) -> Meta {
        let name = name.to_owned();
        match self {
            Self::Entry(entry) => Meta {
                name,
                bytes: entry.bytes.unwrap_or(0),
                modified: entry.stamp,
                tag: format!("{:016x}", entry.stamp),
            },
            Self::Record(record, value) => {
                Meta { name, bytes: value.bytes(), modified: record.modified, tag: record.nonce.clone() }
            }
        }
    }
}

impl Parts {
    /// Stores a content under a name, durably, over what is there. Returns its tag.
    pub(super) async fn put(&self, name: &str, content: Bytes) -> Reply<String> {
        match self.put_once(name, content.clone()).await {
            // The lease ended meanwhile: now there is another one.
            Err(failure) if failure.word() == Some(Word::Fenced) => self.put_once(name, content).await,
            outcome => outcome,
        }
    }

    async fn put_once(&self, name: &str, content: Bytes) -> Reply<String> {
        let stamp = self.session.stamp();
        let bytes = content.len() as u64;
        if bytes > 0 && bytes <= u64::from(PIECE_BYTES_MAX) {
            let piece =
                NewPiece { name: name.to_owned(), stamp, whole: bytes, from: 0, content, indexed: true };
            self.store_piece(piece).await?;
        } else {
            let pieces = self.store_pieces(name, stamp, bytes, 0, content).await?;
            self.finish(name, stamp, pieces).await?;
        }
        self.reads.forget(name);
        Ok(format!("{stamp:016x}"))
    }

    /// Stores a part of a content, which begins at `from` of it; the name is not there before [`Self::finish`].
    pub(super) async fn store_pieces(
        &self,
        name: &str,
        stamp: u64,
        whole: u64,
        from: u64,
        content: Bytes,
    ) -> Reply<Vec<Stored>> {
        let step = PIECE_BYTES_MAX as usize;
        let cuts =
            (0..content.len()).step_by(step).map(|at| (at, content.slice(at..content.len().min(at + step))));
        let stores = cuts.map(|(at, content)| {
            let (name, from) = (name.to_owned(), from + at as u64);
            self.store_piece(NewPiece { name, stamp, whole, from, content, indexed: false })
        });
        futures::stream::iter(stores).buffered(PIECES_AT_ONCE).try_collect().await
    }

    async fn store_piece(&self, piece: NewPiece) -> Reply<Stored> {
        if piece.name.is_empty() || piece.name.len() > NAME_BYTES_MAX {
            return Err(Failure::Refused(Problem::new(Word::Invalid, "a name has 1 to 1024 bytes")));
        }
        self.writes.store(piece).await.map_err(|failure| (*failure).clone())
    }

    /// Puts the entry of a content whose pieces are stored.
    pub(super) async fn finish(&self, name: &str, stamp: u64, stored: Vec<Stored>) -> Reply<()> {
        if stored.len() > PIECES_MAX {
            return Err(Failure::Refused(Problem::new(Word::Full, "a content has at most 128 GiB")));
        }
        let pieces: Vec<_> = stored.iter().map(|stored| stored.piece).collect();
        let bytes = pieces.iter().map(|piece| u64::from(piece.length)).sum();
        let entry = Entry { stamp, moves: 0, bytes: Some(bytes), pieces };
        // The oldest number: if the lease ended since the first piece was stored, that one may be gone.
        let client = stored.iter().map(|stored| stored.hold.client()).min();
        let inserted = self.session.insert(&[(name.to_owned(), entry.encode())], client).await;
        if inserted.is_err() {
            stored.iter().for_each(|stored| stored.hold.doubt());
        }
        inserted?;
        self.reads.forget(name);
        Ok(())
    }

    /// Creates a name that is not there. `None` if it is; else its tag.
    pub(super) async fn create(&self, name: &str, content: Bytes) -> Reply<Option<String>> {
        if self.entries(&[name.to_owned()]).await?[0].is_some() {
            return Ok(None);
        }
        self.create_record(name, content).await
    }

    async fn entries(&self, names: &[String]) -> Reply<Vec<Option<Entry>>> {
        self.session.find(names).await
    }

    /// What is there under a name.
    pub(super) async fn find(&self, name: &str) -> Reply<Option<Found>> {
        if let Some(entry) = self.entries(&[name.to_owned()]).await?.remove(0) {
            return Ok(Some(Found::Entry(entry)));
        }
        let Some(record) = self.record(name).await? else { return Ok(None) };
        let value = Value::decode(&record)?;
        Ok(Some(Found::Record(record, value)))
    }

    /// As [`Self::find`], for a reader of the content: what lies in memory may do.
    pub(super) async fn find_to_read(&self, name: &str) -> Reply<Option<Found>> {
        let is_immutable = self.immutable.iter().any(|prefix| name.starts_with(prefix));
        match self.reads.at_hand(name).filter(|_| is_immutable) {
            Some(entry) => Ok(Some(Found::Entry(entry))),
            // Who reads such a name has it from a manifest or a node.
            None => match self.find(name).await? {
                None if is_immutable => Ok(self.session.find_at_any(name).await?.map(Found::Entry)),
                found => Ok(found),
            },
        }
    }

    /// Reads a range of the content of `name`, which was found before.
    pub(super) async fn read(&self, name: &str, found: &Found, range: Range<u64>) -> Reply<Bytes> {
        match found {
            Found::Entry(entry) => match self.reads.read(&self.session, entry, range.clone()).await {
                Ok(bytes) => Ok(bytes),
                Err(failure) => {
                    // It may have been moved since then, and its place be in use for something else.
                    self.reads.forget(name);
                    let now = self.entries(&[name.to_owned()]).await?.remove(0);
                    match now.filter(|now| now.stamp == entry.stamp && now.moves > entry.moves) {
                        Some(moved) => self.reads.read(&self.session, &moved, range).await,
                        None => Err(failure),
                    }
                }
            },
            Found::Record(_, Value::Inline(content)) => Ok(content.slice(indices(&range))),
            Found::Record(record, Value::Named { name, bytes, digest }) => {
                let missing = || {
                    let detail = format!("the content of the record `{}` is not there", record.name);
                    Failure::Refused(Problem::new(Word::Damaged, detail))
                };
                let entry = match self.entries(std::slice::from_ref(name)).await?.remove(0) {
                    Some(entry) => entry,
                    None => self.session.find_at_any(name).await?.ok_or_else(missing)?,
                };
                let content = self.reads.read(&self.session, &entry, 0..*bytes).await?;
                if blake3::hash(&content).as_bytes() != digest {
                    return Err(missing());
                }
                Ok(content.slice(indices(&range)))
            }
        }
    }

    /// All names that begin with `prefix`.
    pub(super) async fn list(&self, prefix: &str) -> Reply<Vec<Meta>> {
        let mut found: BTreeMap<String, Found> = BTreeMap::new();
        for record in self.records(prefix).await? {
            let value = Value::decode(&record)?;
            found.insert(record.name.clone(), Found::Record(record, value));
        }
        let entries = self.session.list(prefix).await?;
        found.extend(entries.into_iter().map(|(name, entry)| (name, Found::Entry(entry))));
        let shown = found.into_iter().filter(|(name, _)| !name.starts_with(HIDDEN));
        Ok(shown.map(|(name, found)| found.meta(&name)).collect())
    }

    /// Deletes names; returns which of them were there, in their order.
    pub(super) async fn delete(&self, names: &[String]) -> Reply<Vec<bool>> {
        // The record first: who finds the index empty then finds no record behind it.
        let removed = self.remove_records(names).await?;
        let entries = self.entries(names).await?;
        let stored = names.iter().zip(&entries).filter(|(_, entry)| entry.is_some());
        let tombstones: Vec<_> =
            stored.map(|(name, _)| (name.clone(), Entry::tombstone(self.session.stamp()).encode())).collect();
        self.session.insert(&tombstones, None).await?;
        names.iter().for_each(|name| self.reads.forget(name));
        let mut contents = Vec::new();
        for record in &removed {
            if let Value::Named { name, .. } = Value::decode(record)? {
                contents.push(name);
            }
        }
        if !contents.is_empty() {
            Box::pin(self.delete(&contents)).await?;
        }
        let was_record = |name: &String| removed.iter().any(|record| record.name == *name);
        Ok(names.iter().zip(&entries).map(|(name, entry)| entry.is_some() || was_record(name)).collect())
    }
}

fn indices(range: &Range<u64>) -> Range<usize> {
    let small = |at: u64| usize::try_from(at).expect("a record is short");
    small(range.start)..small(range.end)
}
