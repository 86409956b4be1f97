//! Which repository a command uses, and who and when it is for what gets written there.

use std::path::{Path, PathBuf};

use store::{Location, Reference, Repository, Stamp};

use crate::args::Global;
use crate::exit::{Exit, Failure, Result};
use crate::keys;

const SYSTEM_FOLDER: &str = "/var/lib/diskcast";

/// Opens the repository that the options name; it must exist, and if it is encrypted its key must be there.
pub fn open(global: &Global) -> Result<Repository> {
    let repository = open_locked(global)?;
    if repository.is_locked() {
        return Err(Failure::new(Exit::Refused, format!("`{}` is encrypted", repository.name()))
            .hint("--encryption-key or DISKCAST_ENCRYPTION_KEY name the file of its key"));
    }
    Ok(repository)
}

/// The same, without its key if that is not there.
pub fn open_locked(global: &Global) -> Result<Repository> {
    let (location, chosen) = location(global)?;
    let opened = Repository::open(&location).map_err(|error| {
        let missing = error.kind() == store::ErrorKind::NotFound;
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

/// Opens the repository that the options name, or makes it.
pub fn open_or_create(global: &Global) -> Result<Repository> {
    // Nothing is kept in the clear for somebody who gave a key.
    if global.keys.encryption_key.is_none() {
        Repository::open_or_create(&location(global)?.0)?;
    }
    open(global)
}

/// Makes the repository that the options name, encrypted if they name a key.
pub fn create(global: &Global) -> Result<Repository> {
    let location = location(global)?.0;
    Ok(match keys::sealing(&global.keys)? {
        Some(key) => Repository::create_sealed(&location, &key)?,
        None => Repository::create(&location)?,
    })
}

/// The other repository of a command, at `text`, opened by `open` and used with the same keys; if it is encrypted with
/// `key`, or with the key of the first.
pub fn other(
    text: &str,
    global: &Global,
    key: Option<&Path>,
    open: fn(&Location) -> store::Result<Repository>,
) -> Result<Repository> {
    let (opened, mut keys) = (open(&text.parse()?)?, keys::of_repository(&global.keys)?);
    match (key, opened.key_check()) {
        (Some(key), _) => keys.seal = Some(keys::sealing_in(key)?),
        (None, Some(_)) => {}
        (None, None) => keys.seal = None,
    }
    Ok(opened.with_keys(keys)?)
}

/// Where the repository is, and whether somebody chose it.
fn location(global: &Global) -> Result<(Location, bool)> {
    match &global.repo {
        Some(text) => Ok((text.parse()?, true)),
        None => Ok((Location::Folder(data_folder()?.join("repository")), false)),
    }
}

/// Where the server keeps its certificate and secret if nobody says otherwise.
pub fn default_state_folder() -> Result<PathBuf> {
    Ok(data_folder()?.join("server"))
}

/// `/var/lib/diskcast` for root, `$XDG_DATA_HOME/diskcast` for others (XDG Base Directory Specification).
fn data_folder() -> Result<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Ok(SYSTEM_FOLDER.into());
    }
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let data = absolute("XDG_DATA_HOME").or_else(|| Some(absolute("HOME")?.join(".local/share")));
    data.map(|data| data.join("diskcast")).ok_or_else(|| {
        Failure::new(Exit::Usage, "no repository is named, and HOME is not set")
            .hint("say --repo FOLDER or set DISKCAST_REPO")
    })
}

/// Parses a NAME argument.
pub fn reference(name: &str) -> Result<Reference> {
    Ok(name.parse()?)
}

/// Now, by this user: what is kept with everything that gets written.
pub fn stamp() -> Stamp {
    let id = rustix::process::geteuid();
    let user = std::env::var("SUDO_USER").or_else(|_| std::env::var("USER"));
    let user =
        user.unwrap_or_else(|_| if id.is_root() { "root".to_owned() } else { id.as_raw().to_string() });
    Stamp { created: crate::clock::now_rfc3339(), creator: format!("{user}@{}", host_name()) }
}

/// What this machine calls itself.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
