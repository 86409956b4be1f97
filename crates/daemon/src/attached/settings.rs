//! What a disk needs to know when it is attached again: a small file of JSON in its folder. `formats/attached.md`.

use std::fs::File;
use std::io::{ErrorKind as IoKind, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use base::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// Name of the file.
const FILE: &str = "attached.json";
/// Name of the NBD socket in the disk's folder, unless it is somewhere else.
const NBD: &str = "nbd.sock";
/// Longest file that is read.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// The only format there is.
const FORMAT: u32 = 1;

/// How a disk is attached. Secrets are named by the paths of their files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Of this file: 1.
    pub format: u32,
    /// What the disk is called here: as its folder.
    pub name: String,
    /// 32 hexadecimal digits that are of this disk alone. None if no program that knows of them has run it yet.
    #[serde(default)]
    pub id: Option<String>,
    /// Its folder when it was attached last: it may have been moved since.
    #[serde(default)]
    pub folder: Option<PathBuf>,
    /// What it was to begin as: `image`, `image:tag` or `image@version`.
    pub image: String,
    /// Folder or URL of the repository that is a source, and takes commits.
    #[serde(default)]
    pub repository: Option<String>,
    /// Cache of what comes from afar; without, the default one, for repositories in S3 alone.
    #[serde(default)]
    pub cache: Option<CacheSettings>,
    /// Servers that are sources, in this order.
    #[serde(default)]
    pub servers: Vec<ServerSettings>,
    /// How long the first answer of a server is waited for when a new disk begins.
    pub wait_seconds: u64,
    /// Files of keys.
    #[serde(default)]
    pub keys: KeySettings,
    /// Unix socket of the NBD server; a relative path is one from the disk's folder.
    pub nbd: PathBuf,
    /// Its address and TCP port, if it has one.
    #[serde(default)]
    pub listen: Option<SocketAddr>,
    /// Its certificate, for TCP.
    #[serde(default)]
    pub tls: Option<TlsSettings>,
    /// Block device that holds the disk's bytes, if the folder does not.
    #[serde(default)]
    pub device: Option<PathBuf>,
    /// Whether writes are refused.
    #[serde(default)]
    pub read_only: bool,
    /// After so long a read that no source answers is an error; without, it waits.
    #[serde(default)]
    pub give_up_seconds: Option<u64>,
    /// Rate at which the rest is fetched behind demand; 0 for not at all.
    #[serde(default)]
    pub background_bytes_per_second: u64,
    /// Whether nothing is prefetched because other machines read it, and nothing kept of what this one reads.
    #[serde(default)]
    pub without_profile: bool,
    /// Most chunks that are read ahead of a stream.
    pub ahead_chunks: u64,
    /// Whether it takes no part in multicast.
    #[serde(default)]
    pub no_multicast: bool,
    /// Network interface for multicast, by name or address; nothing for the one that leads to the server.
    #[serde(default)]
    pub interface: Option<String>,
}

/// What is kept here of what came from afar, for all disks that name the same folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheSettings {
    /// Folder, or `off`.
    pub folder: String,
    /// Most bytes in it.
    pub bytes_max: u64,
}

/// A server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerSettings {
    /// Where it is.
    pub url: String,
    /// File that holds its token; without one the token is in the environment.
    #[serde(default)]
    pub token_file: Option<PathBuf>,
}

/// Files of keys, and who is trusted.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct KeySettings {
    /// Key that commits are signed with.
    #[serde(default)]
    pub sign: Option<PathBuf>,
    /// Key of the repository, here or at the servers.
    #[serde(default)]
    pub encryption: Option<PathBuf>,
    /// Public keys that are trusted; everybody is if there are none.
    #[serde(default)]
    pub trust: Vec<PathBuf>,
    /// Whether what nobody trusted has signed is taken all the same.
    #[serde(default)]
    pub allow_untrusted: bool,
}

/// A certificate and its key, both PEM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsSettings {
    /// File of the certificate, or of a chain.
    pub certificate: PathBuf,
    /// File of its private key.
    pub key: PathBuf,
}

impl Settings {
    /// Those of the disk `name`, with defaults for what was not said.
    #[must_use]
    pub fn new(name: &str, image: &str) -> Self {
        Self {
            format: FORMAT,
            name: name.to_owned(),
            id: None,
            folder: None,
            image: image.to_owned(),
            repository: None,
            cache: None,
            servers: Vec::new(),
            wait_seconds: 20,
            keys: KeySettings::default(),
            nbd: NBD.into(),
            listen: None,
            tls: None,
            device: None,
            read_only: false,
            give_up_seconds: None,
            background_bytes_per_second: 0,
            without_profile: false,
            ahead_chunks: 32,
            no_multicast: false,
            interface: None,
        }
    }

    /// Those that `folder` holds; `None` if it holds none. The disk is called as the folder is now.
    ///
    /// # Errors
    /// `Malformed` if they cannot be understood; `Io`.
    pub fn load(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join(FILE);
        let failed = |error| Error::from_source(ErrorKind::Io, format!("read `{}`", path.display()), error);
        let file = match File::open(&path) {
            Err(error) if error.kind() == IoKind::NotFound => return Ok(None),
            file => file.map_err(failed)?,
        };
        let mut text = String::new();
        file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
        let corrupt = |why: String| Error::new(ErrorKind::Malformed, format!("`{}`: {why}", path.display()));
        let settings: Self = serde_json::from_str(&text).map_err(|error| corrupt(error.to_string()))?;
        match settings.format {
            FORMAT => {
                let name = folder.file_name().map(|name| name.to_string_lossy().into_owned());
                let mut settings = Self { name: name.unwrap_or(settings.name.clone()), ..settings };
                // As programs before this one wrote what is now the default.
                if settings.nbd == folder.join(NBD) {
                    settings.nbd = NBD.into();
                }
                Ok(Some(settings))
            }
            format => Err(corrupt(format!("format {format}, where this program knows {FORMAT}"))),
        }
    }

    /// Where the NBD server of the disk in `folder` listens on this machine.
    #[must_use]
    pub fn nbd_socket(&self, folder: &Path) -> PathBuf {
        folder.join(&self.nbd)
    }

    /// Sees that the disk in `folder` is no copy of one that is still where it was: a copy of a disk that runs is torn,
    /// and two that commit as one would each take the other's versions for its own. One that was moved is as good as
    /// before.
    ///
    /// # Errors
    /// `Refused` if it is one; `Io`.
    pub fn claim(&mut self, folder: &Path) -> Result<()> {
        if let (Some(id), Some(was)) = (&self.id, &self.folder)
            && !is_same(was, folder)
            && was.join("journal").exists()
            && let Ok(Some(other)) = Self::load(was)
            && other.id.as_ref() == Some(id)
        {
            let (copy, was) = (folder.display(), was.display());
            let text = format!("the disk in `{copy}` is a copy of the one in `{was}`, which is there still");
            return Err(Error::new(ErrorKind::Refused, text));
        }
        if self.id.is_none() {
            let mut id = [0; 16];
            getrandom::fill(&mut id)
                .map_err(|error| Error::from_source(ErrorKind::Io, "draw the id of a disk", error))?;
            self.id = Some(id.iter().map(|byte| format!("{byte:02x}")).collect());
        }
        self.folder = Some(folder.to_owned());
        Ok(())
    }

    /// Keeps them in `folder`, all of them or none, durably.
    ///
    /// # Errors
    /// `Io`.
    pub fn keep(&self, folder: &Path) -> Result<()> {
        let (path, new) = (folder.join(FILE), folder.join(format!("{FILE}.new")));
        let mut text = serde_json::to_vec_pretty(self).expect("settings are plain data");
        text.push(b'\n');
        let written = File::create(&new)
            .and_then(|mut file| file.write_all(&text).and_then(|()| file.sync_all()))
            .and_then(|()| std::fs::rename(&new, &path))
            .and_then(|()| File::open(folder)?.sync_all());
        written
            .map_err(|error| Error::from_source(ErrorKind::Io, format!("write `{}`", path.display()), error))
    }
}

/// Whether two paths lead to one folder.
fn is_same(one: &Path, other: &Path) -> bool {
    let place = |path: &Path| std::fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    one == other || place(one).is_some_and(|found| place(other) == Some(found))
}

/// Adds the name of a disk to an error of it.
pub(super) fn of_disk(name: &str) -> impl Fn(Error) -> Error {
    move |error| error.within(format!("disk `{name}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_was_moved_is_the_disk_that_it_was_and_a_copy_is_refused() {
        let all = tempfile::tempdir().unwrap();
        let [one, two, copy] = ["vm1", "vm2", "copy"].map(|name| all.path().join(name));
        std::fs::create_dir(&one).unwrap();
        std::fs::write(one.join("journal"), "").unwrap();
        // As a program before this one left it.
        let mut settings = Settings { nbd: one.join("nbd.sock"), ..Settings::new("vm1", "web") };
        settings.keep(&one).unwrap();
        settings = Settings::load(&one).unwrap().unwrap();
        settings.claim(&one).unwrap();
        settings.keep(&one).unwrap();
        assert!(settings.id.is_some() && settings.nbd_socket(&one) == one.join("nbd.sock"));

        std::fs::rename(&one, &two).unwrap();
        let mut moved = Settings::load(&two).unwrap().unwrap();
        moved.claim(&two).unwrap();
        moved.keep(&two).unwrap();
        assert_eq!((moved.name.as_str(), &moved.id), ("vm2", &settings.id));
        assert_eq!(moved.nbd_socket(&two), two.join("nbd.sock"), "where the folder is now");
        // By another name it is the same folder.
        std::os::unix::fs::symlink(&two, all.path().join("link")).unwrap();
        Settings::load(&two).unwrap().unwrap().claim(&all.path().join("link")).unwrap();

        std::fs::create_dir(&copy).unwrap();
        for file in ["journal", FILE] {
            std::fs::copy(two.join(file), copy.join(file)).unwrap();
        }
        let mut copied = Settings::load(&copy).unwrap().unwrap();
        let refused = copied.claim(&copy).unwrap_err();
        assert!(refused.kind() == ErrorKind::Refused && refused.to_string().contains("vm2"), "{refused}");
        // It was moved to another file system: the first is gone.
        std::fs::remove_dir_all(&two).unwrap();
        copied.claim(&copy).unwrap();
        assert_eq!(copied.id, settings.id);
    }

    fn name_of(folder: &tempfile::TempDir) -> String {
        folder.path().file_name().unwrap().to_string_lossy().into_owned()
    }

    #[test]
    fn settings_come_back_as_they_were_kept() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Settings::load(folder.path()).unwrap(), None);
        let mut settings = Settings::new(&name_of(&folder), "web:stable");
        settings.keep(folder.path()).unwrap();
        assert_eq!(Settings::load(folder.path()).unwrap().as_ref(), Some(&settings));
        settings.servers.push(ServerSettings { url: "https://10.0.0.1:7717".into(), token_file: None });
        settings.listen = Some("127.0.0.1:10809".parse().unwrap());
        settings.keep(folder.path()).unwrap();
        assert_eq!(Settings::load(folder.path()).unwrap(), Some(settings));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no draft is left");
    }

    #[test]
    fn what_a_newer_program_or_a_slip_wrote_is_not_guessed_at() {
        let folder = tempfile::tempdir().unwrap();
        let kind = |text: &str| {
            std::fs::write(folder.path().join(FILE), text).unwrap();
            Settings::load(folder.path()).unwrap_err().kind()
        };
        let good = serde_json::to_string(&Settings::new("vm1", "web")).unwrap();
        assert_eq!(kind(&good.replace("\"format\":1", "\"format\":2")), ErrorKind::Malformed);
        assert_eq!(kind(&good[..good.len() / 2]), ErrorKind::Malformed);
        assert_eq!(kind(""), ErrorKind::Malformed);
    }
}
