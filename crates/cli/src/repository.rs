//! Chooses and opens the repository of a command, with its keys and cache, and makes the creator and time of new
//! records.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::ErrorKind;
use cluster::ClusterToken;
use cluster::client::{Cluster, ClusterAccess};
use store::{Cache, CacheSetting, Location, Reference, Repository, S3Access, ScrubSetting, Setting, Stamp};

use crate::args::{Global, StateFolder};
use crate::exit::{Exit, Failure, Result};
use crate::keys;

const SYSTEM_FOLDER: &str = "/var/lib/diskcast";
const SYSTEM_CACHE: &str = "/var/cache/diskcast";
/// Folder of the scrub logs in the cache.
const SCRUBS: &str = "scrubs";

/// Opens the repository that the options name. It must exist; `Refused` if it is encrypted and no key is given.
pub(crate) fn open(global: &Global) -> Result<Repository> {
    let repository = open_locked(global)?;
    if repository.is_locked() {
        return Err(Failure::new(Exit::Refused, format!("`{}` is encrypted", repository.name()))
            .hint("--encryption-key or DISKCAST_ENCRYPTION_KEY name the file of its key"));
    }
    Ok(repository)
}

/// Like [`open`], but an encrypted repository may also be opened without its key.
pub(crate) fn open_locked(global: &Global) -> Result<Repository> {
    let (location, chosen) = location(global)?;
    let opened = Repository::open_with(&location, &setting(global, &location)?).map_err(|error| {
        let missing = error.kind() == ErrorKind::NotFound;
        let failure = Failure::from(error);
        match (missing, chosen) {
            (true, false) => {
                failure.hint("`diskcast init` makes it; --repo or DISKCAST_REPO name another one")
            }
            (true, true) => failure.hint("`diskcast init` makes a repository there"),
            _ => failure,
        }
    });
    Ok(opened?.with_keys(keys::of_repository(&global.keys)?)?)
}

/// Adds the scrub log, for a command that reads or writes much: files that were checked within the last day are not
/// checked again. A dry run keeps none: it changes nothing.
pub(crate) fn with_scrubs(global: &Global, repository: Repository) -> Repository {
    match cache_folder(global).filter(|_| !global.dry_run) {
        Some(folder) => repository
            .with_scrubs(&ScrubSetting { folder: folder.join(SCRUBS), now: crate::clock::system_now() }),
        None => repository,
    }
}

/// Opens the repository that the options name; creates it, unencrypted, if it is missing.
pub(crate) fn open_or_create(global: &Global) -> Result<Repository> {
    // A user who gives a key expects encryption, so a missing repository is an error then.
    if global.keys.encryption_key.is_none() {
        let (location, _) = location(global)?;
        Repository::open_or_create_with(&location, &setting(global, &location)?)?;
    }
    open(global)
}

/// Access to S3, the cache, and the stamp for records of this process.
fn setting(global: &Global, location: &Location) -> Result<Setting> {
    let stamp = Some(stamp());
    Ok(match location {
        Location::S3(_) => {
            let s3 = Some(S3Access::from_variables(&|name| std::env::var(name).ok())?);
            Setting { s3, cache: cache(global), stamp, ..Setting::default() }
        }
        Location::Cluster(text) => {
            let joined = Cluster::open(&ClusterAccess::parse(text, cluster_token(global)?)?.of_repository())?;
            Setting { cluster: Some(Arc::new(joined)), stamp, ..Setting::default() }
        }
        Location::Folder(_) | Location::Memory => Setting { stamp, ..Setting::default() },
    })
}

/// The token of the cluster that the options name.
pub(crate) fn cluster_token(global: &Global) -> Result<ClusterToken> {
    let Some(file) = &global.cluster_token else {
        return Err(Failure::new(Exit::Usage, "a cluster needs its token").hint(
            "--cluster-token or DISKCAST_CLUSTER_TOKEN name the file that `diskcast cluster metadata` made",
        ));
    };
    let text = daemon::private_file::read_private(file)?;
    Ok(String::from_utf8_lossy(&text).parse()?)
}

fn cache(global: &Global) -> Option<CacheSetting> {
    cache_folder(global).map(|folder| CacheSetting { folder, bytes_max: global.cache_size })
}

/// Folder of the cache; `None` if it is off or the user has no home folder.
fn cache_folder(global: &Global) -> Option<PathBuf> {
    match global.cache.as_deref() {
        Some("off") => None,
        Some(folder) => Some(folder.into()),
        None if rustix::process::geteuid().is_root() => {
            let folder = absolute("XDG_CACHE_HOME").map(|folder| folder.join("diskcast"));
            folder.or_else(|| Some(SYSTEM_CACHE.into()))
        }
        None => user_folder("XDG_CACHE_HOME", ".cache"),
    }
}

/// Opens the cache if the options name one, for a command that keeps what it reads there.
pub(crate) fn chosen_cache(global: &Global) -> Result<Option<Arc<Cache>>> {
    match (&global.cache, cache(global)) {
        (Some(_), Some(setting)) if !global.dry_run => Ok(Some(Arc::new(Cache::open(&setting)?))),
        _ => Ok(None),
    }
}

/// The folder `diskcast` in the folder that `variable` names, or else in `below` in the user's home (XDG Base
/// Directory Specification).
fn user_folder(variable: &str, below: &str) -> Option<PathBuf> {
    let folder = absolute(variable).or_else(|| Some(absolute("HOME")?.join(below)));
    folder.map(|folder| folder.join("diskcast"))
}

fn absolute(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}

/// Creates the repository that the options name, encrypted if they name a key.
pub(crate) fn create(global: &Global) -> Result<Repository> {
    let location = location(global)?.0;
    let setting = setting(global, &location)?;
    Ok(match keys::encryption_key(&global.keys)? {
        Some(key) => Repository::create_sealed_with(&location, &key, &setting)?,
        None => Repository::create_with(&location, &setting)?,
    })
}

/// Opens the second repository of a command, at `text`, with the same keys. If it is encrypted, its key is `key`, or
/// else that of the first repository.
pub(crate) fn other(
    text: &str,
    global: &Global,
    key: Option<&Path>,
    open: fn(&Location, &Setting) -> base::Result<Repository>,
) -> Result<Repository> {
    let location = text.parse()?;
    let opened = open(&location, &setting(global, &location)?)?;
    let mut keys = keys::of_repository(&global.keys)?;
    match (key, opened.key_check()) {
        (Some(key), _) => keys.encryption = Some(keys::encryption_key_in(key)?),
        (None, Some(_)) => {}
        (None, None) => keys.encryption = None,
    }
    Ok(opened.with_keys(keys)?)
}

/// Location of the repository, and whether the user named it.
fn location(global: &Global) -> Result<(Location, bool)> {
    match &global.repo {
        Some(text) => Ok((text.parse()?, true)),
        None => Ok((Location::Folder(data_folder()?.join("repository")), false)),
    }
}

/// Folders on this machine that a write to the repository changes: the repository itself, or the cache of one in S3.
pub(crate) fn written_folders(global: &Global) -> Result<Vec<PathBuf>> {
    Ok(match location(global)?.0 {
        Location::Folder(folder) => vec![folder],
        Location::S3(_) => cache(global).map(|cache| cache.folder).into_iter().collect(),
        Location::Cluster(_) | Location::Memory => Vec::new(),
    })
}

/// The folder of a server's state: the one that was named, else the default.
pub(crate) fn state_folder(named: &StateFolder) -> Result<PathBuf> {
    named.state.clone().map_or_else(default_state_folder, Ok)
}

/// Default folder of the server's certificate and secret.
fn default_state_folder() -> Result<PathBuf> {
    Ok(data_folder()?.join("server"))
}

/// Default folder of what machines boot from the network.
pub(crate) fn default_boot_image_folder() -> Result<PathBuf> {
    Ok(data_folder()?.join("boot-image"))
}

/// Default folder of attached disks.
pub(crate) fn default_disks_folder() -> Result<PathBuf> {
    Ok(data_folder()?.join("disks"))
}

/// Default folder of the images that a host keeps.
pub(crate) fn default_kept_folder() -> Result<PathBuf> {
    Ok(data_folder()?.join("kept"))
}

/// Default folder of the disks of a mount.
pub(crate) fn default_mount_folder() -> Result<PathBuf> {
    Ok(data_folder()?.join("mount"))
}

/// Location of the repository as an absolute path or a URL, and whether it is a local folder.
pub(crate) fn absolute_location(global: &Global) -> Result<(String, bool)> {
    match location(global)?.0 {
        Location::Folder(path) => {
            let path = std::path::absolute(path)?;
            let text = path.to_str().map(str::to_owned);
            let text = text.ok_or_else(|| {
                Failure::new(Exit::Usage, format!("`{}` is not UTF-8: it cannot be stored", path.display()))
            });
            Ok((text?, true))
        }
        Location::S3(bucket) => Ok((bucket.to_string(), false)),
        Location::Cluster(text) => Ok((text, false)),
        Location::Memory => Err(Failure::new(Exit::Usage, "a repository in memory ends with this process")),
    }
}

/// The repository's location, as nothing else on this machine has it: an absolute path, or a URL and its endpoint.
pub(crate) fn place(global: &Global) -> Result<String> {
    let (location, is_folder) = absolute_location(global)?;
    let endpoint =
        ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"].iter().find_map(|name| std::env::var(name).ok());
    Ok(match endpoint.filter(|_| !is_folder) {
        Some(endpoint) => format!("{location} at {endpoint}"),
        None => location,
    })
}

/// Default file of what this machine has seen.
pub(crate) fn default_seen_file() -> Result<PathBuf> {
    Ok(data_folder()?.join("seen.json"))
}

/// `/var/lib/diskcast` for root, `$XDG_DATA_HOME/diskcast` for other users.
fn data_folder() -> Result<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Ok(SYSTEM_FOLDER.into());
    }
    user_folder("XDG_DATA_HOME", ".local/share").ok_or_else(|| {
        Failure::new(Exit::Usage, "no repository is named, and HOME is not set")
            .hint("say --repo FOLDER or s3://BUCKET/PREFIX, or set DISKCAST_REPO")
    })
}

/// Parses a NAME argument.
pub(crate) fn reference(name: &str) -> Result<Reference> {
    Ok(name.parse()?)
}

/// The creator (user and host) and the time now, which are stored with everything that is written.
pub(crate) fn stamp() -> Stamp {
    let id = rustix::process::geteuid();
    let user = std::env::var("SUDO_USER").or_else(|_| std::env::var("USER"));
    let user =
        user.unwrap_or_else(|_| if id.is_root() { "root".to_owned() } else { id.as_raw().to_string() });
    Stamp { created: crate::clock::now_rfc3339(), creator: format!("{user}@{}", host_name()) }
}

/// Host name of this machine.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
