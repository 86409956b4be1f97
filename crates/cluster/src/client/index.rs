//! Inserts entries into the index, and finds them. formats/cluster.md, section 3.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use base::Instant;
use futures::stream::{FuturesUnordered, StreamExt as _};
use proto::cluster::{
    BatchItem, DeviceId, Entry, Insertion, Map, SLOTS, Step, decode_batch, encode_batch, slot_of,
};
use reqwest::Method;

use super::rights::Need;
use super::session::Session;
use crate::clock::monotonic;
use crate::http::{Failure, Reply, send, send_for_bytes};
use crate::problem::{Problem, Word};
use crate::slots::slots_text;
use crate::wire::{ClientRequest, IndexRequest, IndexRights, MORE_HEADER, OLD_HEADER};

/// How long the index may refuse before a caller hears of it: longer than it takes to replace a device that died.
const PATIENCE: Duration = Duration::from_secs(30);
/// Wait before holders are asked again.
const PAUSE: Duration = Duration::from_millis(100);
/// Longest wait for one holder.
const HOLDER_MAX: Duration = Duration::from_secs(5);
/// Names in one request.
pub(super) const BATCH: usize = 512;
/// Entries in one answer of a listing.
const PAGE: usize = 4096;

/// What is asked of one holder about names.
#[derive(Debug, Clone, Copy)]
pub(super) enum Question {
    /// What it has.
    Get {
        /// It may answer what it had when it was heard by the metadata service last.
        old: bool,
    },
    /// To put an entry in the place of another one, and what it has then.
    Replace {
        /// The number under which the segments were opened that the entries name, if they name new ones.
        opened_as: Option<u64>,
    },
}

/// One part of a listing: a device, and the slots that it answers for.
#[derive(Debug, Clone)]
pub(super) struct Share {
    pub(super) device: DeviceId,
    slots: String,
}

impl Session {
    /// Inserts entries; returns when all holders have them. `client`: the number under which the segments were opened
    /// that they name, if they name any.
    pub(super) async fn insert(&self, entries: &[(String, Vec<u8>)], client: Option<u64>) -> Reply<()> {
        self.begin_change();
        for batch in entries.chunks(BATCH) {
            self.insert_batch(batch, client).await?;
        }
        Ok(())
    }

    async fn insert_batch(&self, entries: &[(String, Vec<u8>)], client: Option<u64>) -> Reply<()> {
        let end = monotonic() + PATIENCE;
        let mut entries = entries.to_vec();
        loop {
            match self.insert_stamped(&entries, client, end).await {
                Err(Failure::Refused(Problem { word: Word::Stale, number: Some(newer), .. }))
                    if monotonic() < end =>
                {
                    // Only the name that has it may go beyond the time: the others keep to it.
                    if entries.len() > 1 && newer > self.now_ns() {
                        for entry in &entries {
                            Box::pin(self.insert_batch(std::slice::from_ref(entry), client)).await?;
                        }
                        return Ok(());
                    }
                    for (_, entry) in &mut entries {
                        entry[..8].copy_from_slice(&self.stamp_above(newer).to_le_bytes());
                    }
                }
                outcome => return outcome,
            }
        }
    }

    async fn insert_stamped(
        &self,
        entries: &[(String, Vec<u8>)],
        client: Option<u64>,
        end: Instant,
    ) -> Reply<()> {
        let mut insertion = Insertion::new(entries.iter().map(|(name, _)| slot_of(name)).collect());
        let mut last = Failure::Unreachable("the index has too few devices".to_owned());
        loop {
            let map = self.map();
            match insertion.start(&map) {
                Step::Done => return Ok(()),
                Step::Send(requests) => {
                    let mut answers: FuturesUnordered<_> = requests
                        .into_iter()
                        .map(|(device, chosen)| self.insert_at(&map, device, (entries, client), chosen))
                        .collect();
                    let mut step = Step::Wait;
                    while let Some((device, answer)) = answers.next().await {
                        match answer {
                            Ok(()) => step = insertion.acknowledged(device, map.epoch),
                            Err(failure) if matches!(failure.word(), Some(Word::Stale | Word::Fenced)) => {
                                return Err(failure);
                            }
                            Err(failure) => last = failure,
                        }
                    }
                    if step == Step::Done {
                        return Ok(());
                    }
                }
                Step::Wait | Step::NeedMap => {}
            }
            self.rest(&map, end).await.map_err(|()| std::mem::replace(&mut last, nothing()))?;
        }
    }

    async fn insert_at(
        &self,
        map: &Map,
        device: DeviceId,
        (entries, client): (&[(String, Vec<u8>)], Option<u64>),
        chosen: Vec<usize>,
    ) -> (DeviceId, Reply<()>) {
        let item = |&at: &usize| BatchItem {
            group: self.group(),
            name: entries[at].0.clone(),
            entry: entries[at].1.clone(),
        };
        let items: Vec<_> = chosen.iter().map(item).collect();
        let insert = async {
            let mut need = Need::of(items.iter().map(|item| item.entry.as_slice()));
            if client.is_none() {
                // What it names, others stored.
                need = Need::Group;
            }
            let rights = self.rights_for(&need, device).await?;
            let request = self.to_device(map, device, Method::POST, "index", Some(&rights));
            self.is_still(client)?;
            send(request.body(encode_batch(&items)).timeout(HOLDER_MAX)).await.map(drop)
        };
        let done = insert.await.inspect_err(|failure| self.rights.refused(failure));
        (device, done)
    }

    /// The capabilities for `device` that entries need, as one header. Those that are not known are asked for: devices
    /// came, or they ended.
    async fn rights_for(&self, need: &Need, device: DeviceId) -> Reply<String> {
        let own = |given: &IndexRights| {
            let unknown = || Failure::Unreachable(format!("the metadata service knows no device {device}"));
            given.capabilities.get(&device).cloned().ok_or_else(unknown)
        };
        let Need::Segments(segments) = need else {
            if let Some(known) = self.rights.to_group(device) {
                return Ok(known);
            }
            let request = ClientRequest { group: self.group() };
            let given: IndexRights = self.ask(&format!("clients/{}/index", self.client()), &request).await?;
            let own = own(&given);
            self.rights.given_group(given.capabilities);
            return own;
        };
        let mut all = Vec::with_capacity(segments.len());
        for &segment in segments {
            if let Some(known) = self.rights.to_segment(segment, device) {
                all.push(known);
                continue;
            }
            let request = IndexRequest { client: self.client() };
            let given: IndexRights = self.ask(&format!("segments/{segment}/index"), &request).await?;
            all.push(own(&given)?);
            self.rights.opened(segment, given.capabilities);
        }
        Ok(all.join(","))
    }

    /// Inserts an entry that was found in a segment, unless the index has one that is as new. Returns whether it had
    /// not.
    pub(super) async fn restore(&self, name: &str, entry: &Entry) -> Reply<bool> {
        let end = monotonic() + PATIENCE;
        // Of a client whose clock was ahead: holders take no such stamp for a name that they do not know.
        let entry = &Entry { stamp: entry.stamp.min(self.now_ns()), ..entry.clone() };
        let known = match self.find(&[name.to_owned()]).await {
            Ok(found) => found[0].as_ref().is_some_and(|found| found.stamp >= entry.stamp),
            // Nobody is ready to tell.
            Err(_) => false,
        };
        match self.insert_stamped(&[(name.to_owned(), entry.encode())], None, end).await {
            Ok(()) => Ok(!known),
            // There is a newer one, or the name was deleted.
            Err(failure) if failure.word() == Some(Word::Stale) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// Gets the map again, after a pause if it is the same. `Err` if the time is over.
    pub(super) async fn rest(&self, map: &Map, end: Instant) -> Result<(), ()> {
        if monotonic() > end {
            return Err(());
        }
        // Also without an answer the old map may do again: a holder came back.
        let _ = self.renew(map.epoch).await;
        if self.map().epoch == map.epoch {
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }

    /// The entries of names, in their order; `None` for one that is not stored.
    pub(super) async fn find(&self, names: &[String]) -> Reply<Vec<Option<Entry>>> {
        let end = monotonic() + PATIENCE;
        let mut found: Vec<Option<Option<Entry>>> = vec![None; names.len()];
        let mut last = Failure::Unreachable("no device answers for this part of the index".to_owned());
        let mut turn = 0;
        loop {
            let map = self.map();
            for (device, chosen) in self.questions(&map, names, &found, turn) {
                match self.find_at(&map, device, names, &chosen).await {
                    Ok(entries) => {
                        chosen.iter().zip(entries).for_each(|(&at, entry)| found[at] = Some(entry))
                    }
                    Err(failure) => {
                        self.suspect_for(device, &failure);
                        last = failure;
                    }
                }
            }
            if found.iter().all(Option::is_some) {
                return Ok(found.into_iter().map(Option::unwrap_or_default).collect());
            }
            turn += 1;
            // Other holders first; after all of them, the map.
            if turn % map.holders_wanted() == 0 {
                self.rest(&map, end).await.map_err(|()| std::mem::replace(&mut last, nothing()))?;
            }
        }
    }

    /// The newest entry that any ready holder has of a name that must be there, since something else names it. A holder
    /// whose disk went back in time does not know what it has lost.
    pub(super) async fn find_at_any(&self, name: &str) -> Reply<Option<Entry>> {
        let map = self.map();
        let items = [BatchItem { group: self.group(), name: name.to_owned(), entry: Vec::new() }];
        let question = Question::Get { old: self.reads_old() };
        let ready = map.holders(slot_of(name)).iter().filter(|holder| holder.is_ready());
        let mut answers: FuturesUnordered<_> =
            ready.map(|holder| self.ask_index(&map, holder.device, question, &items)).collect();
        let mut newest: Option<Entry> = None;
        while let Some(answer) = answers.next().await {
            // What one of them can't tell, another one may.
            let entries = answer.unwrap_or_default();
            for entry in entries.iter().filter_map(|item| Entry::decode(&item.entry).ok()) {
                if newest.as_ref().is_none_or(|newest| newest.version() < entry.version()) {
                    newest = Some(entry);
                }
            }
        }
        Ok(newest.filter(|entry| entry.bytes.is_some()))
    }

    /// A device did not do what it was asked for. Unless a newer map is all that lacks, others are asked first for a
    /// while: they may have other clocks, other keys and sound disks.
    fn suspect_for(&self, device: DeviceId, failure: &Failure) {
        if !matches!(failure.word(), Some(Word::Epoch | Word::NotReady)) {
            self.suspect(device);
        }
    }

    /// Which device to ask for which names, those that are found left out. Another `turn` asks other holders.
    fn questions(
        &self,
        map: &Map,
        names: &[String],
        found: &[Option<Option<Entry>>],
        turn: usize,
    ) -> BTreeMap<DeviceId, Vec<usize>> {
        let mut questions: BTreeMap<DeviceId, Vec<usize>> = BTreeMap::new();
        for (at, name) in names.iter().enumerate().filter(|(at, _)| found[*at].is_none()) {
            if let Some(device) = self.holder(map, slot_of(name), turn) {
                questions.entry(device).or_default().push(at);
            }
        }
        questions
    }

    /// A ready holder of a slot that should be asked.
    fn holder(&self, map: &Map, slot: usize, turn: usize) -> Option<DeviceId> {
        let ready: Vec<_> =
            map.holders(slot).iter().filter(|holder| holder.is_ready()).map(|holder| holder.device).collect();
        let trusted: Vec<_> = ready.iter().copied().filter(|&device| self.is_trusted(map, device)).collect();
        let choice = if trusted.is_empty() { ready } else { trusted };
        // The slot spreads the load over the holders.
        (!choice.is_empty()).then(|| choice[(slot + turn) % choice.len()])
    }

    async fn find_at(
        &self,
        map: &Map,
        device: DeviceId,
        names: &[String],
        chosen: &[usize],
    ) -> Reply<Vec<Option<Entry>>> {
        let item =
            |&at: &usize| BatchItem { group: self.group(), name: names[at].clone(), entry: Vec::new() };
        let items: Vec<_> = chosen.iter().map(item).collect();
        let question = Question::Get { old: self.reads_old() };
        let answer = self.ask_index(map, device, question, &items).await?;
        Ok(answer.iter().map(|item| stored(&item.entry)).collect())
    }

    /// Asks one holder; answers what it has of each name then.
    pub(super) async fn ask_index(
        &self,
        map: &Map,
        device: DeviceId,
        question: Question,
        items: &[BatchItem],
    ) -> Reply<Vec<BatchItem>> {
        let (path, opened_as, names) = match question {
            Question::Get { .. } => ("index/get", None, items.len()),
            Question::Replace { opened_as } => ("index/replace", opened_as, items.len() / 2),
        };
        let rights = match question {
            Question::Get { .. } => None,
            Question::Replace { .. } => Some(self.rights_for(&Need::Group, device).await?),
        };
        let request = self.to_device(map, device, Method::POST, path, rights.as_deref());
        let request = match question {
            Question::Get { old: true } => request.header(OLD_HEADER, "true"),
            _ => request,
        };
        self.is_still(opened_as)?;
        let body = send_for_bytes(request.body(encode_batch(items)).timeout(HOLDER_MAX)).await;
        let body = body.inspect_err(|failure| self.rights.refused(failure))?;
        decode_batch(&body).filter(|answer| answer.len() == names).ok_or_else(no_batch)
    }

    /// Fails if the lease ended since segments were opened as this client. To be called after a request got its
    /// capability: so that of another client is never sent with entries that name these segments.
    fn is_still(&self, opened_as: Option<u64>) -> Reply<()> {
        if opened_as.is_none_or(|client| client == self.client()) {
            return Ok(());
        }
        let detail = "the client's lease in the cluster ended while it stored this: it is to be stored again";
        Err(Failure::Refused(Problem::new(Word::Fenced, detail)))
    }

    /// Who answers for which slots of a listing. Fails if a slot has no ready holder that answers.
    pub(super) fn shares(&self, map: &Map) -> Reply<Vec<Share>> {
        let mut slots: BTreeMap<DeviceId, Vec<usize>> = BTreeMap::new();
        if !map.slots.is_empty() {
            for slot in 0..SLOTS {
                let device = self.holder(map, slot, 0).ok_or_else(|| {
                    Failure::Unreachable(format!("no device answers for slot {slot} of the index"))
                })?;
                slots.entry(device).or_default().push(slot);
            }
        }
        Ok(slots.into_iter().map(|(device, slots)| Share { device, slots: slots_text(&slots) }).collect())
    }

    /// A page of a listing: names and entries behind `after`, and whether there are more.
    pub(super) async fn page(
        &self,
        map: &Map,
        share: &Share,
        prefix: &str,
        after: &str,
    ) -> Reply<(Vec<(String, Entry)>, bool)> {
        let query = [
            ("group", self.group().to_string()),
            ("slots", share.slots.clone()),
            ("prefix", prefix.to_owned()),
            ("after", after.to_owned()),
            ("limit", PAGE.to_string()),
        ];
        let request = self.to_device(map, share.device, Method::GET, "index", None).query(&query);
        let request = if self.reads_old() { request.header(OLD_HEADER, "true") } else { request };
        let answer = send(request.timeout(HOLDER_MAX)).await?;
        let more = answer.headers().get(MORE_HEADER).is_some_and(|more| more == "true");
        let body = answer.bytes().await.map_err(|error| Failure::Unreachable(error.to_string()))?;
        let items = decode_batch(&body).ok_or_else(no_batch)?;
        let entry = |item: BatchItem| stored(&item.entry).map(|entry| (item.name, entry));
        Ok((items.into_iter().filter_map(entry).collect(), more))
    }

    /// Lists all names that begin with `prefix`, by name. The whole listing is under one map: a device that changes it
    /// meanwhile refuses, and the listing begins again.
    pub(super) async fn list(self: &Arc<Self>, prefix: &str) -> Reply<BTreeMap<String, Entry>> {
        let end = monotonic() + PATIENCE;
        loop {
            let map = self.map();
            match self.list_under(&map, prefix).await {
                Ok(found) => return Ok(found),
                Err(failure) => self.rest(&map, end).await.map_err(|()| failure)?,
            }
        }
    }

    async fn list_under(&self, map: &Map, prefix: &str) -> Reply<BTreeMap<String, Entry>> {
        let mut found = BTreeMap::new();
        let mut shares: FuturesUnordered<_> =
            self.shares(map)?.into_iter().map(|share| self.list_share(map, share, prefix)).collect();
        while let Some(part) = shares.next().await {
            found.extend(part?);
        }
        Ok(found)
    }

    async fn list_share(&self, map: &Map, share: Share, prefix: &str) -> Reply<HashMap<String, Entry>> {
        let mut found = HashMap::new();
        let mut after = String::new();
        loop {
            let page = self.page(map, &share, prefix, &after).await;
            if let Err(failure) = &page {
                self.suspect_for(share.device, failure);
            }
            let (items, more) = page?;
            let Some((last, _)) = items.last() else { return Ok(found) };
            after.clone_from(last);
            found.extend(items);
            if !more {
                return Ok(found);
            }
        }
    }
}

/// The entry in an answer, unless the name is not there or was deleted.
fn stored(entry: &[u8]) -> Option<Entry> {
    Entry::decode(entry).ok().filter(|entry| entry.bytes.is_some())
}

fn no_batch() -> Failure {
    Failure::Unreachable("the answer is not a batch of names".to_owned())
}

fn nothing() -> Failure {
    Failure::Unreachable(String::new())
}

/// Whether a failure says that another map, or other capabilities, may help.
pub(super) fn wants_renewal(failure: &Failure) -> bool {
    matches!(
        failure.word(),
        Some(Word::Epoch | Word::Capability | Word::Expired | Word::NotReady | Word::NoLease)
    )
}
