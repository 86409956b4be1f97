//! `diskcast personalize`: makes an installed disk a machine of its own.

use std::path::{Path, PathBuf};

use disk::grow;
use disk::personal::STALE;
use image::Manifest;
use serde_json::json;

use super::Context;
use crate::args::{Own, Writing};
use crate::exit::{Exit, Failure, Result};
use crate::interrupt::Leaves;
use crate::ui::output::Output;
use crate::{interrupt, target};

/// Make an installed disk a machine of its own
///
/// Changes the disk, not the image: `install` and `fetch` take the same options. The disk must not be in use, and its
/// Linux root lies in ext2, ext3, ext4, XFS or btrfs.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast personalize /dev/sdb --new-identity --hostname lab-07
  diskcast personalize disk.img --cloud-init seed/
  diskcast install web /dev/sdb --grow --new-identity --hostname web-2      in one go
  diskcast personalize /dev/sdb --copy wg0.conf:/etc/wireguard/wg0.conf --run enable-vpn.sh")]
pub(crate) struct Args {
    /// Block device or raw file
    pub disk: PathBuf,
    #[command(flatten)]
    pub own: Own,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    let personal = args.own.personal();
    if !personal.is_any() {
        return Err(Failure::new(Exit::Usage, "say what the disk is to get, such as --new-identity"));
    }
    if context.global.dry_run {
        let map = disk::survey(&disk::open_source(&args.disk)?, &disk::SurveyOptions::default())?;
        personal.check(&grow::slots(&map))?;
        let record = json!({ "type": "plan", "disk": args.disk.display().to_string() });
        return context.output.result(&record, || format!("would do: personalize {}\n", args.disk.display()));
    }
    apply(&args.disk, &args.own, context.output)
}

/// Hint for a disk whose files name old identifiers.
const STALE_HINT: &str = "let the image name its filesystems by UUID or label there, which stay; \
                          --accept-stale-ids goes on nevertheless";

fn apply(disk: &Path, own: &Own, output: Output) -> Result<()> {
    interrupt::leaves(Leaves::NotPersonal);
    // The first Ctrl-C waits: a filesystem that is mounted or half changed must not be left.
    interrupt::hold();
    let done = own.personal().apply(disk).map_err(|error| {
        let is_stale = error.to_string().contains(STALE);
        let failure = Failure::from(error);
        if is_stale { failure.hint(STALE_HINT) } else { failure }
    })?;
    interrupt::leaves(Leaves::Nothing);
    let record = json!({ "type": "personalized", "disk": disk.display().to_string(), "done": done });
    output.result(&record, || format!("personalized {}: {}\n", disk.display(), done.join(", ")))
}

/// Checks, before anything is written, that an installed `version` can become what `writing` asks for.
pub(crate) fn check(target: &Path, version: &Manifest, writing: &Writing) -> Result<()> {
    let personal = writing.own.personal();
    if !personal.is_any() {
        return Ok(());
    }
    if !target::is_plain(target, writing) {
        return Err(Failure::new(Exit::Usage, "only a disk or a raw file can become a machine of its own"));
    }
    personal.check(&version.slots()).map_err(|error| Failure::from(error).hint("nothing was written"))
}

/// Does it after the install.
pub(crate) fn after_install(target: &Path, writing: &Writing, output: Output) -> Result<()> {
    if !writing.own.personal().is_any() {
        return Ok(());
    }
    let told = |mut failure: Failure| {
        // Not a precondition any more: the image is written.
        if failure.exit == Exit::Refused {
            failure.exit = Exit::Failed;
            failure = failure.context("the image is installed, but its disk is not a machine of its own");
        }
        failure.hint("the image is installed; `diskcast personalize` tries again")
    };
    apply(target, &writing.own, output).map_err(told)
}
