//! `diskcast key`: makes keys that sign versions and tags or encrypt repositories, and shows public halves.

use std::path::{Path, PathBuf};

use image::signature::signing_key_to_text;
use image::{PublicKey, SealKey, SigningKey};
use serde_json::json;

use super::Context;
use crate::args::{Key, KeyCommand};
use crate::exit::{Failure, Result};
use crate::{keys, repository};

pub fn run(context: &Context, args: &Key) -> Result<()> {
    match &args.what {
        KeyCommand::New { file, encryption: true, .. } => new_encryption(context, file),
        KeyCommand::New { file, name, .. } => new(context, file, name.clone()),
        KeyCommand::Show { file } => {
            let line = line(&keys::signing(file)?, "");
            context.output.answer(&json!({ "type": "key", "public": line }), || format!("{line}\n"))
        }
    }
}

fn new(context: &Context, file: &Path, name: Option<String>) -> Result<()> {
    let public_file = public_file(file);
    let key = SigningKey::from_bytes(&random()?);
    let line = line(&key, &name.unwrap_or_else(|| repository::stamp().creator));
    if !context.global.dry_run {
        daemon::state::make_private(file, signing_key_to_text(&key).as_bytes())?;
        std::fs::write(&public_file, format!("{line}\n")).map_err(|error| {
            Failure::from(error).context(format_args!("write `{}`", public_file.display()))
        })?;
    }
    context.output.note(&format!(
        "{}made {}, which signs, and {}, which those who trust it need",
        context.would(),
        file.display(),
        public_file.display()
    ));
    let record = json!({ "type": "key", "file": file, "public_file": public_file, "public": line });
    context.output.answer(&record, || format!("{line}\n"))
}

fn new_encryption(context: &Context, file: &Path) -> Result<()> {
    let key = SealKey::from_bytes(random()?);
    if !context.global.dry_run {
        daemon::state::make_private(file, key.to_text().as_bytes())?;
    }
    context.output.result(&json!({ "type": "key", "file": file }), || {
        let (would, file) = (context.would(), file.display());
        format!("{would}made {file}: keep a copy, without it nobody reads what it encrypts\n")
    })
}

fn random() -> Result<[u8; 32]> {
    let mut secret = [0; 32];
    getrandom::fill(&mut secret).map_err(std::io::Error::from)?;
    Ok(secret)
}

/// The public half of `key` as it stands in a file.
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
