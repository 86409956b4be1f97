//! Goes through all files: checks that their clusters are marked in the bitmap, and takes out the contents that no
//! system needs, and the clusters that are listed as bad.

use super::super::bitmap::{self, find};
use super::super::{Why, require};
use super::record::{Attribute, DATA, FILE_NAME, Record, Run, VOLUME_INFORMATION, VOLUME_NAME, Value};
use super::table::{Stream, Table};
use super::{Boot, log};
use crate::volume::Volume;

/// Numbers of files that are always there.
const LOG: u64 = 2;
pub(super) const VOLUME: u64 = 3;
const ROOT: u64 = 5;
const BITMAP: u64 = 6;
/// The file whose stream of this name has the bad clusters, in their places: the volume with holes where it is good.
const BAD_CLUSTERS: u64 = 8;
const BAD: &[u8] = b"$\0B\0a\0d\0";

/// Files in the root folder whose contents are worthless after a restart.
const WORTHLESS: [&str; 3] = ["pagefile.sys", "swapfile.sys", "hiberfil.sys"];
const HIBERNATION: &str = "hiberfil.sys";
/// Flags of a volume that ntfs-3g does not mount for writing: it must be checked, upgraded, or its journal resized.
const NOT_CLEAN: u16 = 0xC027;

/// The bitmap of clusters without those whose contents are left out; bit 0 is the first cluster.
pub(super) fn checked_bitmap(boot: &Boot, volume: &Volume) -> Result<Vec<u8>, Why> {
    let table = Table::open(boot, volume)?;
    check_state(boot, volume, &table)?;
    let needed = boot.clusters().div_ceil(8);
    let own = data_of(boot, volume, &table, BITMAP)?;
    require(own.bytes >= needed, || "its bitmap has not one bit for each cluster".to_owned())?;
    let mut map = vec![0; usize::try_from(needed).map_err(|_| Why::Whole("it is too large".to_owned()))?];
    own.read(&mut map, 0)?;
    let (mut worthless, mut data) = (Vec::new(), Vec::new());
    table.visit(|number, record| {
        let file = record.base.unwrap_or(number);
        let attributes = record.attributes()?;
        let names = attributes.iter().filter_map(|attribute| match attribute.value {
            Value::Here(value) if attribute.kind == FILE_NAME => Some(worthless_name(value)),
            _ => None,
        });
        let names: Vec<Option<&str>> = names.collect();
        // What has another name is no such file. A record without names is a part of a file that is told elsewhere.
        let may_be = names.is_empty() || record.base.is_some() || names.iter().any(Option::is_some);
        worthless.extend(names.into_iter().flatten().map(|name| (file, name)));
        for Attribute { kind, name, value } in attributes {
            let Value::Elsewhere { first, runs, .. } = value else { continue };
            runs.iter().try_for_each(|&run| check_marked(boot, &map, run, number))?;
            if file == BAD_CLUSTERS && kind == DATA && name == BAD {
                // Now, so that a file that is said to have one of them is noticed.
                clear(&mut map, &runs);
            } else if may_be && kind == DATA && name.is_empty() {
                data.push((file, first, runs));
            }
        }
        Ok(())
    })?;
    for (file, first, runs) in data {
        let Some((_, name)) = worthless.iter().find(|(of, _)| *of == file) else { continue };
        if *name == HIBERNATION && first == 0 {
            check_awake(boot, volume, runs.first())?;
        }
        clear(&mut map, &runs);
    }
    Ok(map)
}

/// The label of the volume, from the record of `$Volume`.
pub(super) fn label(record: &Record) -> Result<Option<String>, Why> {
    let attributes = record.attributes()?;
    let name = attributes.iter().find(|attribute| attribute.kind == VOLUME_NAME);
    Ok(name.and_then(|name| match name.value {
        Value::Here(value) => Some(letters(value)).filter(|text| !text.is_empty()),
        Value::Elsewhere { .. } => None,
    }))
}

/// Checks the flags of the volume, and the journal.
fn check_state(boot: &Boot, volume: &Volume, table: &Table) -> Result<(), Why> {
    let mut bytes = vec![0; boot.record_bytes];
    table.read_record(VOLUME, &mut bytes)?;
    let record = Record::parse(&mut bytes, VOLUME)?;
    let attributes = record.map_or_else(|| Ok(Vec::new()), |record| record.attributes())?;
    let told = attributes.iter().find_map(|attribute| match attribute.value {
        Value::Here(value) if attribute.kind == VOLUME_INFORMATION => value.get(8..12)?.first_chunk::<4>(),
        _ => None,
    });
    let &[major, minor, low, high] =
        told.ok_or_else(|| Why::Whole("it does not tell its version".to_owned()))?;
    require(major == 3 || (major, minor) == (1, 2), || {
        format!("it is of the unknown version {major}.{minor}")
    })?;
    let flags = u16::from_le_bytes([low, high]);
    require(flags & NOT_CLEAN == 0, || "it is marked for a check, or was not unmounted cleanly".to_owned())?;
    log::check(&data_of(boot, volume, table, LOG)?)
}

/// The contents of a file that has one record.
fn data_of<'a, 'v>(
    boot: &'a Boot,
    volume: &'a Volume<'v>,
    table: &Table,
    number: u64,
) -> Result<Stream<'a, 'v>, Why> {
    let mut bytes = vec![0; boot.record_bytes];
    table.read_record(number, &mut bytes)?;
    let missing = || Why::Whole(format!("the clusters of its file {number} are not told in one record"));
    let record = Record::parse(&mut bytes, number)?.ok_or_else(missing)?;
    let mut data = record.attributes()?.into_iter().filter(|data| data.kind == DATA && data.name.is_empty());
    match data.next().map(|data| data.value) {
        Some(Value::Elsewhere { first: 0, initialized, runs }) => {
            let clusters: u64 = runs.iter().map(|(_, count)| count).sum();
            require(initialized <= clusters.saturating_mul(boot.cluster_bytes), || {
                format!("its file {number} has too few clusters")
            })?;
            Stream::new(boot, volume, runs, initialized)
        }
        _ => Err(missing()),
    }
}

/// The name in a value of type [`FILE_NAME`], if the contents of that file are worthless.
fn worthless_name(value: &[u8]) -> Option<&'static str> {
    let name = name_in_root(value)?.to_ascii_lowercase();
    WORTHLESS.into_iter().find(|worthless| *worthless == name)
}

/// The name in a value of type [`FILE_NAME`], if its folder is the root folder.
fn name_in_root(value: &[u8]) -> Option<String> {
    let parent = u64::from_le_bytes(*value.first_chunk()?) & super::record::NUMBER_BITS;
    let len = usize::from(*value.get(64)?);
    let name = value.get(66..66 + 2 * len)?;
    (parent == ROOT).then(|| letters(name))
}

fn letters(bytes: &[u8]) -> String {
    let units = bytes.as_chunks().0.iter().map(|&pair| u16::from_le_bytes(pair));
    char::decode_utf16(units).map(|letter| letter.unwrap_or('\u{FFFD}')).collect()
}

/// Checks that no system sleeps in the volume: the file of hibernation then begins with these letters.
fn check_awake(boot: &Boot, volume: &Volume, run: Option<&Run>) -> Result<(), Why> {
    let Some(&(Some(first), _)) = run else { return Ok(()) };
    let mut head = [0; 4];
    volume.read(&mut head, first * boot.cluster_bytes)?;
    require(!head.eq_ignore_ascii_case(b"hibr"), || {
        "Windows sleeps in it (hibernation or fast startup): shut it down with `shutdown /s /t 0`".to_owned()
    })
}

/// Checks that the clusters of a run are marked.
fn check_marked(boot: &Boot, map: &[u8], run: Run, number: u64) -> Result<(), Why> {
    let (Some(first), count) = run else { return Ok(()) };
    require(boot.has(run), || format!("file {number} has clusters that the volume does not have"))?;
    let gap = find(map, first, first + count, false);
    require(gap == first + count, || format!("cluster {gap} of file {number} is free by the bitmap"))
}

/// Marks the clusters of `runs` as free.
fn clear(map: &mut [u8], runs: &[Run]) {
    for bit in runs.iter().filter_map(|&(first, count)| Some(first?..first? + count)).flatten() {
        bitmap::clear(map, bit);
    }
}
