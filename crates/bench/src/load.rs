//! Workloads: a disk of system files, a bootable Debian disk and incompressible bytes, made once and kept below
//! `target/bench`; and runs of fio.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use base::Chance;
use image::{Catalogue, Leaf};
use serde_json::Value;
use store::{Location, Repository};

use crate::Result;
use crate::context::{Context, said};
use crate::site::DISK;
use crate::trace::Event;

/// Bytes of `/usr` that are copied onto the disk of system files.
const SYSTEM_BYTES: u64 = 1400 << 20;

/// A GPT disk of 4 GiB with one ext4 filesystem, made with mkfs's defaults, with about 1.4 GiB of this machine's
/// `/usr`.
pub(crate) fn system_disk(context: &Context) -> Result<PathBuf> {
    let disk = context.scratch.join("system.img");
    if disk.exists() {
        return Ok(disk);
    }
    let staged = context.scratch.join("system.files");
    stage(&staged)?;
    let partial = context.scratch.join("system.partial");
    std::fs::File::create(&partial)?.set_len(4 << 30)?;
    said(Command::new("sgdisk").args(["--new=1:2048:0", "--typecode=1:8300"]).arg(&partial))?;
    let kibibytes = ((4u64 << 30) - (2 << 20)) >> 10;
    said(
        Command::new("mkfs.ext4")
            .args(["-q", "-F", "-E", "offset=1048576", "-d"])
            .arg(&staged)
            .arg(&partial)
            .arg(format!("{kibibytes}K")),
    )?;
    std::fs::remove_dir_all(&staged)?;
    std::fs::rename(&partial, &disk)?;
    Ok(disk)
}

/// Copies files of `/usr`, in order of their names, until there are enough.
fn stage(folder: &Path) -> Result<()> {
    let _ = std::fs::remove_dir_all(folder);
    std::fs::create_dir_all(folder)?;
    let listing = said(Command::new("find").args([
        "/usr/bin",
        "/usr/lib",
        "/usr/share",
        "-xdev",
        "-type",
        "f",
        "-printf",
        "%p\t%s\n",
    ]))?;
    let mut files: Vec<(&str, u64)> = listing
        .lines()
        .filter_map(|line| line.rsplit_once('\t'))
        .filter_map(|(path, size)| Some((path, size.parse().ok()?)))
        .collect();
    files.sort_unstable();
    let mut total = 0;
    let chosen: Vec<&str> = files
        .iter()
        .take_while(|(_, size)| {
            total += size;
            total < SYSTEM_BYTES
        })
        .map(|(path, _)| *path)
        .collect();
    let names = folder.with_extension("names");
    std::fs::write(&names, chosen.join("\0"))?;
    let copy = "tar --create --no-recursion --null --files-from \"$0\" | tar --extract --directory \"$1\"";
    said(Command::new("bash").args(["-o", "pipefail", "-c", copy]).arg(&names).arg(folder))?;
    std::fs::remove_file(&names)?;
    Ok(())
}

/// The Debian disk of the demo, which boots by its own boot loader.
pub(crate) fn debian_disk(context: &Context) -> Result<PathBuf> {
    let disk = context.scratch.join("debian.img");
    said(Command::new(context.root.join("tools/debian-disk.sh")).arg(&disk))?;
    Ok(disk)
}

/// A raw file of `bytes` incompressible bytes, kept between runs.
pub(crate) fn random_disk(context: &Context, bytes: u64) -> Result<PathBuf> {
    let disk = context.scratch.join(format!("random-{}M.img", bytes >> 20));
    if disk.metadata().is_ok_and(|found| found.len() == bytes) {
        return Ok(disk);
    }
    write_random(&disk, bytes)?;
    Ok(disk)
}

/// A file of exactly `bytes` incompressible bytes, for the caller to remove.
pub(crate) fn random_file(context: &Context, bytes: u64) -> Result<PathBuf> {
    let path = context.folder()?.join("file");
    write_random(&path, bytes)?;
    Ok(path)
}

/// The chunks with content of the only image in a repository of [`DISK`]s, with the length of their objects; and the
/// bytes of the disk that a chunk covers.
pub(crate) fn chunks(repository: &Path) -> Result<(BTreeMap<u64, u32>, u64)> {
    let repository = Repository::open(&Location::Folder(repository.to_owned()))?;
    let catalogue = Catalogue::load(&repository.resolve(&DISK.parse()?)?, &repository, repository.cipher())?;
    let mut chunks = BTreeMap::new();
    for run in catalogue.leaves() {
        let run = run?;
        if let Leaf::Data(_, chunk) = run.leaf {
            chunks.extend((run.first..run.first + run.count).map(|index| (index, chunk.encoded_len)));
        }
    }
    Ok((chunks, u64::from(catalogue.layout().chunk.bytes())))
}

/// The chunks with content that `reads` touch, in the order of first touch, with the length of their objects.
pub(crate) fn touched(repository: &Path, reads: &[Event]) -> Result<Vec<(u64, u32)>> {
    let (chunks, chunk_bytes) = chunks(repository)?;
    let (mut seen, mut touched) = (HashSet::new(), Vec::new());
    for read in reads {
        let last = (read.offset + read.bytes.max(1) - 1) / chunk_bytes;
        let fresh = (read.offset / chunk_bytes..=last).filter(|index| seen.insert(*index));
        touched.extend(fresh.filter_map(|index| Some((index, *chunks.get(&index)?))));
    }
    Ok(touched)
}

/// Runs fio for some time, with the same random offsets in each run, and the options `words`. Returns the rate of
/// reads and writes in MB/s (10^6 bytes).
pub(crate) fn fio(words: &[String]) -> Result<f64> {
    let common = ["--name=load", "--output-format=json", "--time_based", "--randrepeat=1", "--norandommap"];
    let output = said(Command::new("fio").args(common).args(words))?;
    let start = output.find('{').ok_or_else(|| format!("fio printed no JSON: {output}"))?;
    let report: Value = serde_json::from_str(&output[start..])?;
    let job = &report["jobs"][0];
    if job["error"] != 0 {
        return Err(format!("fio failed: {job}").into());
    }
    let rate = |way: &str| job[way]["bw_bytes"].as_f64().ok_or_else(|| format!("fio tells no rate: {job}"));
    Ok((rate("read")? + rate("write")?) / 1e6)
}

fn write_random(path: &Path, bytes: u64) -> Result<()> {
    let mut chance = Chance::from_seed(bytes);
    let mut file = std::fs::File::create(path)?;
    let mut piece = vec![0; 1 << 20];
    let mut left = bytes;
    while left > 0 {
        chance.fill(&mut piece);
        let count = usize::try_from(left.min(piece.len() as u64))?;
        std::io::Write::write_all(&mut file, &piece[..count])?;
        left -= count as u64;
    }
    Ok(())
}
