//! Records: names with small values, of which only one client can create each. formats/cluster.md, section 7.

use base::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use super::cluster::{Metadata, parse};
use super::engine::{Condition, Write};
use crate::wire::{PutMode, Record, RecordList, RecordName, RecordNames, RecordRequest, Records};

/// Longest value, in base64: 1 KiB of bytes. Longer ones are objects that a record names.
const VALUE_TEXT_MAX: usize = 1024 * 4 / 3 + 4;
/// Most records in one answer.
const LIST_MAX: usize = 1000;

/// What the engine keeps of a record.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    value: String,
    nonce: String,
    modified: u64,
}

fn prefix(group: u32) -> String {
    format!("record/{group:08x}/")
}

fn key(group: u32, name: &str) -> String {
    format!("{}{name}", prefix(group))
}

impl Metadata {
    /// Puts a record. `Exists` if there is one, and it was to be created.
    pub(super) fn put_record(&self, request: &RecordRequest) -> Result<()> {
        let invalid = |what: &str| Err(Error::new(ErrorKind::Invalid, what));
        if request.value.len() > VALUE_TEXT_MAX {
            return invalid("a record has at most 1 KiB; longer content is an object that a record names");
        }
        if request.name.is_empty() || request.name.len() > proto::cluster::NAME_BYTES_MAX {
            return invalid("the name of a record has 1 to 1024 bytes");
        }
        let kept =
            Kept { value: request.value.clone(), nonce: request.nonce.clone(), modified: self.now_ns() };
        let text = serde_json::to_vec(&kept).expect("it is plain data");
        let key = key(request.group, &request.name);
        let conditions = match request.mode {
            PutMode::Create => vec![Condition::Absent(key.clone())],
            PutMode::Put => Vec::new(),
        };
        if self.engine.commit(&conditions, &[Write::Put(key, text)])? {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Exists, format!("there is a record `{}` already", request.name)))
    }

    pub(super) fn record(&self, name: &RecordName) -> Result<Record> {
        let key = key(name.group, &name.name);
        let missing = || Error::new(ErrorKind::NotFound, format!("there is no record `{}`", name.name));
        let found = self.engine.get(&key)?.ok_or_else(missing)?;
        record(&key, name.name.clone(), &found.value)
    }

    /// Records in order of their names.
    pub(super) fn list_records(&self, wanted: &RecordList) -> Result<Records> {
        let limit = wanted.limit.clamp(1, LIST_MAX);
        let base = prefix(wanted.group);
        let after = if wanted.after.is_empty() { String::new() } else { key(wanted.group, &wanted.after) };
        let mut found = self.engine.list(&format!("{base}{}", wanted.prefix), &after, limit + 1)?;
        let more = found.len() > limit;
        found.truncate(limit);
        let records =
            found.into_iter().map(|(key, stored)| record(&key, key[base.len()..].to_owned(), &stored.value));
        Ok(Records { records: records.collect::<Result<_>>()?, more })
    }

    /// Removes records; returns those that were there.
    pub(super) fn remove_records(&self, wanted: &RecordNames) -> Result<Records> {
        let mut records = Vec::new();
        for name in &wanted.names {
            let key = key(wanted.group, name);
            // Of several that remove a record at the same time, one is told that it did.
            while let Some(found) = self.engine.get(&key)? {
                let condition = Condition::Revision(key.clone(), found.revision);
                if self.engine.commit(&[condition], &[Write::Remove(key.clone())])? {
                    records.push(record(&key, name.clone(), &found.value)?);
                    break;
                }
            }
        }
        Ok(Records { records, more: false })
    }
}

fn record(key: &str, name: String, value: &[u8]) -> Result<Record> {
    let kept: Kept = parse(key, value)?;
    Ok(Record { name, value: kept.value, nonce: kept.nonce, modified: kept.modified })
}
