//! `diskcast init`: makes an empty repository.

use serde_json::json;

use super::Context;
use crate::exit::Result;
use crate::{keys, repository};

/// Create an empty repository, encrypted if a key is given
///
/// `diskcast capture` creates an unencrypted repository if there is none. If you lose the key of an encrypted
/// repository, you lose its content.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast init --repo /srv/images
  diskcast key new --encryption repository.key && diskcast init --encryption-key repository.key")]
pub(crate) struct Args {}

pub(crate) fn run(context: &Context, _: &Args) -> Result<()> {
    if context.global.dry_run {
        let encrypted = keys::encryption_key(&context.global.keys)?.is_some();
        let record = json!({ "type": "plan", "encrypted": encrypted });
        return context
            .output
            .result(&record, || format!("would do: make a repository{}\n", words(encrypted)));
    }
    let repository = repository::create(&context.global)?;
    let encrypted = repository.key_check().is_some();
    let record = json!({
        "type": "repository", "location": repository.name(), "id": repository.id(), "encrypted": encrypted,
    });
    context
        .output
        .result(&record, || format!("made the repository {}{}\n", repository.name(), words(encrypted)))
}

fn words(encrypted: bool) -> &'static str {
    if encrypted { ", encrypted" } else { "" }
}
