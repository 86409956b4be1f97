//! `diskcast key`: makes keys that sign versions and tags or encrypt repositories, and shows public keys.

use std::path::{Path, PathBuf};

use image::signature::signing_key_to_text;
use image::{EncryptionKey, PublicKey, SigningKey};
use serde_json::json;

use super::Context;
use crate::exit::{Exit, Failure, Result};
use crate::{keys, repository};

/// Make keys that sign versions and tags, or encrypt a repository
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast key new --encryption repository.key    for `diskcast init --encryption-key`; keep a copy
  diskcast key new lab.key                        also writes lab.key.pub, for machines that shall trust it
  diskcast capture /dev/sda classroom --sign-key lab.key
  diskcast install classroom /dev/sdb --trust lab.key.pub")]
pub(crate) struct Args {
    #[command(subcommand)]
    pub what: KeyCommand,
}

impl Args {
    /// Whether it works on a repository.
    pub(crate) fn is_of_repository(&self) -> bool {
        matches!(self.what, KeyCommand::CutOver { .. })
    }
}

/// What to do with keys.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum KeyCommand {
    /// Make a signing key: the private half in FILE (mode 0600), the public half in FILE.pub
    New {
        /// Make a key that encrypts a repository instead; it has no public half
        #[arg(long, conflicts_with = "name")]
        encryption: bool,
        /// File to create; it must not exist
        file: PathBuf,
        /// Comment that others see with the key [default: user and host]
        #[arg(long, value_name = "TEXT")]
        name: Option<String>,
    },
    /// Print the public half of the key in FILE
    Show {
        /// File made by `diskcast key new` or `openssl genpkey -algorithm ed25519`
        file: PathBuf,
    },
    /// Accept what older programs signed in this repository, as it is now
    ///
    /// Signatures of older programs are not for a certain repository, so machines with --trust refuse them. This
    /// creates a record, signed by --sign-key, that lists the versions and tags that this key, or a key that --trust
    /// names, signed so far. Machines that trust the key accept these, and nothing else without the repository's id.
    CutOver {
        /// Images [default: all]
        images: Vec<String>,
    },
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    match &args.what {
        KeyCommand::New { file, encryption: true, .. } => new_encryption(context, file),
        KeyCommand::New { file, name, .. } => new(context, file, name.clone()),
        KeyCommand::Show { file } => {
            let line = line(&keys::signing(file)?, "");
            context.output.answer(&json!({ "type": "key", "public": line }), || format!("{line}\n"))
        }
        KeyCommand::CutOver { images } => cut_over(context, images),
    }
}

fn cut_over(context: &Context, names: &[String]) -> Result<()> {
    if context.global.keys.sign_key.is_none() {
        return Err(Failure::new(Exit::Usage, "a key that signs is needed").hint("--sign-key names its file"));
    }
    let repository = repository::open(&context.global)?;
    let images = match names {
        [] => repository.images()?,
        names => names.iter().map(|name| name.parse()).collect::<base::Result<_>>()?,
    };
    for image in images {
        if context.global.dry_run {
            let record = json!({ "type": "plan", "image": image.as_str() });
            context.output.result(&record, || {
                format!("{}accept what older programs signed of {image}\n", context.would())
            })?;
            continue;
        }
        let done = repository.cut_over(&image, &repository::stamp())?;
        let record = json!({
            "type": "cut-over", "image": image.as_str(), "number": done.number, "last": done.last,
            "versions": done.versions, "tags": done.tags, "untrusted": done.untrusted,
        });
        context.output.result(&record, || {
            format!(
                "{image}: accepts {} versions up to {}, and {} tags, that older programs signed; {} are not signed by \
                 a trusted key\n",
                done.versions, done.last, done.tags, done.untrusted
            )
        })?;
    }
    Ok(())
}

fn new(context: &Context, file: &Path, name: Option<String>) -> Result<()> {
    let public_file = public_file(file);
    if context.global.dry_run {
        return plan(context, &[file, &public_file]);
    }
    let key = SigningKey::from_bytes(&random()?);
    let line = line(&key, &name.unwrap_or_else(|| repository::stamp().creator));
    daemon::private_file::make_private(file, signing_key_to_text(&key).as_bytes())?;
    std::fs::write(&public_file, format!("{line}\n"))
        .map_err(|error| Failure::from(error).context(format_args!("write `{}`", public_file.display())))?;
    context.output.note(&format!(
        "made {}, which signs, and {}, which machines need to trust it",
        file.display(),
        public_file.display()
    ));
    let record = json!({
        "type": "key", "file": file.display().to_string(), "public_file": public_file.display().to_string(),
        "public": line,
    });
    context.output.answer(&record, || format!("{line}\n"))
}

fn new_encryption(context: &Context, file: &Path) -> Result<()> {
    if context.global.dry_run {
        return plan(context, &[file]);
    }
    let key = EncryptionKey::from_bytes(random()?);
    daemon::private_file::make_private(file, key.to_text().as_bytes())?;
    context.output.result(&json!({ "type": "key", "file": file.display().to_string() }), || {
        format!("made {}: keep a copy; what it encrypts cannot be read without it\n", file.display())
    })
}

/// Shows which files a key would be in. It is not drawn: nobody could use it.
fn plan(context: &Context, files: &[&Path]) -> Result<()> {
    if files[0].exists() {
        return Err(Failure::new(Exit::Refused, format!("`{}` exists already", files[0].display())));
    }
    let names: Vec<_> = files.iter().map(|file| file.display().to_string()).collect();
    let record = json!({ "type": "plan", "files": names });
    context.output.result(&record, || format!("{}make {}\n", context.would(), names.join(" and ")))
}

fn random() -> Result<[u8; 32]> {
    let mut secret = [0; 32];
    getrandom::fill(&mut secret).map_err(std::io::Error::from)?;
    Ok(secret)
}

/// The public half of `key` as a line of a file.
fn line(key: &SigningKey, name: &str) -> String {
    let public = PublicKey::from(key);
    let name: String = name.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    format!("{public} {name}").trim_end().to_owned()
}

/// `FILE.pub`.
fn public_file(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".pub");
    name.into()
}
