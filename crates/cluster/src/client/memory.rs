//! What a client remembers of records, so that programs that run go on reading while no metadata service answers.
//!
//! It may be older than what the service knows, by other clients' changes since it was learnt. So it is for reading
//! alone: who changes something does not rely on it (`Session::reads_old`).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

use base::Instant;
use parking_lot::Mutex;

use crate::wire::Record;

/// All records are asked for again after so long.
const LOOK_EVERY: Duration = Duration::from_secs(600);
/// Records that are remembered. More are not asked for in advance.
pub(super) const RECORDS_MAX: usize = 50_000;
/// Prefixes that were listed and are remembered.
const LISTED_MAX: usize = 1024;

/// Records, as they were when the service told of them last.
#[derive(Debug, Default)]
pub(super) struct Memory(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    records: BTreeMap<String, Record>,
    /// Names without a record.
    absent: BTreeSet<String>,
    /// All records that begin with one of these are among `records`.
    listed: BTreeSet<String>,
    /// When all records were asked for last.
    looked: Option<Instant>,
}

impl Known {
    fn is_listed(&self, name: &str) -> bool {
        self.listed.iter().any(|prefix| name.starts_with(prefix))
    }

    fn below<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a String, &'a Record)> {
        let from = (Bound::Included(prefix), Bound::Unbounded);
        self.records.range::<str, _>(from).take_while(move |(name, _)| name.starts_with(prefix))
    }

    fn make_room(&mut self) {
        let names = self.records.len() + self.absent.len();
        if names > RECORDS_MAX || self.listed.len() > LISTED_MAX {
            self.records.clear();
            self.absent.clear();
            self.listed.clear();
        }
    }
}

impl Memory {
    /// Whether it is time to ask for all records at `now`; the next time is then later.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        let mut known = self.0.lock();
        let due = known.looked.is_none_or(|looked| now.since(looked) >= LOOK_EVERY);
        if due {
            known.looked = Some(now);
        }
        due
    }

    /// The service said what is under a name.
    pub(super) fn learn(&self, name: &str, record: Option<&Record>) {
        let mut known = self.0.lock();
        match record {
            Some(record) => {
                known.make_room();
                known.absent.remove(name);
                known.records.insert(name.to_owned(), record.clone());
            }
            None => {
                known.make_room();
                known.records.remove(name);
                known.absent.insert(name.to_owned());
            }
        }
    }

    /// The service listed all records that begin with `prefix`.
    pub(super) fn learn_all(&self, prefix: &str, records: &[Record]) {
        let mut known = self.0.lock();
        known.make_room();
        let old: Vec<_> = known.below(prefix).map(|(name, _)| name.clone()).collect();
        for name in old {
            known.records.remove(&name);
        }
        known.absent.retain(|name| !name.starts_with(prefix));
        known.listed.retain(|listed| !listed.starts_with(prefix));
        known.listed.insert(prefix.to_owned());
        known.records.extend(records.iter().map(|record| (record.name.clone(), record.clone())));
    }

    /// What was under a name, if that is known.
    pub(super) fn get(&self, name: &str) -> Option<Option<Record>> {
        let known = self.0.lock();
        match known.records.get(name) {
            Some(record) => Some(Some(record.clone())),
            None => (known.absent.contains(name) || known.is_listed(name)).then_some(None),
        }
    }

    /// All records that began with `prefix`, if they are known.
    pub(super) fn list(&self, prefix: &str) -> Option<Vec<Record>> {
        let known = self.0.lock();
        known.is_listed(prefix).then(|| known.below(prefix).map(|(_, record)| record.clone()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(name: &str) -> Record {
        Record { name: name.to_owned(), value: "AA==".to_owned(), nonce: String::new(), modified: 1 }
    }

    #[test]
    fn what_was_told_is_known_and_nothing_else() {
        let memory = Memory::default();
        assert_eq!((memory.get("a/1"), memory.list("a/")), (None, None));
        memory.learn("a/1", Some(&record("a/1")));
        memory.learn("a/2", None);
        assert_eq!(memory.get("a/1"), Some(Some(record("a/1"))));
        assert_eq!((memory.get("a/2"), memory.get("a/22")), (Some(None), None));
        assert_eq!(memory.list("a/"), None, "there may be others");
        memory.learn_all("a/", &[record("a/2"), record("a/7")]);
        assert_eq!((memory.get("a/1"), memory.get("a/2")), (Some(None), Some(Some(record("a/2")))));
        assert_eq!(memory.list("a/7"), Some(vec![record("a/7")]));
        assert_eq!((memory.list("a"), memory.list("")), (None, None));
        memory.learn_all("", &[record("b")]);
        assert_eq!((memory.list(""), memory.get("a/7")), (Some(vec![record("b")]), Some(None)));
    }

    #[test]
    fn all_is_asked_for_from_time_to_time() {
        let at = |seconds: u64| Instant(seconds * 1_000_000_000);
        let memory = Memory::default();
        assert!(memory.is_due(at(5)) && !memory.is_due(at(6)) && !memory.is_due(at(604)));
        assert!(memory.is_due(at(605)) && !memory.is_due(at(606)));
    }
}
