//! The commands of the control file and of the ioctls: one line each, with one line as the answer. docs/mount.md
//! describes them for users.

use std::sync::Arc;

use base::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use store::{ImageName, Reference};

use super::disks::{DiskName, Disks};
use super::event::Event;
use super::names::Place;
use crate::Commit;

/// Maximum length of a line, and the size of an ioctl's argument, in bytes.
pub const LINE_BYTES_MAX: usize = 1024;
/// `_IOWR(0xDC, 1, char[1024])`: CLONE. On a version: the name of a new clone of it. On a clone: the image that its
/// commits make from now on.
pub const IOCTL_CLONE: u32 = ioctl(1);
/// `_IOWR(0xDC, 2, char[1024])`: COMMIT. On a clone: the image, or nothing.
pub const IOCTL_COMMIT: u32 = ioctl(2);

/// Builds a number like `linux/ioctl.h`: direction (both ways), size, type, number.
const fn ioctl(number: u32) -> u32 {
    const SIZE: u32 = 1024;
    const _: () = assert!(SIZE as usize == LINE_BYTES_MAX);
    3 << 30 | SIZE << 16 | 0xDC << 8 | number
}

/// A command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Command {
    /// `clone NAME VERSION`: makes a writable disk.
    Clone(ImageName, Reference),
    /// `commit NAME [IMAGE]`: makes a version of the changes.
    Commit(ImageName, Option<ImageName>),
    /// `fork NAME IMAGE`: makes later commits go to a new image.
    Fork(ImageName, ImageName),
    /// `rename NAME NEW`: gives a writable disk another name.
    Rename(ImageName, ImageName),
    /// `remove NAME`: removes a writable disk.
    Remove(ImageName),
    /// `content VERSION`: says what a version holds.
    Content(Reference),
}

impl std::str::FromStr for Command {
    type Err = Error;

    fn from_str(line: &str) -> Result<Self> {
        let name = |word: &str| -> Result<ImageName> {
            word.parse().map_err(|error: Error| error.within(format!("understand `{word}`")))
        };
        let version = |word: &str| -> Result<Reference> {
            word.parse().map_err(|error: Error| error.within(format!("understand `{word}`")))
        };
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match words[..] {
            ["clone", clone, from] => Ok(Self::Clone(name(clone)?, version(from)?)),
            ["commit", clone] => Ok(Self::Commit(name(clone)?, None)),
            ["commit", clone, image] => Ok(Self::Commit(name(clone)?, Some(name(image)?))),
            ["fork", clone, image] => Ok(Self::Fork(name(clone)?, name(image)?)),
            ["rename", clone, new] => Ok(Self::Rename(name(clone)?, name(new)?)),
            ["remove", clone] => Ok(Self::Remove(name(clone)?)),
            ["content", of] => Ok(Self::Content(version(of)?)),
            _ => {
                let text = format!(
                    "`{}` is not understood: expected `clone NAME VERSION`, `commit NAME [IMAGE]`, `fork NAME IMAGE`, \
                     `rename NAME NEW`, `remove NAME` or `content VERSION`",
                    line.trim().escape_debug()
                );
                Err(Error::new(ErrorKind::Invalid, text))
            }
        }
    }
}

/// Executes commands, and remembers the last answer.
pub(super) struct Control {
    disks: Arc<Disks>,
    answer: Mutex<String>,
}

impl Control {
    /// Controls these disks.
    pub(super) fn new(disks: Arc<Disks>) -> Self {
        Self { disks, answer: Mutex::default() }
    }

    /// The last answer to any command, as a line; empty before the first.
    pub(super) fn answer(&self) -> String {
        self.answer.lock().clone()
    }

    /// Executes a line and returns its answer. The answer, or the error, is remembered as the last answer.
    pub(super) fn line(&self, line: &str) -> Result<String> {
        self.conclude(line.parse().and_then(|command| self.carry_out(command)))
    }

    /// The error for `rename(2)`, which is refused for all files and folders of the mount; it is remembered as the
    /// last answer. After a rename the kernel would still know the file by its old inode number, which may soon be
    /// that of another disk.
    pub(super) fn refuse_rename(&self, place: &Place) -> Error {
        let error = match place {
            Place::Disk(DiskName::Clone(name)) => {
                let text = format!(
                    "`{name}` can only be renamed by the control file: echo rename {name} NEW > _control"
                );
                Error::new(ErrorKind::Refused, text)
            }
            _ => Error::new(ErrorKind::Refused, "images, versions and tags are not renamed in a mount"),
        };
        // The program gets only the number of the error; the text is in the last answer.
        let _ = self.conclude(Err(Error::new(error.kind(), error.to_string())));
        error
    }

    /// Executes an ioctl on a disk.
    pub(super) fn ioctl(&self, disk: &DiskName, number: u32, argument: &str) -> Result<String> {
        self.conclude(self.command(disk, number, argument).and_then(|command| self.carry_out(command)))
    }

    fn command(&self, disk: &DiskName, number: u32, argument: &str) -> Result<Command> {
        let line = match (number, disk) {
            (IOCTL_CLONE, DiskName::Version(..)) => format!("clone {argument} {disk}"),
            (IOCTL_CLONE, DiskName::Clone(name)) => format!("fork {name} {argument}"),
            (IOCTL_COMMIT, DiskName::Clone(name)) => format!("commit {name} {argument}"),
            _ => return Err(Error::new(ErrorKind::Refused, format!("`{disk}` is a version, and read-only"))),
        };
        line.parse()
    }

    fn conclude(&self, done: Result<String>) -> Result<String> {
        let answer = match &done {
            Ok(answer) => {
                (self.disks.log)(&Event::Done { answer: answer.clone() });
                answer.clone()
            }
            Err(error) => format!("failed: {}", base::chain(error)),
        };
        *self.answer.lock() = format!("{answer}\n");
        done
    }

    fn carry_out(&self, command: Command) -> Result<String> {
        Ok(match command {
            Command::Clone(name, from) => {
                let base = self.disks.create_clone(&name, &from)?;
                format!("cloned {name} from {}@{}", base.image, base.number)
            }
            Command::Commit(name, image) => match self.disks.commit(&name, image.as_ref())? {
                (_, Some(Commit { manifest, dirty_bytes, stored_bytes, .. })) => format!(
                    "committed {name} as {}@{}: {dirty_bytes} bytes written, {stored_bytes} stored",
                    manifest.image, manifest.number
                ),
                (base, None) => format!("unchanged {name}: it is {}@{}", base.image, base.number),
            },
            Command::Fork(name, image) => {
                self.disks.fork(&name, &image)?;
                format!("forked {name} to {image}")
            }
            Command::Rename(name, new) => {
                self.disks.rename_clone(&name, &new)?;
                format!("renamed {name} to {new}")
            }
            Command::Remove(name) => {
                self.disks.remove_clone(&name)?;
                format!("removed {name}")
            }
            Command::Content(of) => {
                let found = match &of {
                    // What its file shows.
                    Reference::Version(image, number) => self.disks.manifest(image, *number)?,
                    _ => Arc::new(self.disks.origin.resolve(&of)?),
                };
                let (size, sector) = (found.size_sectors * 512, found.logical_sector_bytes);
                format!("content {}@{} {} {size} {sector}", found.image, found.number, found.root.name())
            }
        })
    }

    /// The disks in use and their counters, as text for people and scripts.
    pub(super) fn status(&self) -> String {
        let counters = self.disks.counters();
        let mut text = format!(
            "opened {} passthrough {} reads {} writes {} dropped {}\n",
            counters.opened, counters.passthrough, counters.reads, counters.writes, counters.dropped
        );
        for (name, open, users) in self.disks.in_use() {
            let (fetched, swarm) = (open.mirror.counters(), open.mirror.swarm_traffic());
            let kind = if matches!(name, DiskName::Clone(_)) { "clone" } else { "version" };
            text.push_str(&format!(
                "{kind} {name} users {users} complete {} passthrough {} written_bytes {} demanded_bytes {} \
                 prefetched_bytes {} prefetched_unused_bytes {} background_bytes {} retries {} multicast_bytes {} \
                 peer_bytes {} served_bytes {}\n",
                open.mirror.is_complete(),
                open.backing.is_some(),
                open.mirror.dirty_bytes(),
                fetched.demanded_bytes,
                fetched.prefetched_bytes,
                fetched.prefetched_unused_bytes(),
                fetched.background_bytes,
                fetched.retries,
                fetched.arrived_bytes,
                swarm.peer_bytes,
                swarm.served_bytes
            ));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_understood_or_explained() {
        let name = |text: &str| text.parse::<ImageName>().unwrap();
        let parsed = |line: &str| line.parse::<Command>();
        let version = Reference::Version(name("debian"), 3);
        assert_eq!(parsed("clone vm1 debian@3\n").unwrap(), Command::Clone(name("vm1"), version));
        assert_eq!(parsed(" commit vm1 ").unwrap(), Command::Commit(name("vm1"), None));
        assert_eq!(parsed("commit vm1 lab").unwrap(), Command::Commit(name("vm1"), Some(name("lab"))));
        assert_eq!(parsed("rename vm1 vm2").unwrap(), Command::Rename(name("vm1"), name("vm2")));
        assert_eq!(parsed("fork vm1 lab").unwrap(), Command::Fork(name("vm1"), name("lab")));
        assert_eq!(parsed("content debian").unwrap(), Command::Content(Reference::Newest(name("debian"))));
        for line in ["", "clone vm1", "commit ../x", "erase vm1", "clone vm1 debian@0", "remove a b"] {
            assert_eq!(parsed(line).unwrap_err().kind(), ErrorKind::Invalid, "{line}");
        }
    }

    #[test]
    fn ioctl_numbers_are_those_of_the_manual() {
        assert_eq!((IOCTL_CLONE, IOCTL_COMMIT), (0xC400_DC01, 0xC400_DC02));
    }
}
