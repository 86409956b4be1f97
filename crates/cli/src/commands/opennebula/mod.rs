//! `diskcast opennebula`: what OpenNebula's drivers do. The scripts in integrations/opennebula call it.

mod datastore;
mod host;
mod market;
mod offer;
mod own;
mod place;
mod room;
mod settings;
mod tm;
mod tools;
mod vm;
mod volume;
mod xml;

use super::Context;
use crate::exit::Result;

/// Do what a driver of OpenNebula is asked for
///
/// OpenNebula starts a driver's script for each action, and the scripts of diskcast start this. It reads
/// /etc/one/diskcast.toml, or the file that DISKCAST_ONE names. docs/opennebula.md has the set-up.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast opennebula tm clone main:web@3 node1:/var/lib/one/datastores/100/42/disk.0 42 101
  diskcast opennebula datastore stat 0 < action.b64
  diskcast opennebula market monitor 7 < action.b64")]
pub(crate) struct Args {
    /// Which driver
    #[arg(value_enum)]
    pub driver: Driver,
    /// The action, as OpenNebula names it
    pub action: String,
    /// Arguments that OpenNebula gives the script
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    pub arguments: Vec<String>,
}

/// The drivers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Driver {
    /// Disks of machines
    Tm,
    /// Images
    Datastore,
    /// Images that others may import
    Market,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    let said = match args.driver {
        Driver::Tm => tm::act(context, &args.action, &args.arguments)?,
        Driver::Datastore => datastore::act(context, &args.action, &args.arguments)?,
        Driver::Market => market::act(&args.action, &args.arguments)?,
    };
    // Standard output is OpenNebula's answer: nothing else may be in it.
    context.output.answer(&serde_json::json!({ "type": "answer", "text": said }), || said.clone())
}
