//! `diskcast prune`: deletes data that no version needs any more.

use std::cell::RefCell;
use std::time::Duration;

use base::units::{show_bytes, show_duration};
use base::{Error, ErrorKind};
use serde_json::json;
use store::{Overseer, Owner, PruneEvent, PruneOptions, Purpose};

use super::Context;
use crate::args::parse::parse_lifetime;
use crate::exit::{Failure, Result};
use crate::ui::output::Output;
use crate::{clock, repository};

/// Delete data that no version needs any more
///
/// Frees the space of removed versions and of abandoned captures, while other programs read and write. It waits for
/// writers that started before it. A writer without a sign of life for the time of --patience is considered dead; if it
/// still runs, it starts again. After an interrupted prune, the next one cleans up.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast remove classroom@3 && diskcast prune
  diskcast prune --dry-run                  how much can be freed
  diskcast prune --patience 1m --json       if no writer on another machine is slow")]
pub(crate) struct Args {
    /// How long a writer may show no sign of life; a running writer gives one every minute
    #[arg(long, value_name = "TIME", value_parser = parse_lifetime, default_value = "10m")]
    pub patience: std::time::Duration,
}

/// Maximum pause between two checks of the writers that the prune waits for.
const PAUSE: Duration = Duration::from_secs(2);
/// Minimum number of checks before a silent writer counts as dead.
const LOOKS: u32 = 10;

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    let repository = repository::open(&context.global)?;
    let began = clock::now();
    let pause = PAUSE.min(args.patience / LOOKS);
    let looks = u32::try_from(args.patience.as_millis().div_ceil(pause.as_millis())).unwrap_or(u32::MAX);
    let options = PruneOptions { looks, pause, ..PruneOptions::default() };
    let teller = Teller { output: context.output, waited_for: RefCell::default() };
    let report = match context.global.dry_run {
        true => repository.prune_dry(&options, &teller),
        false => repository.prune(&options, &repository::stamp(), &teller),
    };
    let report = report.map_err(explain)?;
    let freed = if context.global.dry_run { report.candidates } else { report.deleted };
    let took = clock::now().duration_since(began);
    let record = json!({
        "type": "pruned", "dry_run": context.global.dry_run, "versions": report.versions,
        "stored_objects": report.stored.objects, "stored_bytes": report.stored.bytes,
        "freed_objects": freed.objects, "freed_bytes": freed.bytes,
        "kept_for_writers": report.candidates.objects - freed.objects, "revoked": report.revoked,
        "seconds": took.as_secs_f64(),
    });
    context.output.result(&record, || {
        let (stored, took) = (report.stored, show_duration(took));
        format!(
            "{}freed {} of {}: {} of {} objects, {} versions need the others, {took}\n",
            context.would(),
            show_bytes(freed.bytes),
            show_bytes(stored.bytes),
            freed.objects,
            stored.objects,
            report.versions,
        )
    })
}

fn explain(error: Error) -> Failure {
    let kind = error.kind();
    let failure = Failure::from(error);
    match kind {
        ErrorKind::Corrupt | ErrorKind::NotFound => failure.hint(
            "nothing was deleted, since nobody can tell what a damaged or lost version needs: heal it by \
             `diskcast verify --repair` or `diskcast verify --repair OTHER`, or `diskcast remove` it",
        ),
        ErrorKind::Full => failure.hint(
            "the disk of the repository has no room for the records of a prune: delete some MiB of other files there, \
             then prune again",
        ),
        _ => failure,
    }
}

/// Reports the progress of a prune. Each writer that it waits for is reported once.
struct Teller {
    output: Output,
    waited_for: RefCell<Vec<Owner>>,
}

impl Overseer for Teller {
    fn event(&self, event: &PruneEvent) {
        match event {
            PruneEvent::Marked { versions } => {
                self.output.detail(&format!("marked what {versions} versions need"))
            }
            PruneEvent::Found(found) => self.output.detail(&format!(
                "found {} objects of {} that no version needs",
                found.objects,
                show_bytes(found.bytes)
            )),
            PruneEvent::Waiting(owner) => {
                let mut waited_for = self.waited_for.borrow_mut();
                if !waited_for.contains(owner) {
                    self.output.note(&format!("waiting for {}", describe(owner)));
                    waited_for.push(owner.clone());
                }
            }
            PruneEvent::Revoked(owner) => {
                self.output
                    .warning(&format!("gave up waiting: {} starts again if it lives", describe(owner)));
            }
            PruneEvent::Dead(owner) => {
                self.output.detail(&format!("the process of {} is dead", describe(owner)))
            }
            PruneEvent::Deleted(deleted) => self.output.detail(&format!(
                "deleted {} objects of {}",
                deleted.objects,
                show_bytes(deleted.bytes)
            )),
        }
    }

    fn pause(&self, time: Duration) {
        clock::pause(time);
    }
}

fn describe(owner: &Owner) -> String {
    if let Some(version) = &owner.reads {
        return format!("machines that fetch {version} through {}, since {}", owner.creator, owner.created);
    }
    let what = match owner.purpose {
        Purpose::Write => "a writer",
        Purpose::Prune => "another prune",
    };
    format!("{what}, of {} since {}", owner.creator, owner.created)
}
