//! Binary forms of the cluster: entries, directories of runs, batches and capabilities, and maps.

use proto::cluster::{
    BatchItem, Capability, DeviceId, DeviceKey, Entry, Item, Map, Piece, Run, Width, checksum, decode_batch,
    decode_directory, encode_batch, encode_directory, teachers,
};

use crate::Target;

pub(crate) const ENTRY: Target = Target { name: "entry", seeds: entries, take: take_entry };
pub(crate) const DIRECTORY: Target = Target { name: "directory", seeds: directories, take: take_directory };
pub(crate) const BATCH: Target = Target { name: "batch", seeds: batches, take: take_batch };
pub(crate) const CAPABILITY: Target =
    Target { name: "capability", seeds: capabilities, take: take_capability };
pub(crate) const MAP: Target = Target { name: "map", seeds: maps, take: take_map };

fn piece() -> Piece {
    let width = Width::new(8, 2).expect("a width");
    Piece { segment: 7, run: Run { at: 4096, bytes: 8192 }, width, offset: 24, length: 200, sum: 99 }
}

fn entries() -> Vec<Vec<u8>> {
    let entry = Entry { stamp: 5, moves: 1, bytes: Some(400), pieces: vec![piece(), piece()] };
    [entry, Entry::tombstone(6)].iter().map(Entry::encode).collect()
}

fn take_entry(input: &[u8]) {
    let Ok(entry) = Entry::decode(input) else { return };
    for piece in &entry.pieces {
        let (from, to) = (u64::from(piece.offset), u64::from(piece.offset) + u64::from(piece.length));
        let spans: u64 = piece.run.spans(piece.width, from..to).map(|span| u64::from(span.bytes)).sum();
        assert_eq!(spans, to - from, "each byte has a place");
    }
    assert_eq!(Entry::decode(&entry.encode()), Ok(entry));
}

fn directories() -> Vec<Vec<u8>> {
    let item = |name: &str| Item {
        stamp: 1,
        whole: 70,
        from: 0,
        offset: 500,
        length: 70,
        sum: 9,
        name: name.to_owned(),
    };
    vec![encode_directory(&[item("chunks/ab/abcd"), item("b")], 8192), encode_directory(&[], 4096)]
}

fn take_directory(input: &[u8]) {
    let mut named = input.to_vec();
    // Its checksum would stop almost every change: it is made right again, as a hostile writer would.
    if let Some(length) =
        input.get(4..8).map(|length| u32::from_le_bytes(length.try_into().expect("4 bytes")))
        && let Some(sealed) = named.get_mut(..length as usize).filter(|sealed| sealed.len() >= 24)
    {
        sealed[16..24].fill(0);
        let sum = checksum(sealed);
        sealed[16..24].copy_from_slice(&sum.to_le_bytes());
    }
    if let Some((items, bytes)) = decode_directory(&named) {
        assert_eq!(decode_directory(&encode_directory(&items, bytes)), Some((items, bytes)));
    }
}

fn batches() -> Vec<Vec<u8>> {
    let item = |entry: Vec<u8>| BatchItem { group: 1, name: "chunks/ab/abcd".to_owned(), entry };
    vec![encode_batch(&[item(Vec::new()), item(entries().remove(0))]), encode_batch(&[])]
}

fn take_batch(input: &[u8]) {
    if let Some(items) = decode_batch(input) {
        assert_eq!(encode_batch(&items), input, "a batch has one form");
    }
}

fn key() -> DeviceKey {
    DeviceKey::from_bytes([3; 32])
}

fn capabilities() -> Vec<Vec<u8>> {
    let capability = Capability {
        device: DeviceId(1),
        key_epoch: 1,
        group: Some(5),
        number: None,
        range: 0..100,
        rights: 3,
        expires: 1000,
        fence: 0,
        holder: 7,
    };
    vec![capability.seal(&key())]
}

fn take_capability(input: &[u8]) {
    if let Ok(capability) = Capability::unseal(input, &key(), DeviceId(1), 1) {
        assert_eq!(capability.seal(&key()), input, "only what was sealed is accepted");
        assert!(capabilities().contains(&input.to_vec()), "nobody forges one");
    }
}

fn maps() -> Vec<Vec<u8>> {
    let text = r#"{"cluster":"ab","epoch":9,"k":3,"m":2,"unit":65536,"devices":[{"device":1,"address":"http://a:1",
        "domain":"a","state":"up","bytes":9,"free":3}],"slots":[[[1,0,2,0,[]],[2,5,5,7,[[0,3]]],[3,6,6,0,[]]]]}"#;
    vec![text.as_bytes().to_vec()]
}

fn take_map(input: &[u8]) {
    let Ok(map) = serde_json::from_slice::<Map>(input) else { return };
    for holders in map.slots.iter().filter(|holders| holders.len() < 100) {
        for learner in holders {
            if let Some(chosen) = teachers(holders, learner, |_| true) {
                assert!(chosen.len() <= holders.len() && !chosen.contains(&learner.device));
            }
        }
    }
}
