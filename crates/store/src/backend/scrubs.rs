//! The scrub log: which stored files a process of this machine read and found correct during the last day. A writer
//! that finds such a file again with the same inode, length and ctime need not read it. See formats/repository.md,
//! "What counts as stored".
//!
//! The log is a file in the user's cache folder, outside the repository, because inode numbers are valid on one
//! machine only. It only saves reads: a log that is damaged, too long or of another format counts as empty.

use std::collections::HashMap;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use base::Digest;
use image::ObjectRef;
use parking_lot::{Mutex, MutexGuard};

/// How long a check is valid. Bits that a medium loses without a write are noticed after this time at the latest.
const AGE_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// A file that changed less than this long ago may change again with the same ctime, which has a resolution of some
/// milliseconds.
const STILL: Duration = Duration::from_secs(2);
/// Most entries in a log; the most recently checked ones are kept.
const ENTRIES_MAX: usize = 1 << 19;

const MAGIC: &[u8; 8] = b"DCSCRUB\x01";
/// Length of an entry: first half of the digest, slot, inode, length, ctime, time of the check.
const ENTRY_BYTES: usize = 16 + 1 + 8 + 8 + 8 + 8;
const DIGEST_BYTES: usize = 32;
/// Hexadecimal digits in a log's name: of the repository's id, and of the digest of its location.
const ID_DIGITS: usize = 32;
const PLACE_DIGITS: usize = 16;

/// Where scrub logs are stored, and the current time.
#[derive(Debug, Clone)]
pub struct ScrubSetting {
    /// The folder; created if it does not exist, readable by its owner only.
    pub folder: PathBuf,
    /// The start time of this process, or shortly after it: all its checks count as made at this time.
    pub now: SystemTime,
}

/// Values that show whether a stored file has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileStamp {
    pub(crate) inode: u64,
    pub(crate) bytes: u64,
    /// Nanoseconds since 1970.
    pub(crate) changed_ns: u64,
}

/// Names a copy of an object: the first half of its digest, and the slot.
type Key = ([u8; 16], u8);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Check {
    stamp: FileStamp,
    /// Nanoseconds since 1970.
    at_ns: u64,
}

/// The scrub log of one repository. It is saved when this value is dropped.
#[derive(Debug)]
pub(crate) struct Scrubs {
    path: PathBuf,
    now_ns: u64,
    /// The entries in the file, loaded at the first use.
    known: OnceLock<HashMap<Key, Check>>,
    fresh: Mutex<HashMap<Key, Check>>,
    is_forgotten: AtomicBool,
}

impl Scrubs {
    /// The log of the repository `id` in the folder `root`.
    pub(crate) fn of(setting: &ScrubSetting, id: &str, root: &Path) -> Self {
        let place = Digest::of(root.as_os_str().as_encoded_bytes()).to_string();
        let path = setting.folder.join(format!("{id}-{}", &place[..PLACE_DIGITS]));
        let (known, fresh) = (OnceLock::new(), Mutex::default());
        Self { path, now_ns: nanoseconds(setting.now), known, fresh, is_forgotten: AtomicBool::new(false) }
    }

    /// Deletes the log after a damaged copy was found, since the medium may have damaged other files too. The next
    /// capture of the same disk reads everything that is stored.
    pub(crate) fn forget(&self) {
        self.is_forgotten.store(true, Relaxed);
        // The file may not exist.
        let _ = std::fs::remove_file(&self.path);
    }

    /// Whether the copy of `object` in `slot` was found correct during the last day and its file has not changed
    /// since.
    pub(crate) fn covers(&self, object: &ObjectRef, slot: u8, stamp: &FileStamp) -> bool {
        let known = self.known.get_or_init(|| load(&self.path, self.now_ns).unwrap_or_default());
        !self.is_forgotten.load(Relaxed)
            && stamp.bytes == u64::from(object.len)
            && known.get(&key(object, slot)).is_some_and(|check| check.stamp == *stamp)
    }

    /// Records that the copy of `object` in `slot` was read and is correct. `stamp` must be taken before the read, so
    /// that a change during or after the read gives another stamp.
    pub(crate) fn add(&self, object: &ObjectRef, slot: u8, stamp: FileStamp) {
        if stamp.changed_ns.saturating_add(nanoseconds_of(STILL)) <= self.now_ns {
            self.fresh().insert(key(object, slot), Check { stamp, at_ns: self.now_ns });
        }
    }

    fn fresh(&self) -> MutexGuard<'_, HashMap<Key, Check>> {
        self.fresh.lock()
    }

    /// Writes the log again, with the old and the new entries. If two processes save at the same time, the entries of
    /// one are lost; the files are then only read once more.
    fn save(&self) -> std::io::Result<()> {
        let fresh = std::mem::take(&mut *self.fresh());
        if fresh.is_empty() {
            return Ok(());
        }
        let mut checks = load(&self.path, self.now_ns).unwrap_or_default();
        checks.extend(fresh);
        let mut checks: Vec<(Key, Check)> = checks.into_iter().collect();
        checks.sort_unstable_by_key(|(key, check)| (std::cmp::Reverse(check.at_ns), *key));
        checks.truncate(ENTRIES_MAX);
        let folder = self.path.parent().unwrap_or(Path::new("."));
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let partial = self.path.with_extension(std::process::id().to_string());
        let written = std::fs::write(&partial, encode(&checks));
        let renamed = written.and_then(|()| std::fs::rename(&partial, &self.path));
        if renamed.is_err() {
            // The partial file may not exist.
            let _ = std::fs::remove_file(&partial);
        }
        renamed.and_then(|()| self.remove_old(folder))
    }

    /// Removes logs, including partial ones, whose entries are all too old: those of repositories not used any more.
    /// Other files are kept, since the user chooses the folder.
    fn remove_old(&self, folder: &Path) -> std::io::Result<()> {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            if !entry.file_name().to_str().is_some_and(is_log) {
                continue;
            }
            let written = nanoseconds(entry.metadata()?.modified()?);
            if written.saturating_add(nanoseconds_of(AGE_MAX)) < self.now_ns {
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}

impl Drop for Scrubs {
    fn drop(&mut self) {
        // If the log can't be written, the next process only has to read more files.
        let _ = self.save();
    }
}

/// Whether a file name is that of a log: `<id>-<half of the digest of its location>`, plus a process number if it is
/// partial.
fn is_log(name: &str) -> bool {
    let (log, process) = name.split_once('.').unwrap_or((name, "0"));
    let is_hex =
        |text: &str, digits| text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_number = process.bytes().all(|byte| byte.is_ascii_digit());
    is_number
        && log.split_once('-').is_some_and(|(id, place)| is_hex(id, ID_DIGITS) && is_hex(place, PLACE_DIGITS))
}

fn key(object: &ObjectRef, slot: u8) -> Key {
    (*object.digest.first_half(), slot)
}

fn nanoseconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, nanoseconds_of)
}

fn nanoseconds_of(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn encode(checks: &[(Key, Check)]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(MAGIC.len() + checks.len() * ENTRY_BYTES + DIGEST_BYTES);
    bytes.extend(MAGIC);
    for ((digest, slot), Check { stamp, at_ns }) in checks {
        bytes.extend(digest);
        bytes.push(*slot);
        for number in [stamp.inode, stamp.bytes, stamp.changed_ns, *at_ns] {
            bytes.extend(number.to_le_bytes());
        }
    }
    let digest = Digest::of(&bytes);
    bytes.extend(digest.0);
    bytes
}

/// The entries of the log at `path` that are valid at `now_ns`. `None` if there is no usable log.
fn load(path: &Path, now_ns: u64) -> Option<HashMap<Key, Check>> {
    let bytes_max = MAGIC.len() + ENTRIES_MAX * ENTRY_BYTES + DIGEST_BYTES;
    let found = std::fs::metadata(path).ok()?;
    if !found.is_file() || found.len() > bytes_max as u64 {
        return None;
    }
    let bytes = std::fs::read(path).ok()?;
    let (content, digest) = bytes.split_last_chunk::<DIGEST_BYTES>()?;
    let entries = content.strip_prefix(MAGIC).filter(|_| Digest::of(content).0 == *digest)?;
    let (entries, rest) = entries.as_chunks::<ENTRY_BYTES>();
    let counts = |at_ns: u64| at_ns <= now_ns && now_ns - at_ns < nanoseconds_of(AGE_MAX);
    let checks = entries.iter().map(decode).filter(|(_, check)| counts(check.at_ns));
    rest.is_empty().then(|| checks.collect())
}

fn decode(entry: &[u8; ENTRY_BYTES]) -> (Key, Check) {
    let (digest, rest) = entry.split_first_chunk::<16>().expect("it is longer");
    let number = |at: usize| {
        let bytes = rest[1 + 8 * at..].first_chunk().expect("there are four");
        u64::from_le_bytes(*bytes)
    };
    let stamp = FileStamp { inode: number(0), bytes: number(1), changed_ns: number(2) };
    ((*digest, rest[0]), Check { stamp, at_ns: number(3) })
}

#[cfg(test)]
mod tests {
    use image::ObjectKind;

    use super::*;

    const HOUR: Duration = Duration::from_secs(60 * 60);
    const STAMP: FileStamp = FileStamp { inode: 7, bytes: 5, changed_ns: 1_000_000_000 };

    fn at_hour(hours: u32) -> SystemTime {
        SystemTime::UNIX_EPOCH + HOUR * hours
    }

    fn log(folder: &Path, hours: u32) -> Scrubs {
        let setting = ScrubSetting { folder: folder.join("scrubs"), now: at_hour(hours) };
        Scrubs::of(&setting, "id", Path::new("/repository"))
    }

    fn object() -> ObjectRef {
        ObjectRef::of(ObjectKind::Chunk, b"chunk")
    }

    /// A folder with a log of one check, made at hour 10.
    fn checked() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        log(folder.path(), 10).add(&object(), 0, STAMP);
        folder
    }

    #[test]
    fn a_check_counts_for_a_day_and_only_while_the_file_is_the_same() {
        let folder = checked();
        let covers = |hours, slot, stamp| log(folder.path(), hours).covers(&object(), slot, &stamp);
        assert!(covers(10, 0, STAMP) && covers(33, 0, STAMP));
        assert!(!covers(34, 0, STAMP), "a day later it is read again");
        assert!(!covers(9, 0, STAMP), "a check in the future does not count");
        assert!(!covers(11, 1, STAMP), "another copy");
        assert!(!covers(11, 0, FileStamp { inode: 8, ..STAMP }));
        assert!(!covers(11, 0, FileStamp { changed_ns: 1_000_000_001, ..STAMP }));
        assert!(!covers(11, 0, FileStamp { bytes: 4, ..STAMP }));
        let other = ObjectRef::of(ObjectKind::Chunk, b"other");
        assert!(!log(folder.path(), 11).covers(&other, 0, &STAMP));
    }

    #[test]
    fn a_check_is_not_renewed_by_what_relies_on_it() {
        let folder = checked();
        let later = log(folder.path(), 30);
        assert!(later.covers(&object(), 0, &STAMP));
        later.add(&ObjectRef::of(ObjectKind::Chunk, b"other"), 0, STAMP);
        drop(later);
        assert!(log(folder.path(), 33).covers(&object(), 0, &STAMP), "a second save keeps it");
        assert!(!log(folder.path(), 35).covers(&object(), 0, &STAMP));
    }

    #[test]
    fn a_file_that_just_changed_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let just = nanoseconds(at_hour(10)) - nanoseconds_of(STILL) + 1;
        log(folder.path(), 10).add(&object(), 0, FileStamp { changed_ns: just, ..STAMP });
        let stamp = FileStamp { changed_ns: just, ..STAMP };
        assert!(!log(folder.path(), 10).covers(&object(), 0, &stamp));
    }

    #[test]
    fn logs_that_are_not_used_any_more_go_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let (id, other) = ("0".repeat(32), "1".repeat(32));
        let at = |now, id: &str| {
            let setting = ScrubSetting { folder: folder.path().join("scrubs"), now };
            Scrubs::of(&setting, id, Path::new("/repository"))
        };
        at(at_hour(10), &id).add(&object(), 0, STAMP);
        let path = at(at_hour(10), &id).path.clone();
        let partial = path.with_extension("1");
        // The user may have chosen a folder that already contains a folder with this name.
        let theirs =
            ["notes.txt", "0-1", &format!("{id}-{}", "x".repeat(16)), &format!("{id}-0123456789abcdef.txt")];
        let theirs = theirs.map(|name| path.with_file_name(name));
        theirs.iter().chain([&partial]).for_each(|path| std::fs::write(path, b"text").unwrap());
        std::fs::create_dir(path.with_file_name("folder")).unwrap();
        let written = nanoseconds(partial.metadata().unwrap().modified().unwrap());
        let now = SystemTime::UNIX_EPOCH + Duration::from_nanos(written) + 25 * HOUR;
        at(now, &other).add(&object(), 0, STAMP);
        assert!(!partial.exists() && !path.exists());
        assert!(theirs.iter().all(|path| path.exists()) && path.with_file_name("folder").exists());
    }

    #[test]
    fn a_damaged_log_counts_as_empty_and_is_replaced() {
        let folder = checked();
        let path = log(folder.path(), 10).path.clone();
        let good = std::fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            std::fs::write(&path, bad).unwrap();
            assert!(!log(folder.path(), 11).covers(&object(), 0, &STAMP), "byte {at}");
        }
        for length in 0..good.len() {
            std::fs::write(&path, &good[..length]).unwrap();
            assert!(!log(folder.path(), 11).covers(&object(), 0, &STAMP), "{length} bytes");
        }
        log(folder.path(), 11).add(&object(), 0, STAMP);
        assert!(log(folder.path(), 11).covers(&object(), 0, &STAMP));
        let left = std::fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(left, 1, "no partial file is left");
    }
}
