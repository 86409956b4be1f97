//! `diskcast deploy`: puts an image on many hosts, by ssh, by their agents, or on machines that boot from the network.

mod args;
mod following;
mod inventory;
mod job;
mod machines;
mod resume;
mod screen;
mod server;
mod set;

use std::path::PathBuf;
use std::time::Duration;

use net::clock::{Clock, Stop};
use net::deploy::{Deploy, HostState, Rules};
use serde_json::json;

pub(crate) use self::args::Args;
use self::inventory::Entry;
use self::screen::Screen;
use super::Context;
use crate::exit::{Exit, Failure, Result};
use crate::ui::prompt;
use crate::ui::table::{Align, Table};
use crate::{clock, interrupt};

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    if !args.by_ssh.to.is_empty() {
        return deploy(context, args);
    }
    machines::run(context, args)
}

/// Deploys by ssh.
fn deploy(context: &Context, args: &Args) -> Result<()> {
    let by = &args.by_ssh;
    if args.terms.is_any() {
        let text = "--disk, --at, --wake and --restart are for machines that boot from the network";
        return Err(Failure::new(Exit::Usage, text).hint("--target says where hosts get the image"));
    }
    if by.commit || by.suspend {
        return set::run(context, args);
    }
    let mut entries = inventory::read(&by.to, by.inventory.as_deref())?;
    let rules = by.rules(entries.len());
    let members = if by.resume { resume::assign(context, args, &mut entries)? } else { Vec::new() };
    // What is wrong with a target or a script is told before a server starts.
    let drafts = job::drafts(by, &entries, &members)?;
    let source = server::Source::open(context, args)?;
    let (version, reference) = (source.version(), source.reference());
    if context.global.dry_run {
        return plan(context, &reference, &drafts, &rules);
    }
    if !context.global.yes {
        let question = format!("{} on {} will be overwritten", job::targets(&drafts), count(drafts.len()));
        prompt::confirm(&question, "say --yes if you are sure")?;
    }
    if by.attaches() && !source.stays() {
        let text = "attached disks fetch what they need when this program has ended: they need a server";
        return Err(
            Failure::new(Exit::Usage, text).hint("`diskcast serve` serves a repository; name it by --server")
        );
    }
    let serving = source.serve(by.advertise.as_deref())?;
    let jobs: Vec<_> = drafts.iter().map(|draft| draft.job(&serving, (&reference, version))).collect();
    let ssh = by.ssh();
    let stop = Stop::new();
    let asked = stop.clone();
    interrupt::cooperate(move || asked.stop())?;
    let clock = Clock::start();
    let mut screen = Screen::new(context, &entries);
    let done = net::deploy::run(&jobs, (version, rules), (&ssh, None), &stop, |deploy, now| {
        screen.show(deploy, now);
    });
    screen.end();
    drop(serving);
    report(context, args, (&reference, &entries, &done), clock.elapsed(), stop.is_stopped())
}

/// Shows what would be done.
fn plan(context: &Context, reference: &str, drafts: &[job::Draft], rules: &Rules) -> Result<()> {
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
fn report(
    context: &Context,
    args: &Args,
    (reference, entries, done): (&str, &[Entry], &Deploy),
    took: Duration,
    called_off: bool,
) -> Result<()> {
    let counts = done.counts();
    let missing: Vec<&Entry> = (0..entries.len())
        .filter(|&host| !matches!(done.host(host), HostState::Ready { .. }))
        .map(|host| &entries[host])
        .collect();
    let retry = if missing.is_empty() { None } else { Some(keep(args, reference, &missing)?) };
    let record = json!({
        "type": "deployed", "image": reference, "ready": counts.ready, "failed": counts.failed,
        "left_out": counts.left_out, "seconds": took.as_secs_f64(),
        "missing": missing.iter().map(|entry| &entry.name).collect::<Vec<_>>(), "retry_file": retry,
    });
    let shown = base::units::show_duration(took);
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
    std::fs::write(&path, text)
        .map_err(|error| base::Error::from_io(format!("write `{}`", path.display()), error))?;
    Ok(path)
}
