//! Records: names that only one client can create, kept by the metadata service. Long ones are objects that a record
//! names. formats/cluster.md, section 7.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use reqwest::Method;

use super::Parts;
use super::memory::RECORDS_MAX;
use super::session::Session;
use crate::http::{Failure, Reply};
use crate::problem::{Problem, Word};
use crate::token::random;
use crate::wire::{PutMode, Record, RecordList, RecordName, RecordNames, RecordRequest, Records};

/// Longest content that stands in the record itself.
const INLINE_MAX: usize = 1023;
const INLINE: u8 = 0;
const NAMED: u8 = 1;
/// What the names of objects that hold the content of records begin with; listings leave them out.
pub(super) const HIDDEN: char = '~';
/// Records in one answer.
const PAGE: usize = 1000;

/// What a record says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    /// The content.
    Inline(Bytes),
    /// The object with the content, its length and its BLAKE3.
    Named { name: String, bytes: u64, digest: [u8; 32] },
}

impl Value {
    fn encode(&self) -> String {
        let bytes = match self {
            Self::Inline(content) => [&[INLINE], &content[..]].concat(),
            Self::Named { name, bytes, digest } => {
                [&[NAMED][..], &bytes.to_le_bytes(), digest, name.as_bytes()].concat()
            }
        };
        BASE64.encode(bytes)
    }

    pub(super) fn decode(record: &Record) -> Reply<Self> {
        let read = || {
            let bytes = BASE64.decode(&record.value).ok()?;
            match bytes.split_first()? {
                (&INLINE, content) => Some(Self::Inline(Bytes::copy_from_slice(content))),
                (&NAMED, rest) => {
                    let (length, rest) = rest.split_first_chunk::<8>()?;
                    let (digest, name) = rest.split_first_chunk::<32>()?;
                    let name = String::from_utf8(name.to_vec()).ok()?;
                    Some(Self::Named { name, bytes: u64::from_le_bytes(*length), digest: *digest })
                }
                _ => None,
            }
        };
        let wrong = || Problem::new(Word::Damaged, format!("the record `{}` can't be read", record.name));
        read().ok_or_else(|| Failure::Refused(wrong()))
    }

    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Inline(content) => content.len() as u64,
            Self::Named { bytes, .. } => *bytes,
        }
    }
}

impl Parts {
    /// Creates a record, if there is none; `false` if there is. `nonce` tells after a lost reply whose it is.
    pub(super) async fn create_record(&self, name: &str, content: Bytes) -> Reply<Option<String>> {
        let value = if content.len() <= INLINE_MAX {
            Value::Inline(content)
        } else {
            let hidden = format!("{HIDDEN}{}", fresh()?);
            let (bytes, digest) = (content.len() as u64, *blake3::hash(&content).as_bytes());
            // Durable under its own name before anybody can find it.
            self.put(&hidden, content).await?;
            Value::Named { name: hidden, bytes, digest }
        };
        let nonce = fresh()?;
        self.session.begin_change();
        let request = RecordRequest {
            group: self.session.group(),
            name: name.to_owned(),
            value: value.encode(),
            nonce: nonce.clone(),
            mode: PutMode::Create,
        };
        let told = self.session.tell(Method::PUT, "records", &request).await;
        let created = match told {
            Ok(()) => true,
            // Perhaps only the answer was lost, of this request or of one that was sent again.
            Err(failure) => match self.record(name).await? {
                Some(record) => record.nonce == nonce,
                None => return Err(failure),
            },
        };
        if !created && let Value::Named { name, .. } = value {
            // Nobody names it. It only takes room if it stays.
            let _ = self.delete(&[name]).await;
        }
        Ok(created.then_some(nonce))
    }

    /// The record of a name.
    pub(super) async fn record(&self, name: &str) -> Reply<Option<Record>> {
        if self.session.reads_old()
            && let Some(known) = self.session.memory.get(name)
        {
            return Ok(known);
        }
        let wanted = RecordName { group: self.session.group(), name: name.to_owned() };
        let found: Option<Record> = match self.session.ask("records/get", &wanted).await {
            Ok(record) => Some(record),
            Err(failure) if failure.word() == Some(Word::Missing) => None,
            Err(failure) => {
                let known = self.session.reads_old().then(|| self.session.memory.get(name)).flatten();
                return known.ok_or(failure);
            }
        };
        self.session.memory.learn(name, found.as_ref());
        Ok(found)
    }

    /// All records whose names begin with `prefix`, by name.
    pub(super) async fn records(&self, prefix: &str) -> Reply<Vec<Record>> {
        let session = &self.session;
        let known = || session.reads_old().then(|| session.memory.list(prefix)).flatten();
        if let Some(known) = known() {
            return Ok(known);
        }
        match session.records(prefix, usize::MAX).await {
            Ok(found) => {
                session.memory.learn_all(prefix, &found);
                Ok(found)
            }
            Err(failure) => known().ok_or(failure),
        }
    }

    /// Removes records; returns those that were there.
    pub(super) async fn remove_records(&self, names: &[String]) -> Reply<Vec<Record>> {
        self.session.begin_change();
        let wanted = RecordNames { group: self.session.group(), names: names.to_vec() };
        let removed: Records = self.session.ask("records/remove", &wanted).await?;
        Ok(removed.records)
    }
}

impl Session {
    /// All records whose names begin with `prefix`, by name; about `enough` of them, if there are more.
    async fn records(&self, prefix: &str, enough: usize) -> Reply<Vec<Record>> {
        let mut found = Vec::new();
        let mut after = String::new();
        loop {
            let (group, prefix) = (self.group(), prefix.to_owned());
            let wanted = RecordList { group, prefix, after, limit: PAGE };
            let page: Records = self.ask("records/list", &wanted).await?;
            after = page.records.last().map(|record| record.name.clone()).unwrap_or_default();
            found.extend(page.records);
            if !page.more || found.len() >= enough {
                return Ok(found);
            }
        }
    }

    /// Asks for all records, for the time when nobody can be asked.
    pub(super) async fn remember_records(&self) {
        if let Ok(found) = self.records("", RECORDS_MAX).await
            && found.len() < RECORDS_MAX
        {
            self.memory.learn_all("", &found);
        }
    }
}

/// 128 random bits in hexadecimal.
fn fresh() -> Reply<String> {
    random::<16>().map(|bytes| base::hex::encode(&bytes)).map_err(|error| Failure::Refused(error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_survive_their_text() {
        let named = Value::Named { name: "~ab".to_owned(), bytes: 70_000, digest: [7; 32] };
        for value in [Value::Inline(Bytes::new()), Value::Inline(Bytes::from_static(b"abc")), named] {
            let record =
                Record { name: "a".to_owned(), value: value.encode(), nonce: String::new(), modified: 0 };
            assert_eq!(Value::decode(&record).unwrap(), value);
        }
        for wrong in ["", "Ag==", "AQ==", "?"] {
            let record =
                Record { name: "a".to_owned(), value: wrong.to_owned(), nonce: String::new(), modified: 0 };
            assert!(Value::decode(&record).is_err(), "{wrong}");
        }
    }
}
