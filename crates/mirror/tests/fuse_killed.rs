//! The process of a mount is killed without warning, while writers record which writes were acknowledged.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use base::Chance;
use mirror::Source;
use store::{Location, Repository};

use crate::common::{CHUNK, Place};
use crate::fuse_common::{Mount, open};

const SIZE: u64 = 32 * CHUNK;
const WRITERS: u64 = 3;
/// The environment variable with the folder of the process that is killed.
const FOLDER: &str = "FUSE_TEST_FOLDER";
/// Number of rounds; set `FUSE_KILLS=50` for more.
const ROUNDS: u64 = 6;

/// Not a test of its own: this is the process that is killed.
#[test]
fn mounter() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let folder = Path::new(&folder);
    let repository = Arc::new(Repository::open(&Location::Folder(folder.join("repository"))).unwrap());
    let sources = vec![Source::repository(Arc::clone(&repository))];
    let mount = Mount::at(folder, &repository, sources, u64::MAX);
    writeln!(std::io::stderr(), "mounted").unwrap();
    mount.mounted.wait().unwrap();
}

fn start(folder: &Path) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "fuse_killed::mounter", "--nocapture"])
        .env(FOLDER, folder)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let told: Vec<String> = lines.by_ref().take_while(|line| line != "mounted").collect();
    assert!(!told.iter().any(|line| line.contains("panicked")), "it did not mount: {}", told.join("\n"));
    std::thread::spawn(move || lines.count());
    child
}

/// The bytes that one writer has written. The bytes of the write that was cut short are doubtful: they may be old or
/// new.
struct Known {
    start: u64,
    bytes: Vec<u8>,
    doubtful: Range<usize>,
    doubt: Vec<u8>,
}

impl Known {
    /// Writes at random places until a write fails.
    fn write_until_killed(&mut self, file: &File, seed: u64, wrote: &dyn Fn()) {
        let mut chance = Chance::from_seed(seed);
        loop {
            let offset = chance.below(self.bytes.len() as u64);
            let count = (1 + chance.below(6000)).min(self.bytes.len() as u64 - offset);
            let range = offset as usize..(offset + count) as usize;
            let mut bytes = vec![0; count as usize];
            chance.fill(&mut bytes);
            if file.write_at(&bytes, self.start + offset).is_ok_and(|written| written == bytes.len()) {
                self.bytes[range].copy_from_slice(&bytes);
            } else {
                (self.doubtful, self.doubt) = (range, bytes);
                return;
            }
            if chance.hits(100_000) && file.sync_data().is_err() {
                return;
            }
            wrote();
        }
    }

    /// Compares the bytes found with the known ones, and takes them over.
    fn check(&mut self, found: &[u8], round: u64) {
        for (at, (known, found)) in self.bytes.iter_mut().zip(found).enumerate() {
            let may_be = self.doubtful.contains(&at) && self.doubt[at - self.doubtful.start] == *found;
            let place = self.start + at as u64;
            assert!(*known == *found || may_be, "round {round}, byte {place}: {found}, not {known}");
            *known = *found;
        }
        self.doubtful = 0..0;
    }
}

#[test]
fn nothing_acknowledged_is_lost_by_a_kill() {
    let place = Place::new(SIZE, 21);
    let folder = place.folder.path();
    Mount::new(&place).clone_of("vm", "disk");
    let path = place.path("mount/_clones/vm");
    let part = SIZE / WRITERS;
    let mut known: Vec<Known> = (0..WRITERS)
        .map(|writer| {
            let start = if writer == 0 { 0 } else { writer * part + 37 };
            let end = if writer == WRITERS - 1 { SIZE } else { (writer + 1) * part + 37 };
            let bytes = place.content[start as usize..end as usize].to_vec();
            Known { start, bytes, doubtful: 0..0, doubt: Vec::new() }
        })
        .collect();
    let rounds = std::env::var("FUSE_KILLS").map_or(ROUNDS, |rounds| rounds.parse().unwrap());
    for round in 1..=rounds {
        let mut child = start(folder);
        let found = std::fs::read(&path).unwrap();
        for known in &mut known {
            let range = known.start as usize..known.start as usize + known.bytes.len();
            known.check(&found[range], round);
        }
        // Each file is open before anybody writes: the first writers may reach the count alone, and the kill then comes
        // before a slow thread would have opened its own.
        let files: Vec<File> = known.iter().map(|_| open(&path)).collect();
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            for (writer, (known, file)) in (0..).zip(known.iter_mut().zip(&files)) {
                let tell = tell.clone();
                scope.spawn(move || {
                    // The send fails once the counting thread has stopped listening.
                    let wrote = || tell.send(()).unwrap_or_default();
                    known.write_until_killed(file, round * 100 + writer, &wrote);
                });
            }
            let count = Chance::from_seed(round).below(400) as usize + 1;
            told.iter().take(count).count();
            child.kill().unwrap();
            child.wait().unwrap();
        });
        // The dead mount disappears without help.
        while std::fs::metadata(place.path("mount")).is_err() {
            std::thread::yield_now();
        }
    }
    let mount = Mount::new(&place);
    let found = std::fs::read(&path).unwrap();
    for known in &mut known {
        let range = known.start as usize..known.start as usize + known.bytes.len();
        known.check(&found[range], rounds + 1);
    }
    mount.control("commit vm").unwrap();
    assert!(place.read("disk") == found);
}
