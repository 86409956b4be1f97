//! `diskcast repository`: shows the location of the repository and what its store supports.

use std::fmt::Write;

use base::units::show_bytes;
use serde_json::json;
use store::{Capabilities, Replaces, Repository};

use super::Context;
use crate::exit::Result;
use crate::ui::table::printable;
use crate::{clock, repository};

/// Show where the repository is and what its store supports
///
/// An S3 store is configured by the usual environment variables: AWS_ENDPOINT_URL (of any store but Amazon's),
/// AWS_REGION, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SHARED_CREDENTIALS_FILE and AWS_PROFILE;
/// AWS_SESSION_TOKEN; AWS_CA_BUNDLE. Before diskcast first writes to a store, it tests whether the store can prevent
/// two writers from creating the same record, and stores the result, which is shown here.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast repository
  diskcast repository --repo s3://images/lab --probe     test the store again, after its software was changed")]
pub(crate) struct Args {
    /// Test the store now, and store the result
    #[arg(long)]
    pub probe: bool,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    let repository = repository::open(&context.global)?;
    let probe = match args.probe && !context.global.dry_run {
        true => Some(repository.capabilities()?),
        false => repository.known_capabilities()?,
    };
    let images = repository.images()?.len();
    let record = json!({
        "type": "repository", "location": repository.name(), "id": repository.id(), "images": images,
        "cache": repository.cache_bytes().map(|(bytes, folder)| {
            json!({ "folder": folder.display().to_string(), "bytes": bytes })
        }),
        "probe": probe.as_ref().map(|probe| json!({
            "place": probe.place, "program": probe.program, "created": probe.created, "creator": probe.creator,
            "verdict": probe.verdict, "replaces_on_condition": probe.replaces == Replaces::OnCondition,
        })),
    });
    let cache_bytes_max = context.global.cache_size;
    context.output.answer(&record, || text(&repository, images, probe.as_ref(), cache_bytes_max))
}

fn text(
    repository: &Repository,
    images: usize,
    probe: Option<&Capabilities>,
    cache_bytes_max: u64,
) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        writeln!(text, "{name:<11} {}", printable(value)).expect("a string takes everything");
    };
    line("repository", repository.name());
    line("id", repository.id());
    line("images", &images.to_string());
    match probe {
        None => line("store", "not tested yet: the first write tests it, or `diskcast repository --probe`"),
        Some(probe) => {
            let Capabilities { place, program, created, creator, verdict, .. } = probe;
            line("store", place);
            line("tried", &format!("{} by {creator} with {program}", clock::short(created)));
            line("verdict", verdict);
        }
    }
    if let Some((bytes, folder)) = repository.cache_bytes() {
        let (bytes, most) = (show_bytes(bytes), show_bytes(cache_bytes_max));
        line("cache", &format!("{}, {bytes} of at most {most}", folder.display()));
    }
    text
}
