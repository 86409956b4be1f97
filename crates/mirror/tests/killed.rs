//! A daemon is killed without warning under a load that is verified: no acknowledged write may be lost.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use base::Chance;
use mirror::{Durability, Mirror, MirrorOptions, Served, Source};
use store::{Location, Repository};

use crate::common::{CHUNK, Place, options};

const SIZE: u64 = 64 * CHUNK;
const BLOCK: u64 = 2048;
const WRITERS: u64 = 4;
/// The environment variable with the folder of a writer.
const FOLDER: &str = "MIRROR_TEST_FOLDER";
const ROUND: &str = "MIRROR_TEST_ROUND";
/// Number of rounds; set `MIRROR_KILLS=500` for more.
const ROUNDS: u64 = 50;

fn small() -> MirrorOptions {
    MirrorOptions { journal_bytes_max: 20_000, background_bytes_per_second: 4 << 20, ..options() }
}

/// Not a test of its own: this is the process that is killed.
#[test]
fn writer() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let round: u64 = std::env::var(ROUND).unwrap().parse().unwrap();
    let folder = Path::new(&folder);
    let repository = Arc::new(Repository::open(&Location::Folder(folder.join("repository"))).unwrap());
    let mirror = Mirror::open(&folder.join("m"), vec![Source::repository(repository)], &small()).unwrap();
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let mirror = &mirror;
            scope.spawn(move || write_for_ever(mirror, round, writer));
        }
    });
}

/// Writes blocks that contain their own number, reads some, and prints which writes were acknowledged.
#[expect(clippy::explicit_write, reason = "what the test harness catches does not survive a kill")]
fn write_for_ever(mirror: &Mirror, round: u64, writer: u64) {
    let mut chance = Chance::from_seed(round * 100 + writer);
    let blocks = SIZE / BLOCK / WRITERS;
    for number in round << 32.. {
        let block = chance.below(blocks) * WRITERS + writer;
        if chance.hits(300_000) {
            mirror.read(chance.below(SIZE / 512) * 512, &mut [0; 512]).unwrap();
        }
        let durability = if chance.hits(50_000) { Durability::Durable } else { Durability::Cached };
        mirror.write(block * BLOCK, &content(block, number), durability).unwrap();
        writeln!(std::io::stderr(), "wrote {block} {number}").unwrap();
    }
}

fn content(block: u64, number: u64) -> Vec<u8> {
    [block.to_le_bytes(), number.to_le_bytes()].concat().repeat(BLOCK as usize / 16)
}

#[test]
fn nothing_acknowledged_is_lost_by_a_kill() {
    let place = Place::new(SIZE, 11);
    let folder = place.path("m");
    drop(Mirror::create(&folder, &place.manifest("disk"), place.sources(), &small()).unwrap());
    let rounds = std::env::var("MIRROR_KILLS").map_or(ROUNDS, |rounds| rounds.parse().unwrap());
    // The number that each sector is known to have; `None` if it has the content of the image.
    let mut known: Vec<Option<u64>> = vec![None; (SIZE / 512) as usize];
    for round in 1..=rounds {
        run_and_kill(place.folder.path(), round, &mut known);
        let mirror = Mirror::open(&folder, place.sources(), &small()).unwrap();
        let mut bytes = vec![0; SIZE as usize];
        mirror.read(0, &mut bytes).unwrap();
        for (sector, (part, known)) in bytes.chunks(512).zip(&mut known).enumerate() {
            let found = number_of(&place, sector, part);
            let in_flight = found > *known && found.is_some_and(|number| number >> 32 == round);
            assert!(found == *known || in_flight, "round {round}, sector {sector}: {found:?}, not {known:?}");
            *known = found;
        }
    }
}

/// Runs a writer for some hundred writes, and kills it.
fn run_and_kill(folder: &Path, round: u64, known: &mut [Option<u64>]) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "killed::writer", "--nocapture"])
        .env(FOLDER, folder)
        .env(ROUND, round.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut wrote = lines.filter_map(|line| {
        let (block, number) = line.strip_prefix("wrote ")?.split_once(' ')?;
        Some((block.parse::<u64>().ok()?, number.parse::<u64>().ok()?))
    });
    let count = Chance::from_seed(round).below(800) as usize + 1;
    let first: Vec<(u64, u64)> = wrote.by_ref().take(count).collect();
    assert_eq!(first.len(), count, "the writer died by itself");
    child.kill().unwrap();
    for (block, number) in first.into_iter().chain(wrote) {
        let sectors = (block * BLOCK / 512) as usize..((block + 1) * BLOCK / 512) as usize;
        known[sectors].fill(Some(number));
    }
    child.wait().unwrap();
}

/// The number that was written to a sector; `None` if it has the content of the image. Panics if it is neither.
fn number_of(place: &Place, sector: usize, part: &[u8]) -> Option<u64> {
    if part == &place.content[sector * 512..][..512] {
        return None;
    }
    let block = sector as u64 * 512 / BLOCK;
    let number = u64::from_le_bytes(*part[8..].first_chunk().unwrap());
    assert!(part == &content(block, number)[..512], "sector {sector} is torn: it begins {:x?}", &part[..32]);
    Some(number)
}
