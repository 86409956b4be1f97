//! `diskcast deploy`: gives machines that boot from the network an image.

use net::api::{After, Work};

use super::Context;
use super::hosts::{self, At, Terms};
use crate::args::parse::parse_window;
use crate::exit::Result;

/// Put an image on machines that boot from the network
///
/// Each machine takes the job when it boots, or at once if it waits in our system. All that come together share one
/// multicast. `diskcast hosts` shows how far they are.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast deploy classroom lab-07
  diskcast deploy classroom@12 lab --wake --at 2026-12-01T22:30:00+01:00
  diskcast deploy web rack4 --disk 'disk:size=>=400G,rotational=false' --grow")]
pub(crate) struct Args {
    /// `image`, `image:tag` or `image@version`
    pub name: String,
    /// Machines by name or address of the network card, groups, or `*` for all
    #[arg(required = true)]
    pub machines: Vec<String>,
    /// Leave the disk as it was captured: without a host name and identity of its own
    #[arg(long)]
    pub as_captured: bool,
    /// Grow the last partition to the end of the disk
    #[arg(long)]
    pub grow: bool,
    /// How long the first machine waits for the others, so that they begin together
    #[arg(long, value_name = "TIME", value_parser = parse_window, default_value = "15s")]
    pub window: std::time::Duration,
    #[command(flatten)]
    pub terms: Terms,
    #[command(flatten)]
    pub server: At,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    let after = After { own: !args.as_captured, grow: args.grow };
    let work = Work::Install { reference: args.name.clone(), after };
    hosts::give(
        context,
        &hosts::manager(context, &args.server)?,
        work,
        &args.machines,
        &args.terms,
        args.window,
    )
}
