//! `diskcast deploy`: gives machines that boot from the network an image.

use net::api::{After, DeployRequest};
use serde_json::json;

use super::Context;
use super::hosts::{self, At};
use crate::exit::Result;

/// Put an image on machines that boot from the network
///
/// Each machine takes the job when it boots, or at once if it waits in our system. All that come together share one
/// multicast. `diskcast hosts` shows how far they are.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast deploy classroom lab-07
  diskcast deploy classroom@12 lab --wake
  diskcast deploy web rack4 --disk 'disk:size=>=400G,rotational=false' --grow")]
pub(crate) struct Args {
    /// `image`, `image:tag` or `image@version`
    pub name: String,
    /// Machines by name or address of the network card, groups, or `*` for all
    #[arg(required = true)]
    pub machines: Vec<String>,
    /// Which disk, if a machine has several: `disk:serial=S1`
    #[arg(long, value_name = "RULE")]
    pub disk: Option<String>,
    /// Leave the disk as it was captured: without a host name and identity of its own
    #[arg(long)]
    pub as_captured: bool,
    /// Grow the last partition to the end of the disk
    #[arg(long)]
    pub grow: bool,
    /// Wake the machines
    #[arg(long)]
    pub wake: bool,
    #[command(flatten)]
    pub at: At,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    args.disk.as_deref().map(crate::target::check_rule).transpose()?;
    let request = DeployRequest {
        reference: args.name.clone(),
        machines: args.machines.clone(),
        disk: args.disk.clone(),
        after: After { own: !args.as_captured, grow: args.grow },
        wake: args.wake,
    };
    let done = hosts::manager(context, &args.at)?.deploy(&request)?;
    let record = json!({ "type": "deployment", "reference": done.reference, "machines": done.machines });
    context.output.result(&record, || {
        let names = hosts::names(&done.machines);
        format!("{} will be put on {names}, when they boot; see `diskcast hosts`\n", done.reference)
    })
}
