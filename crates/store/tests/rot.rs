//! Records with one flipped bit: all programs can still work, `verify` reports it, `--repair` repairs it, and nothing
//! is lost. To repeat one test: `ROT_SEED=<n> cargo test --workspace --test store rot::<name>`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::{Chance, Result};
use futures::executor::block_on;
use image::{EncryptionKey, Manifest, NoProgress};
use object_store::ObjectStoreExt as _;
use object_store::memory::InMemory;
use store::{Keys, Location, Overseer, PruneEvent, PruneOptions, Reference, Repository, Scope, Writer};

use crate::common::{self, Records, image, put_encrypted, reference, setting, stamp};

/// Number of bits that are flipped in each record, one at a time.
const BITS: u64 = 4;

/// Every kind of record, and the least number of each in the repository of these tests.
const CLASSES: [(&str, usize); 12] = [
    ("format", 1),
    ("versions/", 5),
    ("removed/", 1),
    ("floors/", 1),
    ("tags/", 2),
    ("appends/", 1),
    ("profiles/", 1),
    ("probes/", 1),
    ("leases/", 6),
    ("prunes/00000000000000000001/", 2),
    ("prunes/00000000000000000002/", 1),
    ("candidates/", 1),
];

/// Never waits. Copies the folder when the first objects have been deleted, as if the prune were killed then.
struct Killed<'a>(&'a Path, Option<&'a Path>);

impl Overseer for Killed<'_> {
    fn event(&self, event: &PruneEvent) {
        if let (PruneEvent::Deleted(_), Some(to)) = (event, self.1.filter(|to| !to.exists())) {
            common::copy_all(self.0, to);
        }
    }

    fn pause(&self, _: Duration) {}
}

fn hasty() -> PruneOptions {
    PruneOptions { looks: 1, pause: Duration::ZERO, ..PruneOptions::default() }
}

/// A repository with records of every kind, in which a writer and a prune were killed.
struct Fixture {
    records: Records,
    keys: Keys,
    /// The content of each version.
    contents: Vec<(Reference, Vec<u8>)>,
}

impl Fixture {
    fn new(key: Option<EncryptionKey>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (alive, killed) = (folder.path().join("alive"), folder.path().join("killed"));
        let location = Location::Folder(alive.clone());
        let repository = match &key {
            None => Repository::create_with(&location, &setting()).unwrap(),
            Some(key) => Repository::create_sealed_with(&location, key, &setting()).unwrap(),
        };
        fill(&repository, &alive, &killed);
        let records = Records::default();
        common::each_file(&killed, &mut |path, bytes| records.write(path, bytes));
        let keys = Keys { encryption: key, ..Keys::default() };
        let mut fixture = Self { records, keys, contents: Vec::new() };
        let repository = fixture.open(&fixture.records.0);
        assert_eq!(repository.verify(&Scope::All, &NoProgress).unwrap().damaged, []);
        fixture.contents = contents(&repository);
        fixture
    }

    fn open_on(&self, store: Arc<InMemory>) -> Result<Repository> {
        Repository::over_with(store, "a folder", &setting())?.with_keys(self.keys.clone())
    }

    fn open(&self, store: &InMemory) -> Repository {
        self.open_on(Arc::new(store.fork())).unwrap()
    }
}

fn publish(repository: &Repository, name: &str, seed: u64) -> Result<Manifest> {
    let (draft, _) = put_encrypted(repository, repository.cipher(), seed, 4);
    repository.publish(&image(name), draft)
}

fn fill(repository: &Repository, alive: &Path, killed: &Path) {
    (1..=4).for_each(|seed| drop(publish(repository, "web", seed).unwrap()));
    for version in [1, 2] {
        repository.tag(&image("web"), &"stable".parse().unwrap(), version, &stamp()).unwrap();
    }
    repository.blob(&image("web")).append(&[1; 512], &stamp()).unwrap();
    repository.remove(&reference("web@3"), &stamp()).unwrap();
    publish(repository, "old", 9).unwrap();
    repository.remove(&reference("old@1"), &stamp()).unwrap();
    repository.prune(&hasty(), &stamp(), &Killed(alive, None)).unwrap();
    repository.add_profile(&image("web"), 5, &[0, 1, 2], &stamp()).unwrap();
    let idle = Writer::begin_without_heartbeat(repository, &stamp()).unwrap();
    idle.beat().unwrap();
    std::mem::forget(idle);
    publish(repository, "db", 7).unwrap();
    repository.remove(&reference("web@4"), &stamp()).unwrap();
    repository.prune(&hasty(), &stamp(), &Killed(alive, Some(killed))).unwrap();
}

fn content(repository: &Repository, reference: &Reference) -> Result<Vec<u8>> {
    let snapshot = repository.snapshot(reference)?;
    let mut bytes = vec![0; usize::try_from(snapshot.layout().size_bytes()).unwrap()];
    snapshot.read(0, &mut bytes)?;
    Ok(bytes)
}

fn contents(repository: &Repository) -> Vec<(Reference, Vec<u8>)> {
    let names = ["web@1", "web@2", "web@5", "web:stable", "db"].map(reference);
    names.into_iter().map(|name| (name.clone(), content(repository, &name).unwrap())).collect()
}

/// Runs all operations of a site, one after the other; returns their results.
fn life(
    repository: Result<Repository>,
    contents: &[(Reference, Vec<u8>)],
) -> Vec<(&'static str, Result<()>)> {
    let repository = match repository {
        Ok(repository) => repository,
        Err(error) => return vec![("open", Err(error))],
    };
    let (web, stable) = (image("web"), "stable".parse().unwrap());
    let read = || {
        contents.iter().try_for_each(|(name, expected)| {
            assert!(content(&repository, name)? == *expected, "{name} holds something else");
            Ok(())
        })
    };
    let mut done = vec![
        ("read", read()),
        ("profile", repository.profile(&web, 5).map(drop)),
        ("capture", publish(&repository, "new", 11).map(drop)),
        ("write", repository.blob(&web).write(0, &[2; 700], &stamp()).map(drop)),
        ("append", repository.blob(&web).append(&[3; 512], &stamp()).map(drop)),
        ("remove", repository.remove(&reference("web@6"), &stamp()).map(drop)),
        ("prune", repository.prune(&hasty(), &stamp(), &Killed(Path::new(""), None)).map(drop)),
        ("read again", read()),
        ("tag", repository.tag(&web, &stable, 5, &stamp())),
        ("untag", repository.remove(&reference("web:stable"), &stamp()).map(drop)),
        ("capture again", publish(&repository, "new", 3).map(drop)),
        ("prune again", repository.prune(&hasty(), &stamp(), &Killed(Path::new(""), None)).map(drop)),
        ("read new", content(&repository, &reference("new@1")).map(drop)),
    ];
    done.push(("lists", repository.log(&web, None).and_then(|mut log| log.try_for_each(|it| it.map(drop)))));
    done
}

fn damaged(repository: &Repository) -> Vec<String> {
    let report = repository.verify(&Scope::All, &NoProgress).unwrap();
    report.damaged.into_iter().map(|damage| damage.path).collect()
}

/// Calls `each` for flipped bits of each record, one at a time, with the path, the position, and the changed store.
fn each_bit(fixture: &Fixture, chance: &mut Chance, each: &mut dyn FnMut(&str, &str, &InMemory)) {
    let paths = fixture.records.paths();
    for (class, least) in CLASSES {
        let of_class: Vec<_> = paths.iter().filter(|path| path.starts_with(class)).collect();
        assert!(of_class.len() >= least, "{class}: {of_class:?}");
        for path in of_class {
            let good = fixture.records.read(path);
            for _ in 0..BITS {
                let (at, bit) = (chance.below(good.len() as u64), chance.below(8));
                let mut bytes = good.to_vec();
                bytes[usize::try_from(at).unwrap()] ^= 1 << bit;
                let store = fixture.records.0.fork();
                block_on(store.put(&path.as_str().into(), bytes.into())).unwrap();
                each(path, &format!("`{path}`, bit {bit} of byte {at}"), &store);
            }
        }
    }
}

fn seed() -> u64 {
    std::env::var("ROT_SEED").map_or(1, |seed| seed.parse().unwrap())
}

fn one_bit_stops_nobody(key: Option<EncryptionKey>) {
    let fixture = Fixture::new(key);
    let mut chance = Chance::from_seed(seed());
    each_bit(&fixture, &mut chance, &mut |path, what, store| {
        let failed = |done: Vec<(&'static str, Result<()>)>| {
            let failed = done.into_iter().filter_map(|(step, done)| Some((step, done.err()?.to_string())));
            failed.collect::<Vec<_>>()
        };
        let open = || fixture.open_on(Arc::new(store.fork()));
        assert_eq!(failed(life(open(), &fixture.contents)), [], "seed {}: {what}", seed());
        let repository = open().unwrap();
        assert_eq!(damaged(&repository), [path], "seed {}: {what}", seed());
        let report = repository.repair(&Scope::All, None, &stamp(), &NoProgress).unwrap();
        let healed: Vec<_> = report.healed.iter().map(|healed| healed.damage.path.as_str()).collect();
        assert_eq!((healed, report.verified.damaged), (vec![path], vec![]), "seed {}: {what}", seed());
        assert_eq!(damaged(&repository), [""; 0], "seed {}: {what}", seed());
        assert_eq!(failed(life(Ok(repository), &fixture.contents)), [], "seed {}: {what}, repaired", seed());
    });
}

#[test]
fn one_bit_of_any_record_stops_nobody() {
    one_bit_stops_nobody(None);
}

#[test]
fn one_bit_of_any_sealed_record_stops_nobody() {
    one_bit_stops_nobody(Some(EncryptionKey::from_bytes([5; 32])));
}

/// Whether the content of a record exists only once: after more damage, only another copy of the repository has it.
fn is_told_once(path: &str) -> bool {
    let number = |number: u64| format!("{number:020}");
    // The newest move of a tag, the newest reservation, versions whose lease was deleted, a list that a killed prune
    // may still use, and the last entries of a living writer and of a prune.
    path == "format"
        || path == format!("tags/web/stable/{}", number(2))
        || path == format!("appends/web/{}", number(2))
        || ["web", "db"].iter().any(|image| path.starts_with(&format!("versions/{image}")))
        || path.starts_with("candidates/")
        || [(1, 2), (1, 3), (2, 3), (3, 2)].iter().any(|&(lease, entry)| {
            path == format!("leases/{}/{}.{}", number(1), number(lease), number(entry))
        })
}

#[test]
fn records_of_which_much_is_damaged_are_rebuilt_where_others_tell_what_they_said() {
    let fixture = Fixture::new(None);
    let mut rebuilt = 0;
    for path in
        fixture.records.paths().iter().filter(|path| CLASSES.iter().any(|(class, _)| path.starts_with(class)))
    {
        let store = Arc::new(fixture.records.0.fork());
        let mut bytes = fixture.records.read(path).to_vec();
        let from = bytes.len() / 3;
        bytes[from..from + 40].fill(0);
        block_on(store.put(&path.as_str().into(), bytes.into())).unwrap();
        let Ok(repository) = fixture.open_on(store.clone()) else {
            assert_eq!(path, "format");
            continue;
        };
        let report = repository.repair(&Scope::All, None, &stamp(), &NoProgress).unwrap();
        let left: Vec<_> = report.verified.damaged.iter().map(|damage| damage.path.as_str()).collect();
        // A tag on a damaged version is reported too.
        if left.contains(&path.as_str()) && left.iter().all(|path| is_told_once(path)) {
            continue;
        }
        assert_eq!(left, [""; 0], "{path}");
        assert_eq!(damaged(&repository), [""; 0], "{path}");
        rebuilt += 1;
        for (step, done) in life(Ok(repository), &fixture.contents) {
            // Even a profile that was set aside is not missed.
            assert!(done.is_ok(), "{path}: {step}: {done:?}");
        }
    }
    assert!(rebuilt >= 8, "{rebuilt} records were rebuilt");
}
