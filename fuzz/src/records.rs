//! Records of a repository that others could have written: whoever meets them does his work as if they were right.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base::limits::PROFILE_CHUNKS_MAX;
use bytes::Bytes;
use futures::executor::block_on;
use futures::stream::TryStreamExt as _;
use image::NoProgress;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore as _, ObjectStoreExt as _};
use store::{Overseer, Process, PruneEvent, PruneOptions, Repository, Scope, Stamp, Writer};

use crate::{Target, images};

/// Leases, prunes and their lists, as those who write and prune later find them.
pub(crate) const PRUNING: Target =
    Target { name: "pruning", seeds: || records(&["leases/", "prunes/", "candidates/"]), take: take_pruning };
/// Reservations of appends and tombstones, as those who append find them.
pub(crate) const APPENDS: Target =
    Target { name: "appends", seeds: || records(&["appends/", "removed/"]), take: take_append };
/// Any record, damaged in any way, as those find it who verify and repair.
pub(crate) const REPAIR: Target = Target { name: "repair", seeds: || records(&[""]), take: take_repair };
/// Profiles of boots, as machines that start find them, and as those who add a boot do.
pub(crate) const PROFILES: Target =
    Target { name: "profiles", seeds: || records(&["profiles/"]), take: take_profile };

fn stamp() -> Stamp {
    Stamp { created: "2026-11-20T14:00:00Z".to_owned(), creator: "fuzz".to_owned() }
}

fn open(store: Arc<InMemory>) -> base::Result<Repository> {
    let process = Process { boot: "0".repeat(32), namespace: 1, pid: 1, started: 1 };
    Repository::simulated(store, process, Arc::new(|_| false))
}

/// Waits for nobody, and keeps the store as it is when the first objects were deleted.
#[derive(Default)]
struct Hasty<'a> {
    store: Option<&'a InMemory>,
    killed: OnceLock<InMemory>,
}

impl Overseer for Hasty<'_> {
    fn event(&self, event: &PruneEvent) {
        if let (PruneEvent::Deleted(_), Some(store)) = (event, self.store) {
            self.killed.get_or_init(|| store.fork());
        }
    }

    fn pause(&self, _: Duration) {}
}

fn prune(repository: &Repository, overseer: &Hasty<'_>) -> base::Result<()> {
    let options = PruneOptions { looks: 1, pause: Duration::ZERO, window: 1 };
    repository.prune_without_heartbeat(&options, &stamp(), overseer).map(drop)
}

/// A repository with every kind of record, in which a prune was killed.
fn base() -> &'static InMemory {
    static BASE: OnceLock<InMemory> = OnceLock::new();
    BASE.get_or_init(|| {
        let store = Arc::new(InMemory::new());
        let repository = open(store.clone()).expect("memory takes it");
        let image = "web".parse().expect("a name");
        for _ in 0..2 {
            repository
                .publish(&image, images::draft(&repository, repository.cipher()))
                .expect("all of it is there");
        }
        let blob = repository.blob(&image);
        blob.append(&[1; 512], &stamp()).expect("there is room");
        for number in 1..=2 {
            let victim = store::Reference::Version(image.clone(), number);
            repository.remove(&victim, &stamp()).expect("nothing holds it");
        }
        prune(&repository, &Hasty::default()).expect("nobody is in the way");
        let idle = Writer::begin_without_heartbeat(&repository, &stamp()).expect("memory takes it");
        idle.beat().expect("nobody took it for dead");
        blob.append(&[2; 512], &stamp()).expect("there is room");
        for boot in [[0, 1, 2, 7], [0, 2, 1, 9]] {
            repository.add_profile(&"web".parse().expect("a name"), 4, &boot, &stamp()).expect("it is there");
        }
        repository.remove(&store::Reference::Version(image, 3), &stamp()).expect("nothing holds it");
        let hasty = Hasty { store: Some(&store), ..Hasty::default() };
        prune(&repository, &hasty).expect("nobody is in the way");
        hasty.killed.into_inner().expect("something was deleted")
    })
}

/// All records below `folders`: the path, a line feed, and the bytes.
fn records(folders: &[&str]) -> Vec<Vec<u8>> {
    let found = block_on(base().list(None).try_collect::<Vec<_>>()).expect("memory lists");
    let paths = found.into_iter().map(|found| found.location);
    let paths = paths.filter(|path| folders.iter().any(|folder| path.as_ref().starts_with(folder)));
    paths.map(|path| [path.as_ref().as_bytes(), b"\n", &read(&path)].concat()).collect()
}

fn read(path: &Path) -> Bytes {
    block_on(async { base().get(path).await?.bytes().await }).expect("it was listed")
}

/// The repository with a record as `input` has it, its digest made right again, as a forger would.
fn with(input: &[u8]) -> Option<Repository> {
    let text = String::from_utf8_lossy(input);
    let (path, record) = text.split_once('\n')?;
    let path = Path::parse(path).ok().filter(|path| !path.as_ref().is_empty())?;
    let (covered, _) = record.trim_end().rsplit_once('\n')?;
    let bytes = format!("{covered}\nblake3 {}\n", base::Digest::of(covered.as_bytes()));
    let store = self::base().fork();
    block_on(store.put(&path, bytes.into())).ok()?;
    open(Arc::new(store)).ok()
}

fn take_pruning(input: &[u8]) {
    let Some(repository) = with(input) else { return };
    let _ = Writer::begin_without_heartbeat(&repository, &stamp());
    let _ = prune(&repository, &Hasty::default());
}

/// One in so many inputs is repaired: that tries all changes of all its bytes.
const REPAIRED: u8 = 64;

fn take_repair(input: &[u8]) {
    let Some(at) = input.iter().position(|&byte| byte == b'\n') else { return };
    let (path, record) = (String::from_utf8_lossy(&input[..at]), &input[at + 1..]);
    let Some(path) = Path::parse(path).ok().filter(|path| !path.as_ref().is_empty()) else { return };
    if !base::Digest::of(input).0[0].is_multiple_of(REPAIRED) {
        return;
    }
    let store = Arc::new(self::base().fork());
    if block_on(store.put(&path, Bytes::copy_from_slice(record).into())).is_err() {
        return;
    }
    let Ok(repository) = open(store) else { return };
    let report = repository.repair(&Scope::All, None, &stamp(), &NoProgress).expect("memory answers");
    let told = |damage: &store::Damage| damage.path == path.as_ref();
    let again = repository.verify(&Scope::All, &NoProgress).expect("memory answers");
    let is_left = report.verified.damaged.iter().any(told);
    assert_eq!(again.damaged.iter().any(told), is_left, "`{path}` was healed, or was not");
}

fn take_append(input: &[u8]) {
    let Some(repository) = with(input) else { return };
    let _ = repository.blob(&"web".parse().expect("a name")).append(&[3; 512], &stamp());
}

fn take_profile(input: &[u8]) {
    let Some(repository) = with(input) else { return };
    let web = "web".parse().expect("a name");
    if let Ok(Some(found)) = repository.profile(&web, 4) {
        assert!(found.order().len() <= PROFILE_CHUNKS_MAX);
    }
    let _ = repository.add_profile(&web, 4, &[3, 2, 1], &stamp());
}
