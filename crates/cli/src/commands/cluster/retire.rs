//! `diskcast cluster drain` and `lost`: devices that leave a cluster.

use cluster::client::Cluster;
use serde_json::json;

use super::status::access;
use crate::commands::Context;
use crate::exit::{Exit, Failure, Result};

/// Move what a device holds to others, so that it can be taken away
///
/// It takes nothing new. `diskcast cluster status` shows how many parts are still to be moved.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast cluster drain 3 --repo cluster://127.0.0.1:7400 --cluster-token cluster.token")]
pub(crate) struct DrainArgs {
    /// Number of the device
    #[arg(value_name = "DEVICE")]
    pub device: u32,
}

/// Declare that what a device held is gone, and rebuild it on others
///
/// For a disk that failed. A device that is only switched off needs nothing: what it holds counts again when it comes
/// back. A device that answers is not declared lost. Needs --yes.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast cluster lost 3 --yes --repo cluster://127.0.0.1:7400 --cluster-token cluster.token")]
pub(crate) struct LostArgs {
    /// Number of the device
    #[arg(value_name = "DEVICE")]
    pub device: u32,
}

pub(crate) fn drain(context: &Context, args: &DrainArgs) -> Result<()> {
    let device = args.device;
    if !context.global.dry_run {
        Cluster::drain(&access(context)?, device)?;
    }
    say(context, "drain", device, "is drained: what it holds goes to others")
}

pub(crate) fn lost(context: &Context, args: &LostArgs) -> Result<()> {
    let device = args.device;
    if !context.global.yes && !context.global.dry_run {
        let text = format!("everything on device {device} is given up, and rebuilt on others");
        return Err(Failure::new(Exit::Refused, text).hint("--yes does it"));
    }
    if !context.global.dry_run {
        Cluster::declare_lost(&access(context)?, device)?;
    }
    say(context, "lost", device, "is lost: what it held is rebuilt on others")
}

fn say(context: &Context, what: &str, device: u32, text: &str) -> Result<()> {
    let record = json!({"type": what, "device": device, "dry_run": context.global.dry_run});
    let would = context.would();
    context.output.result(&record, || {
        format!("{would}device {device} {text}; `diskcast cluster status` shows how far\n")
    })
}
