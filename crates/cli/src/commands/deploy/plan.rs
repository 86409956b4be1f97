//! The plan of a deployment, whatever way its hosts are reached; then the work, and what came of it.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use base::Digest;
use net::clock::{Clock, Stop};
use net::deploy::{Deploy, Host, HostState, Rules, Way};
use rustix::fs::OFlags;
use serde_json::json;

use super::args::Args;
use super::job;
use super::screen::Screen;
use crate::commands::Context;
use crate::commands::hosts::Terms;
use crate::exit::{Exit, Failure, Result};
use crate::inventory::Entry;
use crate::ui::prompt;
use crate::ui::table::{Align, Table};
use crate::{clock, interrupt};

/// Refuses what is for machines that boot from the network. Hosts of agents can be woken, too.
pub(super) fn check_terms(args: &Args, by_agents: bool) -> Result<()> {
    let Terms { disk, at, wake, restart } = &args.terms;
    let others = disk.is_some() || at.is_some() || *restart;
    let text = match by_agents {
        _ if !others && (by_agents || !wake) => return Ok(()),
        true => "--disk, --at and --restart are for machines that boot from the network",
        false => "--disk, --at, --wake and --restart are for machines that boot from the network",
    };
    Err(Failure::new(Exit::Usage, text).hint("--target says where hosts get the image"))
}

pub(super) fn confirm(context: &Context, drafts: &[job::Draft]) -> Result<()> {
    // Copies are made where nothing is: a target that exists is refused.
    if context.global.yes || drafts.iter().all(|draft| draft.put.copy.is_some()) {
        return Ok(());
    }
    let question = format!("{} on {} will be overwritten", job::targets(drafts), count(drafts.len()));
    prompt::confirm(&question, "say --yes if you are sure")
}

/// How a deployment went.
pub(super) struct Done {
    deploy: Deploy,
    took: Duration,
    called_off: bool,
}

/// Does the jobs, and shows how far they are.
pub(super) fn perform(
    context: &Context,
    (entries, jobs): (&[Entry], &[Host]),
    what: (Digest, Rules),
    way: &Way<'_>,
) -> Result<Done> {
    let stop = Stop::new();
    let asked = stop.clone();
    interrupt::cooperate(move || asked.stop())?;
    let clock = Clock::start();
    let mut screen = Screen::new(context, entries);
    let deploy = net::deploy::run(jobs, what, way, &stop, |deploy, now| screen.show(deploy, now));
    screen.end();
    Ok(Done { deploy, took: clock.elapsed(), called_off: stop.is_stopped() })
}

/// Shows what would be done.
pub(super) fn plan(context: &Context, reference: &str, drafts: &[job::Draft], rules: &Rules) -> Result<()> {
    let mut table = Table::new(&[
        ("HOST", Align::Left),
        ("WAVE", Align::Right),
        ("TARGET", Align::Left),
        ("OPTIONS", Align::Left),
    ]);
    let mut records = Vec::new();
    for (number, draft) in drafts.iter().enumerate() {
        let wave = number / rules.wave.max(1) + 1;
        let (host, options) = (&draft.name, draft.put.options.join(" "));
        records.push(json!({
            "type": "plan", "host": host, "wave": wave, "image": draft.reference.as_deref().unwrap_or(reference),
            "target": draft.target,
            "options": draft.put.options,
        }));
        table.row([host.clone(), wave.to_string(), draft.target.clone(), options]);
    }
    context.output.list(&records, &table)
}

fn count(hosts: usize) -> String {
    if hosts == 1 { "1 host".to_owned() } else { format!("{hosts} hosts") }
}

/// Tells what came of it, and keeps who got none.
pub(super) fn report(
    context: &Context,
    args: &Args,
    (reference, entries): (&str, &[Entry]),
    done: &Done,
) -> Result<()> {
    let Done { deploy, took, called_off } = done;
    let counts = deploy.counts();
    let missing: Vec<&Entry> = (0..entries.len())
        .filter(|&host| !matches!(deploy.host(host), HostState::Ready { .. }))
        .map(|host| &entries[host])
        .collect();
    let retry = if missing.is_empty() { None } else { Some(keep(args, reference, &missing)?) };
    let record = json!({
        "type": "deployed", "image": reference, "ready": counts.ready, "failed": counts.failed,
        "left_out": counts.left_out, "seconds": took.as_secs_f64(),
        "missing": missing.iter().map(|entry| &entry.name).collect::<Vec<_>>(),
        "retry_file": retry.as_ref().map(|path| path.display().to_string()),
    });
    let shown = base::units::show_duration(*took);
    let of = if missing.is_empty() { String::new() } else { format!(" of {}", entries.len()) };
    context
        .output
        .result(&record, || format!("{reference} is on {}{of}, after {shown}\n", count(counts.ready)))?;
    let Some(retry) = retry else { return Ok(()) };
    let exit = match (called_off, counts.ready) {
        (true, _) => Exit::Interrupted,
        (_, 0) => Exit::Failed,
        _ => Exit::Partly,
    };
    let text = format!("{} did not get {reference}", count(missing.len()));
    Err(Failure::new(exit, text)
        .hint(format!("the same command with --to @{} tries those again", retry.display())))
}

/// Writes the hosts that got none into a file that `--to @FILE` takes.
fn keep(args: &Args, reference: &str, missing: &[&Entry]) -> Result<PathBuf> {
    let image: String = reference
        .split('@')
        .next()
        .unwrap_or_default()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' })
        .collect();
    let path = args.by_ssh.retry_file.clone().unwrap_or_else(|| format!("deploy-{image}.retry").into());
    let lines: String = missing.iter().map(|entry| entry.line() + "\n").collect();
    let text = format!("# did not get {reference}, {}\n{lines}", clock::now_rfc3339());
    let mut options = File::options();
    options.write(true).create(true).truncate(true);
    if args.by_ssh.retry_file.is_none() {
        // Nobody chose this name: in a folder of all users a link there leads where somebody else wants.
        options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    }
    let written = options.open(&path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| base::Error::from_io(format!("write `{}`", path.display()), error))?;
    Ok(path)
}
