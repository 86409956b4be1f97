//! Identifies the disk or file behind a path by marks that do not change when names do, and finds the offset where the
//! path's contents begin there. An install uses it to recognise the disk that an image was captured from. Marks never
//! come from the disk's contents, because a copy has the same contents.
//!
//! Sources: Linux Documentation/ABI (sysfs-block: diskseq; sysfs-class-bdi; sysfs-block-loop, sysfs-block-dm), the disk
//! names of SCSI and NVMe as `wwid` shows them, statx(2), machine-id(5).

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use base::Result;
use base::limits::SECTOR_BYTES;
use rustix::fs::{AtFlags, CWD, StatxFlags};

use crate::file::{Identity, identify, io_error};
use crate::in_use::folder_of;
use crate::watch::disk_of;

/// The longest chain of loop devices on loop devices that is followed.
const DEPTH_MAX: u32 = 8;

/// The disk or file behind a path, and where the path's contents begin in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Names of the whole disk, or of the file: two places with a common mark are on the same disk or file. Store only
    /// digests of them, because they contain serial numbers.
    pub marks: Vec<String>,
    /// Start of the contents on that disk or in that file, in sectors of 512 bytes.
    pub start_sector: u64,
}

/// The place of the file or block device at `path`. For a partition it names the disk, for a loop device the file or
/// device below it. There are no marks if nothing distinguishes the disk or file from others. `NotFound`, `Io`;
/// `Refused` if it is neither a file nor a block device.
pub fn place_of(path: &Path) -> Result<Place> {
    Machine::here().place(path, 0)
}

/// The folders that describe this machine and its disks; tests replace them.
struct Machine {
    proc: PathBuf,
    sys: PathBuf,
    etc: PathBuf,
}

impl Machine {
    fn here() -> Self {
        Self { proc: "/proc".into(), sys: "/sys".into(), etc: "/etc".into() }
    }

    fn place(&self, path: &Path, depth: u32) -> Result<Place> {
        match identify(path)? {
            Identity::File { .. } => Ok(Place { marks: self.file(path)?, start_sector: 0 }),
            Identity::Device { rdev } => {
                let folder = fs::canonicalize(folder_of(rdev)).unwrap_or_default();
                let disk = disk_of(&folder);
                let start = if folder == disk { 0 } else { number(&folder.join("start")).unwrap_or(0) };
                if let Some(backing) = text(&disk.join("loop/backing_file")).filter(|_| depth < DEPTH_MAX)
                    && let Ok(below) = self.place(Path::new(&backing), depth + 1)
                {
                    let offset = number(&disk.join("loop/offset")).unwrap_or(0) / SECTOR_BYTES;
                    return Ok(Place { start_sector: below.start_sector + offset + start, ..below });
                }
                Ok(Place { marks: self.disk(&disk), start_sector: start })
            }
        }
    }

    /// The marks of the disk that sysfs describes in the folder `disk`.
    fn disk(&self, disk: &Path) -> Vec<String> {
        let first = |paths: &[&str]| paths.iter().find_map(|path| text(&disk.join(path)));
        let mut marks = Vec::new();
        // Names that the maker gave to this disk alone. Names of zeros are not unique, and neither are `t10` names,
        // which are free text: all emulated disks may have the same.
        let world = first(&["wwid", "device/wwid"]).filter(|name| {
            let unique = ["naa.", "eui.", "uuid."].into_iter().find_map(|kind| name.strip_prefix(kind));
            unique.is_some_and(|rest| rest.bytes().any(|byte| byte != b'0'))
        });
        marks.extend(world.map(|name| format!("disk {name}")));
        marks.extend(first(&["dm/uuid"]).map(|uuid| format!("mapped {uuid}")));
        marks.extend(first(&["device/cid"]).map(|cid| format!("card {cid}")));
        // A serial number or a slot is unique within one machine only, so the mark includes the board. Virtual devices
        // have no slot: their paths follow from their names.
        let slot = disk.strip_prefix(&self.sys).unwrap_or(disk);
        if let Some(machine) = self.board().filter(|_| !slot.starts_with("devices/virtual")) {
            let serial = first(&["serial", "device/serial"]);
            let which = serial.unwrap_or_else(|| slot.display().to_string());
            marks.push(format!("of {machine}: {which}"));
        }
        // The kernel does not reuse a `diskseq` until the machine reboots.
        if let (Some(boot), Some(sequence)) = (self.boot(), first(&["diskseq"])) {
            marks.push(format!("since {boot}: {sequence}"));
        }
        marks
    }

    /// The mark of the file at `path`: its inode number and its time of creation, because inode numbers are reused.
    fn file(&self, path: &Path) -> Result<Vec<String>> {
        let found = fs::metadata(path).map_err(|e| io_error("look at", path, e))?;
        let stat = rustix::fs::statx(CWD, path, AtFlags::empty(), StatxFlags::BTIME);
        let born = stat.ok().filter(|stat| stat.stx_mask & StatxFlags::BTIME.bits() != 0);
        let born = born.map(|stat| format!("{}.{:09}", stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec));
        let ino = found.ino();
        // Device numbers may change at a reboot, so only the mark that is valid for one boot includes one.
        let mark = match (born, self.installation(), self.boot()) {
            (Some(born), Some(machine), _) => Some(format!("file of {machine}: {ino} {born}")),
            (Some(born), None, Some(boot)) => {
                Some(format!("file since {boot}: {} {ino} {born}", found.dev()))
            }
            _ => None,
        };
        Ok(mark.into_iter().collect())
    }

    /// The number of the board, in lower case; `None` if the maker did not set one. Only root can read it.
    fn board(&self) -> Option<String> {
        let uuid = text(&self.sys.join("class/dmi/id/product_uuid"));
        let uuid = uuid.or_else(|| text(&self.sys.join("firmware/devicetree/base/serial-number")))?;
        let uuid = uuid.to_ascii_lowercase();
        let digits: Vec<u8> = uuid.bytes().filter(u8::is_ascii_alphanumeric).collect();
        let varies = digits.iter().any(|digit| Some(digit) != digits.first());
        // This one is the default of boards whose maker did not set it.
        (varies && !uuid.starts_with("03000200-0400-0500-0006-")).then_some(uuid)
    }

    /// The identifier of the installed system; `None` if it has none yet.
    fn installation(&self) -> Option<String> {
        text(&self.etc.join("machine-id")).filter(|id| id.len() == 32)
    }

    fn boot(&self) -> Option<String> {
        text(&self.proc.join("sys/kernel/random/boot_id"))
    }
}

/// The text of a file without surrounding blanks; `None` if it is empty or cannot be read.
pub(crate) fn text(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim_matches(['\0', ' ', '\n', '\t']);
    (!text.is_empty()).then(|| text.to_owned())
}

fn number(path: &Path) -> Option<u64> {
    text(path)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bench(tempfile::TempDir);

    impl Bench {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn put(&self, path: &str, text: &str) -> &Self {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
            self
        }

        fn machine(&self) -> Machine {
            let at = |name: &str| self.0.path().join(name);
            Machine { proc: at("proc"), sys: at("sys"), etc: at("etc") }
        }

        fn marks(&self, disk: &str) -> Vec<String> {
            self.machine().disk(&self.0.path().join(disk))
        }
    }

    #[test]
    fn a_disk_is_known_by_its_maker_or_its_machine() {
        let bench = Bench::new();
        let disk = "sys/devices/pci0/sda";
        assert_eq!(bench.marks(disk), [""; 0]);
        bench.put("sys/devices/pci0/sda/device/wwid", "t10.ATA     QEMU HARDDISK   QM00001 \n");
        assert_eq!(bench.marks(disk), [""; 0], "every emulated disk is called so");
        bench.put("sys/devices/pci0/sda/diskseq", "7\n").put("proc/sys/kernel/random/boot_id", "b00t\n");
        assert_eq!(bench.marks(disk), ["since b00t: 7"]);
        for unset in ["00000000-0000-0000-0000-000000000000", "03000200-0400-0500-0006-000700080009", ""] {
            bench.put("sys/class/dmi/id/product_uuid", unset);
            assert_eq!(bench.marks(disk), ["since b00t: 7"]);
        }
        bench.put("sys/class/dmi/id/product_uuid", "4C4C4544-0001\n");
        assert_eq!(bench.marks(disk)[0], "of 4c4c4544-0001: devices/pci0/sda");
        bench.put("sys/devices/pci0/sda/serial", "S1\n");
        assert_eq!(bench.marks(disk)[0], "of 4c4c4544-0001: S1");
        bench.put("sys/devices/pci0/sda/device/wwid", "naa.5000c500a1b2c3d4\n");
        assert_eq!(bench.marks(disk)[0], "disk naa.5000c500a1b2c3d4");
        bench.put("sys/devices/pci0/nvme0n1/wwid", "eui.0000000000000000\n");
        assert_eq!(bench.marks("sys/devices/pci0/nvme0n1"), ["of 4c4c4544-0001: devices/pci0/nvme0n1"]);
        bench.put("sys/devices/virtual/block/dm-0/dm/uuid", "LVM-abc\n");
        assert_eq!(bench.marks("sys/devices/virtual/block/dm-0"), ["mapped LVM-abc"]);
    }

    #[test]
    fn a_file_is_known_by_inode_and_birth() {
        let bench = Bench::new();
        bench.put("etc/machine-id", "uninitialized\n").put("a", "").put("b", "");
        let at = |name: &str| bench.0.path().join(name);
        let marks = |name: &str| bench.machine().file(&at(name)).unwrap();
        assert_eq!(marks("a"), [""; 0]);
        bench.put("proc/sys/kernel/random/boot_id", "b00t");
        assert!(marks("a")[0].starts_with("file since b00t: ") && marks("a") != marks("b"));
        bench.put("etc/machine-id", "0123456789abcdef0123456789abcdef\n");
        assert!(marks("a")[0].starts_with("file of 0123456789abcdef") && marks("a") != marks("b"));
        let before = marks("a");
        fs::rename(at("a"), at("c")).unwrap();
        assert_eq!(marks("c"), before);
    }
}
