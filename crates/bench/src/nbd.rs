//! Figures of disks through NBD, on a Unix socket under fio: a warm disk, as a raw file and as a complete attached
//! disk, compared with qemu-nbd on the raw file; and the pattern of bonnie++ (write, read back) on a disk without
//! local content, compared with an overlay.
//!
//! Rounds alternate, so that other load affects all alike. Files are in the page cache: the figures measure the
//! handling of requests, not a disk.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use base::Chance;
use mirror::nbd::{Export, ExportTable, Server};
use mirror::{Mirror, MirrorOptions, RawDisk, Served, Source};
use serde_json::{Value, json};
use store::{Location, Repository, Shape, Stamp};

use crate::context::{Context, said};
use crate::figure::{Bar, Figure, median};
use crate::programs::Program;
use crate::{Group, Result, load};

pub(crate) const GROUP: Group = Group {
    figures: &[
        (
            "mirror.warm_nbd",
            "warm reads and writes by NBD over qemu-nbd on the raw file, the worst cell of sequential and \
                random; at least 0.8",
        ),
        (
            "mirror.write_back",
            "write, write over, read back and random on a disk that was not read before, over qemu-nbd with an \
                overlay, the worst; shown",
        ),
    ],
    measure,
};

const ROUNDS: usize = 3;
const SECONDS: u32 = 3;
pub(crate) const DISK_BYTES: u64 = 512 << 20;
const CLIENTS_MAX: usize = 16;

/// fio's pattern, block size and requests in flight.
const CELLS: [(&str, &str, u32); 7] = [
    ("read", "256k", 16),
    ("write", "256k", 16),
    ("randread", "4k", 1),
    ("randwrite", "4k", 1),
    ("randread", "4k", 32),
    ("randwrite", "4k", 32),
    ("randrw", "4k", 16),
];

/// What bonnie++ does with one file, in its order.
const BONNIE: [(&str, &str, u32); 5] =
    [("write", "1m", 1), ("write", "1m", 4), ("read", "1m", 1), ("randrw", "4k", 1), ("randread", "4k", 4)];

/// A disk, with the program that serves it: this process, or qemu-nbd with a format and a file.
enum Candidate {
    Diskcast(Arc<dyn Served>),
    Qemu(&'static str, PathBuf),
}

/// Rates of all candidates in one cell, in MB/s, round by round.
struct Cell {
    pattern: (&'static str, &'static str, u32),
    rates: Vec<Vec<f64>>,
}

impl Cell {
    /// Each round's rate of one candidate over that of another.
    fn ratios(&self, one: usize, other: usize) -> Vec<f64> {
        self.rates[one].iter().zip(&self.rates[other]).map(|(one, other)| one / other).collect()
    }

    fn row(&self, names: &[&str]) -> Value {
        let (pattern, block, depth) = self.pattern;
        let mut row = json!({ "pattern": pattern, "block": block, "in flight": depth });
        for (name, rates) in names.iter().zip(&self.rates) {
            row[format!("{name} MB/s")] = json!(median(rates));
        }
        row
    }
}

fn measure(context: &Context) -> Result<Vec<Figure>> {
    let folder = context.folder()?;
    let file = folder.join("disk.raw");
    fill(&file)?;
    let version = said(Command::new("qemu-nbd").arg("--version"))?;
    let version = format!("qemu-nbd {}", version.split_whitespace().nth(1).unwrap_or("?"));
    let images = Images::new(&folder, &file)?;
    Ok(vec![warm(&folder, &file, &images, &version)?, write_back(&folder, &file, &images, &version)?])
}

fn warm(folder: &Path, file: &Path, images: &Images, version: &str) -> Result<Figure> {
    let attached = images.attach("warm")?;
    let mut piece = vec![0; 1 << 20];
    for offset in (0..DISK_BYTES).step_by(piece.len()) {
        attached.read(offset, &mut piece)?;
    }
    let candidates = [
        Candidate::Diskcast(Arc::new(RawDisk::open(file, None)?)),
        Candidate::Diskcast(Arc::new(attached)),
        Candidate::Qemu("raw", file.to_owned()),
    ];
    let cells = run(folder, &candidates, &CELLS)?;
    let worst = |cell: &Cell| {
        let [raw, attached] = [0, 1].map(|candidate| cell.ratios(candidate, 2));
        if median(&raw) < median(&attached) { raw } else { attached }
    };
    let at = cells.iter().min_by(|one, other| median(&worst(one)).total_cmp(&median(&worst(other))));
    let at = at.ok_or("no cell")?;
    let names = ["raw file", "attached disk", "qemu-nbd"];
    Ok(Figure::new("mirror.warm_nbd", &worst(at), "ratio", Bar::AtLeast(0.8))
        .peer(version, "-f raw, in the worst cell", median(&at.rates[2]), "MB/s")
        .on(
            "fio by its nbd engine, a Unix socket, 3 s a run",
            "512 MiB in the page cache: a raw file, an attached disk that is all here",
        )
        .with(cells.iter().map(|cell| cell.row(&names)).collect()))
}

fn write_back(folder: &Path, file: &Path, images: &Images, version: &str) -> Result<Figure> {
    let mut cells: Vec<Cell> = vec![];
    for round in 0..ROUNDS {
        let overlay = folder.join(format!("overlay-{round}"));
        said(
            Command::new("qemu-img")
                .args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"])
                .args([file, &overlay]),
        )?;
        let candidates = [
            Candidate::Diskcast(Arc::new(images.attach(&format!("fresh-{round}"))?)),
            Candidate::Qemu("qcow2", overlay.clone()),
        ];
        let passes = BONNIE.map(|pattern| pass(folder, &candidates, pattern));
        for (at, rates) in passes.into_iter().enumerate() {
            let rates = rates?;
            match cells.get_mut(at) {
                Some(cell) => cell.rates.iter_mut().zip(rates).for_each(|(all, one)| all.push(one)),
                None => cells.push(Cell {
                    pattern: BONNIE[at],
                    rates: rates.into_iter().map(|one| vec![one]).collect(),
                }),
            }
        }
        std::fs::remove_file(overlay)?;
    }
    let ratio = |cell: &Cell| cell.ratios(0, 1);
    let at = cells.iter().min_by(|one, other| median(&ratio(one)).total_cmp(&median(&ratio(other))));
    let at = at.ok_or("no cell")?;
    Ok(Figure::new("mirror.write_back", &ratio(at), "ratio", Bar::Shown)
        .peer(version, "a qcow2 overlay on the raw file, in the worst cell", median(&at.rates[1]), "MB/s")
        .on(
            "fio one after the other, 3 s each, 512 MiB",
            "a disk from an image in a folder of the same machine",
        )
        .with(cells.iter().map(|cell| cell.row(&["attached disk", "overlay"])).collect()))
}

/// Runs every cell with every candidate, in rounds.
fn run(
    folder: &Path,
    candidates: &[Candidate],
    cells: &[(&'static str, &'static str, u32)],
) -> Result<Vec<Cell>> {
    let cell = |&pattern: &(&'static str, &'static str, u32)| {
        let mut rates = vec![vec![]; candidates.len()];
        for _ in 0..ROUNDS {
            let round = pass(folder, candidates, pattern)?;
            rates.iter_mut().zip(round).for_each(|(all, one)| all.push(one));
        }
        Ok(Cell { pattern, rates })
    };
    cells.iter().map(cell).collect()
}

/// One round of a cell: the rate of each candidate.
fn pass(folder: &Path, candidates: &[Candidate], pattern: (&str, &str, u32)) -> Result<Vec<f64>> {
    let rate = |candidate: &Candidate| match candidate {
        Candidate::Diskcast(disk) => by_diskcast(folder, Arc::clone(disk), pattern),
        Candidate::Qemu(format, file) => by_qemu(folder, file, format, pattern),
    };
    candidates.iter().map(rate).collect()
}

/// An image of the raw file's bytes, in a repository.
pub(crate) struct Images {
    folder: PathBuf,
    /// The repository with the image.
    pub repository: Arc<Repository>,
}

/// A fixed stamp for versions and profiles that benchmarks make.
pub(crate) fn stamp() -> Stamp {
    Stamp { created: "2026-11-22T00:00:00Z".to_owned(), creator: "bench".to_owned() }
}

impl Images {
    /// Creates a repository in `folder` with one image: the first [`DISK_BYTES`] of `file`.
    pub(crate) fn new(folder: &Path, file: &Path) -> Result<Self> {
        let repository = Arc::new(Repository::create(&Location::Folder(folder.join("repository")))?);
        let stamp = stamp();
        let blob = repository.blob(&"disk".parse()?);
        blob.create(&Shape { size_bytes: DISK_BYTES, ..Shape::default() }, &stamp)?;
        let (mut file, mut piece) = (File::open(file)?, vec![0; 64 << 20]);
        for offset in (0..DISK_BYTES).step_by(piece.len()) {
            file.read_exact(&mut piece)?;
            blob.write(offset, &piece, &stamp)?;
        }
        Ok(Self { folder: folder.to_owned(), repository })
    }

    /// Attaches a new disk of the image, without local content.
    fn attach(&self, name: &str) -> Result<Mirror> {
        let manifest = self.repository.resolve(&"disk".parse()?)?;
        let sources = vec![Source::repository(Arc::clone(&self.repository))];
        Ok(Mirror::create(&self.folder.join(name), &manifest, sources, &MirrorOptions::default())?)
    }
}

/// Fills a new file with [`DISK_BYTES`] random bytes, so that it has no holes, in writes of 4 KiB. If its pages came
/// into the page cache in larger pieces, for example by readahead, ext4 would need about 50 µs for a write of 4 KiB.
/// This time would hide the differences between servers.
pub(crate) fn fill(path: &Path) -> Result<()> {
    let (mut chance, mut file, mut page) = (Chance::from_seed(1), File::create(path)?, [0; 4096]);
    for _ in 0..DISK_BYTES / 4096 {
        chance.fill(&mut page);
        file.write_all(&page)?;
    }
    file.sync_all()?;
    Ok(())
}

/// The rate of a disk served by this process.
fn by_diskcast(folder: &Path, disk: Arc<dyn Served>, pattern: (&str, &str, u32)) -> Result<f64> {
    let socket = folder.join("diskcast.socket");
    let table = Arc::new(ExportTable::default());
    table.insert("disk", Export { disk, description: String::new() })?;
    let server = Server::new(table, CLIENTS_MAX, Arc::new(|_| {}));
    server.listen_unix(UnixListener::bind(&socket)?)?;
    let rate = fio(&socket, pattern)?;
    std::fs::remove_file(socket)?;
    Ok(rate)
}

/// The rate of a file served by qemu-nbd.
fn by_qemu(folder: &Path, file: &Path, format: &str, pattern: (&str, &str, u32)) -> Result<f64> {
    let socket = folder.join("qemu.socket");
    let mut command = Command::new("qemu-nbd");
    command.args(["--persistent", "--shared=16", "--export-name=disk", "--format", format, "--socket"]);
    command.args([&socket, file]);
    let server = Program::start(&mut command)?.until_socket(&socket)?;
    let rate = fio(&socket, pattern)?;
    drop(server);
    std::fs::remove_file(socket)?;
    Ok(rate)
}

/// Runs fio on the served disk; returns MB/s (10^6 bytes), read and written.
fn fio(socket: &Path, (pattern, block, depth): (&str, &str, u32)) -> Result<f64> {
    load::fio(&[
        "--ioengine=nbd".to_owned(),
        format!("--uri=nbd+unix:///disk?socket={}", socket.display()),
        format!("--rw={pattern}"),
        format!("--bs={block}"),
        format!("--iodepth={depth}"),
        format!("--size={DISK_BYTES}"),
        format!("--runtime={SECONDS}"),
    ])
}
