//! `diskcast cluster`: a cluster as a whole.

mod certificate;
mod limit;
mod rebalance;
mod rebuild;
mod retire;
mod status;
mod trial;

use super::Context;
use crate::exit::Result;

/// Look at a cluster, or try one on this machine
///
/// A cluster keeps a repository on many disks: what is stored is cut into data and parity parts, each on another
/// device, and any of them may fail. `diskcast cluster metadata` and `diskcast cluster device` run its parts.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast cluster try /srv/try --devices 10
  diskcast cluster status --repo cluster://127.0.0.1:7400 --cluster-token /srv/try/cluster.token")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Try(trial::Args),
    Status(status::Args),
    Drain(retire::DrainArgs),
    Lost(retire::LostArgs),
    Rebalance(rebalance::Args),
    Limit(limit::Args),
    RebuildIndex(rebuild::Args),
    Certificate(certificate::Args),
    Metadata(super::metadata::Args),
    Device(super::device::Args),
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    match &args.command {
        Command::Try(args) => trial::run(context, args),
        Command::Status(args) => status::run(context, args),
        Command::Drain(args) => retire::drain(context, args),
        Command::Lost(args) => retire::lost(context, args),
        Command::Rebalance(args) => rebalance::run(context, args),
        Command::Limit(args) => limit::run(context, args),
        Command::RebuildIndex(args) => rebuild::run(context, args),
        Command::Certificate(args) => certificate::run(context, args),
        Command::Metadata(args) => super::metadata::run(context, args),
        Command::Device(args) => super::device::run(context, args),
    }
}
