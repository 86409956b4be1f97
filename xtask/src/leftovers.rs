//! What tests leave behind when they are killed, or when they forget it: processes, mounts, loop devices, namespaces
//! and files. All temporary files of a run lie in folders that name the process that runs it, so that the next run
//! finds what belongs to nobody any more.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How the folders of a run begin; the process id of the run follows.
const PREFIX: &str = "diskcast-tests-";
/// How the namespaces of tests begin; the process id of the test follows.
const NAMESPACES: [&str; 2] = ["dclab-", "dcbare-"];
const NAMES: &str = "/run/netns";
const MEMORY: &str = "/dev/shm";
/// How often it is looked whether the last processes have ended, and how long after each time.
const ENDING_LOOKS: u32 = 100;
const ENDING_PAUSE: Duration = Duration::from_millis(100);

/// The folders of one run.
pub(crate) struct Place {
    /// On disk, for `TMPDIR`.
    pub disk: PathBuf,
    /// In memory, for `DISKCAST_TEST_MEMORY`.
    pub memory: PathBuf,
}

impl Place {
    /// Makes the folders of this process, after it has cleared away what runs left that were killed.
    pub(crate) fn new() -> std::io::Result<Self> {
        let temporary = std::env::temp_dir();
        for parent in [&temporary, Path::new(MEMORY)] {
            for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                let owner = name.strip_prefix(PREFIX).and_then(|owner| owner.parse().ok());
                // A neighbour may make folders there, too.
                let is_own = entry.metadata().is_ok_and(|about| about.is_dir() && about.uid() == own_user());
                if is_own && owner.is_some_and(|owner| !is_alive(owner)) {
                    let left = clear(&entry.path());
                    left.iter().for_each(|what| println!("left by a run that was killed: {what}"));
                }
            }
        }
        orphans().iter().for_each(|name| remove_namespace(name));
        let name = format!("{PREFIX}{}", std::process::id());
        let place = Self { disk: temporary.join(&name), memory: Path::new(MEMORY).join(&name) };
        // One that is there belongs to somebody else.
        fs::create_dir(&place.disk)?;
        fs::create_dir(&place.memory)?;
        Ok(place)
    }

    /// Removes the folders. Returns what tests forgot in them or beside them, each in a line.
    pub(crate) fn leave(self) -> Vec<String> {
        let folders = [&self.disk, &self.memory];
        // What ends by itself is not left behind.
        let is_quiet = || folders.iter().all(|folder| processes(folder).is_empty());
        for _ in 0..ENDING_LOOKS {
            if is_quiet() {
                break;
            }
            std::thread::park_timeout(ENDING_PAUSE);
        }
        let mut left: Vec<_> = folders.into_iter().flat_map(|folder| clear(folder)).collect();
        for name in orphans() {
            remove_namespace(&name);
            left.push(format!("namespace {name}"));
        }
        left
    }
}

/// Ends, unmounts, detaches and removes all that is in `folder`. Returns what was there besides files.
fn clear(folder: &Path) -> Vec<String> {
    let mut left = Vec::new();
    for (process, words) in processes(folder) {
        run("kill", &["-9", &process.to_string()]);
        left.push(format!("process {process}: {words}"));
    }
    // The last is the innermost.
    for mount in mounts(folder).iter().rev() {
        run("umount", &["--lazy", mount]);
        left.push(format!("mount {mount}"));
    }
    for (device, file) in loops(folder) {
        run("losetup", &["--detach", &format!("/dev/{device}")]);
        left.push(format!("{device} on {file}"));
    }
    if let Err(error) = fs::remove_dir_all(folder) {
        left.push(format!("{}: {error}", folder.display()));
    }
    left
}

/// Processes that work in `folder` or were told of it, with their words.
fn processes(folder: &Path) -> Vec<(u32, String)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let of_folder = numbers.filter_map(|process| {
        let at = Path::new("/proc").join(process.to_string());
        let words = String::from_utf8_lossy(&fs::read(at.join("cmdline")).ok()?).replace('\0', " ");
        let works = fs::read_link(at.join("cwd")).is_ok_and(|at| at.starts_with(folder));
        (works || names(&words, folder)).then_some((process, words))
    });
    of_folder.collect()
}

/// Whether `words` name `folder` or something in it, and not another one whose name begins like its name.
fn names(words: &str, folder: &Path) -> bool {
    let folder = folder.to_string_lossy();
    let mut found = words.match_indices(&*folder).map(|(at, _)| &words[at + folder.len()..]);
    found.any(|rest| !rest.starts_with(|next: char| next.is_ascii_alphanumeric()))
}

/// Mount points below `folder`, outer ones first.
fn mounts(folder: &Path) -> Vec<String> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = text.lines().filter_map(|line| line.split(' ').nth(4));
    points.filter(|point| Path::new(point).starts_with(folder)).map(str::to_owned).collect()
}

/// Loop devices of files below `folder`.
fn loops(folder: &Path) -> Vec<(String, String)> {
    let entries = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let with_files = entries.filter_map(|entry| {
        let file = fs::read_to_string(entry.path().join("loop/backing_file")).ok()?;
        let device = entry.file_name().to_string_lossy().into_owned();
        Path::new(&file).starts_with(folder).then(|| (device, file.trim().to_owned()))
    });
    with_files.collect()
}

/// Namespaces of tests whose process has ended.
fn orphans() -> Vec<String> {
    let entries = fs::read_dir(NAMES).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| owner_of(name).is_some_and(|owner| !is_alive(owner))).collect()
}

fn owner_of(namespace: &str) -> Option<u32> {
    let rest = NAMESPACES.iter().find_map(|prefix| namespace.strip_prefix(prefix))?;
    rest.split('-').next()?.parse().ok()
}

fn remove_namespace(name: &str) {
    let output = Command::new("ip").args(["netns", "pids", name]).output();
    let inside =
        output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    inside.split_whitespace().for_each(|process| run("kill", &["-9", process]));
    run("ip", &["netns", "del", name]);
}

/// The user that runs this.
fn own_user() -> u32 {
    fs::metadata("/proc/self").map_or(0, |about| about.uid())
}

fn is_alive(process: u32) -> bool {
    Path::new("/proc").join(process.to_string()).exists()
}

/// Runs a tool; what it could not do is seen by what is still there.
fn run(program: &str, words: &[&str]) {
    let _ = Command::new(program).args(words).output();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_tell_their_owner() {
        assert_eq!(owner_of("dclab-12-345-0-sw0"), Some(12));
        assert_eq!(owner_of("dcbare-7-1"), Some(7));
        assert_eq!(owner_of("dcbare"), None);
        assert_eq!(owner_of("other-7-1"), None);
    }

    #[test]
    fn a_folder_is_not_another_one_whose_name_begins_alike() {
        let folder = Path::new("/tmp/diskcast-tests-12");
        assert!(
            names("mount /tmp/diskcast-tests-12/a b", folder) && names("cd /tmp/diskcast-tests-12", folder)
        );
        assert!(!names("mount /tmp/diskcast-tests-123/a b", folder));
    }

    #[test]
    fn a_process_that_was_left_in_a_folder_is_ended_and_the_folder_removed() {
        let folder = std::env::temp_dir().join(format!("xtask-left-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("file"), "left").unwrap();
        let mut sleeper = Command::new("sleep").arg("600").current_dir(&folder).spawn().unwrap();
        // The kernel shows the words of a new program a moment after it has begun.
        let words = Path::new("/proc").join(sleeper.id().to_string()).join("cmdline");
        while fs::read(&words).unwrap().is_empty() {
            std::thread::yield_now();
        }
        let left = clear(&folder);
        assert!(left.len() == 1 && left[0].contains("sleep 600"), "{left:?}");
        assert!(!sleeper.wait().unwrap().success() && !folder.exists());
    }
}
