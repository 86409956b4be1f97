//! What a disk needs to know when it is attached again: a small file of JSON in its folder. `formats/attached.md`.

use std::fs::File;
use std::io::{ErrorKind as IoKind, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};

/// Name of the file.
const FILE: &str = "attached.json";
/// Longest file that is read.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// The only format there is.
const FORMAT: u32 = 1;

/// How a disk is attached. Secrets are named by the paths of their files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Of this file: 1.
    pub format: u32,
    /// What the disk is called here.
    pub name: String,
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
    /// Unix socket of the NBD server.
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
    pub fn new(name: &str, image: &str, nbd: PathBuf) -> Self {
        Self {
            format: FORMAT,
            name: name.to_owned(),
            image: image.to_owned(),
            repository: None,
            cache: None,
            servers: Vec::new(),
            wait_seconds: 20,
            keys: KeySettings::default(),
            nbd,
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

    /// Those that `folder` holds; `None` if it holds none.
    ///
    /// # Errors
    /// `Corrupt` if they cannot be understood; `Io`.
    pub fn load(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join(FILE);
        let failed = |error| Error::from_source(ErrorKind::Io, format!("read `{}`", path.display()), error);
        let file = match File::open(&path) {
            Err(error) if error.kind() == IoKind::NotFound => return Ok(None),
            file => file.map_err(failed)?,
        };
        let mut text = String::new();
        file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
        let corrupt = |why: String| Error::new(ErrorKind::Corrupt, format!("`{}`: {why}", path.display()));
        let settings: Self = serde_json::from_str(&text).map_err(|error| corrupt(error.to_string()))?;
        match settings.format {
            FORMAT => Ok(Some(settings)),
            format => Err(corrupt(format!("format {format}, where this program knows {FORMAT}"))),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_come_back_as_they_were_kept() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Settings::load(folder.path()).unwrap(), None);
        let mut settings = Settings::new("vm1", "web:stable", folder.path().join("nbd.sock"));
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
        let good = serde_json::to_string(&Settings::new("vm1", "web", "s".into())).unwrap();
        assert_eq!(kind(&good.replace("\"format\":1", "\"format\":2")), ErrorKind::Corrupt);
        assert_eq!(kind(&good[..good.len() / 2]), ErrorKind::Corrupt);
        assert_eq!(kind(""), ErrorKind::Corrupt);
    }
}
