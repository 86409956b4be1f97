//! `diskcast detach`: makes an attached disk durable and ends its process; deletes the disk if requested.

use base::{Error, ErrorKind};
use daemon::attached::{Answer, Request, Settings, ask, discard, exists};
use serde_json::json;

use super::Context;
use super::disks::{folder_of, no_such_disk};
use crate::args::DisksFolder;
use crate::exit::{Exit, Failure, Result};

/// Stop an attached disk after making it durable
///
/// Its clients are informed. Without --discard the disk is kept, and `diskcast attach NAME` continues with it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast detach vm1
  diskcast detach vm1 --discard")]
pub(crate) struct Args {
    /// Name of the disk
    pub name: String,
    #[command(flatten)]
    pub place: DisksFolder,
    /// Delete the disk; refused if it was written to since the last commit
    #[arg(long)]
    pub discard: bool,
    /// Delete it even then
    #[arg(long, requires = "discard")]
    pub force: bool,
}

/// Hint for uncommitted changes.
const UNCOMMITTED: &str = "`diskcast commit --disk` keeps them, --force deletes them";

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    let folder = folder_of(&args.place, &args.name)?;
    let Some(settings) = Settings::load(&folder)? else { return Err(no_such_disk(&args.name)) };
    if context.global.dry_run {
        let record = json!({ "type": "plan", "name": args.name, "discard": args.discard });
        return context.output.result(&record, || {
            let and = if args.discard { " and delete it" } else { "" };
            format!("{}detach the disk {}{and}\n", context.would(), args.name)
        });
    }
    let request = Request::Detach { discard: args.discard, force: args.force };
    let ran = match ask(&folder, &request, &mut |_| {}) {
        Ok(Answer::Detached { .. }) => true,
        Ok(_) => return Err(Failure::new(Exit::Failed, "the disk sent an answer of the wrong type")),
        // No process runs it.
        Err(error) if error.kind() == ErrorKind::NotRunning => false,
        Err(error) => return Err(explain(args, error)),
    };
    if !ran && args.discard {
        discard(&folder, &settings, args.force).map_err(|error| explain(args, error))?;
    }
    let stays = exists(&folder);
    let record = json!({ "type": "detached", "name": args.name, "ran": ran, "discarded": !stays });
    context.output.result(&record, || match (ran, stays) {
        (true, true) => format!("detached {0}; `diskcast attach {0}` goes on with it\n", args.name),
        (false, true) => format!("no process runs {0}; `diskcast attach {0}` goes on with it\n", args.name),
        (_, false) => format!("detached and deleted {}\n", args.name),
    })
}

fn explain(args: &Args, error: Error) -> Failure {
    let failure = Failure::from(error);
    if args.discard && failure.exit == Exit::Refused { failure.hint(UNCOMMITTED) } else { failure }
}
