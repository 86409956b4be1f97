//! Filesystems that a test mounts.

use std::path::Path;
use std::process::{Command, Stdio};

/// How often it is tried to unmount a filesystem that is in use, and the time between.
const PATIENCE: u32 = 500;
const PAUSE: std::time::Duration = std::time::Duration::from_millis(20);

/// A mounted filesystem, unmounted when dropped. `None` without permission to mount; CI has it.
pub(crate) struct Mounted {
    pub folder: tempfile::TempDir,
    device: Option<String>,
}

impl Mounted {
    pub(crate) fn tmpfs(bytes: u64) -> Option<Self> {
        let mounted = Self { folder: tempfile::tempdir().unwrap(), device: None };
        let size = format!("size={bytes}");
        mounted.mount(&["-t", "tmpfs", "-o", &size, "tmpfs"]).then_some(mounted)
    }

    /// An ext4 filesystem in a file, so that a test can simulate a power cut. Nothing is kept for root.
    pub(crate) fn ext4(bytes: u64, image: &Path) -> Option<Self> {
        let mounted = Self::made(bytes, image, &["mkfs.ext4", "-q", "-F", "-m", "0"])?;
        let device = mounted.device.clone()?;
        mounted.mount(&[&device]).then_some(mounted)
    }

    /// An exFAT filesystem in a file, behind a FUSE driver: the kernel's own is not everywhere.
    pub(crate) fn exfat(bytes: u64, image: &Path) -> Option<Self> {
        let mounted = Self::made(bytes, image, &["mkfs.exfat"])?;
        let mut mount = Command::new("mount.exfat-fuse");
        mount.args(["-o", "umask=077"]).args(&mounted.device).arg(mounted.folder.path());
        let done = mount.stdout(Stdio::null()).stderr(Stdio::null()).status();
        if done.is_ok_and(|status| status.success()) { Some(mounted) } else { absent("mount.exfat-fuse") }
    }

    /// A filesystem in a file that is not mounted yet.
    fn made(bytes: u64, image: &Path, mkfs: &[&str]) -> Option<Self> {
        std::fs::File::create(image).unwrap().set_len(bytes).unwrap();
        let made = Command::new(mkfs[0]).args(&mkfs[1..]).arg(image).stdout(Stdio::null()).status();
        if !made.is_ok_and(|status| status.success()) {
            return absent(mkfs[0]);
        }
        let loop_device = Command::new("losetup").args(["--find", "--show"]).arg(image).output();
        let Some(loop_device) = loop_device.ok().filter(|output| output.status.success()) else {
            return absent("losetup");
        };
        let device = String::from_utf8(loop_device.stdout).unwrap().trim().to_owned();
        Some(Self { folder: tempfile::tempdir().unwrap(), device: Some(device) })
    }

    fn mount(&self, args: &[&str]) -> bool {
        let mounted = Command::new("mount").args(args).arg(self.folder.path()).stderr(Stdio::null()).status();
        mounted.is_ok_and(|status| status.success()) || absent::<()>("mount").is_some()
    }

    /// Stops the filesystem at once, without writing its journal: EXT4_IOC_SHUTDOWN with NOLOGFLUSH, called from
    /// perl, which every Debian has. Then drops `open`, which uses it, and mounts it again, as after a power cut.
    pub(crate) fn lose_power<T>(&self, open: T) {
        self.shut_down();
        self.power_on(open);
    }

    pub(crate) fn shut_down(&self) {
        let script = "open my $f, '<', $ARGV[0] or die $!; my $how = pack 'L', 2; ioctl $f, 0x8004587d, $how or die $!";
        run(Command::new("perl").args(["-e", script]).arg(self.folder.path()));
    }

    pub(crate) fn power_on<T>(&self, open: T) {
        drop(open);
        // A program that another test is about to start has our files until it is that program.
        let unmounts = || Command::new("umount").arg(self.folder.path()).status().unwrap().success();
        let is_off = (0..PATIENCE).any(|_| {
            let done = unmounts();
            if !done {
                std::thread::park_timeout(PAUSE);
            }
            done
        });
        assert!(is_off, "{} is in use", self.folder.path().display());
        assert!(self.mount(&[self.device.as_deref().unwrap()]));
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let quietly = |command: &mut Command| drop(command.stderr(Stdio::null()).status());
        quietly(Command::new("umount").arg("-l").arg(self.folder.path()));
        if let Some(device) = &self.device {
            quietly(Command::new("losetup").args(["-d", device]));
        }
    }
}

fn run(command: &mut Command) {
    let status = command.status().unwrap();
    assert!(status.success(), "{command:?}: {status}");
}

/// Skips a test on a machine without `what`; fails in CI, where nothing may be missing.
#[expect(clippy::print_stderr, reason = "a skipped test says so")]
fn absent<T>(what: &str) -> Option<T> {
    assert!(std::env::var_os("CI").is_none(), "CI must be able to {what}");
    eprintln!("skipped: cannot {what} here, needs root");
    None
}
