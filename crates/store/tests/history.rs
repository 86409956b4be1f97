//! Operations on whole versions and their history: log, diff, usage, copy, repair.
//! To repeat one test: `cargo test --workspace --test store history::<name>`.

use std::collections::{BTreeMap, HashMap, HashSet};

use base::{Chance, Extent};
use image::{Child, ChunkSize, DecryptedNodes, Leaf, Leaves, NoProgress, ObjectSource as _};
use store::{Change, Closeness, Copier, Repository, Scope, Shape};

use crate::common::{Place, image, in_folder, in_memory, reference, stamp};

fn shape(size_bytes: u64, log2: u8) -> Shape {
    Shape { size_bytes, chunk: ChunkSize::from_log2(log2).unwrap(), logical_sector_bytes: 512 }
}

fn random(chance: &mut Chance, count: u64) -> Vec<u8> {
    let mut bytes = vec![0; count as usize];
    chance.fill(&mut bytes);
    bytes
}

/// Random writes to the existing image `name`.
fn scribble(repository: &Repository, name: &str, chance: &mut Chance, writes: u64) {
    let blob = repository.blob(&image(name));
    for _ in 0..writes {
        let size = blob.recent().unwrap().size_bytes;
        let offset = chance.below(size);
        let count = chance.below((size - offset).min(150_000) + 1);
        let bytes = if chance.hits(200_000) { vec![0; count as usize] } else { random(chance, count) };
        blob.write(offset, &bytes, &stamp()).unwrap();
    }
}

/// The content of each sector of a version; `None` if it is free.
fn sectors(repository: &Repository, name: &str) -> Vec<Option<Vec<u8>>> {
    let snapshot = repository.snapshot(&reference(name)).unwrap();
    let mut all = Vec::new();
    snapshot.copy_to(0, snapshot.layout().size_bytes(), &mut all).unwrap();
    let set = snapshot.allocated(Extent::new(0, snapshot.layout().size_sectors)).unwrap();
    let holds = |sector: u64| set.contains(Extent::new(sector, 1));
    (0..).zip(all.chunks(512)).map(|(sector, bytes)| holds(sector).then(|| bytes.to_vec())).collect()
}

fn check_diff(repository: &Repository, before: &str, after: &str, closeness: Closeness, seed: u64) {
    let (old, new) = (sectors(repository, before), sectors(repository, after));
    let mut found: BTreeMap<u64, Change> = BTreeMap::new();
    let mut last: Option<(u64, Change)> = None;
    let snapshots = [before, after].map(|name| repository.snapshot(&reference(name)).unwrap());
    let totals = snapshots[0]
        .diff(&snapshots[1], closeness, &mut |changed| {
            assert!(last.is_none_or(|(end, change)| changed.extent.start > end
                || (changed.extent.start == end && changed.change != change)));
            last = Some((changed.extent.end(), changed.change));
            let each = changed.extent.start..changed.extent.end();
            found.extend(each.map(|sector| (sector, changed.change)));
            Ok(())
        })
        .unwrap();
    let mut bytes = HashMap::new();
    found.values().for_each(|change| *bytes.entry(*change as u8).or_insert(0) += 512);
    let of = |change: Change| bytes.get(&(change as u8)).copied().unwrap_or(0);
    assert_eq!(totals.written_bytes, of(Change::Written));
    assert_eq!((totals.allocated_bytes, totals.freed_bytes), (of(Change::Allocated), of(Change::Freed)));
    for sector in 0..old.len().max(new.len()) as u64 {
        let side = |side: &Vec<Option<Vec<u8>>>| side.get(sector as usize).cloned().flatten();
        let expected = match (side(&old), side(&new)) {
            (None, None) => None,
            (None, Some(_)) => Some(Change::Allocated),
            (Some(_), None) => Some(Change::Freed),
            (Some(old), Some(new)) => (old != new).then_some(Change::Written),
        };
        let told = found.get(&sector).copied();
        // A comparison of the trees counts unchanged sectors of a changed chunk as written.
        let more = closeness == Closeness::Chunks && told == Some(Change::Written) && expected.is_none();
        assert!(told == expected || more, "seed {seed}: sector {sector} of {before} and {after}: {told:?}");
    }
}

#[test]
fn differences_are_those_of_the_sectors() {
    for seed in 0..6 {
        let place = in_memory();
        let mut chance = Chance::from_seed(seed);
        let size = 512 * (2000 + chance.below(2000));
        let (one, other) = (place.repository.blob(&image("one")), place.repository.blob(&image("other")));
        one.create(&shape(size, 16), &stamp()).unwrap();
        scribble(&place.repository, "one", &mut chance, 6);
        place.repository.blob(&image("clone")).clone_from(&reference("one@4"), &stamp()).unwrap();
        scribble(&place.repository, "clone", &mut chance, 3);
        let appended = random(&mut chance, 512 * 300);
        place.repository.blob(&image("clone")).append(&appended, &stamp()).unwrap();
        other.create(&shape(size + 512 * 77, 18), &stamp()).unwrap();
        scribble(&place.repository, "other", &mut chance, 5);
        for closeness in [Closeness::Chunks, Closeness::Sectors] {
            for (before, after) in [("one@2", "one"), ("one", "one@3"), ("one", "clone"), ("clone", "one@1")]
            {
                check_diff(&place.repository, before, after, closeness, seed);
            }
        }
        check_diff(&place.repository, "one", "other", Closeness::Sectors, seed);
        check_diff(&place.repository, "other", "clone", Closeness::Sectors, seed);
    }
}

#[test]
fn the_log_is_newest_first_without_what_was_removed() {
    let place = in_memory();
    place.repository.blob(&image("disk")).create(&shape(1 << 20, 16), &stamp()).unwrap();
    scribble(&place.repository, "disk", &mut Chance::from_seed(1), 4);
    place.repository.remove(&reference("disk@3"), &stamp()).unwrap();
    let log: Vec<_> =
        place.repository.log(&image("disk"), None).unwrap().map(|sealed| sealed.unwrap()).collect();
    let numbers: Vec<u64> = log.iter().map(|sealed| sealed.manifest.number).collect();
    assert_eq!(numbers, [5, 4, 2, 1]);
    let rest = place.repository.log(&image("disk"), Some(4)).unwrap();
    assert!(rest.map(|sealed| sealed.unwrap().manifest.number).eq([2, 1]));
    assert_eq!(log[2].manifest.parent.as_ref().unwrap().digest, log[3].digest());
    assert!(place.repository.log(&image("none"), None).is_err());
}

/// All objects of all versions of an image with their lengths, and the bytes of its manifests.
fn reachable(repository: &Repository, name: &str) -> (HashMap<base::Digest, u64>, u64) {
    let mut objects = HashMap::new();
    let mut manifests = 0;
    for number in repository.versions(&image(name)).unwrap() {
        let (sealed, bytes) = repository.signed_manifest(&reference(&format!("{name}@{number}"))).unwrap();
        manifests += bytes.len() as u64;
        let mut nodes = vec![(sealed.manifest.root.child, sealed.manifest.root.height)];
        let size = sealed.manifest.layout().unwrap().chunk;
        while let Some((child, height)) = nodes.pop() {
            let Some(object) = child.object() else { continue };
            objects.insert(object.digest, u64::from(object.len));
            let bytes = object.verified(repository.fetch(&object).unwrap()).unwrap();
            match image::node::Node::decode(&bytes, height - 1, size).unwrap() {
                image::node::Node::Children(children) => {
                    nodes.extend(children.into_iter().map(|child: Child| (child, height - 1)));
                }
                image::node::Node::Leaves(leaves) => {
                    for leaf in leaves {
                        let Leaf::Data(_, chunk) = leaf else { continue };
                        objects.insert(chunk.encoded, u64::from(chunk.encoded_len));
                    }
                }
            }
        }
    }
    (objects, manifests)
}

#[test]
fn usage_is_what_each_image_reaches() {
    for seed in 0..4 {
        let place = in_memory();
        let mut chance = Chance::from_seed(seed);
        let names = ["a", "b", "c", "d"];
        place.repository.blob(&image("a")).create(&shape(64 << 20, 16), &stamp()).unwrap();
        scribble(&place.repository, "a", &mut chance, 8);
        for (name, of) in [("b", "a@5"), ("c", "a"), ("d", "b")] {
            place.repository.blob(&image(name)).clone_from(&reference(of), &stamp()).unwrap();
            let writes = chance.below(4);
            scribble(&place.repository, name, &mut chance, writes);
        }
        let usage = place.repository.usage().unwrap();
        let all = names.map(|name| reachable(&place.repository, name));
        for (at, found) in usage.images.iter().enumerate() {
            let (objects, manifests) = &all[at];
            let others: HashSet<_> =
                (0..4).filter(|&other| other != at).flat_map(|other| all[other].0.keys()).collect();
            let own: u64 =
                objects.iter().filter(|(digest, _)| !others.contains(digest)).map(|(_, len)| len).sum();
            let total: u64 = objects.values().sum();
            assert_eq!(found.own_bytes, own + manifests, "seed {seed}: {}", names[at]);
            assert_eq!(found.shared_bytes, total - own, "seed {seed}: {}", names[at]);
        }
        let mut union = HashMap::new();
        all.iter().for_each(|(objects, _)| union.extend(objects));
        let manifests: u64 = all.iter().map(|(_, manifests)| manifests).sum();
        assert_eq!(usage.stored_bytes, union.values().sum::<u64>() + manifests, "seed {seed}");
        assert_eq!(usage.objects, union.len() as u64, "seed {seed}");
    }
}

fn content(repository: &Repository, name: &str) -> (image::Root, Vec<(u64, Leaf)>) {
    let manifest = repository.resolve(&reference(name)).unwrap();
    let chunk = manifest.layout().unwrap().chunk;
    let nodes = DecryptedNodes { source: repository, cipher: repository.cipher() };
    let leaves = Leaves::new(nodes, chunk, &manifest.root);
    (manifest.root, leaves.map(|run| run.map(|run| (run.first, run.leaf)).unwrap()).collect())
}

#[test]
fn a_copy_sends_what_is_missing_and_is_known_again() {
    let (from, to) = (in_memory(), in_folder());
    let mut chance = Chance::from_seed(9);
    from.repository.blob(&image("disk")).create(&shape(8 << 20, 16), &stamp()).unwrap();
    scribble(&from.repository, "disk", &mut chance, 10);
    // Another version has the first number in the target.
    to.repository.blob(&image("kept")).create(&shape(4096, 16), &stamp()).unwrap();
    let mut copier = Copier::new(&from.repository, &to.repository, &image("kept")).unwrap();
    let mut sent = Vec::new();
    for number in 1..=11 {
        let report = copier.copy(&reference(&format!("disk@{number}"))).unwrap();
        assert_eq!((report.manifest.number, report.known), (number + 1, false));
        let (ours, theirs) = (format!("kept@{}", number + 1), format!("disk@{number}"));
        assert_eq!(content(&to.repository, &ours), content(&from.repository, &theirs));
        let parent = report.manifest.parent.map(|parent| (parent.image, parent.number));
        assert_eq!(parent, (number > 1).then(|| ("kept".to_owned(), number)));
        sent.push(report.bytes);
    }
    assert_eq!(to.repository.verify(&Scope::All, &NoProgress).unwrap().damaged, []);
    // Again, with a new copier; and back to the source.
    let mut again = Copier::new(&from.repository, &to.repository, &image("kept")).unwrap();
    let report = again.copy(&reference("disk")).unwrap();
    assert_eq!((report.manifest.number, report.known, report.bytes), (12, true, 0));
    let mut back = Copier::new(&to.repository, &from.repository, &image("disk")).unwrap();
    assert!(back.copy(&reference("kept@7")).unwrap().known);
    // A small change sends little, even from a version that is unknown in the target.
    from.repository.blob(&image("disk")).write(5, b"little", &stamp()).unwrap();
    let report = again.copy(&reference("disk")).unwrap();
    assert!(report.objects <= 3, "{} objects", report.objects);
    assert!(sent.iter().sum::<u64>() > 10 * report.bytes);
}

/// The files of all objects.
fn object_files(place: &Place) -> Vec<std::path::PathBuf> {
    let root = place.folder().to_owned();
    let list = |folder: &std::path::Path| {
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>()
    };
    ["chunks", "nodes"]
        .iter()
        .flat_map(|kind| list(&root.join(kind)))
        .flat_map(|folder| list(&folder))
        .collect()
}

#[test]
fn what_is_flipped_or_missing_is_named_and_healed_from_another_repository() {
    for seed in 0..6 {
        let (place, other) = (in_folder(), in_folder());
        let mut chance = Chance::from_seed(seed);
        place.repository.blob(&image("disk")).create(&shape(40 << 20, 16), &stamp()).unwrap();
        scribble(&place.repository, "disk", &mut chance, 6);
        let mut copier = Copier::new(&place.repository, &other.repository, &image("backup")).unwrap();
        copier.copy(&reference("disk")).unwrap();
        copier.copy(&reference("disk@4")).unwrap();
        for number in [1, 2, 3, 5, 6] {
            place.repository.remove(&reference(&format!("disk@{number}")), &stamp()).unwrap();
        }
        let before = content(&place.repository, "disk");
        let needed =
            place.repository.verify(&Scope::Version(reference("disk")), &NoProgress).unwrap().objects;
        let mut harmed = 0;
        for file in object_files(&place) {
            let mut bytes = std::fs::read(&file).unwrap();
            match chance.below(4) {
                0 => std::fs::remove_file(&file).unwrap(),
                1 => {
                    let at = chance.below(bytes.len() as u64) as usize;
                    bytes[at] ^= 1 << chance.below(8);
                    std::fs::write(&file, bytes).unwrap();
                }
                2 => std::fs::write(&file, &bytes[..bytes.len() / 2]).unwrap(),
                _ => continue,
            }
            harmed += 1;
        }
        assert!(harmed > 0 && needed > 0);
        let broken = Repository::open(&place.location).unwrap();
        let scope = Scope::Version(reference("disk"));
        let found = broken.verify(&scope, &NoProgress).unwrap();
        assert!(!found.damaged.is_empty(), "seed {seed}");
        let report = broken.repair(&scope, Some(&other.repository), &stamp(), &NoProgress).unwrap();
        assert_eq!(report.verified.damaged, [], "seed {seed}");
        assert!(report.healed.len() >= found.damaged.len(), "seed {seed}");
        assert_eq!(content(&broken, "disk"), before, "seed {seed}");
        assert_eq!(broken.verify(&scope, &NoProgress).unwrap().damaged, [], "seed {seed}");
    }
}

#[test]
fn what_the_other_repository_lacks_or_has_damaged_itself_stays_damaged() {
    let (place, other) = (in_folder(), in_folder());
    place.repository.blob(&image("disk")).create(&shape(1 << 20, 16), &stamp()).unwrap();
    place.repository.blob(&image("disk")).write(0, &[7; 1000], &stamp()).unwrap();
    let mut copier = Copier::new(&place.repository, &other.repository, &image("disk")).unwrap();
    copier.copy(&reference("disk")).unwrap();
    let flip = |place: &Place| {
        let file =
            object_files(place).into_iter().find(|file| file.to_string_lossy().contains("chunks")).unwrap();
        let mut bytes = std::fs::read(&file).unwrap();
        bytes[0] ^= 1;
        std::fs::write(&file, bytes).unwrap();
    };
    flip(&place);
    flip(&other);
    let broken = Repository::open(&place.location).unwrap();
    let report = broken.repair(&Scope::All, Some(&other.repository), &stamp(), &NoProgress).unwrap();
    assert_eq!((report.healed.len(), report.verified.damaged.len()), (0, 1));
    assert!(report.verified.damaged[0].path.starts_with("chunks/"));
}
