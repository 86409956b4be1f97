//! `diskcast remove`: removes a version, or a tag.

use serde_json::json;
use store::{Reference, Removed};

use super::Context;
use crate::args::Remove;
use crate::exit::{Exit, Failure, Result};
use crate::{prompt, repository};

pub fn run(context: &Context, args: &Remove) -> Result<()> {
    let repository = repository::open(&context.global)?;
    let reference = repository::reference(&args.name)?;
    if let Reference::Newest(image) = &reference {
        return Err(Failure::new(Exit::Usage, format!("`{image}` does not say which version to remove"))
            .hint(format!("say `{image}@NUMBER` for a version or `{image}:TAG` for a tag; `diskcast images {image}` lists them")));
    }
    let version = repository.look(&reference)?.0.manifest;
    let is_version = matches!(reference, Reference::Version(..));
    if is_version && !context.global.yes && !context.global.dry_run {
        prompt::confirm(&format!("{reference}, made {}, will be removed", version.created))?;
    }
    if !context.global.dry_run {
        let removed = repository.remove(&reference, &repository::stamp()).map_err(explain)?;
        debug_assert_eq!(is_version, matches!(removed, Removed::Version(_)));
    }
    let record = json!({
        "type": "removed", "image": version.image, "number": version.number,
        "what": if is_version { "version" } else { "tag" }, "dry_run": context.global.dry_run,
    });
    context.output.result(&record, || {
        let stays = if is_version { "" } else { "; the version stays" };
        format!("{}removed {reference}{stays}\n", context.would())
    })
}

fn explain(error: store::Error) -> Failure {
    let refused = error.kind() == store::ErrorKind::Refused;
    let failure = Failure::from(error);
    if refused {
        failure.hint("move its tags to another version first, or remove them: `diskcast remove IMAGE:TAG`")
    } else {
        failure
    }
}
