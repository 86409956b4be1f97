//! The actors of a prune run: writers that reuse existing objects, actors that clone, remove and read versions, and
//! prunes.

use std::sync::Arc;
use std::time::Duration;

use base::{Chance, Digest, Error, ErrorKind, Result};
use bytes::Bytes;
use image::manifest::{DiskRecord, Origin, Statistics};
use image::{
    ChunkExtents, ChunkRef, ChunkSize, DecryptedNodes, Leaf, Leaves, Manifest, ObjectKind, ObjectRef,
    ObjectSink, ObjectSource as _, TreeBuilder,
};
use store::{ImageName, Overseer, Process, PruneEvent, PruneOptions, Reference, Repository, Stamp, Writer};

use crate::prune::store::ActorStore;
use crate::prune::world::{Operation, Stage, World};

/// Number of distinct chunks: few, so that writers often need the same ones.
const CHUNKS: u64 = 10;
/// Number of chunks of an image: three leaf nodes under one root.
const INDICES: u64 = 700;
/// Maximum number of attempts per round; an actor retries after an error, such as a revoked lease.
const TRIES: u32 = 4;

/// An actor: its role, and the seed of its random choices.
#[derive(Debug)]
pub(super) struct Actor {
    pub role: Role,
    pub seed: u64,
}

/// The role of an actor.
#[derive(Debug, Clone, Copy)]
pub(super) enum Role {
    /// Publishes versions, of whose chunks some exist already.
    Write { rounds: u32 },
    /// Publishes the trees of other versions again.
    Clone { rounds: u32 },
    /// Removes versions.
    Remove { rounds: u32 },
    /// Reads versions from end to end.
    Read { rounds: u32 },
    /// Prunes, and considers an owner dead after this number of checks without a heartbeat.
    Prune { rounds: u32, looks: u32 },
}

/// The action of one round.
type Act = dyn Fn(&Repository, &Stage, &mut Chance) -> Result<()>;

/// Draws the actors of a run.
pub(super) fn draw(chance: &mut Chance) -> Vec<Actor> {
    let rounds = |chance: &mut Chance, most| 1 + u32::try_from(chance.below(most)).expect("few");
    let mut actors = Vec::new();
    for _ in 0..1 + chance.below(3) {
        actors.push(Role::Write { rounds: rounds(chance, 3) });
    }
    for _ in 0..chance.below(3) {
        actors.push(Role::Clone { rounds: rounds(chance, 3) });
    }
    actors.push(Role::Remove { rounds: rounds(chance, 6) });
    actors.push(Role::Read { rounds: rounds(chance, 3) });
    for _ in 0..1 + chance.below(3) {
        actors.push(Role::Prune { rounds: rounds(chance, 3), looks: rounds(chance, 4) });
    }
    actors.into_iter().map(|role| Actor { role, seed: chance.u64() }).collect()
}

/// Creates the repository with some versions.
pub(super) fn found(world: &Arc<World>) {
    world.begin(1);
    let stage = world.stage(0);
    let repository = open(&stage).expect("nothing goes wrong yet");
    let mut chance = Chance::from_seed(0);
    for seed in 0..6 {
        publish(&repository, &mut chance, seed).expect("nothing goes wrong yet");
    }
    stage.leave();
}

fn open(stage: &Stage) -> Result<Repository> {
    let process = |number: usize| Process {
        boot: "sim".to_owned(),
        namespace: 1,
        pid: u32::try_from(number).expect("few"),
        started: 1,
    };
    let (watcher, own) = (stage.clone(), process(stage.number()));
    let is_dead = move |other: &Process| watcher.sees_dead(other.pid as usize);
    Repository::simulated(Arc::new(ActorStore::new(stage.clone())), own, Arc::new(is_dead))
}

fn stamp() -> Stamp {
    Stamp { created: "2026-11-20T14:00:00Z".to_owned(), creator: "sim".to_owned() }
}

fn image(chance: &mut Chance) -> ImageName {
    ["a", "b"][usize::from(chance.hits(500_000))].parse().expect("a good name")
}

impl Actor {
    /// Runs the actor until it has done all rounds, or is dead.
    pub(super) fn act(&self, stage: &Stage) {
        let mut chance = Chance::from_seed(self.seed);
        let (rounds, act): (u32, &Act) = match self.role {
            Role::Write { rounds } => (rounds, &write),
            Role::Clone { rounds } => (rounds, &clone),
            Role::Remove { rounds } => (rounds, &remove),
            Role::Read { rounds } => (rounds, &read),
            Role::Prune { rounds, looks } => {
                (rounds, &move |repository, stage, _| prune(repository, stage, looks))
            }
        };
        for _ in 0..rounds {
            for _ in 0..TRIES {
                if stage.is_dead() {
                    return;
                }
                match open(stage).and_then(|repository| act(&repository, stage, &mut chance)) {
                    Ok(()) => break,
                    Err(error) => stage.tell(|checker, step| checker.failed(step, &error)),
                }
            }
        }
    }
}

fn publish(repository: &Repository, chance: &mut Chance, seed: u64) -> Result<Manifest> {
    let writer = Writer::begin_without_heartbeat(repository, &stamp())?;
    let draft = fill(&writer, &mut Chance::from_seed(seed))?;
    writer.publish(&image(chance), draft)
}

fn write(repository: &Repository, stage: &Stage, chance: &mut Chance) -> Result<()> {
    let writer = Writer::begin_without_heartbeat(repository, &stamp())?;
    for _ in 0..1 + chance.below(2) {
        let draft = fill(&writer, &mut chance.fork())?;
        if chance.hits(300_000) {
            writer.beat()?;
        }
        for _ in 0..chance.below(20) {
            stage.ask(Operation::Nap);
        }
        let published = writer.publish(&image(chance), draft)?;
        stage.tell(|checker, _| checker.reported(&published.image, published.number, &published.nonce));
    }
    Ok(())
}

/// Stores the tree of a random image; chunks that exist already are not stored again.
fn fill(writer: &Writer, chance: &mut Chance) -> Result<Manifest> {
    let sink = Sparing(writer);
    let stored = || -> Result<Manifest> {
        let size = ChunkSize::from_log2(16).expect("a good size");
        let mut tree = TreeBuilder::new(size, INDICES, &sink, writer.cipher());
        for index in (0..INDICES).step_by(100) {
            if chance.hits(600_000) {
                let bytes = Bytes::from(chance.below(CHUNKS).to_le_bytes().repeat(9));
                let object = ObjectRef::of(ObjectKind::Chunk, &bytes);
                sink.put(&object, bytes)?;
                let chunk =
                    ChunkRef { encoded_len: object.len, encoded: object.digest, plain: Digest([7; 32]) };
                tree.push(index, &Leaf::Data(ChunkExtents::full(size), chunk))?;
            }
        }
        Ok(draft(size, tree.finish()?))
    };
    let mut stored = stored;
    stored().map_err(|error| {
        let kind = match error.kind() {
            ErrorKind::Refused => ErrorKind::Revoked,
            _ => ErrorKind::Io,
        };
        Error::from_source(kind, "store an image", error)
    })
}

/// A sink that stores only missing objects.
struct Sparing<'a>(&'a Writer);

impl ObjectSink for Sparing<'_> {
    fn contains(&self, object: &ObjectRef) -> Result<bool> {
        self.0.contains(object)
    }

    fn put(&self, object: &ObjectRef, bytes: Bytes) -> Result<()> {
        if self.0.contains(object)? { Ok(()) } else { self.0.put(object, bytes) }
    }
}

fn draft(size: ChunkSize, root: image::Root) -> Manifest {
    let size_sectors = INDICES * u64::from(size.sectors());
    Manifest {
        format: 1,
        features: Vec::new(),
        image: "draft".to_owned(),
        number: 0,
        nonce: String::new(),
        repository: None,
        parent: None,
        copied: None,
        commit: None,
        made: None,
        members: Vec::new(),
        root,
        chunk_bytes: size.bytes(),
        size_sectors,
        logical_sector_bytes: 512,
        physical_sector_bytes: 512,
        origin: Origin { disk_sectors: size_sectors, start_sector: 0 },
        disk: DiskRecord { table: "none".to_owned(), ..DiskRecord::default() },
        labels: [].into(),
        created: "2026-11-20T14:00:00Z".to_owned(),
        creator: "sim".to_owned(),
        statistics: Statistics::default(),
        warnings: Vec::new(),
        cipher: "none".to_owned(),
    }
}

/// A random existing version; `None` if there are none.
fn any_version(repository: &Repository, chance: &mut Chance) -> Result<Option<Reference>> {
    let image = image(chance);
    match repository.versions(&image) {
        Ok(numbers) => {
            let number = numbers[usize::try_from(chance.below(numbers.len() as u64)).expect("few")];
            Ok(Some(Reference::Version(image, number)))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn clone(repository: &Repository, stage: &Stage, chance: &mut Chance) -> Result<()> {
    let writer = Writer::begin_without_heartbeat(repository, &stamp())?;
    let Some(source) = any_version(repository, chance)? else { return Ok(()) };
    let found = match repository.resolve(&source) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    for _ in 0..chance.below(20) {
        stage.ask(Operation::Nap);
    }
    // Publishing checks only the root: everything below it is needed by the source version, too.
    match writer.publish(&image(chance), found) {
        Ok(published) => {
            stage.tell(|checker, _| checker.reported(&published.image, published.number, &published.nonce));
            Ok(())
        }
        // `Refused`: a prune may delete the root, so the clone cannot rely on it.
        Err(error) if error.kind() == ErrorKind::Refused => Ok(()),
        Err(error) => Err(error),
    }
}

fn remove(repository: &Repository, _: &Stage, chance: &mut Chance) -> Result<()> {
    let Some(victim) = any_version(repository, chance)? else { return Ok(()) };
    match repository.remove(&victim, &stamp()) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn read(repository: &Repository, stage: &Stage, chance: &mut Chance) -> Result<()> {
    let Some(reference) = any_version(repository, chance)? else { return Ok(()) };
    let found = match repository.resolve(&reference) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    let read = || -> Result<()> {
        let size = found.layout()?.chunk;
        let nodes = DecryptedNodes { source: repository, cipher: repository.cipher() };
        for run in Leaves::new(nodes, size, &found.root) {
            if let Leaf::Data(_, chunk) = run?.leaf {
                chunk.object().verified(repository.fetch(&chunk.object())?)?;
            }
        }
        Ok(())
    };
    match read() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            stage.tell(|checker, _| checker.unread(&found.image, found.number, &base::chain(&error)));
            Ok(())
        }
        _ => Ok(()),
    }
}

struct Patience<'a>(&'a Stage);

impl Overseer for Patience<'_> {
    fn event(&self, _: &PruneEvent) {}

    fn pause(&self, _: Duration) {
        self.0.ask(Operation::Nap);
    }
}

fn prune(repository: &Repository, stage: &Stage, looks: u32) -> Result<()> {
    let options = PruneOptions { looks, pause: Duration::ZERO, window: 1 };
    repository.prune_without_heartbeat(&options, &stamp(), &Patience(stage)).map(drop)
}
