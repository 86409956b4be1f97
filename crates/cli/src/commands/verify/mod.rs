//! `diskcast verify`: checks that every stored byte is intact, and repairs damage if requested; or whether a disk is
//! what a version says.

mod disk;
mod doubts;
mod pieces;
mod through;

use base::units::{show_bytes, show_duration};
use doubts::Doubts;
use serde_json::json;
use store::{Damage, Healed, How, Reference, RepairReport, Repository, Scope, Signer, VerifyReport, Why};

use super::Context;
use crate::args::FromServer;
use crate::exit::{Exit, Failure, Result};
use crate::ui::progress::{Meter, show_rate};
use crate::{clock, keys, repository};

/// Verify every stored byte, and who signed it; or a disk
///
/// An invalid signature counts as damage. With --trust, so does everything that no trusted key signed. Data that
/// can't be reached now, for example on devices of a cluster that are away, does not count as damage: the exit code is
/// 1 if there is nothing worse, and 12 for damage. If --repo names a server, what it offers is downloaded and checked
/// here.
///
/// With --disk it compares a disk with a version, and writes nothing. It shows which partitions and ranges of bytes
/// differ, and, for root on ext2, ext3, ext4 and XFS, which files. Free space may hold anything, and a backup GPT that
/// an install moved to the end of a larger disk is right there. Only chunks that differ are read from the repository.
/// The exit code is 0 if all is equal, 12 if something differs.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast verify                      everything
  diskcast verify classroom@3          everything that one version needs
  diskcast verify --repair             repair what this repository alone can repair
  diskcast verify --repair /mnt/backup
  diskcast verify --disk /dev/sda classroom        is this disk still what was installed?
  diskcast verify --disk vm.qcow2 web:stable --json
  diskcast verify --trust /etc/diskcast/keys
  diskcast verify classroom --repo https://10.0.0.1:7717 --token-file join.token")]
pub(crate) struct Args {
    /// Version to verify [default: the whole repository]
    pub name: Option<String>,
    /// Repair damaged records; copy what is damaged or missing from this other repository, where it is intact
    #[arg(long, value_name = "URL|FOLDER")]
    #[allow(clippy::option_option, reason = "a flag whose value may be left out")]
    pub repair: Option<Option<String>>,
    #[command(flatten)]
    pub other: disk::Other,
    #[command(flatten)]
    pub from: FromServer,
}

/// Maximum number of damaged records printed as text; JSON has all of them.
const SHOWN_MAX: usize = 100;

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    if let (Some(disk), Some(name)) = (&args.other.disk, &args.name) {
        return disk::run(context, &args.other, &args.from, disk, name);
    }
    let began = clock::now();
    let meter = Meter::new(context.output, context.global.quiet);
    let checked = match &args.from.server {
        Some(server) => through::verify(context, args.name.as_deref(), server, &args.from.access, &meter)
            .map(|(verified, doubts)| Checked {
                report: RepairReport { verified, healed: Vec::new() },
                is_locked: false,
                doubts,
            }),
        None => here(context, args, &meter),
    };
    meter.finish();
    let Checked { report: RepairReport { verified: report, healed }, is_locked, doubts } = checked?;
    healed.iter().enumerate().try_for_each(|(index, healed)| show_healed(context, index, healed))?;
    if is_locked {
        let note =
            "without the key: objects were checked against their digests, records against their checksums";
        context.output.note(note);
    }
    report.damaged.iter().enumerate().try_for_each(|(index, damage)| show(context, index, damage))?;
    doubts.show(context)?;
    let took = clock::now().duration_since(began);
    let unreachable = report.damaged.iter().filter(|damage| damage.why == Why::Unreachable).count();
    let damaged = report.damaged.len() - unreachable;
    let record = json!({
        "type": "verified", "versions": report.versions, "objects": report.objects, "bytes": report.bytes,
        "locked": is_locked, "unreferenced": report.unreferenced, "signers": signers(&report),
        "unsigned": report.unsigned, "damaged": damaged, "unreachable": unreachable, "healed": healed.len(),
        "unproven_free": doubts.unproven.len(), "unreadable": doubts.unreadable.len(),
        "seconds": took.as_secs_f64(),
    });
    context.output.result(&record, || {
        let VerifyReport { versions, objects, bytes, unreferenced, .. } = report;
        let signed = signed(&report);
        let rest = if unreferenced > 0 {
            format!(", {unreferenced} objects that no version names")
        } else {
            String::new()
        };
        let (size, took, rate) = (show_bytes(bytes), show_duration(took), show_rate(bytes, took));
        format!("verified {versions} versions, {objects} objects of {size}{rest}, {took}, {rate}{signed}\n")
    })?;
    outcome(damaged, unreachable, args.from.server.is_some())
}

/// What the numbers of records that are damaged, and that can't be reached, say of the repository.
fn outcome(damaged: usize, unreachable: usize, at_server: bool) -> Result<()> {
    let away = format!("{unreachable} records can't be reached");
    let hint = match (damaged, unreachable) {
        (0, 0) => return Ok(()),
        (0, _) => {
            let hint = "verify again when all parts of the repository are there: for a cluster, \
                        `diskcast cluster status` shows what is away";
            return Err(Failure::new(Exit::Failed, away).hint(hint));
        }
        _ if at_server => "`diskcast verify --repair` mends it where the repository is",
        _ => {
            "`diskcast verify --repair` mends damaged records, \
             `diskcast verify --repair OTHER` repairs them from another repository; \
             capturing the same disks again repairs their objects, too"
        }
    };
    let rest = if unreachable > 0 { format!(", {away}") } else { String::new() };
    Err(Failure::new(Exit::Verification, format!("{damaged} records are damaged{rest}")).hint(hint))
}

/// What was found.
struct Checked {
    report: RepairReport,
    /// Whether the repository's key is missing.
    is_locked: bool,
    /// The versions that are not all that they should be.
    doubts: Doubts,
}

/// Verifies or repairs the repository.
fn here(context: &Context, args: &Args, meter: &Meter) -> Result<Checked> {
    // With the scrub log: a damaged object that is found here is removed from the log.
    let repository = repository::with_scrubs(&context.global, repository::open_locked(&context.global)?);
    let scope = match &args.name {
        Some(name) => Scope::Version(repository::reference(name)?),
        None => Scope::All,
    };
    let checked = match &args.repair {
        Some(from) if !context.global.dry_run => {
            let other = |from: &str| repository::other(from, &context.global, None, Repository::open_with);
            let from = from.as_deref().map(other).transpose()?;
            repository.repair(&scope, from.as_ref(), &repository::stamp(), meter)
        }
        _ => repository.verify(&scope, meter).map(|verified| RepairReport { verified, healed: Vec::new() }),
    };
    let (report, is_locked) = (checked?, repository.is_locked());
    let look = |reference: &Reference| repository.look(reference).map(|(found, _)| found);
    let doubts = match is_locked {
        true => Doubts::default(),
        false => doubts::find(&repository, args.name.as_deref(), &look)?,
    };
    Ok(Checked { report, is_locked, doubts })
}

fn signers(report: &VerifyReport) -> Vec<serde_json::Value> {
    let record = |signer: &Signer| {
        let key = signer.key.to_string();
        json!({ "key": key, "name": signer.name, "versions": signer.versions })
    };
    report.signers.iter().map(record).collect()
}

/// The number of versions per signer, as text; empty if no version is signed.
fn signed(report: &VerifyReport) -> String {
    let one = |signer: &Signer| {
        format!("{} by {}", signer.versions, keys::words(signer.key, signer.name.as_deref()))
    };
    let unsigned = (report.unsigned > 0).then(|| format!("{} not", report.unsigned));
    let all: Vec<_> = report.signers.iter().map(one).chain(unsigned).collect();
    if report.signers.is_empty() { String::new() } else { format!("\nsigned: {}", all.join(", ")) }
}

fn show_healed(context: &Context, index: usize, healed: &Healed) -> Result<()> {
    let Healed { damage, how } = healed;
    let (word, told) = match how {
        How::Mended => ("mended", String::new()),
        How::Copied => ("copied", " (taken from the other repository)".to_owned()),
        How::Rebuilt => ("rebuilt", " (rewritten from other records)".to_owned()),
        How::SetAside => {
            ("set-aside", format!(" (set aside as `{}.damaged`: no version needs it)", damage.path))
        }
    };
    let record = json!({ "type": "healed", "path": damage.path, "how": word, "text": damage.text });
    if !context.output.is_json() && index >= SHOWN_MAX {
        return Ok(());
    }
    context.output.answer(&record, || format!("healed: {}{told}\n", damage.text))
}

fn show(context: &Context, index: usize, damage: &Damage) -> Result<()> {
    let versions: Vec<_> = damage.versions.iter().map(ToString::to_string).collect();
    let record = json!({
        "type": "damage", "path": damage.path, "why": format!("{:?}", damage.why).to_lowercase(),
        "text": damage.text, "versions": versions,
    });
    if !context.output.is_json() && index >= SHOWN_MAX {
        return Ok(());
    }
    context.output.answer(&record, || {
        let concerned =
            if versions.is_empty() { String::new() } else { format!(" (needed by {})", versions.join(" ")) };
        let word = if damage.why == Why::Unreachable { "can't be reached" } else { "damaged" };
        format!("{word}: {}{concerned}\n", damage.text)
    })
}
