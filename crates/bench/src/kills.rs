//! Figures of `diskcast attach` killed repeatedly while writers remember what was acknowledged: whether all of it is
//! there when the disk is attached again. In some rounds it is killed during a commit.

use std::collections::BTreeMap;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};

use base::Chance;
use serde_json::json;
use store::{Location, Repository, Shape};

use crate::context::Context;
use crate::figure::{Bar, Figure};
use crate::nbd::stamp;
use crate::reader::Nbd;
use crate::room::line_of;
use crate::site::DISK;
use crate::trace::{Event, Kind};
use crate::{Group, Result};

pub(crate) const GROUP: Group = Group {
    figures: &[(
        "mirror.kills",
        "writes lost that were acknowledged, in 500 kills of `diskcast attach` under 4 writers; at most 0",
    )],
    measure,
};

const ROUNDS: u64 = 500;
/// Rounds before a new, empty disk begins.
const ROUNDS_PER_DISK: u64 = 25;
/// One of this number of rounds has a running commit.
const ROUNDS_PER_COMMIT: u64 = 4;
const DISK_BYTES: usize = 16 << 20;
const BLOCK_BYTES: usize = 2048;
const SECTOR_BYTES: usize = 512;
/// Number of sectors in a block.
const SECTORS: usize = BLOCK_BYTES / SECTOR_BYTES;
const BLOCKS: u64 = (DISK_BYTES / BLOCK_BYTES) as u64;
const WRITERS: u64 = 4;
/// Maximum number of acknowledged writes before a kill.
const WRITES_MAX: u64 = 800;
/// Writes per million that must be durable when they are acknowledged.
const DURABLE_PER_MILLION: u32 = 50_000;

/// A disk, and its known content.
struct Disk {
    name: String,
    folder: PathBuf,
    repository: PathBuf,
    /// The image's content.
    image: Vec<u8>,
    /// For each written block, the number of the last write of each sector; `None` if the sector is as in the image.
    known: BTreeMap<u64, [Option<u64>; SECTORS]>,
}

/// A process that runs a disk, killed at the latest when this is dropped.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

/// What a writer knows when its connection is lost: the acknowledged writes and the one in flight, as block and
/// number.
#[derive(Default)]
struct Wrote {
    acknowledged: Vec<(u64, u64)>,
    in_flight: Option<(u64, u64)>,
}

/// Sums over rounds.
#[derive(Default)]
struct Sums {
    acknowledged: u64,
    in_flight: u64,
    /// Writes in flight that were at least partly performed.
    landed: u64,
    lost: u64,
    commits_cut_short: u64,
}

/// The content that write `number` gives to block `block`: the same bytes in all its sectors.
fn content(block: u64, number: u64) -> Vec<u8> {
    [block.to_le_bytes(), number.to_le_bytes()].concat().repeat(BLOCK_BYTES / 16)
}

impl Disk {
    fn socket(&self) -> PathBuf {
        self.folder.join(&self.name).join("nbd.sock")
    }

    fn command(&self, context: &Context, words: &[&str]) -> Command {
        let mut command = context.diskcast(&self.repository);
        command.arg("--quiet").args(words).arg("--folder").arg(&self.folder).stdin(Stdio::null());
        command
    }

    /// Attaches the disk, and returns when the process serves it.
    fn attach(&self, context: &Context) -> Result<Daemon> {
        let words = ["attach", DISK, "--name", &self.name, "--background", "64M"];
        let mut daemon = Daemon(self.command(context, &words).stdout(Stdio::piped()).spawn()?);
        let mut log = BufReader::new(daemon.0.stdout.take().expect("piped"));
        line_of(&mut log, "attached")?;
        // Reads the rest of its output, so that it never blocks on the pipe.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Ok(daemon)
    }

    /// Runs writers until `count` writes are acknowledged, then kills the process.
    fn write_and_kill(&self, mut daemon: Daemon, round: u64, count: usize) -> Result<Vec<Wrote>> {
        let (tell, told) = channel();
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| {
                    let (tell, socket, name) = (tell.clone(), self.socket(), &self.name);
                    scope.spawn(move || write_until_killed(&socket, name, round, writer, &tell))
                })
                .collect();
            drop(tell);
            let enough = told.iter().take(count).count() == count;
            daemon.0.kill()?;
            daemon.0.wait()?;
            if !enough {
                return Err("the daemon ended by itself".into());
            }
            writers.into_iter().map(|writer| writer.join().map_err(|_| "a writer panicked".into())).collect()
        })
    }

    /// Compares the disk with the known content, and adds the writes in flight that were performed to it. With `whole`,
    /// compares also blocks that were never written.
    fn check(&mut self, wrote: &[Wrote], whole: bool, sums: &mut Sums) -> Result<()> {
        for &(block, number) in wrote.iter().flat_map(|wrote| &wrote.acknowledged) {
            self.known.insert(block, [Some(number); SECTORS]);
            sums.acknowledged += 1;
        }
        let in_flight: BTreeMap<u64, u64> = wrote.iter().filter_map(|wrote| wrote.in_flight).collect();
        sums.in_flight += in_flight.len() as u64;
        let all = 0..if whole { BLOCKS } else { 0 };
        all.chain(in_flight.keys().copied()).for_each(|block| _ = self.known.entry(block).or_default());
        let bytes = BLOCK_BYTES as u64;
        let read = |block: &u64| Event { kind: Kind::Read, offset: block * bytes, bytes, in_flight: 16 };
        let reads: Vec<Event> = self.known.keys().map(read).collect();
        Nbd::connect(&self.socket(), &self.name)?.replay(&reads, |read, found| {
            let block = read.offset / bytes;
            let known = self.known.get_mut(&block).ok_or("a block that is not known")?;
            let of_image = &self.image[usize::try_from(read.offset)?..][..BLOCK_BYTES];
            let may_be = in_flight.get(&block).map(|&number| (number, content(block, number)));
            let (mut is_lost, mut has_landed) = (false, false);
            for (sector, known) in known.iter_mut().enumerate() {
                let part = sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES;
                let found = &found[part.clone()];
                if let Some((number, written)) = &may_be
                    && *found == written[part.clone()]
                {
                    (*known, has_landed) = (Some(*number), true);
                } else {
                    let expected = known.map(|number| content(block, number));
                    is_lost |= found != &expected.as_deref().unwrap_or(of_image)[part];
                }
            }
            sums.lost += u64::from(is_lost);
            sums.landed += u64::from(has_landed);
            Ok(())
        })?;
        Ok(())
    }
}

/// Writes random blocks of this writer, one after the other, until the connection breaks. The content of each names its
/// block and number.
fn write_until_killed(socket: &Path, name: &str, round: u64, writer: u64, tell: &Sender<()>) -> Wrote {
    let mut wrote = Wrote::default();
    let Ok(mut disk) = Nbd::connect(socket, name) else { return wrote };
    let mut chance = Chance::from_seed(round * WRITERS + writer);
    for number in round << 32.. {
        let block = chance.below(BLOCKS / WRITERS) * WRITERS + writer;
        wrote.in_flight = Some((block, number));
        let is_durable = chance.hits(DURABLE_PER_MILLION);
        if disk.write(block * BLOCK_BYTES as u64, &content(block, number), is_durable).is_err() {
            break;
        }
        wrote.acknowledged.extend(wrote.in_flight.take());
        // The counting thread may have stopped listening.
        let _ = tell.send(());
    }
    wrote
}

fn measure(context: &Context) -> Result<Vec<Figure>> {
    let repository = context.folder()?;
    let mut image = vec![0; DISK_BYTES];
    Chance::from_seed(1).fill(&mut image);
    let here = Repository::create(&Location::Folder(repository.clone()))?;
    let blob = here.blob(&DISK.parse()?);
    blob.create(&Shape { size_bytes: DISK_BYTES as u64, ..Shape::default() }, &stamp())?;
    blob.write(0, &image, &stamp())?;
    let (folder, mut sums) = (context.folder()?, Sums::default());
    for first in (0..ROUNDS).step_by(usize::try_from(ROUNDS_PER_DISK)?) {
        let known = BTreeMap::new();
        let (name, folder, repository) = (format!("disk-{first}"), folder.clone(), repository.clone());
        let mut disk = Disk { name, folder, repository, image: image.clone(), known };
        kill_again_and_again(context, &mut disk, first..(first + ROUNDS_PER_DISK).min(ROUNDS), &mut sums)?;
    }
    Ok(vec![
        Figure::new("mirror.kills", &[sums.lost as f64], "writes", Bar::AtMost(0.0))
            .on(
                &format!(
                    "{ROUNDS} kills under {WRITERS} writers of 2 KiB by NBD, each disk killed \
                    {ROUNDS_PER_DISK} times"
                ),
                "a disk of 16 MiB that is on its way from a repository",
            )
            .with(json!({
                "kills": ROUNDS, "acknowledged": sums.acknowledged, "in flight at a kill": sums.in_flight,
                "of these carried out": sums.landed, "commits cut short": sums.commits_cut_short,
            })),
    ])
}

fn kill_again_and_again(
    context: &Context,
    disk: &mut Disk,
    rounds: std::ops::Range<u64>,
    sums: &mut Sums,
) -> Result<()> {
    let last = rounds.end - 1;
    for round in rounds {
        let daemon = disk.attach(context)?;
        let commit = match round % ROUNDS_PER_COMMIT {
            0 => {
                let words = ["commit", &disk.name, "--disk", &disk.name];
                let mut commit = disk.command(context, &words);
                Some(commit.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?)
            }
            _ => None,
        };
        let count = usize::try_from(Chance::from_seed(round).below(WRITES_MAX))?;
        let wrote = disk.write_and_kill(daemon, round, count)?;
        if let Some(mut commit) = commit {
            sums.commits_cut_short += u64::from(!commit.wait()?.success());
        }
        let again = disk.attach(context)?;
        disk.check(&wrote, round == last, sums)?;
        drop(again);
    }
    Ok(())
}
