//! Reads keys from files: keys that sign, that encrypt, and public keys that are trusted. No option or variable has a
//! key itself.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use base::Subject;
use image::signature::signing_key_from_text;
use image::{EncryptionKey, PublicKey, SignedManifest, SigningKey, Trust};
use mirror::Images;
use net::client::Client;
use store::Repository;

use crate::args::Keys;
use crate::commands::Context;
use crate::exit::{Exit, Failure, Result};

/// Maximum bytes read from a file of public keys.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The keys for a repository, as the options name them.
pub(crate) fn of_repository(options: &Keys) -> Result<store::Keys> {
    let sign = options.sign_key.as_deref().map(signing).transpose()?;
    let trust = if options.allow_untrusted { None } else { trust(options)? };
    Ok(store::Keys { sign, encryption: encryption_key(options)?, trust })
}

/// The encryption key, if the options name one.
pub(crate) fn encryption_key(options: &Keys) -> Result<Option<EncryptionKey>> {
    options.encryption_key.as_deref().map(encryption_key_in).transpose()
}

/// Reads an encryption key from the file at `path`.
pub(crate) fn encryption_key_in(path: &Path) -> Result<EncryptionKey> {
    let bytes = daemon::private_file::read_private(path)?;
    let key = EncryptionKey::from_text(&String::from_utf8_lossy(&bytes));
    key.map_err(|error| Failure::from(error).context(format_args!("read the key in `{}`", path.display())))
}

/// Reads a signing key from the file at `path`.
pub(crate) fn signing(path: &Path) -> Result<SigningKey> {
    let bytes = daemon::private_file::read_private(path)?;
    let key = signing_key_from_text(&String::from_utf8_lossy(&bytes));
    key.map_err(|error| Failure::from(error).context(format_args!("read the key in `{}`", path.display())))
}

/// Checks before anything is sent that the server's repository is encrypted with this key, or unencrypted if there is
/// none. `Refused` otherwise.
pub(crate) fn check_server(options: &Keys, client: &Client) -> Result<()> {
    let (key, summary) = (encryption_key(options)?, client.repository()?);
    let refused = |why: &str, hint: &str| Err(Failure::new(Exit::Refused, why).hint(hint));
    match (key, summary.key_check) {
        (None, None) => Ok(()),
        (Some(key), Some(check)) if key.check(&summary.id).to_hex() == check => Ok(()),
        (Some(_), Some(_)) => refused(
            "the server's repository is encrypted by another key",
            "--encryption-key names the right one",
        ),
        (None, Some(_)) => {
            refused("the server's repository is encrypted", "--encryption-key names the file of its key")
        }
        (Some(_), None) => refused(
            "the server's repository is not encrypted, though a key for it was given",
            "omit --encryption-key if everybody there may read what you send",
        ),
    }
}

/// The trusted keys; `None` if the options name none, so that signatures are not required.
pub(crate) fn trust(options: &Keys) -> Result<Option<Trust>> {
    let mut trust = Trust::default();
    for path in &options.trust {
        for file in files(path)? {
            let doing = || format!("read the public keys in `{}`", file.display());
            let found = std::fs::File::open(&file).and_then(|file| {
                let mut text = String::new();
                std::io::Read::read_to_string(&mut std::io::Read::take(file, FILE_BYTES_MAX), &mut text)?;
                Ok(text)
            });
            let found = found.map_err(|error| Failure::from(error).context(doing()))?.parse::<Trust>();
            let added = found.and_then(|found| trust.add_all(&found));
            added.map_err(|error| Failure::from(error).context(doing()))?;
        }
    }
    match (options.trust.is_empty(), trust.is_empty()) {
        (true, _) => Ok(None),
        (false, true) => {
            let paths: Vec<_> = options.trust.iter().map(|path| path.display().to_string()).collect();
            Err(Failure::new(Exit::Usage, format!("there is no public key in {}", paths.join(", "))).hint(
                "`diskcast key show` prints the public half of a key; in a folder the files *.pub count",
            ))
        }
        (false, false) => Ok(Some(trust)),
    }
}

/// The keys of which one must have signed everything; `None` if signatures are not required, or only warned about.
pub(crate) fn required_trust(options: &Keys) -> Result<Option<Trust>> {
    if options.allow_untrusted { Ok(None) } else { trust(options) }
}

/// The file at `path`, or the files `*.pub` in the folder at `path`, sorted.
fn files(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = std::fs::read_dir(path).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
    let entries = entries.map_err(|error| Failure::from(error).context(path.display()))?;
    let mut files: Vec<_> = entries.into_iter().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "pub"));
    files.sort();
    Ok(files)
}

/// With `--allow-untrusted`: a warning unless a trusted key signed `version`. Without it, [`Images::find`] checked.
pub(crate) fn warn(
    context: &Context,
    images: &dyn Images,
    what: &dyn Display,
    version: &SignedManifest,
) -> Result<()> {
    let options = &context.global.keys;
    let Some(trust) = trust(options)?.filter(|_| options.allow_untrusted) else { return Ok(()) };
    if let Err(error) = images.judge(&format_args!("`{what}`"), version, &trust) {
        context.output.warning(&format!("{}: used all the same", base::chain(&error)));
    }
    Ok(())
}

/// Adds a hint to the failure for a missing trusted signature.
pub(crate) fn explain(error: impl Into<Failure>) -> Failure {
    let failure = error.into();
    if failure.exit == Exit::Refused && failure.subject == Some(Subject::OldSignature) {
        failure.hint(
            "`diskcast key cut-over --sign-key FILE` accepts what was signed so far; --allow-untrusted takes it with a \
             warning",
        )
    } else if failure.exit == Exit::Refused {
        failure.hint("--trust names the keys that are trusted; --allow-untrusted takes it with a warning")
    } else {
        failure
    }
}

/// A key as text for people: its name in the trusted keys of the repository, and its first digits.
pub(crate) fn show(repository: &Repository, key: PublicKey) -> String {
    words(key, repository.keys().trust.as_ref().and_then(|trust| trust.name_of(key)))
}

/// Names of the trusted keys, for a command that has no repository.
pub(crate) struct Named(Option<Trust>);

impl Named {
    pub(crate) fn of(options: &Keys) -> Result<Self> {
        Ok(Self(trust(options)?))
    }

    /// A key as text for people, as [`show`].
    pub(crate) fn show(&self, key: PublicKey) -> String {
        words(key, self.0.as_ref().and_then(|trust| trust.name_of(key)))
    }
}

/// A key as text for people: its name, and its first digits.
pub(crate) fn words(key: PublicKey, name: Option<&str>) -> String {
    match name {
        Some(name) if !name.is_empty() => format!("{name} ({})", key.short()),
        _ => format!("key {}", key.short()),
    }
}
