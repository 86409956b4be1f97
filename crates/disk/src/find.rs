//! Finds the disk that is meant among those of this machine, by the hints that OpenStack Ironic knows (its
//! documentation, "Specifying the disk for deployment"): serial number, world wide name, size, model, and so on.

use std::fs;
use std::path::{Path, PathBuf};

use base::limits::SECTOR_BYTES;
use base::units::show_bytes;
use base::{Error, ErrorKind, Result};

use crate::place::text;

/// How a target begins that names a disk by hints.
pub const PREFIX: &str = "disk:";
/// The volume name of the ISO image that our system boots from. A medium with it is no disk to work on.
pub const BOOT_MEDIUM: &str = "DISKCAST";
/// Where the volume name of an ISO image lies, padded with spaces (ECMA-119, 8.4.7).
const VOLUME_OFFSET: u64 = 16 * 2048 + 40;
/// Block devices that are no disks of the machine, by the beginnings of their names.
const OTHERS: &[&str] = &["loop", "ram", "zram", "sr", "fd", "dm-", "md", "nbd", "ublk"];

/// A disk of this machine. Texts are as the kernel has them, in lower case.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Candidate {
    /// The device, such as `/dev/sda`.
    pub name: String,
    /// Other names below `/dev/disk`.
    pub links: Vec<String>,
    /// What the maker says.
    pub model: String,
    /// Who the maker is.
    pub vendor: String,
    /// Its serial number.
    pub serial: String,
    /// Its world wide name, without the kind before it.
    pub wwn: String,
    /// Host, channel, target and LUN of a SCSI disk, such as `0:0:1:0`.
    pub hctl: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Whether it turns.
    pub rotational: bool,
}

/// One condition, such as `size=>= 100`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Hint {
    key: String,
    operator: Operator,
    values: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operator {
    Equal,
    NotEqual,
    AtLeast,
    AtMost,
    More,
    Less,
    Contains,
}

/// Conditions that a disk must meet, all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hints(Vec<Hint>);

const KEYS: &[&str] =
    &["name", "by_path", "by_id", "model", "vendor", "serial", "wwn", "hctl", "size", "rotational"];
/// Operators, longest first; `s` before one says that texts are compared, which only numbers make a difference to.
const OPERATORS: &[(&str, Operator)] = &[
    ("<in>", Operator::Contains),
    ("s==", Operator::Equal),
    ("s!=", Operator::NotEqual),
    (">=", Operator::AtLeast),
    ("<=", Operator::AtMost),
    ("==", Operator::Equal),
    ("!=", Operator::NotEqual),
    ("=", Operator::AtLeast),
    (">", Operator::More),
    ("<", Operator::Less),
];

impl Hints {
    /// Parses hints with commas between them: `serial=S1`, `size=>= 100` (GiB without a unit), `model=<in> qemu`,
    /// `vendor=<or> a <or> b`. `Invalid` if one has no known key or no value.
    pub fn parse(text: &str) -> Result<Self> {
        let invalid = |hint: &str, why: &str| {
            Error::new(ErrorKind::Invalid, format!("`{hint}` is not a hint for a disk: {why}"))
        };
        let parse = |hint: &str| {
            let (key, value) = hint.split_once('=').ok_or_else(|| invalid(hint, "it is not KEY=VALUE"))?;
            let key = key.trim().to_ascii_lowercase().replace('-', "_");
            if !KEYS.contains(&key.as_str()) {
                return Err(invalid(hint, &format!("the keys are {}", KEYS.join(", "))));
            }
            let value = value.trim();
            let (operator, values) = match value.strip_prefix("<or>") {
                Some(rest) => (Operator::Equal, rest.split("<or>").map(str::trim).collect()),
                None => {
                    let found = OPERATORS
                        .iter()
                        .find_map(|(sign, operator)| Some((*operator, value.strip_prefix(sign)?)));
                    let (operator, value) = found.unwrap_or((Operator::Equal, value));
                    (operator, vec![value.trim()])
                }
            };
            let values: Vec<_> = values.into_iter().map(str::to_lowercase).collect();
            if values.iter().any(String::is_empty) {
                return Err(invalid(hint, "it has no value"));
            }
            let is_number = values.iter().all(|value| size(value).is_some());
            let orders = !matches!(operator, Operator::Equal | Operator::NotEqual | Operator::Contains);
            if (key == "size" && !is_number) || (key != "size" && orders) {
                return Err(invalid(hint, "only sizes are compared as numbers, such as size=>=100G"));
            }
            Ok(Hint { key, operator, values })
        };
        let hints = text.split(',').map(str::trim).filter(|hint| !hint.is_empty());
        let hints = hints.map(parse).collect::<Result<Vec<_>>>()?;
        if hints.is_empty() { Err(invalid(text, "it says nothing")) } else { Ok(Self(hints)) }
    }

    fn fit(&self, disk: &Candidate) -> bool {
        self.0.iter().all(|hint| hint.fits(disk))
    }
}

impl Hint {
    fn fits(&self, disk: &Candidate) -> bool {
        let sizes = |value: &String| size(value).unwrap_or(0);
        if self.key == "size" {
            let is = |fits: fn(&u64, &u64) -> bool| {
                self.values.iter().map(sizes).any(|size| fits(&disk.size_bytes, &size))
            };
            // A disk of 100 GiB by its maker's words has some bytes more or less: whole GiB are compared.
            let equal = |size: u64| disk.size_bytes >> 30 == size >> 30;
            return match self.operator {
                Operator::AtLeast => is(|disk, size| disk >= size),
                Operator::AtMost => is(|disk, size| disk <= size),
                Operator::More => is(|disk, size| disk > size),
                Operator::Less => is(|disk, size| disk < size),
                Operator::NotEqual => !self.values.iter().map(sizes).any(equal),
                Operator::Equal | Operator::Contains => self.values.iter().map(sizes).any(equal),
            };
        }
        let rotational = disk.rotational.to_string();
        let has: Vec<&str> = match self.key.as_str() {
            "by_path" | "by_id" => disk.links.iter().map(String::as_str).collect(),
            "model" => vec![&disk.model],
            "vendor" => vec![&disk.vendor],
            "serial" => vec![&disk.serial],
            "wwn" => vec![&disk.wwn],
            "hctl" => vec![&disk.hctl],
            "rotational" => vec![&rotational],
            _ => vec![&disk.name],
        };
        let wanted = |value: &String| if self.key == "wwn" { wwn(value) } else { value.clone() };
        let is_equal = |value: &String| {
            has.iter().any(|has| {
                let value = wanted(value);
                *has == value || has.rsplit('/').next() == Some(&value)
            })
        };
        match self.operator {
            Operator::NotEqual => !self.values.iter().any(is_equal),
            Operator::Contains => {
                self.values.iter().any(|value| has.iter().any(|has| has.contains(&wanted(value))))
            }
            _ => self.values.iter().any(is_equal),
        }
    }
}

/// Bytes of a size in GiB, or with a unit.
fn size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" | "g" | "gb" | "gib" => 30,
        "m" | "mb" | "mib" => 20,
        "t" | "tb" | "tib" => 40,
        _ => return None,
    };
    digits.trim().parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// A world wide name without the kind before it.
fn wwn(text: &str) -> String {
    let text = text.to_ascii_lowercase();
    let kinds = ["naa.", "eui.", "uuid.", "nvme.", "0x"];
    kinds.into_iter().find_map(|kind| text.strip_prefix(kind)).map_or(text.clone(), str::to_owned)
}

/// The disks of this machine, by name.
#[must_use]
pub fn candidates() -> Vec<Candidate> {
    below(Path::new("/sys"), Path::new("/dev"))
}

fn below(sys: &Path, dev: &Path) -> Vec<Candidate> {
    let entries = fs::read_dir(sys.join("block")).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let disks = names.filter(|name| !OTHERS.iter().any(|other| name.starts_with(other)));
    let disks = disks.filter(|name| !is_boot_medium(&dev.join(name)));
    let mut found: Vec<_> =
        disks.map(|name| look(sys, dev, &name)).filter(|disk| disk.size_bytes > 0).collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// Whether our system boots from this device: a USB stick, or the memory into which UEFI loaded our ISO image.
fn is_boot_medium(device: &Path) -> bool {
    use std::os::unix::fs::FileExt as _;
    let mut volume = [0; BOOT_MEDIUM.len() + 1];
    let read = |file: fs::File| file.read_exact_at(&mut volume, VOLUME_OFFSET);
    fs::File::open(device).and_then(read).is_ok() && volume == *format!("{BOOT_MEDIUM} ").as_bytes()
}

fn look(sys: &Path, dev: &Path, name: &str) -> Candidate {
    let folder = sys.join("block").join(name);
    let device = dev.join(name);
    let first = |paths: &[&str]| {
        paths.iter().find_map(|path| text(&folder.join(path))).unwrap_or_default().to_lowercase()
    };
    let real = fs::canonicalize(folder.join("device")).unwrap_or_default();
    let slot = real.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
    let is_hctl = slot.split(':').count() == 4;
    Candidate {
        links: links(dev, &device),
        model: first(&["device/model"]),
        vendor: first(&["device/vendor"]),
        serial: serial(&folder).to_lowercase(),
        wwn: wwn(&first(&["wwid", "device/wwid"])),
        hctl: if is_hctl { slot } else { String::new() },
        size_bytes: first(&["size"]).parse::<u64>().unwrap_or(0).saturating_mul(SECTOR_BYTES),
        rotational: first(&["queue/rotational"]) == "1",
        name: device.display().to_string().to_lowercase(),
    }
}

/// The serial number: in a file of its own, or in SCSI's page 0x80 of vital product data (SPC-4, 7.8.15).
fn serial(folder: &Path) -> String {
    let plain = ["serial", "device/serial"].iter().find_map(|path| text(&folder.join(path)));
    let page = || {
        let page = fs::read(folder.join("device/vpd_pg80")).ok()?;
        let serial = String::from_utf8_lossy(page.get(4..)?).trim_matches(['\0', ' ']).to_owned();
        (!serial.is_empty()).then_some(serial)
    };
    plain.or_else(page).unwrap_or_default()
}

/// The links below `/dev/disk` that lead to `device`.
fn links(dev: &Path, device: &Path) -> Vec<String> {
    let folders = ["by-id", "by-path"].map(|folder| dev.join("disk").join(folder));
    let entries = folders.iter().flat_map(|folder| fs::read_dir(folder).into_iter().flatten().flatten());
    let device = fs::canonicalize(device).unwrap_or_else(|_| device.to_owned());
    let ours =
        entries.map(|entry| entry.path()).filter(|link| fs::canonicalize(link).is_ok_and(|to| to == device));
    ours.map(|link| link.display().to_string().to_lowercase()).collect()
}

/// The one disk of this machine that meets `hints`. `NotFound` if none does, `Refused` if several do; both list disks.
pub fn find(hints: &Hints) -> Result<PathBuf> {
    choose(hints, &candidates())
}

fn choose(hints: &Hints, all: &[Candidate]) -> Result<PathBuf> {
    let fitting: Vec<_> = all.iter().filter(|disk| hints.fit(disk)).collect();
    let show = |disks: &[&Candidate]| {
        let lines = disks.iter().map(|disk| {
            let Candidate { name, size_bytes, model, serial, wwn, .. } = disk;
            let parts = [("model", model), ("serial", serial), ("wwn", wwn)];
            let parts = parts.iter().filter(|(_, value)| !value.is_empty());
            let parts: Vec<_> = parts.map(|(key, value)| format!("{key}={value}")).collect();
            format!("{name} ({})", [vec![show_bytes(*size_bytes)], parts].concat().join(", "))
        });
        lines.collect::<Vec<_>>().join("; ")
    };
    match &fitting[..] {
        [one] => Ok(PathBuf::from(&one.name)),
        [] if all.is_empty() => Err(Error::new(ErrorKind::NotFound, "this machine has no disk")),
        [] => {
            let text = format!("no disk is meant; there are {}", show(&all.iter().collect::<Vec<_>>()));
            Err(Error::new(ErrorKind::NotFound, text))
        }
        several => {
            let text = format!("{} disks are meant: {}", several.len(), show(several));
            Err(Error::new(ErrorKind::Refused, text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &[u8]| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for (name, hctl, size, model) in [
            ("sda", "0:0:0:0", 976_773_168u64, "Samsung SSD 870"),
            ("sdb", "1:0:0:0", 15_628_053_168, "ST8000DM004"),
        ] {
            let device = format!("sys/devices/{hctl}");
            put(&format!("{device}/model"), model.as_bytes());
            put(&format!("{device}/vendor"), b"ATA     ");
            put(&format!("{device}/wwid"), format!("naa.5000c500a1b2c3d{}", &name[2..]).as_bytes());
            put(
                &format!("{device}/vpd_pg80"),
                &[&[0, 0x80, 0, 8][..], format!("   S-{name}").as_bytes()].concat(),
            );
            put(&format!("sys/block/{name}/size"), size.to_string().as_bytes());
            put(&format!("sys/block/{name}/queue/rotational"), if name == "sdb" { b"1\n" } else { b"0\n" });
            std::os::unix::fs::symlink(
                root.path().join(&device),
                root.path().join(format!("sys/block/{name}/device")),
            )
            .unwrap();
            put(&format!("dev/{name}"), b"");
        }
        put("sys/block/nvme0n1/size", b"976773168");
        put("sys/block/nvme0n1/device/serial", b"NV 1");
        put("sys/block/nvme0n1/wwid", b"eui.0025385b71b00001");
        put("sys/block/loop0/size", b"8");
        put("sys/block/sr0/size", b"8");
        put("sys/block/sdc/size", b"0");
        // The stick that the machine started from.
        put("sys/block/sdd/size", b"200000");
        let offset = usize::try_from(VOLUME_OFFSET).unwrap();
        put("dev/sdd", &[vec![0; offset], b"DISKCAST                        ".to_vec()].concat());
        fs::create_dir_all(root.path().join("dev/disk/by-path")).unwrap();
        std::os::unix::fs::symlink("../../sdb", root.path().join("dev/disk/by-path/pci-0-ata-2")).unwrap();
        root
    }

    #[test]
    fn one_disk_is_found_and_several_are_refused() {
        let root = machine();
        let all = below(&root.path().join("sys"), &root.path().join("dev"));
        assert_eq!(all.len(), 3);
        let found = |hints: &str| choose(&Hints::parse(hints).unwrap(), &all);
        let name = |hints: &str| found(hints).unwrap().file_name().unwrap().to_str().unwrap().to_owned();
        for (hints, expected) in [
            ("serial=s-sda", "sda"),
            ("serial=S-SDB", "sdb"),
            ("serial=nv 1", "nvme0n1"),
            ("wwn=0x5000c500a1b2c3da", "sda"),
            ("wwn=naa.5000c500a1b2c3db", "sdb"),
            ("size=>=1T", "sdb"),
            ("size=> 1000", "sdb"),
            ("size=465,vendor=ata", "sda"),
            ("model=<in> samsung", "sda"),
            ("model=<or> x <or> st8000dm004", "sdb"),
            ("rotational=true", "sdb"),
            ("hctl=1:0:0:0", "sdb"),
            ("name=sda", "sda"),
            ("by-path=pci-0-ata-2", "sdb"),
            ("size=<= 500G, wwn=s!= 0x5000c500a1b2c3da", "nvme0n1"),
        ] {
            assert_eq!(name(hints), expected, "{hints}");
        }
        let several = found("size=465").unwrap_err();
        assert!(
            several.kind() == ErrorKind::Refused && several.to_string().contains("serial=nv 1"),
            "{several}"
        );
        let none = found("serial=x").unwrap_err();
        assert!(none.kind() == ErrorKind::NotFound && none.to_string().contains("sdb (7."), "{none}");
        for wrong in ["", "serial", "colour=red", "size=large", "serial=>=1", "serial=", "model=<or>"] {
            assert_eq!(Hints::parse(wrong).unwrap_err().kind(), ErrorKind::Invalid, "{wrong}");
        }
    }
}
