//! `diskcast cluster rebuild-index`: finds again what lies on the devices.

use cluster::client::{Cluster, Salvage};
use serde_json::json;

use super::status::access;
use crate::commands::Context;
use crate::exit::{Exit, Failure, Result};

/// Find again what lies on the devices, when the index has lost it
///
/// For the case that more devices were lost than a cluster survives: all holders of a part of the index. Reads the
/// directories of all segments, and puts into the index what it does not know. What was deleted can come back, if the
/// index has also lost that it was deleted. Records (versions and tags) lie in the metadata service, not in the index.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast cluster rebuild-index --repo cluster://127.0.0.1:7400 --cluster-token cluster.token")]
pub(crate) struct Args {}

pub(crate) fn run(context: &Context, _: &Args) -> Result<()> {
    let access = access(context)?;
    let output = context.output;
    let told = |done: &Salvage| output.detail(&format!("{} segments read", done.segments));
    let done = Cluster::rebuild_index(&access, told)?;
    let Salvage { segments, names, restored, unreadable } = done;
    let record = json!({
        "type": "index_rebuilt", "segments": segments, "names": names, "restored": restored, "unreadable": unreadable,
    });
    output.result(&record, || {
        format!("{restored} of {names} names in {segments} segments were not in the index\n")
    })?;
    if unreadable > 0 {
        let text = format!("{unreadable} of {segments} segments could not be read to their end");
        return Err(Failure::new(Exit::Partly, text).hint("more devices may have to come back first"));
    }
    Ok(())
}
