//! Packages of Debian, unpacked into a folder.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::exit::{Exit, Failure, Result};

/// What a system in memory is to have.
pub(crate) struct Wanted {
    /// The package of the kernel.
    pub kernel: String,
    /// More packages of Debian, whose firmware (`/lib/firmware`) is added.
    pub firmware: Vec<String>,
    /// How hard to compress: a level of zstd.
    pub level: i32,
    /// A unified image, too.
    pub unified: Option<Unified>,
}

/// What a unified image is made of, beside kernel and system.
pub(crate) struct Unified {
    /// The kernel's words.
    pub words: String,
    /// The site's key and its certificate, in PEM.
    pub key: PathBuf,
    pub certificate: PathBuf,
    /// Whether machines load it by shim.
    pub by_shim: bool,
}

/// What the system in memory and the boot loaders are made of.
const PACKAGES: &[&str] = &[
    "busybox-static",
    "udev",
    "kmod",
    "mount",
    "util-linux",
    "fdisk",
    "e2fsprogs",
    "xfsprogs",
    "btrfs-progs",
    "ntfs-3g",
    "dosfstools",
    "mtools",
    "lvm2",
    "efibootmgr",
    "openssh-client",
    "shim-signed",
    "shim-helpers-amd64-signed",
    "grub-efi-amd64-signed",
    "grub-pc-bin",
    "grub-common",
    "ipxe",
    "xorriso",
];
/// More packages for a unified image.
const SIGNING_PACKAGES: &[&str] = &["systemd-boot-efi", "binutils", "sbsigntool"];

/// Where libraries lie.
const LIBRARIES: &[&str] = &["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"];
const LOADER: &str = "ld-linux-x86-64.so.2";

/// The unpacked packages.
pub(super) struct Tree(PathBuf);

impl Tree {
    /// Unpacks the packages, and what they depend on, into the new folder `path`: from wherever this machine's own apt
    /// takes Debian's.
    pub(super) fn unpack(path: PathBuf, wanted: &Wanted) -> Result<Self> {
        let sources = sources()?;
        let work = path.parent().expect("it is below the folder of the boot files");
        let configuration = work.join("apt.conf");
        // A mirror kept at one date has an index that is past its own; what this machine's apt accepts is accepted.
        let accepted = said(Command::new("apt-config").args(["dump", "Acquire::Check-Valid-Until"]), "apt")?;
        fs::write(&configuration, accepted)?;
        let list = work.join("sources.list");
        fs::write(&list, sources)?;
        let packages = PACKAGES.iter().copied().chain([wanted.kernel.as_str()]);
        let signing = if wanted.unified.is_some() { SIGNING_PACKAGES } else { &[] };
        let packages = packages.chain(signing.iter().copied());
        let packages: Vec<&str> = packages.chain(wanted.firmware.iter().map(String::as_str)).collect();
        let mut command = Command::new("mmdebstrap");
        command
            .args(["--quiet", "--variant=extract"])
            .arg(format!("--aptopt={}", configuration.display()))
            .arg(format!("--include={}", packages.join(" ")))
            .args(["--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/doc/*"])
            .args(["--dpkgopt=path-exclude=/usr/share/locale/*"])
            .arg(suite()?)
            .arg(&path)
            .arg(&list);
        said(&mut command, "mmdebstrap")?;
        Ok(Self(path))
    }

    /// The path of something in the tree.
    pub(super) fn path(&self, inside: &str) -> PathBuf {
        self.0.join(inside)
    }

    /// The first of `places` that exists.
    pub(super) fn first(&self, places: &[&str]) -> Option<PathBuf> {
        places.iter().map(|place| self.path(place)).find(|path| path.symlink_metadata().is_ok())
    }

    /// A program of the tree, which runs here with the tree's own libraries.
    pub(super) fn program(&self, inside: &str, name: &str) -> Command {
        let mut command = Command::new(self.path(LIBRARIES[0]).join(LOADER));
        command
            .arg("--argv0")
            .arg(name)
            .arg("--library-path")
            .arg(self.library_path())
            .arg(self.path(inside));
        command
    }

    fn library_path(&self) -> std::ffi::OsString {
        let folders: Vec<PathBuf> = LIBRARIES.iter().map(|folder| self.path(folder)).collect();
        std::env::join_paths(folders).expect("folders without colons")
    }

    /// The libraries that a program of the tree needs, as paths inside the tree.
    pub(super) fn libraries_of(&self, inside: &str) -> Result<Vec<String>> {
        let mut command = Command::new(self.path(LIBRARIES[0]).join(LOADER));
        command.arg("--library-path").arg(self.library_path()).arg("--list").arg(self.path(inside));
        let root = format!("{}/", self.0.display());
        let listed = libraries(&mut command)?;
        Ok(listed.iter().filter_map(|path| path.strip_prefix(&root)).map(str::to_owned).collect())
    }
}

/// The libraries that the program at `path` of this machine needs; none if it is static.
pub(super) fn libraries_here(path: &Path) -> Result<Vec<String>> {
    let mut command = Command::new(Path::new("/lib64").join(LOADER));
    libraries(command.arg("--list").arg(path))
}

/// What a run of the loader with `--list` says: lines of `NAME => PATH (ADDRESS)`, and `PATH (ADDRESS)` for the loader.
fn libraries(command: &mut Command) -> Result<Vec<String>> {
    let output = command.env_clear().output()?;
    // It refuses what needs no libraries.
    if !output.status.success() {
        return Ok(Vec::new());
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if let Some(missing) = text.lines().find(|line| line.contains("not found")) {
        return Err(Failure::new(Exit::NotFound, format!("a library is missing: {}", missing.trim())));
    }
    let path = |line: &str| {
        let line = line.split_once("=>").map_or(line, |(_, path)| path);
        let path = line.rsplit_once('(').map(|(path, _)| path.trim())?;
        path.starts_with('/').then(|| path.to_owned())
    };
    Ok(text.lines().filter_map(path).collect())
}

/// Runs a command, and returns its output. Its last words if it fails; `NotFound` if there is no such program.
pub(super) fn said(command: &mut Command, package: &str) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|error| {
        Failure::new(Exit::NotFound, format!("run `{name}`: {error}"))
            .hint(format!("install the package {package}"))
    })?;
    let Output { status, stdout, stderr } = output;
    if status.success() {
        return Ok(String::from_utf8_lossy(&stdout).into_owned());
    }
    let words = String::from_utf8_lossy(&stderr);
    let last = words.lines().rev().filter(|line| !line.trim().is_empty()).take(3).collect::<Vec<_>>();
    let last = last.into_iter().rev().collect::<Vec<_>>().join("; ");
    Err(Failure::new(Exit::Failed, format!("`{name}` failed: {last}")))
}

/// This machine's sources of Debian, as one-line sources.
fn sources() -> Result<String> {
    let format = "deb $(REPO_URI) $(RELEASE) $(COMPONENT)";
    let words: [&OsStr; 5] =
        ["indextargets", "--format", format, "Origin: Debian", "Created-By: Packages"].map(OsStr::new);
    let text = said(Command::new("apt-get").args(words), "apt")?;
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines.dedup();
    if lines.is_empty() {
        let failure = Failure::new(Exit::NotFound, "apt knows no source of Debian here");
        return Err(failure.hint("run apt-get update; boot images are made on Debian"));
    }
    Ok(lines.join("\n") + "\n")
}

/// The code name of this machine's release.
fn suite() -> Result<String> {
    let text = fs::read_to_string("/etc/os-release")?;
    let name = text.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let none = || Failure::new(Exit::Failed, "/etc/os-release names no release of Debian");
    Ok(name.ok_or_else(none)?.trim_matches('"').to_owned())
}
