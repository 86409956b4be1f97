//! Tests golden files of format version 1, good and broken: later releases must read them, and must still
//! write nodes and encrypted files with the same bytes.
//!
//! `DISKCAST_BLESS=1 cargo test --workspace --test image golden::` writes golden files that do not exist yet. It never
//! changes an existing file.

use std::path::PathBuf;

use base::{Chance, Digest, ErrorKind, Extent};
use bytes::Bytes;
use image::node::Node;
use image::{
    Binding, ChunkExtents, ChunkRef, Cipher, Decoder, EncryptionKey, Leaf, Manifest, MemoryObjects,
    ObjectKind, ObjectRef, ObjectSource, PublicKey, Run, SignedManifest, SigningKey, SourceRecord, Trust,
    Verified,
};

use crate::common::{build, manifest, random_extents, small};

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../golden/image").join(name)
}

/// The content of the golden file `name`. If it does not exist and `DISKCAST_BLESS` is set, first writes `made` to it.
fn golden(name: &str, made: &[u8]) -> Vec<u8> {
    let path = path(name);
    if !path.exists() && std::env::var_os("DISKCAST_BLESS").is_some() {
        std::fs::write(&path, made).unwrap();
    }
    std::fs::read(&path).unwrap_or_else(|e| {
        panic!("{}: {e}; DISKCAST_BLESS=1 cargo test --workspace --test image golden::", path.display())
    })
}

fn verified(kind: ObjectKind, bytes: &[u8]) -> Verified {
    ObjectRef::of(kind, bytes).verified(Bytes::copy_from_slice(bytes)).unwrap()
}

struct Chunk {
    name: &'static str,
    extents: ChunkExtents,
    plain: Vec<u8>,
}

/// Chunks that cover all forms: extents full, as runs and as bitmap; content as zstd and raw.
fn chunks() -> Vec<Chunk> {
    let mut chance = Chance::from_seed(1);
    let runs = [Run { start: 0, count: 3 }, Run { start: 100, count: 28 }];
    let spread = (0..64).map(|sector| Run { start: 2 * sector, count: 1 });
    let forms = [
        ("chunk-full-zstd-v1", ChunkExtents::full(small())),
        ("chunk-runs-raw-v1", ChunkExtents::from_runs(small(), runs).unwrap()),
        ("chunk-bitmap-zstd-v1", ChunkExtents::from_runs(small(), spread).unwrap()),
    ];
    forms
        .into_iter()
        .map(|(name, extents)| {
            let mut plain = vec![b'd'; extents.len_bytes() as usize];
            let noise = if name.contains("raw") { plain.len() } else { 100 };
            chance.fill(&mut plain[..noise]);
            Chunk { name, extents, plain }
        })
        .collect()
}

#[test]
fn chunks_decode_to_what_they_held() {
    for Chunk { name, extents, plain } in chunks() {
        let mut decoder = Decoder::new().unwrap();
        let digest = decoder.plain_digest(&extents, &plain);
        let (_, made) = image::Encoder::new(2).unwrap().encode(&extents, &plain, digest).unwrap();
        let stored = golden(name, &made);
        let mut back = vec![0; plain.len()];
        decoder.decode(&verified(ObjectKind::Chunk, &stored), &extents, digest, &mut back).unwrap();
        assert!(back == plain, "{name}");
        let hex = format!("{}\n", digest.to_hex());
        assert_eq!(
            golden(&format!("{name}.plain"), hex.as_bytes()),
            hex.as_bytes(),
            "{name}: the plain digest changed"
        );
    }
}

fn leaves() -> Vec<(u64, Leaf)> {
    let mut chance = Chance::from_seed(2);
    let data = |chance: &mut Chance, tag: u8| {
        let extents = random_extents(chance, small());
        let mut form = Vec::new();
        extents.encode(&mut form);
        let encoded_len = u32::try_from(17 + form.len()).unwrap();
        Leaf::Data(
            extents,
            ChunkRef { encoded_len, encoded: Digest([tag; 32]), plain: Digest([tag + 100; 32]) },
        )
    };
    let mut leaves: Vec<_> = (0..40).map(|tag| (u64::from(tag) * 3, data(&mut chance, tag))).collect();
    leaves.extend((256..512).map(|index| (index, Leaf::Zero(ChunkExtents::full(small())))));
    leaves.push((700, Leaf::Zero(random_extents(&mut chance, small()))));
    leaves
}

#[test]
fn nodes_are_written_and_read_as_ever() {
    let objects = MemoryObjects::new();
    let root = build(1000, &leaves(), &objects).unwrap();
    let root = root.child.object().unwrap();
    let made = objects.fetch(&root).unwrap();
    let stored = golden("node-level1-v1", &made);
    assert_eq!(stored, made, "nodes are encoded differently than in version 1");
    let Node::Children(children) = Node::decode(&verified(ObjectKind::Node, &stored), 1, small()).unwrap()
    else {
        panic!("level 1 holds subtrees")
    };
    assert_eq!(children.len(), 3);
    let made = objects.fetch(&children[0].object().unwrap()).unwrap();
    let stored = golden("node-level0-v1", &made);
    assert_eq!(stored, made, "leaves are encoded differently than in version 1");
    let Node::Leaves(read) = Node::decode(&verified(ObjectKind::Node, &stored), 0, small()).unwrap() else {
        panic!("level 0 holds leaves")
    };
    let expected = leaves();
    assert!((0..40).all(|i| read[3 * i] == expected[i].1), "leaves differ");
}

fn sample() -> Manifest {
    let objects = MemoryObjects::new();
    let root = build(1000, &leaves(), &objects).unwrap();
    let mut sample = manifest(root, small(), 128_000);
    sample.warnings = vec!["partition 3: unknown filesystem, captured whole".to_owned()];
    sample
}

fn sealed() -> Bytes {
    sample().encode(Some(&SigningKey::from_bytes(&[7; 32]))).unwrap()
}

#[test]
fn manifests_are_read_as_ever() {
    let stored = golden("manifest-v1", &sealed());
    let read = SignedManifest::open(&stored).unwrap();
    assert_eq!(read.manifest, sample());
    assert_eq!(read.signed().signers().unwrap(), [PublicKey::from(&SigningKey::from_bytes(&[7; 32]))]);
}

#[test]
fn manifests_that_name_their_repository_are_read_as_ever() {
    let id = "000102030405060708090a0b0c0d0e0f".to_owned();
    let named = Manifest { repository: Some(id.clone()), ..sample() };
    let key = SigningKey::from_bytes(&[7; 32]);
    let stored = golden("manifest-repository-v1", &named.encode(Some(&key)).unwrap());
    let read = SignedManifest::open(&stored).unwrap();
    assert_eq!(read.manifest, named);
    let mut trust = Trust::default();
    trust.add((&key).into(), "golden");
    let bound = |manifest: &[u8], id: &str| {
        let read = SignedManifest::open(manifest).unwrap();
        trust.check(&"it", read.signed(), id).map_err(|error| error.kind())
    };
    assert_eq!(bound(&stored, &id), Ok(Binding::Repository));
    assert_eq!(bound(&stored, &"f".repeat(32)), Err(ErrorKind::Refused));
    assert_eq!(bound(&golden("manifest-v1", &sealed()), &id), Ok(Binding::Nothing));
}

#[test]
fn manifests_of_disks_with_unreadable_sectors_are_read_as_ever() {
    let mut sample = sample();
    sample.disk.unreadable = [(7, 1), (2048, 24)]
        .map(|(start_sector, sectors)| image::UnreadableRange { start_sector, sectors })
        .to_vec();
    let made = sample.encode(None).unwrap();
    assert_eq!(Manifest::decode(&golden("manifest-unreadable-v1", &made)).unwrap(), sample);
}

/// A manifest that records its source disk, and that the disk was in use.
fn sample_of_a_live_disk() -> Manifest {
    let mut sample = sample();
    let place = disk::Place { marks: vec!["disk naa.5000c500a1b2c3d4".to_owned()], start_sector: 2048 };
    sample.disk.source = SourceRecord::of(&place, Extent::new(0, 128_000), [3; 16]);
    sample.disk.live = vec!["is mounted at `/` for writing".to_owned()];
    sample
}

#[test]
fn manifests_of_live_disks_are_read_as_ever() {
    let made = sample_of_a_live_disk().encode(None).unwrap();
    let read = Manifest::decode(&golden("manifest-live-v1", &made)).unwrap();
    assert_eq!(read, sample_of_a_live_disk());
    let place =
        |start_sector| disk::Place { marks: vec!["disk naa.5000c500a1b2c3d4".to_owned()], start_sector };
    assert!(read.came_from(&place(2048)) && !read.came_from(&place(1 << 20)));
    assert!(!sample().came_from(&place(2048)));
}

fn cipher() -> Cipher {
    Cipher::Key(EncryptionKey::from_bytes([9; 32]))
}

#[test]
fn what_is_sealed_is_written_and_opened_as_ever() {
    let other = Cipher::Key(EncryptionKey::from_bytes([8; 32]));
    let objects = [("chunk-full-zstd-v1", ObjectKind::Chunk), ("node-level0-v1", ObjectKind::Node)];
    for (from, kind) in objects {
        let plain = std::fs::read(path(from)).unwrap();
        let made = cipher().encrypt_object(kind, plain.clone()).unwrap();
        let stored = golden(&format!("sealed-{from}"), &made);
        assert_eq!(stored, made, "{from} is encrypted differently than in version 1");
        let object = verified(kind, &stored);
        assert_eq!(cipher().decrypt_object(kind, &object).unwrap().bytes(), &plain);
        assert_eq!(other.decrypt_object(kind, &object).unwrap_err().kind(), ErrorKind::Corrupt, "{from}");
        assert_eq!(
            Cipher::Locked.decrypt_object(kind, &object).unwrap_err().kind(),
            ErrorKind::Refused,
            "{from}"
        );
    }
    let plain = Bytes::from(std::fs::read(path("manifest-v1")).unwrap());
    let made = cipher().encrypt_manifest(plain.clone()).unwrap();
    let stored = Bytes::from(golden("sealed-manifest-v1", &made));
    assert_eq!(stored, made, "a manifest is encrypted differently than in version 1");
    assert_eq!(cipher().decrypt_manifest(&stored).unwrap(), plain);
    assert_eq!(other.decrypt_manifest(&stored).unwrap_err().kind(), ErrorKind::Corrupt);
    for keyless in [Cipher::None, Cipher::Locked] {
        assert_eq!(keyless.decrypt_manifest(&stored).unwrap_err().kind(), ErrorKind::Refused);
    }
    // With a key, a reader rejects manifests that are not encrypted: a party without the key could have written them.
    assert_eq!(cipher().decrypt_manifest(&plain).unwrap_err().kind(), ErrorKind::Corrupt);
}

/// The golden file `name` after `change`. If it is a manifest, also corrects its checksum, so that the change itself
/// is detected.
fn broken(name: &str, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = std::fs::read(path(name)).unwrap();
    change(&mut bytes);
    if name.starts_with("manifest") {
        let body = bytes.len() - 32;
        let checksum = Digest::of(&bytes[..body]);
        bytes[body..].copy_from_slice(&checksum.0);
    }
    bytes
}

/// Replaces the first `old` by `new`, which has the same length.
fn replace(bytes: &mut [u8], old: &str, new: &str) {
    let at = bytes.windows(old.len()).position(|window| window == old.as_bytes()).unwrap();
    bytes[at..at + old.len()].copy_from_slice(new.as_bytes());
}

#[test]
fn broken_and_newer_files_are_called_so() {
    type Change = fn(&mut Vec<u8>);
    let (corrupt, unsupported) = (ErrorKind::Corrupt, ErrorKind::Unsupported);
    let chunk = "chunk-runs-raw-v1";
    let cases: [(&str, &str, ErrorKind, Change); 19] = [
        ("bad-chunk-magic", chunk, corrupt, |b| b[0] = b'X'),
        ("bad-chunk-version", chunk, unsupported, |b| b[4] = 2),
        ("bad-chunk-codec", chunk, unsupported, |b| b[5] = 9),
        ("bad-chunk-cipher", chunk, unsupported, |b| b[6] = 1),
        ("bad-chunk-flag", chunk, unsupported, |b| b[7] = 1),
        ("bad-chunk-size", chunk, corrupt, |b| b[8] = 40),
        ("bad-chunk-length", chunk, corrupt, |b| b[12] ^= 1),
        ("bad-chunk-extents", chunk, corrupt, |b| b[19] = 1),
        ("bad-chunk-payload", chunk, corrupt, |b| *b.last_mut().unwrap() ^= 1),
        ("bad-chunk-frame", "chunk-full-zstd-v1", corrupt, |b| b[17] ^= 0xFF),
        ("bad-node-magic", "node-level0-v1", corrupt, |b| b[0] = b'X'),
        ("bad-node-version", "node-level0-v1", unsupported, |b| b[4] = 2),
        ("bad-node-level", "node-level0-v1", corrupt, |b| b[8] = 1),
        ("bad-node-count", "node-level0-v1", corrupt, |b| b[11] = 0xFF),
        ("bad-node-cut", "node-level0-v1", corrupt, |b| b.truncate(500)),
        ("bad-node-longer", "node-level1-v1", corrupt, |b| b.push(0)),
        ("bad-manifest-version", "manifest-v1", unsupported, |b| b[4] = 2),
        ("bad-manifest-format", "manifest-v1", unsupported, |b| replace(b, "\"format\":1", "\"format\":2")),
        ("bad-manifest-sizes", "manifest-v1", corrupt, |b| {
            replace(b, "sectors\":128000", "sectors\":999999")
        }),
    ];
    for (name, from, kind, change) in cases {
        let made = broken(from, change);
        let stored = golden(name, &made);
        assert_eq!(stored, made, "{name}");
        let error = match from {
            "manifest-v1" => Manifest::decode(&stored).unwrap_err(),
            "node-level0-v1" => Node::decode(&verified(ObjectKind::Node, &stored), 0, small()).unwrap_err(),
            "node-level1-v1" => Node::decode(&verified(ObjectKind::Node, &stored), 1, small()).unwrap_err(),
            _ => {
                let Chunk { extents, plain, .. } =
                    chunks().into_iter().find(|chunk| chunk.name == from).unwrap();
                let mut decoder = Decoder::new().unwrap();
                let digest = decoder.plain_digest(&extents, &plain);
                let mut out = vec![0; plain.len()];
                decoder.decode(&verified(ObjectKind::Chunk, &stored), &extents, digest, &mut out).unwrap_err()
            }
        };
        assert_eq!(error.kind(), kind, "{name}: {error:?}");
    }
}

/// Flips bits and cuts objects, then names them by the digest of the result, as a hostile publisher could. The digest
/// check can't find such changes.
#[test]
fn hostile_objects_give_errors_or_good_values_never_panics() {
    for Chunk { name, extents, plain } in chunks() {
        let stored = std::fs::read(path(name)).unwrap();
        let mut decoder = Decoder::new().unwrap();
        let digest = decoder.plain_digest(&extents, &plain);
        let mut out = vec![0; plain.len()];
        for bit in 0..(stored.len() * 8).min(4000) {
            let mut bad = stored.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let decoded = decoder.decode(&verified(ObjectKind::Chunk, &bad), &extents, digest, &mut out);
            assert!(decoded.is_err() || out == plain, "{name}, bit {bit}");
        }
        for len in (0..stored.len()).step_by(1 + stored.len() / 500) {
            let object = verified(ObjectKind::Chunk, &stored[..len]);
            assert!(decoder.decode(&object, &extents, digest, &mut out).is_err(), "{name}, cut to {len}");
        }
    }
    for (name, level) in [("node-level0-v1", 0), ("node-level1-v1", 1)] {
        let stored = std::fs::read(path(name)).unwrap();
        for bit in 0..stored.len() * 8 {
            let mut bad = stored.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            drop(Node::decode(&verified(ObjectKind::Node, &bad), level, small()));
        }
        for len in 0..stored.len() {
            let cut = Node::decode(&verified(ObjectKind::Node, &stored[..len]), level, small());
            assert!(cut.is_err(), "{name}, cut to {len}");
        }
    }
}
