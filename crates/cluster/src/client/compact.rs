//! Stores what is in use of a segment elsewhere, so that its space can be used again. formats/cluster.md, section 9.
//!
//! Names are looked at one batch after the other: all holders of each are asked, and all get the same new entry, each
//! in the place of the one that it had. A change by anybody else makes that fail, and the name is looked at again. So
//! a deletion wins, and so does a new content.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use base::Instant;
use futures::stream::{FuturesUnordered, StreamExt as _, TryStreamExt as _};
use proto::cluster::{BatchItem, DeviceId, Entry, Map, Piece, Verdict, judge, slot_of};
use reqwest::Method;

use super::access::ClusterAccess;
use super::directories::read_directories;
use super::form::NewPiece;
use super::hold::Stored;
use super::index::Question;
use super::read::Reads;
use super::session::Session;
use super::write::Writes;
use crate::clock::monotonic;
use crate::http::{Failure, Reply};
use crate::problem::{Problem, Word};
use crate::wire::{EmptiedRequest, Segment, SegmentState};

/// Names that are looked at together.
const BATCH: usize = 256;
/// Pieces that are moved at the same time.
const MOVES_AT_ONCE: usize = 4;
/// How long one batch may take until all its names are settled.
const PATIENCE: Duration = Duration::from_secs(60);

/// How fast contents may be moved: called with the bytes of each before it is read.
pub(crate) type Pace = Arc<dyn Fn(u64) -> Duration + Send + Sync>;

/// Moves everything in use out of segments of `access.group`, and tells the metadata service of each that is empty.
/// One that can't be emptied holds up no others. Returns the first failure.
pub(crate) async fn compact(access: ClusterAccess, segments: &[u64], pace: Pace) -> Reply<()> {
    let session = Session::open(access).await.map_err(|error| Failure::Refused(error.into()))?;
    let writes = Writes::start(&session);
    let mut done = Ok(());
    for &segment in segments {
        done = done.and(empty(&session, &writes, segment, &pace).await);
    }
    writes.finish().await;
    done
}

/// Moves everything in use out of a segment.
async fn empty(session: &Arc<Session>, writes: &Writes, segment: u64, pace: &Pace) -> Reply<()> {
    let found: Segment = session.get(&format!("segments/{segment}")).await?;
    if found.state != SegmentState::Sealed {
        return Ok(());
    }
    let mut names = Vec::new();
    let mut known = BTreeSet::new();
    // In the order in which they lie there: what was stored together stays together.
    read_directories(session, &found, |item, _| {
        if known.insert(item.name.clone()) {
            names.push(item.name);
        }
    })
    .await?;
    let work = Compaction { segment, session, writes, reads: Arc::default(), pace: Arc::clone(pace) };
    for batch in names.chunks(BATCH) {
        work.settle(batch).await?;
    }
    let emptied = EmptiedRequest { client: session.client() };
    session.tell(Method::POST, &format!("segments/{segment}/emptied"), &emptied).await
}

struct Compaction<'a> {
    segment: u64,
    session: &'a Arc<Session>,
    writes: &'a Writes,
    reads: Arc<Reads>,
    pace: Pace,
}

/// What a holder has of each name of a batch; empty if it never had any.
type Held = BTreeMap<DeviceId, Vec<u8>>;
/// A name by its place in the batch, what a holder has of it, and what it is to get.
type Replacement = (usize, Vec<u8>, Vec<u8>);
/// Where pieces went, by where they were.
type Moved = HashMap<(u64, u32), Stored>;

impl Compaction<'_> {
    /// Moves what these names have in the segment.
    async fn settle(&self, names: &[String]) -> Reply<()> {
        let end = monotonic() + PATIENCE;
        let mut left: Vec<String> = names.to_vec();
        let mut moved = Moved::new();
        loop {
            let map = self.session.map();
            match self.try_to_settle(&map, &left, &mut moved).await {
                Ok(unsettled) if unsettled.is_empty() => return Ok(()),
                Ok(unsettled) => {
                    left = unsettled;
                    self.rest(&map, end, None).await?;
                }
                Err(failure) => self.rest(&map, end, Some(failure)).await?,
            }
        }
    }

    async fn rest(&self, map: &Map, end: Instant, failure: Option<Failure>) -> Reply<()> {
        let changes = || Failure::Unreachable("names change faster than they can be moved".to_owned());
        match failure {
            // What was stored under a lease that has ended may not be named.
            Some(failure) if failure.word() == Some(Word::Fenced) => Err(failure),
            failure => self.session.rest(map, end).await.map_err(|()| failure.unwrap_or_else(changes)),
        }
    }

    /// Does what can be done under one map. Returns the names that others changed meanwhile.
    async fn try_to_settle(&self, map: &Map, names: &[String], moved: &mut Moved) -> Reply<Vec<String>> {
        if !map.is_index_whole() {
            let detail = "not all holders of the index have everything: compaction waits for them";
            return Err(Failure::Unreachable(detail.to_owned()));
        }
        let held = self.ask_all(map, names).await?;
        let mut replacements: BTreeMap<DeviceId, Vec<Replacement>> = BTreeMap::new();
        for (at, (name, held)) in names.iter().zip(&held).enumerate() {
            let entries = held.values().map(|held| decode(name, held)).collect::<Reply<Vec<_>>>()?;
            let Verdict::Replace(entry) = judge(self.segment, &entries) else { continue };
            let entry = self.store_elsewhere(name, entry, moved).await?.encode();
            for (&device, old) in held {
                replacements.entry(device).or_default().push((at, old.clone(), entry.clone()));
            }
        }
        self.replace_all(map, names, replacements, moved).await
    }

    /// What all holders of each name have.
    async fn ask_all(&self, map: &Map, names: &[String]) -> Reply<Vec<Held>> {
        let mut questions: BTreeMap<DeviceId, Vec<usize>> = BTreeMap::new();
        for (at, name) in names.iter().enumerate() {
            for holder in map.holders(slot_of(name)) {
                questions.entry(holder.device).or_default().push(at);
            }
        }
        let ask = |(device, chosen): (DeviceId, Vec<usize>)| async move {
            let items = chosen.iter().map(|&at| self.item(&names[at], Vec::new())).collect::<Vec<_>>();
            Ok((
                device,
                self.session.ask_index(map, device, Question::Get { old: false }, &items).await?,
                chosen,
            ))
        };
        let mut answers: FuturesUnordered<_> = questions.into_iter().map(ask).collect();
        let mut held = vec![Held::new(); names.len()];
        while let Some((device, answer, chosen)) = answers.try_next().await? {
            for (at, item) in chosen.into_iter().zip(answer) {
                held[at].insert(device, item.entry);
            }
        }
        Ok(held)
    }

    /// The entry with other pieces in the place of those in the segment.
    async fn store_elsewhere(&self, name: &str, entry: Entry, moved: &mut Moved) -> Reply<Entry> {
        let places: Vec<(u64, Piece)> =
            entry.pieces_in(self.segment).map(|(from, piece)| (from, *piece)).collect();
        let missing = places.into_iter().filter(|(_, piece)| !moved.contains_key(&place(piece)));
        let stores: Vec<_> =
            missing.map(|(from, piece)| self.store_piece(name, &entry, from, piece)).collect();
        let stored: Vec<_> = futures::stream::iter(stores).buffered(MOVES_AT_ONCE).try_collect().await?;
        moved.extend(stored);
        let pieces = entry.pieces.iter().map(|piece| match piece.segment == self.segment {
            true => moved[&place(piece)].piece,
            false => *piece,
        });
        Ok(Entry { pieces: pieces.collect(), ..entry })
    }

    async fn store_piece(
        &self,
        name: &str,
        entry: &Entry,
        from: u64,
        piece: Piece,
    ) -> Reply<((u64, u32), Stored)> {
        tokio::time::sleep((self.pace)(u64::from(piece.length))).await;
        let content = self.reads.whole_piece(self.session, piece).await?;
        let (name, stamp) = (name.to_owned(), entry.stamp);
        let whole = entry.bytes.unwrap_or(0);
        let new = NewPiece { name, stamp, whole, from, content, indexed: false };
        let stored = self.writes.store(new).await.map_err(|failure| (*failure).clone())?;
        Ok((place(&piece), stored))
    }

    /// Returns the names of which a holder did not have what it was asked to replace.
    async fn replace_all(
        &self,
        map: &Map,
        names: &[String],
        replacements: BTreeMap<DeviceId, Vec<Replacement>>,
        moved: &Moved,
    ) -> Reply<Vec<String>> {
        let oldest = moved.values().map(|stored| stored.hold.client()).min();
        let replace = |(device, pairs): (DeviceId, Vec<Replacement>)| async move {
            let both = pairs.iter().flat_map(|(at, old, new)| {
                [self.item(&names[*at], old.clone()), self.item(&names[*at], new.clone())]
            });
            let question = Question::Replace { opened_as: oldest };
            let now = self.session.ask_index(map, device, question, &both.collect::<Vec<_>>()).await?;
            let differs = pairs.iter().zip(now).filter(|((_, _, new), now)| now.entry != *new);
            Ok::<_, Failure>(differs.map(|((at, ..), _)| *at).collect::<Vec<_>>())
        };
        let mut answers: FuturesUnordered<_> = replacements.into_iter().map(replace).collect();
        let mut unsettled = BTreeSet::new();
        while let Some(changed) = answers.try_next().await? {
            unsettled.extend(changed);
        }
        Ok(unsettled.into_iter().map(|at: usize| names[at].clone()).collect())
    }

    fn item(&self, name: &str, entry: Vec<u8>) -> BatchItem {
        BatchItem { group: self.session.group(), name: name.to_owned(), entry }
    }
}

fn place(piece: &Piece) -> (u64, u32) {
    (piece.run.at, piece.offset)
}

fn decode(name: &str, held: &[u8]) -> Reply<Option<Entry>> {
    let wrong = |_| {
        let detail = format!("the entry of `{name}` can't be read");
        Failure::Refused(Problem::new(Word::Damaged, detail))
    };
    (!held.is_empty()).then(|| Entry::decode(held).map_err(wrong)).transpose()
}
