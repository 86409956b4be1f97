//! `diskcast netboot`: bare machines boot from this one, and get their disks.

use super::Context;
use super::serve::{Boot, Serving, serve};
use crate::exit::Result;

/// Let bare machines boot from this one, and get their disks
///
/// Does all that `serve` does, and offers DHCP, TFTP and HTTP to machines on the named network interface only. They
/// load a small system in memory, which does what `deploy` and `hosts` say. Makes the boot image if there is none yet.
/// Takes root.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast netboot eth1                                  beside a DHCP server
  diskcast netboot eth1 --dhcp 10.0.0.100-10.0.0.200/24  where there is none
  diskcast netboot eth1 --boot-image /srv/boot --repo /srv/images")]
pub(crate) struct Args {
    /// The network interface on which machines boot
    #[arg(value_name = "INTERFACE")]
    pub netboot: String,
    #[command(flatten)]
    pub boot: Boot,
    #[command(flatten)]
    pub serving: Serving,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    serve(context, &args.serving, Some((&args.netboot, &args.boot)), (true, args.boot.strict))
}
