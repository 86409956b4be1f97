//! `diskcast cluster rebalance`: new devices get their share.

use cluster::client::Cluster;
use serde_json::json;

use super::status::access;
use crate::commands::Context;
use crate::exit::Result;

/// Move parts from full devices to empty ones, as after new ones joined
///
/// Without it, new devices only get more of what is stored from then on. At most one part of each segment is moved at a
/// time: once `diskcast cluster status` shows nothing left to be moved, do it again if devices still differ.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast cluster rebalance --repo cluster://127.0.0.1:7400 --cluster-token cluster.token")]
pub(crate) struct Args {}

pub(crate) fn run(context: &Context, _: &Args) -> Result<()> {
    let access = access(context)?;
    if context.global.dry_run {
        return context.output.result(&json!({"type": "plan"}), || {
            "would move parts from full devices to empty ones\n".to_owned()
        });
    }
    let moves = Cluster::rebalance(&access)?;
    context.output.result(&json!({"type": "rebalance", "moves": moves}), || match moves {
        0 => "all devices are about equally full: nothing is to be moved\n".to_owned(),
        some => format!("{some} parts of segments are moved; `diskcast cluster status` shows how far\n"),
    })
}
