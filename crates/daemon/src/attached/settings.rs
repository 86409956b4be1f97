//! The settings of a disk, kept in its folder for the next time it is attached: the file `attached.json` of
//! `formats/attached.md`.

use std::fs::File;
use std::io::{ErrorKind as IoKind, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use base::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// Name of the file.
const FILE: &str = "attached.json";
/// Default name of the NBD socket in the disk's folder.
const NBD: &str = "nbd.sock";
/// Maximum bytes read from the file.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// The only known format.
const FORMAT: u32 = 1;

/// How a disk is attached. It has only the paths of secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Format of this file: 1.
    pub format: u32,
    /// Name of the disk; the same as that of its folder.
    pub name: String,
    /// 32 hexadecimal digits, unique to this disk. `None` until a program that knows the field has run it.
    #[serde(default)]
    pub id: Option<String>,
    /// Path of its folder when it was last attached; it may have been moved since.
    #[serde(default)]
    pub folder: Option<PathBuf>,
    /// What the disk began as: `image`, `image:tag` or `image@version`.
    pub image: String,
    /// Folder or URL of the repository that is a source and receives commits.
    #[serde(default)]
    pub repository: Option<String>,
    /// Cache of content from remote sources; `None`: the default one, only for repositories in S3.
    #[serde(default)]
    pub cache: Option<CacheSettings>,
    /// Servers that are sources, in the order in which they are asked.
    #[serde(default)]
    pub servers: Vec<ServerSettings>,
    /// Time to wait for the first answer of a server when a new disk begins.
    pub wait_seconds: u64,
    /// Paths of keys.
    #[serde(default)]
    pub keys: KeySettings,
    /// Unix socket of the NBD server; a relative path starts at the disk's folder.
    pub nbd: PathBuf,
    /// Address and port of NBD over TCP, if any.
    #[serde(default)]
    pub listen: Option<SocketAddr>,
    /// Certificate for NBD over TCP.
    #[serde(default)]
    pub tls: Option<TlsSettings>,
    /// Block device that has the disk's bytes, if they are not in the folder.
    #[serde(default)]
    pub device: Option<PathBuf>,
    /// Whether writes are refused.
    #[serde(default)]
    pub read_only: bool,
    /// Time after which a read fails if no source answers; `None`: it waits.
    #[serde(default)]
    pub give_up_seconds: Option<u64>,
    /// Rate at which the rest of the image is fetched in the background; 0: not fetched.
    #[serde(default)]
    pub background_bytes_per_second: u64,
    /// Whether to do without boot profiles: no prefetch based on other machines' reads, and this disk's reads are not
    /// kept.
    #[serde(default)]
    pub without_profile: bool,
    /// Maximum number of chunks read ahead of a stream.
    pub ahead_chunks: u64,
    /// Whether the disk stays out of multicast sessions.
    #[serde(default)]
    pub no_multicast: bool,
    /// Network interface for multicast, by name or address; `None`: the one of the route to the server.
    #[serde(default)]
    pub interface: Option<String>,
    /// Whether the disk gets nothing from other machines, and serves them nothing.
    #[serde(default)]
    pub no_peers: bool,
    /// Bytes that are kept for other machines in a file, beyond those in memory.
    #[serde(default)]
    pub spool_bytes: u64,
    /// Most bytes per second that it sends to all other machines together. `None`: no limit.
    #[serde(default)]
    pub upload_bytes_per_second: Option<u64>,
}

/// A cache of content from remote sources, shared by all disks that name the same folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheSettings {
    /// Its folder, or `off`.
    pub folder: String,
    /// Maximum number of bytes in it.
    pub bytes_max: u64,
}

/// A server that is a source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerSettings {
    /// Its URL.
    pub url: String,
    /// File with its token; `None`: the token is in the environment.
    #[serde(default)]
    pub token_file: Option<PathBuf>,
}

/// Paths of keys, and which signatures are trusted.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct KeySettings {
    /// Key that signs commits.
    #[serde(default)]
    pub sign: Option<PathBuf>,
    /// Key of the encrypted repository, local or at the servers.
    #[serde(default)]
    pub encryption: Option<PathBuf>,
    /// Trusted public keys; if there are none, signatures are not required.
    #[serde(default)]
    pub trust: Vec<PathBuf>,
    /// Whether to accept versions without a trusted signature as well.
    #[serde(default)]
    pub allow_untrusted: bool,
}

/// A certificate, its key, and who may use the disk; all PEM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsSettings {
    /// File of the certificate, or of a chain.
    pub certificate: PathBuf,
    /// File of its private key.
    pub key: PathBuf,
    /// File of the authorities that signed the certificates of clients; `None`: clients need no certificate, which is
    /// allowed on a loopback address only.
    #[serde(default)]
    pub client_authority: Option<PathBuf>,
}

impl Settings {
    /// Settings of the disk `name`, with defaults for everything else.
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
            no_peers: false,
            spool_bytes: 0,
            upload_bytes_per_second: None,
        }
    }

    /// Reads the settings in `folder`; `None` if there are none. The disk's name is that of the folder now.
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
                // Older programs wrote the default as an absolute path.
                if settings.nbd == folder.join(NBD) {
                    settings.nbd = NBD.into();
                }
                Ok(Some(settings))
            }
            format => Err(corrupt(format!("format {format}, where this program knows {FORMAT}"))),
        }
    }

    /// Path of the NBD socket of the disk in `folder`.
    #[must_use]
    pub fn nbd_socket(&self, folder: &Path) -> PathBuf {
        folder.join(&self.nbd)
    }

    /// Records that the disk lives in `folder`, and refuses a copy of a disk that is still at its old path: the copy
    /// of a running disk is inconsistent, and two disks that commit as one would each take the other's versions for
    /// its own. A moved disk is accepted.
    ///
    /// # Errors
    /// `Refused` if it is a copy; `Io`.
    pub fn claim(&mut self, folder: &Path) -> Result<()> {
        if let (Some(id), Some(was)) = (&self.id, &self.folder)
            && !is_same(was, folder)
            && was.join("journal").exists()
            && let Ok(Some(other)) = Self::load(was)
            && other.id.as_ref() == Some(id)
        {
            let (copy, was) = (folder.display(), was.display());
            let text = format!("the disk in `{copy}` is a copy of the one in `{was}`, which still exists");
            return Err(Error::new(ErrorKind::Refused, text));
        }
        if self.id.is_none() {
            let mut id = [0; 16];
            getrandom::fill(&mut id)
                .map_err(|error| Error::from_source(ErrorKind::Io, "draw the id of a disk", error))?;
            self.id = Some(base::hex::encode(&id));
        }
        self.folder = Some(folder.to_owned());
        Ok(())
    }

    /// Writes the settings to `folder`, atomically and durably.
    ///
    /// # Errors
    /// `Invalid` if a path is not UTF-8; `Io`.
    pub fn keep(&self, folder: &Path) -> Result<()> {
        let (path, new) = (folder.join(FILE), folder.join(format!("{FILE}.new")));
        let text = serde_json::to_vec_pretty(self);
        let mut text = text
            .map_err(|error| Error::from_source(ErrorKind::Invalid, "keep the settings of a disk", error))?;
        text.push(b'\n');
        let written = File::create(&new)
            .and_then(|mut file| file.write_all(&text).and_then(|()| file.sync_all()))
            .and_then(|()| std::fs::rename(&new, &path))
            .and_then(|()| File::open(folder)?.sync_all());
        written
            .map_err(|error| Error::from_source(ErrorKind::Io, format!("write `{}`", path.display()), error))
    }
}

/// Whether two paths lead to the same folder, also by links.
fn is_same(one: &Path, other: &Path) -> bool {
    let place = |path: &Path| std::fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    one == other || place(one).is_some_and(|found| place(other) == Some(found))
}

/// Adds the name of the disk to an error.
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
        // As older programs wrote it.
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
        // A link leads to the same folder.
        std::os::unix::fs::symlink(&two, all.path().join("link")).unwrap();
        Settings::load(&two).unwrap().unwrap().claim(&all.path().join("link")).unwrap();

        std::fs::create_dir(&copy).unwrap();
        for file in ["journal", FILE] {
            std::fs::copy(two.join(file), copy.join(file)).unwrap();
        }
        let mut copied = Settings::load(&copy).unwrap().unwrap();
        let refused = copied.claim(&copy).unwrap_err();
        assert!(refused.kind() == ErrorKind::Refused && refused.to_string().contains("vm2"), "{refused}");
        // The disk was moved to another file system: the original is gone.
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
