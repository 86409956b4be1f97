//! Settings of the drivers: which repositories there are, and how hosts are reached.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use disk::logical_volume::LogicalVolume;
use net::deploy::{Address, Ssh};
use serde::Deserialize;

use super::place::is_plain;
use crate::exit::{Exit, Failure, Result};
use crate::runtime;

/// The file, and the variable that names another one.
const FILE: &str = "/etc/one/diskcast.toml";
const VARIABLE: &str = "DISKCAST_ONE";

/// Longest time that a host serves an image.
const SERVE_SECONDS_MAX: u64 = 30 * 86_400;

/// What the file has.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Settings {
    /// OpenSSH's client, with options.
    #[serde(default = "ssh")]
    ssh: String,
    /// The program on hosts.
    #[serde(default = "program")]
    program: String,
    /// libvirt's program on hosts, with options.
    #[serde(default = "virsh")]
    pub virsh: String,
    /// Folder of the images that hosts keep, on the filesystem of the datastores.
    #[serde(default = "kept")]
    kept: String,
    /// Folder where hosts have a mount of the repository, for disks whose content comes when it is read.
    #[serde(default = "mount")]
    pub mount: String,
    /// How disks become copies.
    #[serde(default)]
    pub copy: Form,
    /// The group that has the volumes of disks on each host.
    pub volume_group: Option<String>,
    /// First part of the names of images that OpenNebula makes.
    #[serde(default = "prefix")]
    pub prefix: String,
    /// How long a script whose host is ready waits for others with the same image, in seconds.
    #[serde(default = "window_seconds")]
    window_seconds: u32,
    /// For how long a host that has fetched an image serves it to others, in seconds.
    #[serde(default)]
    pub serve_seconds: u64,
    /// Folder for files that come from elsewhere, until they are in a repository.
    #[serde(default = "staging")]
    pub staging: PathBuf,
    repositories: BTreeMap<String, Repository>,
    /// How hosts are reached, once that was looked for.
    #[serde(skip)]
    reached: OnceLock<Ssh>,
}

/// A repository that images lie in.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Repository {
    /// The repository, as `--repo` takes it.
    pub location: String,
    /// The server that serves it, for hosts.
    pub server: String,
    /// Token for that server, which lets hosts read and publish.
    pub token_file: PathBuf,
    /// Where its images are files for everybody (`serve --public-http`), if they are.
    pub public: Option<String>,
    /// Room for images, in MB, where nothing tells it: in S3, or in a cluster.
    pub capacity_mb: Option<u64>,
}

/// How a machine's disk is made of its image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Form {
    /// A QCOW2 over the image that the host keeps.
    #[default]
    Overlay,
    /// A raw file that shares the blocks of that image.
    Share,
    /// A QCOW2 over the image in the host's mount, whose content comes when it is read.
    Demand,
    /// A raw file of its own.
    Full,
    /// A logical volume of its own.
    Volume,
}

fn ssh() -> String {
    "ssh".to_owned()
}

fn program() -> String {
    "diskcast".to_owned()
}

fn virsh() -> String {
    "virsh --connect qemu:///system".to_owned()
}

fn kept() -> String {
    "/var/lib/one/datastores/.diskcast".to_owned()
}

fn mount() -> String {
    "/mnt/diskcast".to_owned()
}

fn prefix() -> String {
    "one".to_owned()
}

fn window_seconds() -> u32 {
    5
}

fn staging() -> PathBuf {
    "/var/tmp".into()
}

impl Form {
    pub(super) fn parse(text: &str) -> Result<Self> {
        match text {
            "overlay" => Ok(Self::Overlay),
            "share" => Ok(Self::Share),
            "demand" => Ok(Self::Demand),
            "full" => Ok(Self::Full),
            "volume" => Ok(Self::Volume),
            other => {
                let text =
                    format!("DISKCAST_COPY is `{other}`; there are overlay, demand, share, full and volume");
                Err(Failure::new(Exit::Usage, text))
            }
        }
    }

    /// What qemu and OpenNebula call the file.
    pub(super) fn format(self) -> &'static str {
        match self {
            Self::Overlay | Self::Demand => "qcow2",
            Self::Share | Self::Full | Self::Volume => "raw",
        }
    }
}

impl Settings {
    pub(super) fn load() -> Result<Self> {
        let path = std::env::var_os(VARIABLE).map_or_else(|| PathBuf::from(FILE), PathBuf::from);
        let text = std::fs::read_to_string(&path).map_err(|error| {
            Failure::from(base::Error::from_io(format!("read `{}`", path.display()), error))
                .hint("integrations/opennebula/install.sh prints one to begin with")
        })?;
        Self::parse(&text).map_err(|why| Failure::new(Exit::Usage, format!("`{}`: {why}", path.display())))
    }

    pub(super) fn parse(text: &str) -> std::result::Result<Self, String> {
        let settings: Self = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        if settings.serve_seconds > SERVE_SECONDS_MAX {
            return Err(format!("`serve_seconds` is {SERVE_SECONDS_MAX} at most"));
        }
        if let Some(group) = &settings.volume_group
            && LogicalVolume::at(&Path::new("/dev").join(group).join("one")).is_none()
        {
            return Err(format!("`{group}` is not the name of a volume group"));
        }
        let are_plain = [&settings.kept, &settings.program, &settings.mount].map(|word| is_plain(word));
        match are_plain == [true; 3] {
            true => Ok(settings),
            false => Err("`kept`, `mount` and `program` are paths without spaces and quotes".to_owned()),
        }
    }

    pub(super) fn repository(&self, name: &str) -> Result<&Repository> {
        self.repositories.get(name).ok_or_else(|| {
            let names: Vec<_> = self.repositories.keys().map(String::as_str).collect();
            Failure::new(Exit::NotFound, format!("there is no repository `{name}`"))
                .hint(format!("the settings have {}", names.join(", ")))
        })
    }

    /// The only repository, where a datastore names none.
    pub(super) fn only(&self) -> Result<&str> {
        let mut names = self.repositories.keys();
        match (names.next(), names.next()) {
            (Some(name), None) => Ok(name),
            _ => Err(Failure::new(
                Exit::Usage,
                "the datastore does not say in which repository its images are",
            )
            .hint("set DISKCAST_REPOSITORY in its template to a name from the settings")),
        }
    }

    /// What follows our prefix in the name of an image that OpenNebula made: the number of its image, or a disk of a
    /// machine.
    pub(super) fn of_opennebula<'a>(&self, image: &'a str) -> Option<&'a str> {
        image.strip_prefix(self.prefix.as_str())?.strip_prefix('-')
    }

    /// How long hosts that have arrived wait for others.
    pub(super) fn window(&self) -> Duration {
        Duration::from_secs(self.window_seconds.into())
    }

    /// How hosts are reached.
    pub(super) fn ssh(&self) -> &Ssh {
        let sockets = || runtime::folder_for("ssh").ok();
        self.reached.get_or_init(|| Ssh::new(&self.ssh, self.program(), false, sockets()))
    }

    /// The program on hosts, with the folder of its images.
    pub(super) fn program(&self) -> String {
        format!("env DISKCAST_KEPT={} {}", self.kept, self.program)
    }
}

impl Repository {
    /// How others get a version: as a file, if everybody may read it; else by our own name.
    pub(super) fn offer(&self, version: &str) -> String {
        match &self.public {
            Some(url) => format!("{url}/images/{version}.qcow2"),
            None => format!("diskcast:{version}"),
        }
    }

    /// The format of what is offered.
    pub(super) fn offered_format<'a>(&self, own: &'a str) -> &'a str {
        if self.public.is_some() { "qcow2" } else { own }
    }

    pub(super) fn token(&self) -> Result<String> {
        let path: &Path = &self.token_file;
        let text = std::fs::read_to_string(path)
            .map_err(|error| base::Error::from_io(format!("read `{}`", path.display()), error))?;
        Ok(text.trim().to_owned())
    }
}

/// A host as ssh takes it.
pub(super) fn address(host: &str) -> Address {
    Address { host: host.to_owned(), ..Address::default() }
}

/// Settings with one repository, and nothing else.
#[cfg(test)]
pub(super) const EXAMPLE: &str =
    "[repositories.main]\nlocation = \"/srv\"\nserver = \"https://a:1\"\ntoken_file = \"/t\"\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_have_a_repository_and_defaults() {
        let settings = Settings::parse(EXAMPLE).unwrap();
        assert_eq!((settings.copy, settings.only().ok()), (Form::Overlay, Some("main")));
        assert!(settings.repository("other").is_err());
        let wrong = format!("kept = \"/a b\"\n{EXAMPLE}");
        assert!(Settings::parse(&wrong).is_err());
        assert!(Settings::parse(&format!("copies = 1\n{EXAMPLE}")).is_err(), "an unknown setting");
    }
}
