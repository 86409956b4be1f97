//! One seed of *capture, change, commit the whole disk, install over random bytes*: the version must equal a fresh
//! capture of the same disk, and the installed disk must pass the filesystem's own checker and hold the same files.
//!
//! Filesystem, partition table, form of the source, chunk size and all changes follow from the seed. It needs root,
//! loop devices and the tools of the filesystems.

#![allow(clippy::cast_possible_truncation, reason = "all lengths are small")]

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use base::Chance;
use serde_json::Value;

use crate::tool::{run, unmount};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// A kind of disk.
struct Kind {
    name: &'static str,
    mib: u64,
    /// The words that make the filesystem, that mount it for writing and for reading, and that check it.
    make: &'static str,
    mount: &'static str,
    mount_to_read: &'static str,
    check: &'static str,
}

/// Lets mkfs.xfs make filesystems of less than 300 MiB.
const XFS: &str = "env TEST_DIR=1 TEST_DEV=1 QA_CHECK_FS=1 mkfs.xfs -q -f";
/// Stands for a filesystem that is not mounted, since not every kernel can: files are copied in and out.
const MTOOLS: &str = "mtools";
/// Where the partition begins, on disks with a table.
const PARTITION_BYTES: u64 = 1 << 20;
/// Changes between two versions.
const DEEDS: u64 = 40;
/// Most bytes of a file.
const FILE_BYTES_MAX: u64 = 60_000;
/// Names that files have.
const NAMES: u64 = 60;

const KINDS: [Kind; 6] = [
    Kind {
        name: "ext4",
        mib: 24,
        make: "mkfs.ext4 -q -F -b 1024",
        mount: "mount -t ext4",
        mount_to_read: "mount -t ext4 -o ro,noload",
        check: "e2fsck -fn",
    },
    Kind {
        name: "xfs",
        mib: 64,
        make: XFS,
        mount: "mount -t xfs",
        mount_to_read: "mount -t xfs -o ro,norecovery,nouuid",
        check: "xfs_repair -n",
    },
    Kind {
        name: "btrfs",
        mib: 112,
        make: "mkfs.btrfs -q -f",
        mount: "mount -t btrfs",
        mount_to_read: "mount -t btrfs -o ro",
        check: "btrfs check --readonly",
    },
    Kind {
        name: "ntfs",
        mib: 16,
        make: "mkntfs -Q -F -q",
        mount: "ntfs-3g",
        mount_to_read: "ntfs-3g -o ro",
        check: "ntfsfix -n",
    },
    Kind {
        name: "fat",
        mib: 8,
        make: "mkfs.fat",
        mount: MTOOLS,
        mount_to_read: MTOOLS,
        check: "fsck.fat -n",
    },
    Kind { name: "raw", mib: 4, make: "", mount: "", mount_to_read: "", check: "" },
];

/// What runs seeds.
#[derive(Debug, Clone, Copy)]
pub struct CommitSeeds<'a> {
    /// The program `diskcast`.
    pub program: &'a Path,
    /// A folder that exists; each seed makes one of its own in it, and removes it.
    pub folder: &'a Path,
}

/// A loop device, detached when this is dropped.
struct Loop(String);

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = run("losetup", &["-d", &self.0]);
    }
}

/// A mounted filesystem, unmounted when this is dropped.
struct Mounted {
    place: PathBuf,
    _device: Loop,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // `umount` waits for a filesystem in user space, too; only then has it written everything.
        let _ = unmount(&self.place);
    }
}

/// One seed, in its folder.
struct Seed<'a> {
    program: &'a Path,
    folder: PathBuf,
    kind: &'static Kind,
    chance: Chance,
    /// `dos`, `gpt`, or no table.
    table: Option<&'static str>,
    chunk: &'static str,
}

impl CommitSeeds<'_> {
    /// Runs a seed. An error says what is wrong, with the seed, the filesystem and the form of the disk.
    pub fn run(&self, seed: u64) -> std::result::Result<(), String> {
        self.seed(seed).map_err(|error| format!("seed {seed}: {}", base::chain(&*error)))
    }

    fn seed(&self, seed: u64) -> Result<()> {
        let mut chance = Chance::from_seed(seed);
        let kind = &KINDS[(seed % KINDS.len() as u64) as usize];
        let folder = self.folder.join(format!("seed-{seed}"));
        fs::create_dir(&folder)?;
        let table = [None, Some("dos"), Some("gpt")][chance.below(3) as usize].filter(|_| kind.name != "raw");
        let chunk = ["64K", "256K", "1M"][chance.below(3) as usize];
        let mut one = Seed { program: self.program, folder: folder.clone(), kind, chance, table, chunk };
        let done = one.run();
        fs::remove_dir_all(&folder)?;
        let what = format!("{}, {}", kind.name, table.unwrap_or("no table"));
        done.map_err(|error| within(&what, &*error))
    }
}

impl Seed<'_> {
    fn run(&mut self) -> Result<()> {
        self.make()?;
        self.diskcast(&format!("capture disk.img lab --chunk {} -q", self.chunk))?;
        for round in 0..=self.chance.below(2) {
            self.tool("cp --sparse=always disk.img before.img")?;
            self.change()?;
            let source = self.form()?;
            // In a filesystem that is understood, holes are zeros of files.
            let holes =
                if self.kind.name != "raw" && self.chance.below(3) == 0 { "--free-holes" } else { "" };
            self.diskcast(&format!("commit lab {source} {holes} -q"))?;
            self.diskcast(&format!("capture disk.img fresh --chunk {} -q", self.chunk))?;
            let what = format!("round {round}, `commit lab {source}`");
            self.compare().map_err(|error| within(&what, &*error))?;
        }
        self.install()?;
        self.check()
    }

    /// Installs the version over what an old disk may hold: random bytes, the version before, or that as the base of an
    /// overlay.
    fn install(&mut self) -> Result<()> {
        match self.chance.below(4) {
            0 => self.tool("cp --sparse=always before.img target.img").map(drop)?,
            1 => {
                self.diskcast("install lab over-old.qcow2 --as qcow2 --copy-of before.img -q")?;
                return self.tool("qemu-img convert -q -O raw over-old.qcow2 target.img").map(drop);
            }
            _ => self.fill("target.img")?,
        }
        self.diskcast("install lab target.img --yes --overwrite -q").map(drop)
    }

    /// Makes the disk: empty or full of an older one's bytes, with a table or without, and some files.
    fn make(&mut self) -> Result<()> {
        let bytes = self.bytes();
        File::create(self.folder.join("disk.img"))?.set_len(bytes)?;
        fs::create_dir(self.folder.join("mounted"))?;
        if self.chance.below(2) == 0 {
            self.fill("disk.img")?;
        }
        if let Some(table) = self.table {
            let disk = self.folder.join("disk.img");
            self.tool("wipefs -q -a disk.img")?;
            let script = format!("label: {table}\nstart=2048,size={}M,type=L\n", self.kind.mib);
            crate::tool::feed("sfdisk", &["-q", "--wipe", "always", &disk.to_string_lossy()], &script)?;
        }
        if !self.kind.make.is_empty() {
            let device = self.device("disk.img", "")?;
            words(&format!("{} {}", self.kind.make, device.0))?;
        }
        self.change()
    }

    fn bytes(&self) -> u64 {
        (self.kind.mib << 20) + self.table.map_or(0, |_| 2 * PARTITION_BYTES)
    }

    /// Fills a file of the disk's size with random bytes.
    fn fill(&mut self, name: &str) -> Result<()> {
        let file = File::create(self.folder.join(name))?;
        let mut piece = vec![0; 1 << 20];
        for offset in (0..self.bytes()).step_by(piece.len()) {
            self.chance.fill(&mut piece);
            file.write_all_at(&piece, offset)?;
        }
        Ok(())
    }

    /// The loop device of the filesystem in a disk.
    fn device(&self, name: &str, flags: &str) -> Result<Loop> {
        let start = self.table.map_or(0, |_| PARTITION_BYTES);
        let (disk, bytes) = (self.folder.join(name), self.kind.mib << 20);
        let line =
            format!("losetup --find --show --offset {start} --sizelimit {bytes} {flags} {}", disk.display());
        Ok(Loop(words(&line)?.trim().to_owned()))
    }

    fn mounted(&self, name: &str, mount: &str, flags: &str) -> Result<Mounted> {
        let (device, place) = (self.device(name, flags)?, self.folder.join("mounted"));
        words(&format!("{mount} {} {}", device.0, place.display()))?;
        Ok(Mounted { place, _device: device })
    }

    /// Changes files, or sectors of a disk without a filesystem.
    fn change(&mut self) -> Result<()> {
        if self.kind.mount.is_empty() {
            let disk = File::options().write(true).open(self.folder.join("disk.img"))?;
            for _ in 0..DEEDS {
                let (bytes, at) = (self.content(), self.chance.below(self.bytes() - FILE_BYTES_MAX));
                disk.write_all_at(&bytes, at)?;
            }
            return Ok(disk.sync_all()?);
        }
        if self.kind.mount == MTOOLS {
            let files = self.folder.join("files");
            fs::create_dir_all(&files)?;
            let removed = self.deeds(&files)?;
            let disk = self.part("disk.img");
            for file in removed {
                let _ = self.tool(&format!("mdel -i {disk} '::{file}'"));
            }
            return self.tool(&format!("mcopy -Q -s -D o -i {disk} files/* ::")).map(drop);
        }
        let mounted = self.mounted("disk.img", self.kind.mount, "")?;
        let done = self.deeds(&mounted.place);
        drop(mounted);
        done.map(drop)
    }

    /// The filesystem in a disk, as mtools call it.
    fn part(&self, name: &str) -> String {
        format!("{name}@@{}", self.table.map_or(0, |_| PARTITION_BYTES))
    }

    /// Changes files below `root`; returns those that it removed.
    fn deeds(&mut self, root: &Path) -> Result<Vec<String>> {
        let mut removed = Vec::new();
        for _ in 0..DEEDS {
            let folder = format!("folder {}", self.chance.below(5));
            let name = format!("{folder}/file {}", self.chance.below(NAMES));
            let file = root.join(&name);
            fs::create_dir_all(root.join(folder))?;
            match self.chance.below(6) {
                0 => {
                    if fs::remove_file(&file).is_ok() {
                        removed.push(name);
                    }
                }
                1 => {
                    // A hole, or what lay behind, cut off.
                    let file = File::options().create(true).append(true).open(&file)?;
                    file.set_len(self.chance.below(FILE_BYTES_MAX))?;
                }
                2 => {
                    let file = File::options().create(true).truncate(false).write(true).open(&file)?;
                    file.write_all_at(&self.content(), self.chance.below(FILE_BYTES_MAX))?;
                }
                _ => fs::write(&file, self.content())?,
            }
        }
        Ok(removed)
    }

    /// Bytes of which about half are zeros, in pieces of any length.
    fn content(&mut self) -> Vec<u8> {
        let mut bytes = vec![0; self.chance.below(FILE_BYTES_MAX) as usize];
        let mut at = 0;
        while at < bytes.len() {
            let end = bytes.len().min(at + 1 + self.chance.below(9000) as usize);
            if self.chance.below(2) == 0 {
                self.chance.fill(&mut bytes[at..end]);
            }
            at = end;
        }
        bytes
    }

    /// Makes the disk's file in the form that is committed; returns the words that name it.
    fn form(&mut self) -> Result<&'static str> {
        Ok(match self.chance.below(3) {
            0 => {
                self.tool("qemu-img convert -q -f raw -O qcow2 disk.img disk.qcow2")?;
                "disk.qcow2"
            }
            1 => {
                self.tool("qemu-img convert -q -f raw -O qcow2 -B before.img -F raw disk.img over.qcow2")?;
                "over.qcow2 --backing"
            }
            _ => "disk.img",
        })
    }

    /// Compares the version with a fresh capture: tree, partitions, warnings.
    fn compare(&self) -> Result<()> {
        let manifest = |name: &str| -> Result<Value> {
            let found: Value = serde_json::from_str(&self.diskcast(&format!("inspect {name} --json"))?)?;
            Ok(found["manifest"].clone())
        };
        let (committed, fresh) = (manifest("lab")?, manifest("fresh")?);
        let parts = ["/root", "/disk/table", "/disk/id", "/disk/partitions", "/warnings", "/statistics"];
        for part in parts {
            let (here, there) = (committed.pointer(part), fresh.pointer(part));
            if here != there {
                return Err(format!("{part} is {here:?}, in a fresh capture {there:?}").into());
            }
        }
        Ok(())
    }

    /// Checks the installed disk by the filesystem's checker, and its files by their content.
    fn check(&self) -> Result<()> {
        if self.kind.mount.is_empty() {
            return self.tool("cmp disk.img target.img").map(drop);
        }
        let device = self.device("target.img", "--read-only")?;
        words(&format!("{} {}", self.kind.check, device.0))?;
        drop(device);
        let files = |name: &str| -> Result<String> {
            if self.kind.mount == MTOOLS {
                let part = self.part(name);
                let list = "(cd out && find . -type f -exec sha256sum {} + | sort); rm -r out";
                return self.tool(&format!("mkdir out && mcopy -Q -s -n -i {part} '::*' out/ && {list}"));
            }
            let mounted = self.mounted(name, self.kind.mount_to_read, "--read-only")?;
            let list = format!("cd '{}' && tar --sort=name -c . | sha256sum", mounted.place.display());
            Ok(run("sh", &["-c", &list])?)
        };
        if files("disk.img")? != files("target.img")? {
            return Err("the files of the installed disk differ".into());
        }
        Ok(())
    }

    fn tool(&self, line: &str) -> Result<String> {
        Ok(run("sh", &["-c", &format!("cd '{}' && {line}", self.folder.display())])?)
    }

    /// Runs `diskcast` in the folder; returns its standard output.
    fn diskcast(&self, line: &str) -> Result<String> {
        let mut command = Command::new(self.program);
        command.args(line.split_whitespace()).current_dir(&self.folder).stdin(Stdio::null());
        command.env("DISKCAST_REPO", self.folder.join("repo")).env("DISKCAST_CACHE", "off");
        command.env("DISKCAST_SEEN", self.folder.join("seen.json")).env("DISKCAST_CONFIG", "/dev/null");
        let done = command.output()?;
        if done.status.success() {
            return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        Err(format!("`diskcast {line}`: {}: {}", done.status, said.trim()).into())
    }
}

/// Runs a command without quotes in it.
fn words(line: &str) -> Result<String> {
    let all: Vec<&str> = line.split_whitespace().collect();
    Ok(run(all[0], &all[1..])?)
}

fn within(what: &str, error: &(dyn std::error::Error + 'static)) -> Box<dyn std::error::Error> {
    format!("{what}: {}", base::chain(error)).into()
}
