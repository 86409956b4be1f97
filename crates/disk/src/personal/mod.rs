//! Makes an installed disk a machine of its own: host name, keys, identifiers, files. Works on the disk's Linux root
//! filesystem, mounted over a loop device; what the image holds is not trusted ([`root`]).

mod boot_entry;
mod esp;
mod ids;
mod parts;
mod references;
mod root;

use std::path::{Path, PathBuf};

use base::{Error, ErrorKind, Result};

use crate::grow::Slot;
use crate::tools::{self, run};
use crate::{SurveyOptions, TableKind, open_source, preflight, survey};
pub use ids::STALE;
use parts::{Disk, Done, ROOTS, Rooted};
use root::Root;

/// Files of cloud-init's data source NoCloud.
const SEED: &[&str] = &["user-data", "meta-data", "vendor-data", "network-config"];
const SEED_FOLDER: &str = "var/lib/cloud/seed/nocloud";

/// Runs the script `$1` in the root `$0`, in namespaces of its own: what it mounts is gone with it. It gets no devices
/// but those that every program needs, and no rights to make others, to mount or to load modules.
const INSIDE: &str = "\
    mount -t proc proc \"$0/proc\"\n\
    mount -t tmpfs -o mode=755,nosuid none \"$0/dev\"\n\
    mknod -m 666 \"$0/dev/null\" c 1 3\n\
    mknod -m 666 \"$0/dev/zero\" c 1 5\n\
    mknod -m 666 \"$0/dev/random\" c 1 8\n\
    mknod -m 666 \"$0/dev/urandom\" c 1 9\n\
    ln -s /proc/self/fd \"$0/dev/fd\"\n\
    exec 3<\"$1\" </dev/null\n\
    exec setpriv --bounding-set=-mknod,-sys_admin,-sys_rawio,-sys_module,-sys_boot,-sys_ptrace \
        chroot \"$0\" /bin/sh -e /proc/self/fd/3";

/// What an installed disk gets of its own. The default changes nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Personal {
    /// New GUIDs of disk and partitions, with the references to them; a new machine-id and new SSH host keys.
    pub new_identity: bool,
    /// Whether that goes on even if files that can't be changed name old identifiers.
    pub accepts_stale: bool,
    /// The host name.
    pub host_name: Option<String>,
    /// A folder with the files of cloud-init's data source NoCloud.
    pub seed: Option<PathBuf>,
    /// Files of this machine, and where they go.
    pub copies: Vec<(PathBuf, PathBuf)>,
    /// A shell script that runs in the root filesystem at the end.
    pub script: Option<PathBuf>,
    /// Whether a boot loader is to be where firmware looks that knows of none.
    pub uefi_fallback: bool,
    /// Whether this machine's firmware, if it is UEFI, gets an entry for the disk.
    pub boot_entry: bool,
}

impl Personal {
    /// Whether anything is to be done.
    #[must_use]
    pub fn is_any(&self) -> bool {
        *self != Self::default()
    }

    /// Whether the root filesystem is written.
    fn needs_root(&self) -> bool {
        let Self { new_identity, host_name, seed, copies, script, .. } = self;
        *new_identity || host_name.is_some() || seed.is_some() || !copies.is_empty() || script.is_some()
    }

    /// Checks, before an install, that it can be done on a disk with these partitions, and here. `Refused` as
    /// [`Personal::fits`], and if a tool or a file is missing, or to another user than root.
    pub fn check(&self, slots: &[Slot]) -> Result<()> {
        if !self.is_any() {
            return Ok(());
        }
        self.fits(slots)?;
        let refused = |text: String| Err(Error::new(ErrorKind::Refused, text));
        let files = self.copies.iter().map(|(from, _)| from).chain(&self.script).chain(&self.seed);
        if let Some(missing) = files.into_iter().find(|path| !path.exists()) {
            return refused(format!("`{}` does not exist", missing.display()));
        }
        if let Some((_, to)) =
            self.copies.iter().find(|(_, to)| !to.is_absolute() || to.file_name().is_none())
        {
            return refused(format!("`{}` is not the absolute path of a file", to.display()));
        }
        tools::check("this", &self.tools())
    }

    /// Checks that a disk with these partitions can get it, on whatever machine. `Refused`, with the reason: no Linux
    /// root that can be mounted, Windows with new GUIDs, no EFI system partition, a name that is none.
    pub fn fits(&self, slots: &[Slot]) -> Result<()> {
        let refused = |text: String| Err(Error::new(ErrorKind::Refused, text));
        let has = |kind: &str| slots.iter().any(|slot| slot.kind.as_deref() == Some(kind));
        if self.new_identity && has("ntfs") {
            let text =
                "Windows boots by the GUIDs of its disk and partitions: it gets a new identity by sysprep";
            return refused(text.to_owned());
        }
        if self.needs_root() && !ROOTS.iter().any(|(kind, _)| has(kind)) {
            let why = if has("LVM2_member") { ": a root in LVM can't be mounted here" } else { "" };
            return refused(format!("the disk has no filesystem that a Linux root can be in{why}"));
        }
        if let Some(name) = self.host_name.as_deref().filter(|name| !is_host_name(name)) {
            return refused(format!(
                "`{name}` is not a host name: expected letters, digits, dots and hyphens, at most 64"
            ));
        }
        if self.uefi_fallback && !slots.iter().any(esp::is_slot) {
            return refused(esp::NONE.to_owned());
        }
        Ok(())
    }

    fn tools(&self) -> Vec<&'static str> {
        let mut tools = vec!["losetup", "mount", "umount"];
        if self.new_identity {
            tools.extend(["sfdisk", "ssh-keygen"]);
        }
        if self.script.is_some() {
            tools.extend(["unshare", "chroot", "setpriv"]);
        }
        let enters = self.boot_entry && boot_entry::is_possible();
        if self.uefi_fallback || enters {
            tools.extend(["mdir", "mcopy", "mmd"]);
        }
        if enters {
            tools.push("efibootmgr");
        }
        tools
    }

    /// Does it on the disk at `path`, and tells what was done. `Refused` as [`Personal::check`], if the disk is in use,
    /// or if files name old identifiers that can't be changed ([`STALE`]); `NotFound` if no filesystem holds a Linux
    /// root; `Io` if a tool or the script fails, with its words.
    pub fn apply(&self, path: &Path) -> Result<Vec<String>> {
        let mut done = Vec::new();
        if !self.is_any() {
            return Ok(done);
        }
        let map = survey(&open_source(path)?, &SurveyOptions::default())?;
        preflight(path, map.geometry, None)?;
        self.check(&crate::grow::slots(&map))?;
        let disk = Disk { path, map: &map };
        let mut machine = None;
        if self.needs_root() {
            // Before anything changes: what can't be mounted now can't be later.
            let mounted = disk.root()?;
            machine = mounted.root.read("etc/machine-id")?;
            mounted.end()?;
        }
        if self.new_identity && map.table != TableKind::None {
            ids::renew(&disk, machine.as_deref(), self.accepts_stale, &mut done)?;
        }
        if self.uefi_fallback {
            esp::ensure_loader(&disk, &mut done)?;
        }
        if self.needs_root() {
            let root = disk.root()?;
            self.change(&root, &mut done)?;
            root.end()?;
        }
        if self.boot_entry {
            // After the partitions have their identifiers: an entry names them.
            boot_entry::make(&disk, &mut done)?;
        }
        Ok(done)
    }

    /// Changes the files of the root filesystem.
    fn change(&self, mounted: &Rooted, done: &mut Done) -> Result<()> {
        let root = &mounted.root;
        if self.new_identity {
            reset(root, done)?;
        }
        if let Some(name) = &self.host_name {
            set_host_name(root, name)?;
            done.push(format!("host name {name}"));
        }
        if let Some(folder) = &self.seed {
            seed(root, folder, self.host_name.as_deref())?;
            done.push("cloud-init's seed".to_owned());
        }
        for (from, to) in &self.copies {
            let to = to.strip_prefix("/").unwrap_or(to);
            let unread = |error| Error::from_io(format!("read `{}`", from.display()), error);
            let mode = std::os::unix::fs::MetadataExt::mode(&from.metadata().map_err(unread)?) & 0o777;
            root.make_folder(to.parent().unwrap_or(Path::new("")))?;
            root.write(to, &std::fs::read(from).map_err(unread)?, mode)?;
            done.push(format!("{} copied", to.display()));
        }
        if let Some(script) = &self.script {
            let script = script
                .canonicalize()
                .map_err(|error| Error::from_io(format!("read `{}`", script.display()), error))?;
            let words = ["--mount", "--pid", "--fork", "--kill-child", "/bin/sh", "-ec", INSIDE];
            run("unshare", &words, &[&mounted.folder(), &script], None)
                .map_err(|e| e.within("the script"))?;
            done.push(format!("{} run", script.display()));
        }
        Ok(())
    }
}

/// Removes what makes two machines one: systemd makes a new machine-id at the next boot; SSH keys are made here, since
/// not every system makes them itself.
fn reset(root: &Root, done: &mut Done) -> Result<()> {
    if root.has("etc/machine-id") {
        root.write("etc/machine-id", b"", 0o444)?;
        done.push("machine-id reset".to_owned());
    }
    root.remove("var/lib/dbus/machine-id")?;
    root.remove("var/lib/systemd/random-seed")?;
    let keys =
        root.list("etc/ssh").into_iter().filter(|name| name.to_string_lossy().starts_with("ssh_host_"));
    let keys: Vec<_> = keys.collect();
    if keys.is_empty() {
        return Ok(());
    }
    keys.iter().try_for_each(|name| root.remove(Path::new("etc/ssh").join(name)))?;
    let failed = |error| Error::from_io("make SSH host keys", error);
    let folder = crate::scratch::private_folder(None).map_err(failed)?;
    let made = folder.path().join("etc/ssh");
    std::fs::create_dir_all(&made).map_err(failed)?;
    run("ssh-keygen", &["-A", "-f"], &[folder.path()], None)?;
    for entry in std::fs::read_dir(&made).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let mode = if entry.path().extension().is_some_and(|end| end == "pub") { 0o644 } else { 0o600 };
        let bytes = std::fs::read(entry.path()).map_err(failed)?;
        root.write(Path::new("etc/ssh").join(entry.file_name()), &bytes, mode)?;
    }
    done.push("new SSH host keys".to_owned());
    Ok(())
}

/// Sets the name, also where `/etc/hosts` gives the old one an address of this machine.
fn set_host_name(root: &Root, name: &str) -> Result<()> {
    let short = name.split('.').next().unwrap_or(name);
    let names = if short == name { name.to_owned() } else { format!("{name} {short}") };
    root.write("etc/hostname", format!("{name}\n").as_bytes(), 0o644)?;
    let hosts = root.read("etc/hosts")?.unwrap_or_default();
    let hosts = String::from_utf8_lossy(&hosts).into_owned();
    let is_own = |line: &str| line.split_whitespace().next() == Some("127.0.1.1");
    let mut lines: Vec<_> = hosts.lines().filter(|line| !is_own(line)).map(str::to_owned).collect();
    let after = lines.iter().position(|line| line.starts_with("127.0.0.1")).map_or(0, |at| at + 1);
    lines.insert(after, format!("127.0.1.1\t{names}"));
    root.write("etc/hosts", (lines.join("\n") + "\n").as_bytes(), 0o644)
}

/// Copies the seed. Files that cloud-init needs and the folder lacks are made.
fn seed(root: &Root, folder: &Path, host_name: Option<&str>) -> Result<()> {
    root.make_folder(SEED_FOLDER)?;
    let mut found = 0;
    for name in SEED {
        match std::fs::read(folder.join(name)) {
            Ok(bytes) => {
                root.write(Path::new(SEED_FOLDER).join(name), &bytes, 0o600)?;
                found += 1;
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => {
                let text = format!("read `{}`", folder.join(name).display());
                return Err(Error::from_io(text, error));
            }
        }
    }
    if found == 0 {
        let text = format!("`{}` holds none of {}", folder.display(), SEED.join(", "));
        return Err(Error::new(ErrorKind::NotFound, text));
    }
    if !folder.join("user-data").exists() {
        root.write(Path::new(SEED_FOLDER).join("user-data"), b"#cloud-config\n", 0o600)?;
    }
    if !folder.join("meta-data").exists() {
        let name = host_name.map(|name| format!("local-hostname: {name}\n")).unwrap_or_default();
        let text = format!("instance-id: {}\n{name}", ids::random_guid()?);
        root.write(Path::new(SEED_FOLDER).join("meta-data"), text.as_bytes(), 0o600)?;
    }
    Ok(())
}

fn is_host_name(name: &str) -> bool {
    let is_label = |label: &str| {
        let inside = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        !label.is_empty() && inside && !label.starts_with('-') && !label.ends_with('-')
    };
    name.len() <= 64 && name.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names_are_those_of_linux() {
        assert!(is_host_name("lab-07.example.org") && is_host_name("a"));
        for name in ["", "-a", "a-", "a..b", "a b", "a/b", &"a".repeat(65), "a\n"] {
            assert!(!is_host_name(name), "{name}");
        }
    }

    #[test]
    fn what_can_not_be_done_is_said_before() {
        let slot = |kind: &str| Slot {
            number: 1,
            extent: base::Extent::new(0, 8),
            type_id: String::new(),
            kind: Some(kind.to_owned()),
        };
        let named = Personal { host_name: Some("a".to_owned()), ..Personal::default() };
        for (personal, kinds, words) in [
            (&named, &["vfat", "LVM2_member"][..], "a root in LVM"),
            (&named, &["ntfs"], "no filesystem that a Linux root can be in"),
            (&Personal { new_identity: true, ..Personal::default() }, &["ntfs"], "sysprep"),
            (&Personal { new_identity: true, ..Personal::default() }, &["ext4", "ntfs"], "sysprep"),
            (
                &Personal { host_name: Some("a b".to_owned()), ..Personal::default() },
                &["ext4"],
                "not a host name",
            ),
            (
                &Personal { script: Some("/no/such".into()), ..Personal::default() },
                &["ext4"],
                "does not exist",
            ),
            (
                &Personal { copies: vec![("/etc/passwd".into(), "a/b".into())], ..Personal::default() },
                &["ext4"],
                "not the absolute path",
            ),
            (&Personal { uefi_fallback: true, ..Personal::default() }, &["ext4", "vfat"], "no EFI system"),
        ] {
            let slots: Vec<_> = kinds.iter().map(|kind| slot(kind)).collect();
            let error = personal.check(&slots).unwrap_err();
            assert!(error.kind() == ErrorKind::Refused && error.to_string().contains(words), "{error}");
        }
        assert!(!Personal::default().is_any() && Personal::default().check(&[]).is_ok());
    }
}
