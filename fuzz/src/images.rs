//! Stored bytes: chunks, nodes, manifests, catalogues, and the disks that a survey reads.
//!
//! Digests would catch almost all damage before a parser sees it, so what is damaged here is named anew: the parser
//! gets what a hostile author could have signed.

use base::Chance;
use base::limits::CHUNK_BYTES_MIN;
use bytes::Bytes;
use disk::device::MemoryDisk;
use image::chunk::PlainHasher;
use image::manifest::{DiskRecord, Manifest, Origin, Statistics};
use image::node::Node;
use image::{
    CatalogueBuilder, Child, ChunkExtents, ChunkSize, Cipher, Decoder, Encoder, EncryptionKey, Leaf,
    MemoryObjects, ObjectKind, ObjectRef, ObjectSink, ObjectSource, Root, TreeBuilder,
};

use crate::Target;

pub(crate) const CHUNK: Target = Target { name: "chunk", seeds: chunks, take: take_chunk };
pub(crate) const NODE: Target = Target { name: "node", seeds: nodes, take: take_node };
pub(crate) const MANIFEST: Target = Target { name: "manifest", seeds: manifests, take: take_manifest };
pub(crate) const CATALOGUE: Target = Target { name: "catalogue", seeds: nodes, take: take_catalogue };
pub(crate) const SEALED: Target = Target { name: "sealed", seeds: sealed, take: take_sealed };
pub(crate) const SURVEY: Target = Target { name: "survey", seeds: disks, take: take_disk };

fn size() -> ChunkSize {
    ChunkSize::from_bytes(CHUNK_BYTES_MIN).expect("the smallest chunk is one")
}

fn chunk(chance: &mut Chance, random: usize) -> (Leaf, Bytes) {
    let extents = ChunkExtents::full(size());
    let mut plain = vec![7; CHUNK_BYTES_MIN as usize];
    chance.fill(&mut plain[..random]);
    let digest = PlainHasher::default().digest(&extents, &plain);
    let mut encoder = Encoder::new(1).expect("zstd has level 1");
    let (name, object) = encoder.encode(&extents, &plain, digest).expect("encodes");
    (Leaf::Data(extents, name), object)
}

fn chunks() -> Vec<Vec<u8>> {
    let mut chance = Chance::from_seed(1);
    [100, 20_000, CHUNK_BYTES_MIN as usize].map(|random| chunk(&mut chance, random).1.to_vec()).into()
}

fn take_chunk(input: &[u8]) {
    let Ok(object) = named(ObjectKind::Chunk, input) else { return };
    let extents = ChunkExtents::full(size());
    let mut plain = vec![0; CHUNK_BYTES_MIN as usize];
    let mut decoder = Decoder::new().expect("zstd has a decoder");
    let _ = decoder.decode(&object, &extents, base::Digest::of(input), &mut plain);
}

fn named(kind: ObjectKind, input: &[u8]) -> base::Result<image::Verified> {
    ObjectRef::of(kind, input).verified(Bytes::copy_from_slice(input))
}

/// A tree of two levels, its nodes in memory.
fn tree() -> (Root, MemoryObjects) {
    let objects = MemoryObjects::new();
    (tree_in(&objects, &Cipher::None), objects)
}

fn tree_in(objects: &dyn ObjectSink, cipher: &Cipher) -> Root {
    let mut chance = Chance::from_seed(2);
    let mut builder = TreeBuilder::new(size(), 600, objects, cipher);
    for index in [0, 3, 4, 5, 255, 256, 599] {
        builder.push(index, &chunk(&mut chance, 64).0).expect("ascending");
    }
    builder.finish().expect("grows")
}

/// A draft whose nodes are in `sink`, encrypted with `cipher`.
pub(crate) fn draft(sink: &dyn ObjectSink, cipher: &Cipher) -> Manifest {
    manifest(tree_in(sink, cipher))
}

fn nodes() -> Vec<Vec<u8>> {
    let (root, objects) = tree();
    let top = root.child.object().expect("the tree is not empty");
    let bytes = objects.fetch(&top).expect("in memory");
    let node = named(ObjectKind::Node, &bytes).expect("named as it is");
    let mut found = vec![bytes.to_vec()];
    if let Ok(Node::Children(children)) = Node::decode(&node, root.height - 1, size()) {
        let below = children.iter().filter_map(Child::object);
        found.extend(below.map(|object| objects.fetch(&object).expect("in memory").to_vec()));
    }
    found
}

fn take_node(input: &[u8]) {
    let Ok(object) = named(ObjectKind::Node, input) else { return };
    for level in 0..3 {
        let _ = Node::decode(&object, level, size());
    }
}

fn manifest(root: Root) -> Manifest {
    let size_sectors = root.chunk_count * u64::from(size().sectors());
    Manifest {
        format: 1,
        features: Vec::new(),
        image: "web".to_owned(),
        number: 3,
        repository: None,
        parent: None,
        copied: None,
        commit: None,
        made: None,
        members: Vec::new(),
        root,
        chunk_bytes: CHUNK_BYTES_MIN,
        size_sectors,
        logical_sector_bytes: 512,
        physical_sector_bytes: 512,
        origin: Origin { disk_sectors: size_sectors, start_sector: 0 },
        disk: DiskRecord { table: "none".to_owned(), ..DiskRecord::default() },
        labels: [("os".to_owned(), "debian".to_owned())].into(),
        created: "2026-11-20T14:00:00Z".to_owned(),
        creator: "fuzz".to_owned(),
        statistics: Statistics::default(),
        warnings: Vec::new(),
        cipher: "none".to_owned(),
        nonce: "00000000000000000000000000000000".to_owned(),
    }
}

fn manifests() -> Vec<Vec<u8>> {
    let key = image::SigningKey::from_bytes(&[7; 32]);
    let manifest = manifest(tree().0);
    [None, Some(&key)].map(|key| manifest.encode(key).expect("encodes").to_vec()).into()
}

fn take_manifest(input: &[u8]) {
    let _ = Manifest::decode(input);
    // Past the checksum: what an author could have written.
    if let Some(body) = input.len().checked_sub(32).map(|length| &input[..length]) {
        let sealed = [body, &base::Digest::of(body).0].concat();
        if let Ok(manifest) = Manifest::decode(&sealed) {
            let _ = CatalogueBuilder::from_manifest(&manifest, Cipher::None);
        }
    }
}

fn cipher() -> Cipher {
    Cipher::Key(EncryptionKey::from_bytes([7; 32]))
}

/// A chunk, a node, a manifest and a record, all of them sealed.
fn sealed() -> Vec<Vec<u8>> {
    let object = |kind, plain| cipher().encrypt_object(kind, plain).expect("there is a key").to_vec();
    let mut all: Vec<_> = chunks().into_iter().map(|plain| object(ObjectKind::Chunk, plain)).collect();
    all.extend(nodes().into_iter().map(|plain| object(ObjectKind::Node, plain)));
    let manifest = |plain: Vec<u8>| cipher().encrypt_manifest(plain.into()).expect("there is a key").to_vec();
    all.extend(manifests().into_iter().map(manifest));
    let record = cipher().encrypt_record(&Bytes::from_static(b"{}")).expect("there is a key");
    all.extend(record.map(String::into_bytes));
    all
}

fn take_sealed(input: &[u8]) {
    for kind in [ObjectKind::Chunk, ObjectKind::Node] {
        if let Ok(object) = named(kind, input) {
            let _ = cipher().decrypt_object(kind, &object);
        }
    }
    let body = &input[..input.len().saturating_sub(base::Digest::BYTES)];
    let _ = cipher().decrypt_manifest(&[body, &base::Digest::of(body).0].concat().into());
    if let Ok(hex) = std::str::from_utf8(input) {
        let _ = cipher().decrypt_record(hex);
    }
    // What somebody who holds the key could have sealed.
    let sealed = cipher().encrypt_object(ObjectKind::Node, input.to_vec()).expect("there is a key");
    let stored = named(ObjectKind::Node, &sealed).expect("named as it is");
    let plain = cipher().decrypt_object(ObjectKind::Node, &stored).expect("just sealed");
    assert_eq!(plain.bytes(), input, "opening gives back what was sealed");
}

/// A catalogue whose root is the damaged node.
fn take_catalogue(input: &[u8]) {
    let (mut root, objects) = tree();
    let Child::Node { .. } = root.child else { return };
    let top = ObjectRef::of(ObjectKind::Node, input);
    root.child = Child::Node { digest: top.digest, len: top.len };
    let Ok(mut builder) = CatalogueBuilder::from_manifest(&manifest(root), Cipher::None) else { return };
    if builder.learn(0, Bytes::copy_from_slice(input)).is_err() {
        return;
    }
    loop {
        let Some(id) = builder.needed().next() else { break };
        let object = builder.object(id).expect("needed nodes have a name");
        let Ok(bytes) = objects.fetch(&object) else { return };
        if builder.learn(id, bytes).is_err() {
            return;
        }
    }
    let _ = builder.finish();
}

/// Small disks as the real tools make them: ext4 in two ways, FAT, swap; each in a partition, too.
fn disks() -> Vec<Vec<u8>> {
    let makers: [(&str, &[&str]); 4] = [
        ("mkfs.ext4", &["-q", "-F"]),
        ("mkfs.ext4", &["-q", "-F", "-b", "1024", "-O", "^64bit,meta_bg,^resize_inode"]),
        ("mkfs.vfat", &[]),
        ("mkswap", &["-q"]),
    ];
    makers.iter().map(|(tool, flags)| made(tool, flags)).collect()
}

fn made(tool: &str, flags: &[&str]) -> Vec<u8> {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.as_file().set_len(2 << 20).expect("two MiB");
    let output = std::process::Command::new(tool).args(flags).arg(file.path()).output();
    let output =
        output.unwrap_or_else(|error| panic!("{tool}: {error}; tools/install-dependencies.sh installs it"));
    assert!(output.status.success(), "{tool}: {}", String::from_utf8_lossy(&output.stderr));
    std::fs::read(file.path()).expect("the disk can be read")
}

fn take_disk(input: &[u8]) {
    let mut bytes = input.to_vec();
    bytes.truncate(bytes.len() & !511);
    let disk = MemoryDisk::new(bytes);
    // Whatever it is taken for, nothing of it makes that fail.
    let _ = disk::container_of(&disk);
    if let Ok(map) = disk::survey(&disk, &disk::SurveyOptions::default()) {
        assert!(map.allocated.runs().iter().all(|run| run.end() <= map.window.end()), "beyond the disk");
    }
}
