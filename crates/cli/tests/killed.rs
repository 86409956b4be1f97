//! Kills the binary at random moments of capture, commit, tag and prune, and checks that the repository verifies,
//! that everything that was reported exists, and that the next prune leaves no garbage. `DISKCAST_KILLS=200` sets the
//! number of kills; the default is smaller.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use base::Chance;
use image::{NoProgress, ObjectKind, ObjectRef, ObjectSink as _};
use store::{
    Location, Overseer, PruneEvent, PruneOptions, Reference, Repository, Scope, Stamp, TagName, Writer,
};

use crate::common::Bench;

/// Default number of kills.
const KILLS: u64 = 40;
const SEED: u64 = 20_261_121;
/// Bytes of the disk.
const DISK_BYTES: usize = 1 << 20;
/// Versions of an image that stay; older ones are removed before each prune.
const KEPT: usize = 3;

/// The commands that are killed.
const DEEDS: [&str; 4] = ["capture disk.img web", "commit lab disk.img", "tag web@N stable", "prune"];

/// Does not wait in a prune: all earlier writers are dead.
struct Hasty;

impl Overseer for Hasty {
    fn event(&self, _: &PruneEvent) {}
    fn pause(&self, _: Duration) {}
}

fn stamp() -> Stamp {
    Stamp { created: "2026-11-21T00:00:00Z".to_owned(), creator: "tester".to_owned() }
}

/// What must exist, because a command has reported it.
#[derive(Default)]
struct Reported {
    /// The content of each version.
    versions: BTreeMap<(String, u64), Vec<u8>>,
    /// The possible versions of the tag `stable`: one, unless a move of the tag was killed before it was reported.
    stable: Vec<u64>,
}

/// A repository, its disk, and what is known about it.
struct Room {
    bench: Bench,
    chance: Chance,
    disk: Vec<u8>,
    reported: Reported,
    /// Typical time of each command when it is not killed.
    takes: [Duration; DEEDS.len()],
    /// Commands that were killed before they reported, and those that finished before.
    killed: [u64; DEEDS.len()],
    done: [u64; DEEDS.len()],
}

impl Room {
    /// A repository with two images, after each command was run and timed once.
    fn new() -> Self {
        let mut room = Self {
            bench: Bench::new(),
            chance: Chance::from_seed(SEED),
            disk: vec![0; DISK_BYTES],
            reported: Reported::default(),
            takes: [Duration::MAX; DEEDS.len()],
            killed: [0; DEEDS.len()],
            done: [0; DEEDS.len()],
        };
        room.change_disk();
        assert!(room.bench.see("capture disk.img web -q").ends_with("exit: 0\n"));
        assert!(room.bench.see("clone web lab -q").ends_with("exit: 0\n"));
        for name in ["web", "lab"] {
            room.reported.versions.insert((name.to_owned(), 1), room.disk.clone());
        }
        for (deed, words) in DEEDS.iter().enumerate() {
            assert!(room.run(deed, None), "{words}: nothing was reported");
            room.check();
        }
        room
    }

    fn repository(&self) -> Repository {
        Repository::open(&Location::Folder(self.bench.path("repo"))).unwrap()
    }

    /// Changes a few pieces of the disk, so that versions share some chunks.
    fn change_disk(&mut self) {
        for _ in 0..3 {
            let at = usize::try_from(self.chance.below(DISK_BYTES as u64 - 8192)).unwrap();
            self.chance.fill(&mut self.disk[at..at + 8192]);
        }
        std::fs::write(self.bench.path("disk.img"), &self.disk).unwrap();
    }

    /// Removes all untagged versions except the last ones, and leaves objects as an abandoned capture does.
    fn make_garbage(&mut self) {
        let repository = self.repository();
        for name in ["web", "lab"] {
            let versions = repository.versions(&name.parse().unwrap()).unwrap();
            for &number in &versions[..versions.len().saturating_sub(KEPT)] {
                let victim = Reference::Version(name.parse().unwrap(), number);
                if repository.remove(&victim, &stamp()).is_ok() {
                    self.reported.versions.remove(&(name.to_owned(), number));
                }
            }
        }
        let writer = Writer::begin(&repository, &stamp()).unwrap();
        for _ in 0..20 {
            let mut bytes = vec![0; 64];
            self.chance.fill(&mut bytes);
            writer.put(&ObjectRef::of(ObjectKind::Chunk, &bytes), bytes.into()).unwrap();
        }
        repository.flush().unwrap();
    }

    /// Runs a command and kills it after `lives`, if given. Records what it reported. Returns whether it reported
    /// anything.
    fn run(&mut self, deed: usize, lives: Option<Duration>) -> bool {
        let target = self.newest("web");
        match deed {
            0 | 1 => self.change_disk(),
            2 => {}
            _ => self.make_garbage(),
        }
        let words = DEEDS[deed].replace('N', &target.to_string());
        let output = run_and_kill(&mut self.bench.command(&words), lives);
        // The load of the machine changes, so the time is adjusted: about half of the commands should be killed.
        match output.line {
            Some(_) => self.takes[deed] = output.took,
            None => self.takes[deed] += self.takes[deed] / 10,
        }
        let record = output.line.map(|line| serde_json::from_str::<serde_json::Value>(&line).unwrap());
        let number = record.as_ref().and_then(|record| record["number"].as_u64());
        match (deed, number) {
            (0, Some(number)) => {
                drop(self.reported.versions.insert(("web".to_owned(), number), self.disk.clone()))
            }
            (1, Some(number)) => {
                drop(self.reported.versions.insert(("lab".to_owned(), number), self.disk.clone()))
            }
            (2, _) if record.is_some() => self.reported.stable = vec![target],
            (2, _) => self.reported.stable.push(target),
            _ => {}
        }
        record.is_some()
    }

    fn newest(&self, name: &str) -> u64 {
        *self.repository().versions(&name.parse().unwrap()).unwrap().last().unwrap()
    }

    /// Checks that the repository is undamaged, has everything that was reported, and has no garbage after a prune.
    fn check(&mut self) {
        let repository = self.repository();
        self.assert_holds(&repository);
        let options = PruneOptions { looks: 1, pause: Duration::ZERO, ..PruneOptions::default() };
        repository.prune(&options, &stamp(), &Hasty).unwrap();
        // Opened again, since a handle caches nodes.
        let repository = self.repository();
        self.assert_holds(&repository);
        let report = repository.verify(&Scope::All, &NoProgress).unwrap();
        assert_eq!((report.unreferenced, report.strangers), (0, 0), "garbage is left");
        for records in ["leases", "candidates", "appends"] {
            let left = files(&self.bench.path(&format!("repo/{records}")));
            assert_eq!(
                left,
                Vec::<PathBuf>::new(),
                "all writers have ended, and what was in doubt is deleted"
            );
        }
        assert!(files(&self.bench.path("repo/prunes")).len() <= 4, "records of the newest two prunes");
        let copies = [files(&self.bench.path("repo/chunks")), files(&self.bench.path("repo/nodes"))].concat();
        let objects: BTreeSet<_> = copies.iter().map(|path| path.with_extension("")).collect();
        assert_eq!(objects.len(), copies.len(), "an object has several copies");
    }

    fn assert_holds(&mut self, repository: &Repository) {
        let report = repository.verify(&Scope::All, &NoProgress).unwrap();
        assert_eq!(report.damaged, [], "{} of {} objects", report.damaged.len(), report.objects);
        for ((name, number), disk) in &self.reported.versions {
            let version = repository.snapshot(&Reference::Version(name.parse().unwrap(), *number)).unwrap();
            let mut found = vec![0; DISK_BYTES];
            version.read(0, &mut found).unwrap();
            assert!(found == *disk, "{name}@{number} holds something else than was captured");
        }
        let tag: TagName = "stable".parse().unwrap();
        let tags = repository.tags(&"web".parse().unwrap()).unwrap();
        match tags.iter().find(|found| found.name == tag) {
            // Once a version was found, it must stay.
            Some(found) if self.reported.stable.contains(&found.version) => {
                self.reported.stable = vec![found.version]
            }
            Some(found) => {
                panic!("the tag is at {}, not at one of {:?}", found.version, self.reported.stable)
            }
            None => assert!(self.reported.stable.is_empty(), "the tag is gone"),
        }
    }
}

/// The output of a command before it ended or was killed, and its time.
struct Said {
    line: Option<String>,
    took: Duration,
}

#[expect(
    clippy::disallowed_methods,
    reason = "a moment by chance is when it is killed; nothing waits for that"
)]
fn run_and_kill(command: &mut Command, lives: Option<Duration>) -> Said {
    let began = Instant::now();
    let command = command.args(["--json", "-q"]).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let said = std::thread::spawn(move || {
        let mut text = String::new();
        stdout.read_to_string(&mut text).unwrap();
        (text, began.elapsed())
    });
    if let Some(lives) = lives {
        std::thread::sleep(lives);
        child.kill().unwrap();
    }
    let (text, took) = said.join().unwrap();
    assert!(child.wait().unwrap().success() || lives.is_some(), "{command:?}");
    // An incomplete line does not count as a report.
    let line = text.split_inclusive('\n').rfind(|line| line.ends_with('\n')).map(str::to_owned);
    Said { line, took }
}

/// The files below `folder`.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().map(Result::unwrap) {
            match entry.file_type().unwrap().is_dir() {
                true => folders.push(entry.path()),
                false => found.push(entry.path()),
            }
        }
    }
    found
}

#[test]
#[expect(clippy::print_stdout, reason = "--nocapture shows how much was killed")]
fn killed_at_any_moment_nothing_reported_is_lost_and_all_garbage_goes() {
    let kills = std::env::var("DISKCAST_KILLS").map_or(KILLS, |kills| kills.parse().unwrap());
    let mut room = Room::new();
    for round in 0..kills {
        let deed = usize::try_from(round).unwrap() % DEEDS.len();
        // Sometimes later than the typical time, so that the command finishes.
        let most = u64::try_from(room.takes[deed].as_micros()).unwrap() * 5 / 4;
        let lives = Duration::from_micros(room.chance.below(most));
        let is_done = room.run(deed, Some(lives));
        let count = if is_done { &mut room.done } else { &mut room.killed };
        count[deed] += 1;
        room.check();
    }
    println!("{DEEDS:?}: {:?} killed, {:?} were faster; {:?} each", room.killed, room.done, room.takes);
    assert!(room.killed.iter().sum::<u64>() >= kills / 4, "{:?}", room.killed);
}
