//! Reads the master file table: finds its clusters, and goes through its records.

use base::wire::Reader;

use super::super::{Why, require};
use super::Boot;
use super::record::{self, DATA, LIST, Record, Run, Value};
use crate::volume::Volume;

/// Bytes of the table that one read takes: a multiple of each length of a record.
const PIECE_BYTES: u64 = 1 << 20;
/// An attribute list has at most this many bytes.
const LIST_BYTES_MAX: u64 = 256 << 10;

/// The clusters of a value, one after the other.
pub(super) struct Stream<'a, 'v> {
    boot: &'a Boot,
    volume: &'a Volume<'v>,
    runs: Vec<Run>,
    pub(super) bytes: u64,
}

impl<'a, 'v> Stream<'a, 'v> {
    pub(super) fn new(
        boot: &'a Boot,
        volume: &'a Volume<'v>,
        runs: Vec<Run>,
        bytes: u64,
    ) -> Result<Self, Why> {
        let stream = Self { boot, volume, runs, bytes };
        require(stream.runs.iter().all(|&run| boot.has(run)), || {
            "a file has clusters that the volume does not have".to_owned()
        })?;
        Ok(stream)
    }

    fn clusters(&self) -> u64 {
        self.runs.iter().map(|(_, count)| count).sum()
    }

    /// Fills `buf` from byte `offset` on.
    pub(super) fn read(&self, mut buf: &mut [u8], offset: u64) -> Result<(), Why> {
        let cluster = self.boot.cluster_bytes;
        let (mut skip, mut at) = (offset, 0);
        while !buf.is_empty() {
            let &(first, count) = self
                .runs
                .get(at)
                .ok_or_else(|| Why::Whole("the clusters of a file are not as many as it says".to_owned()))?;
            at += 1;
            let len = count * cluster;
            if skip >= len {
                skip -= len;
                continue;
            }
            let part_len = usize::try_from(len - skip).unwrap_or(usize::MAX).min(buf.len());
            let (part, rest) = buf.split_at_mut(part_len);
            match first {
                Some(first) => self.volume.read(part, first * cluster + skip)?,
                None => part.fill(0),
            }
            (buf, skip) = (rest, 0);
        }
        Ok(())
    }

    /// All its bytes, at most `most`.
    pub(super) fn contents(&self, most: u64) -> Result<Vec<u8>, Why> {
        require(self.bytes <= most, || "a file of the filesystem itself is too long".to_owned())?;
        let mut bytes = vec![0; usize::try_from(self.bytes).expect("bounded by the caller")];
        self.read(&mut bytes, 0)?;
        Ok(bytes)
    }
}

/// The master file table.
pub(super) struct Table<'a, 'v> {
    pub(super) stream: Stream<'a, 'v>,
}

impl<'a, 'v> Table<'a, 'v> {
    pub(super) fn open(boot: &'a Boot, volume: &'a Volume<'v>) -> Result<Self, Why> {
        let mut bytes = vec![0; boot.record_bytes];
        volume.read(&mut bytes, boot.table * boot.cluster_bytes)?;
        let (runs, initialized, list) = {
            let own = Record::parse(&mut bytes, 0)?;
            let own = own.ok_or_else(|| Why::Whole("its file table has no record of itself".to_owned()))?;
            let (mut found, mut list) = (None, None);
            for attribute in own.attributes()? {
                match (attribute.kind, attribute.value) {
                    (DATA, Value::Elsewhere { first: 0, initialized, runs }) if attribute.name.is_empty() => {
                        found = Some((runs, initialized));
                    }
                    (LIST, Value::Here(value)) => list = Some(value.to_vec()),
                    (LIST, Value::Elsewhere { initialized, runs, .. }) => {
                        list = Some(Stream::new(boot, volume, runs, initialized)?.contents(LIST_BYTES_MAX)?);
                    }
                    _ => {}
                }
            }
            let (runs, initialized) =
                found.ok_or_else(|| Why::Whole("its file table has no clusters".to_owned()))?;
            (runs, initialized, list)
        };
        let mut table = Self { stream: Stream::new(boot, volume, runs, initialized)? };
        if let Some(list) = list {
            table.extend(boot, volume, &list)?;
        }
        let has = table.stream.clusters().saturating_mul(boot.cluster_bytes);
        require(initialized <= has, || "its file table has too few clusters".to_owned())?;
        Ok(table)
    }

    /// Adds the clusters that other records tell, in the order of the list. The records lie in those that are known.
    fn extend(&mut self, boot: &'a Boot, volume: &'a Volume<'v>, list: &[u8]) -> Result<(), Why> {
        let mut at = 0;
        while at < list.len() {
            let mut reader = Reader::new(&list[at..]);
            let (kind, len) = (reader.u32()?, usize::from(reader.u16()?));
            let name_len = reader.u8()?;
            reader.u8()?;
            let (first, number) = (reader.u64()?, reader.u64()? & record::NUMBER_BITS);
            require(len >= 26, || "the list of its file table's attributes is damaged".to_owned())?;
            at += len;
            if kind == DATA && name_len == 0 && first > 0 {
                let mut bytes = vec![0; boot.record_bytes];
                self.read_record(number, &mut bytes)?;
                let mut runs = runs_from(&mut bytes, number, first)?;
                require(first == self.stream.clusters(), || {
                    "the pieces of its file table do not follow each other".to_owned()
                })?;
                let mut all = std::mem::take(&mut self.stream.runs);
                all.append(&mut runs);
                self.stream = Stream::new(boot, volume, all, self.stream.bytes)?;
            }
        }
        Ok(())
    }

    pub(super) fn read_record(&self, number: u64, bytes: &mut [u8]) -> Result<(), Why> {
        let offset = number.checked_mul(bytes.len() as u64);
        let offset = offset.filter(|&offset| offset + bytes.len() as u64 <= self.stream.bytes);
        let offset = offset.ok_or_else(|| Why::Whole(format!("its file table has no record {number}")))?;
        self.stream.read(bytes, offset)
    }

    /// Calls `visit` with the number of each record in use, and the record.
    pub(super) fn visit(&self, mut visit: impl FnMut(u64, &Record) -> Result<(), Why>) -> Result<(), Why> {
        let record_bytes = self.stream.boot.record_bytes;
        let end = self.stream.bytes / record_bytes as u64 * record_bytes as u64;
        let mut piece = Vec::new();
        let (mut offset, mut number) = (0, 0);
        while offset < end {
            piece.resize(usize::try_from(PIECE_BYTES.min(end - offset)).expect("a piece"), 0);
            self.stream.read(&mut piece, offset)?;
            for bytes in piece.chunks_exact_mut(record_bytes) {
                if let Some(record) = Record::parse(bytes, number)? {
                    visit(number, &record)?;
                }
                number += 1;
            }
            offset += piece.len() as u64;
        }
        Ok(())
    }
}

/// The clusters of the table that another record tells.
fn runs_from(bytes: &mut [u8], number: u64, wanted: u64) -> Result<Vec<Run>, Why> {
    let missing = || Why::Whole(format!("file record {number} lacks a piece of the file table"));
    let record = Record::parse(bytes, number)?.ok_or_else(missing)?;
    for attribute in record.attributes()? {
        if let (DATA, true, Value::Elsewhere { first, runs, .. }) =
            (attribute.kind, attribute.name.is_empty(), attribute.value)
            && first == wanted
        {
            return Ok(runs);
        }
    }
    Err(missing())
}
