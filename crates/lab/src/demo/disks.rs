//! The demo's disks: the source, and the targets, which are full of random bytes at first. Compares the targets with
//! the source after the install.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use base::{Chance, Extent};
use disk::{DiskMap, ReadAt as _, SurveyOptions};

use crate::Failure;

/// Bytes that are filled or compared at once.
const PIECE_BYTES: u64 = 1 << 20;
/// The files on the disk that the demo makes without root. All users can read most of them, and they resemble a system.
const PLAIN_CONTENT: &str = "/usr/share";

/// The source disk and its map.
pub(crate) struct Disk {
    pub path: PathBuf,
    pub map: DiskMap,
}

impl Disk {
    fn open(path: PathBuf) -> Result<Self, Failure> {
        let map = disk::survey(&disk::open_source(&path)?, &SurveyOptions::default())?;
        Ok(Self { path, map })
    }

    /// Its size in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.map.window.len_bytes()
    }

    /// Bytes that its filesystems use.
    pub(crate) fn allocated_bytes(&self) -> u64 {
        self.map.allocated.sectors() * base::limits::SECTOR_BYTES
    }
}

/// A target disk, and the seed of the random bytes that filled it.
pub(crate) struct Target {
    pub path: PathBuf,
    seed: u64,
}

/// Makes a Debian disk that boots. It lies outside of `folder`, so that the next run finds it.
pub(crate) fn debian(folder: &Path) -> Result<Disk, Failure> {
    let path = folder.with_file_name("debian").join("disk.img");
    tool(Command::new("tools/debian-disk.sh").arg(&path))?;
    Disk::open(path)
}

/// Makes a disk with a GPT and one ext4 filesystem that contains files of this machine. Needs no root.
pub(crate) fn plain(folder: &Path) -> Result<Disk, Failure> {
    let (path, content) = (folder.join("plain.img"), folder.join("plain"));
    // `cp` fails if some files are readable only by root, but copies the rest. If it copied nothing, `du` fails below.
    let _ = tool(Command::new("cp").args(["-R", PLAIN_CONTENT]).arg(&content));
    let usage = tool(Command::new("du").arg("-sm").arg(&content))?;
    let used_mib: u64 = usage.split_whitespace().next().ok_or("`du` printed nothing")?.parse()?;
    let mib = used_mib * 2 + 256;
    // 1 MiB before the partition, and 1 MiB after it for the backup GPT.
    File::create(&path)?.set_len((mib + 2) << 20)?;
    tool(Command::new("sgdisk").arg(format!("--new=1:2048:+{mib}M")).arg("--typecode=1:8300").arg(&path))?;
    let mut format = Command::new("mkfs.ext4");
    tool(format.args(["-q", "-E", "offset=1048576", "-d"]).arg(&content).arg(&path).arg(format!("{mib}M")))?;
    std::fs::remove_dir_all(&content)?;
    Disk::open(path)
}

/// Makes `count` files of `bytes` bytes, each full of different random bytes.
pub(crate) fn fill_targets(folder: &Path, count: u32, bytes: u64) -> Result<Vec<Target>, Failure> {
    let targets: Vec<Target> = (1..=count)
        .map(|host| Target { path: folder.join(format!("host-{host}.img")), seed: host.into() })
        .collect();
    on_each(&targets, |target| {
        let file = File::create(&target.path)?;
        let mut piece = vec![0; usize::try_from(PIECE_BYTES)?];
        for offset in (0..bytes).step_by(usize::try_from(PIECE_BYTES)?) {
            let piece = &mut piece[..usize::try_from(PIECE_BYTES.min(bytes - offset))?];
            target.random_at(offset, piece);
            file.write_all_at(piece, offset)?;
        }
        Ok(())
    })?;
    Ok(targets)
}

impl Target {
    /// Writes to `piece` the random bytes that filled the target at `offset`, a multiple of `PIECE_BYTES`.
    fn random_at(&self, offset: u64, piece: &mut [u8]) {
        Chance::from_seed((self.seed << 48) + offset).fill(piece);
    }
}

/// Compares each target with the source: space that filesystems use must equal the source, all other space must still
/// contain the random bytes.
pub(crate) fn compare_all(source: &Disk, targets: &[Target]) -> Result<(), Failure> {
    let disk = disk::open_source(&source.path)?;
    on_each(targets, |target| {
        let file = File::open(&target.path)?;
        let piece = usize::try_from(PIECE_BYTES)?;
        let (mut expected, mut found, mut there) = (vec![0; piece], vec![0; piece], vec![0; piece]);
        for offset in (0..source.bytes()).step_by(piece) {
            let len = usize::try_from(PIECE_BYTES.min(source.bytes() - offset))?;
            let (expected, found, there) = (&mut expected[..len], &mut found[..len], &mut there[..len]);
            target.random_at(offset, expected);
            disk.read_exact_at(there, offset)?;
            file.read_exact_at(found, offset)?;
            let window = Extent::new(offset / 512, len as u64 / 512);
            for run in source.map.allocated.within(window) {
                let range =
                    usize::try_from(run.offset_bytes() - offset)?..usize::try_from(run.end() * 512 - offset)?;
                expected[range.clone()].copy_from_slice(&there[range]);
            }
            if let Some(at) = (0..len).find(|&at| expected[at] != found[at]) {
                let (path, at) = (target.path.display(), offset + at as u64);
                return Err(format!("`{path}` differs at offset {at} from the expected content").into());
            }
        }
        Ok(())
    })
}

/// Runs `e2fsck` on every ext4 partition, without changing it.
pub(crate) fn check_filesystem(source: &Disk, target: &Path) -> Result<(), Failure> {
    for partition in &source.map.partitions {
        if partition.filesystem.as_ref().is_some_and(|filesystem| filesystem.kind == "ext4") {
            let device = format!("{}?offset={}", target.display(), partition.extent.offset_bytes());
            tool(Command::new("e2fsck").args(["-f", "-n", &device]))?;
        }
    }
    Ok(())
}

/// Does `work` for all targets at the same time.
fn on_each(targets: &[Target], work: impl Fn(&Target) -> Result<(), Failure> + Sync) -> Result<(), Failure> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = targets.iter().map(|target| scope.spawn(|| work(target))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic on a disk of any content"))
    })
}

/// Runs a tool to its end and returns its standard output. Searches `/usr/sbin` too, which is often missing in the
/// `PATH` of users other than root.
fn tool(command: &mut Command) -> Result<String, Failure> {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.env("PATH", path).output().map_err(|error| format!("start `{name}`: {error}"))?;
    if !output.status.success() {
        let said = [output.stdout, output.stderr].concat();
        return Err(format!("`{name}`: {}: {}", output.status, String::from_utf8_lossy(&said).trim()).into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::ExtentSet;

    /// A source of random bytes, with three runs of used sectors.
    fn source(folder: &Path) -> Disk {
        let path = folder.join("source.img");
        let mut bytes = vec![0; 3 * 1024 * 1024 + 512];
        Chance::from_seed(77).fill(&mut bytes);
        std::fs::write(&path, &bytes).unwrap();
        let mut disk = Disk::open(path).unwrap();
        disk.map.allocated =
            ExtentSet::from_iter([Extent::new(0, 8), Extent::new(2000, 100), Extent::new(6000, 145)]);
        disk
    }

    fn install(source: &Disk, target: &Target) {
        let (from, to) =
            (std::fs::read(&source.path).unwrap(), File::options().write(true).open(&target.path).unwrap());
        for run in source.map.allocated.runs() {
            let range =
                usize::try_from(run.offset_bytes()).unwrap()..usize::try_from(run.end() * 512).unwrap();
            to.write_all_at(&from[range], run.offset_bytes()).unwrap();
        }
    }

    #[test]
    fn a_wrong_byte_is_found_in_used_and_in_free_space() {
        let folder = tempfile::tempdir().unwrap();
        let source = source(folder.path());
        let targets = fill_targets(folder.path(), 2, source.bytes()).unwrap();
        assert!(compare_all(&source, &targets).is_err(), "nothing was installed yet");
        targets.iter().for_each(|target| install(&source, target));
        compare_all(&source, &targets).unwrap();
        for wrong in [7, 2000 * 512 + 3, 6144 * 512 + 511, 9 * 512] {
            let file = File::options().read(true).write(true).open(&targets[1].path).unwrap();
            let mut byte = [0];
            file.read_exact_at(&mut byte, wrong).unwrap();
            file.write_all_at(&[byte[0] ^ 1], wrong).unwrap();
            let said = compare_all(&source, &targets).unwrap_err().to_string();
            assert!(said.contains("host-2") && said.contains(&format!("offset {wrong} ")), "{said}");
            file.write_all_at(&byte, wrong).unwrap();
        }
    }
}
