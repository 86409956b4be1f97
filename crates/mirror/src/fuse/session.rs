//! The life of a mount. No dead mount is left behind: it is unmounted when it is stopped or dropped, and, by a small
//! watching process, when this process is killed.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base::{Error, ErrorKind, Result};
use fuser::{Config, MountOption, Session, SessionACL};
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use super::control::Control;
use super::disks::{Content, DiskSettings, Disks, MountCounters};
use super::event::Log;
use super::front::{Front, Handles, Shared};
use super::names::Names;
use super::thread_pool::ThreadPool;

/// Threads that read requests from the kernel. Requests that may wait are executed by other threads.
const READERS_MAX: usize = 8;
const READERS_MIN: usize = 2;
/// Maximum time to wait for the end of the session after unmounting.
const END_TIME_MAX: Duration = Duration::from_secs(5);
/// How often a dead mount is examined, and ([`DEAD_PAUSE`]) at what interval, before this process unmounts it: two
/// seconds in all, while the watching process needs only milliseconds.
const DEAD_LOOKS: u32 = 200;
/// See [`DEAD_LOOKS`].
const DEAD_PAUSE: Duration = Duration::from_millis(10);
/// The program with which unprivileged users mount and unmount.
const HELPER: &str = "fusermount3";
/// What the watching process does. It waits for a line. If its input ends instead, the mount's process was killed,
/// and it unmounts the folder, but only if the folder is dead: a new mount may already be there.
const WATCH: &str =
    "read -r line || [ -d \"$0\" ] || umount -l \"$0\" 2>/dev/null || fusermount3 -uzq \"$0\"";

/// The options of a mount.
pub struct MountOptions {
    /// Where and how its disks are kept.
    pub disks: DiskSettings,
    /// User and group to whom all files belong.
    pub owner: (u32, u32),
    /// The time of the mount, used for files that have no time of their own.
    pub now: SystemTime,
    /// Where events go.
    pub log: Log,
}

/// See the module. Dropped, it is stopped.
pub struct Mounted {
    at: PathBuf,
    /// Writing to this file ends the kernel's connection. It is opened at the beginning, since another connection
    /// may get the same number after the end.
    abort: Option<File>,
    shared: Arc<Shared>,
    end: Arc<End>,
    _watch: Option<Watch>,
}

#[derive(Default)]
struct End {
    result: Mutex<Option<std::io::Result<()>>>,
    change: Condvar,
}

fn failed(at: &Path, error: std::io::Error) -> Error {
    let kind = match error.kind() {
        std::io::ErrorKind::NotFound => ErrorKind::NotFound,
        std::io::ErrorKind::PermissionDenied => ErrorKind::Refused,
        _ => ErrorKind::Io,
    };
    Error::from_source(kind, format!("mount at `{}`", at.display()), error)
}

/// Shows the images of `content` in the folder `at`. A dead mount that a killed process left there is unmounted first.
///
/// `NotFound` if the folder or /dev/fuse does not exist, `Refused` if the process has no right to mount.
pub fn mount(at: &Path, content: Content, options: MountOptions) -> Result<Mounted> {
    let MountOptions { disks: settings, owner, now, log } = options;
    clear_dead(at).map_err(|error| failed(at, error))?;
    let at = at.canonicalize().map_err(|error| failed(at, error))?;
    let passthrough = settings.passthrough;
    let disks = Arc::new(Disks::new(settings, content, log)?);
    let shared = Arc::new(Shared {
        names: Names::new(Arc::clone(&disks), owner, now),
        control: Control::new(Arc::clone(&disks)),
        disks,
        pool: ThreadPool::default(),
        handles: Handles::default(),
    });
    // If it cannot be started, requests to the mount of a killed process still fail at once, but the dead mount
    // stays until the next mount clears it.
    let watch = Watch::start(&at).ok();
    let session = Session::new(Front::new(Arc::clone(&shared), passthrough), &at, &config());
    let session = session.map_err(|error| failed(&at, error))?;
    let end = Arc::new(End::default());
    let (told, served) = (Arc::clone(&end), Arc::clone(&shared));
    let serve = move || {
        let result = session.run();
        served.disks.close_all();
        // The thread that waits for the end may use the disks' folder at once.
        drop(served);
        *told.result.lock() = Some(result);
        told.change.notify_all();
    };
    let spawned = std::thread::Builder::new().name("fuse-session".into()).spawn(serve);
    spawned.map_err(|error| failed(&at, error))?;
    let abort = std::fs::metadata(&at).and_then(|root| {
        let connection = rustix::fs::minor(root.dev());
        OpenOptions::new().write(true).open(format!("/sys/fs/fuse/connections/{connection}/abort"))
    });
    Ok(Mounted { at, abort: abort.ok(), shared, end, _watch: watch })
}

/// The watching process.
struct Watch(Child);

impl Watch {
    fn start(at: &Path) -> std::io::Result<Self> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", WATCH]).arg(at).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        // A signal from a terminal to its process group ends this process, but must not end the watching process.
        command.process_group(0).current_dir("/").spawn().map(Self)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(mut line) = self.0.stdin.take() {
            // This fails if the watching process was killed.
            let _ = line.write_all(b"over\n");
        }
        let _ = self.0.wait();
    }
}

fn config() -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName("diskcast".into()),
        MountOption::Subtype("diskcast".into()),
        MountOption::DefaultPermissions,
        MountOption::NoDev,
        MountOption::NoSuid,
    ];
    // The kernel checks owner and mode of the files, so "all" gives no user more access than these allow.
    let is_root = rustix::process::geteuid().is_root();
    config.acl = if is_root { SessionACL::All } else { SessionACL::Owner };
    let readers = std::thread::available_parallelism().map_or(READERS_MIN, std::num::NonZero::get);
    config.n_threads = Some(readers.clamp(READERS_MIN, READERS_MAX));
    config.clone_fd = true;
    config
}

/// Removes a dead mount, after waiting for its own watching process to do so: that process must not find the new
/// mount there.
fn clear_dead(at: &Path) -> std::io::Result<()> {
    let is_dead = || {
        let root = std::fs::metadata(at);
        root.is_err_and(|error| error.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()))
    };
    for _ in 0..DEAD_LOOKS {
        if !is_dead() {
            return Ok(());
        }
        std::thread::park_timeout(DEAD_PAUSE);
    }
    take_away(at, true)
}

/// Unmounts; if `lazily`, also while it is in use.
fn take_away(at: &Path, lazily: bool) -> std::io::Result<()> {
    let flags = if lazily { UnmountFlags::DETACH } else { UnmountFlags::NOFOLLOW };
    match unmount(at, flags) {
        Err(Errno::PERM) => {
            let words = if lazily { "-uz" } else { "-u" };
            let ended = Command::new(HELPER).arg(words).arg(at).output()?;
            if ended.status.success() { Ok(()) } else { Err(Errno::BUSY.into()) }
        }
        // It is no longer mounted.
        Err(Errno::INVAL) => Ok(()),
        done => Ok(done?),
    }
}

impl Mounted {
    /// The counters since the mount.
    #[must_use]
    pub fn counters(&self) -> MountCounters {
        self.shared.disks.counters()
    }

    /// Waits until it is unmounted, by [`Self::stop`] or by any other program.
    ///
    /// # Errors
    /// `Io` if the kernel's connection broke.
    pub fn wait(&self) -> Result<()> {
        let mut result = self.end.result.lock();
        while result.is_none() {
            self.end.change.wait(&mut result);
        }
        match result.as_mut().map(|result| std::mem::replace(result, Ok(()))) {
            Some(Err(error)) => Err(failed(&self.at, error)),
            _ => Ok(()),
        }
    }

    fn has_ended(&self) -> bool {
        self.end.result.lock().is_some()
    }

    /// Unmounts it and closes its disks; then all writes are durable. Programs that still have a file open get
    /// errors.
    pub fn stop(&self) -> Result<()> {
        if self.has_ended() {
            return Ok(());
        }
        let gone = take_away(&self.at, false).or_else(|_| {
            // Writes through memory maps may still be in the kernel's page cache.
            File::open(&self.at).and_then(|root| Ok(rustix::fs::syncfs(root)?))?;
            take_away(&self.at, true)
        });
        self.shared.disks.close_all();
        if let Some(mut abort) = self.abort.as_ref() {
            // Ends the connection for programs that still have a file open. The write fails if the connection has
            // already ended.
            let _ = abort.write_all(b"1");
        }
        let mut result = self.end.result.lock();
        // If it cannot be ended (without fusectl, for example), it ends with the process.
        self.end.change.wait_while_for(&mut result, |result| result.is_none(), END_TIME_MAX);
        drop(result);
        gone.map_err(|error| failed(&self.at, error))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Nothing can be done about an error here.
        let _ = self.stop();
    }
}
