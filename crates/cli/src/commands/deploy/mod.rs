//! `diskcast deploy`: puts an image on many hosts, by ssh, by their agents, or on machines that boot from the network.

mod agents;
mod args;
mod following;
mod job;
mod machines;
mod plan;
mod resume;
mod screen;
mod server;
mod set;

use net::deploy::Way;

pub(crate) use self::args::Args;
use self::plan::{check_terms, confirm, perform, plan, report};
use super::Context;
use crate::exit::{Exit, Failure, Result};
use crate::inventory;

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    match (&args.by_ssh.to[..], args.by_ssh.agents) {
        ([], _) => machines::run(context, args),
        (_, true) => agents::run(context, args),
        (_, false) => deploy(context, args),
    }
}

/// Deploys by ssh.
fn deploy(context: &Context, args: &Args) -> Result<()> {
    let by = &args.by_ssh;
    check_terms(args, false)?;
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
    confirm(context, &drafts)?;
    if by.attaches() && !source.stays() {
        let text = "attached disks fetch what they need when this program has ended: they need a server";
        return Err(
            Failure::new(Exit::Usage, text).hint("`diskcast serve` serves a repository; name it by --server")
        );
    }
    let serving = source.serve(by.advertise.as_deref(), drafts.len())?;
    let jobs: Vec<_> = drafts.iter().map(|draft| draft.job(&serving, (&reference, version))).collect();
    let ssh = by.ssh();
    let done = perform(context, (&entries, &jobs), (version, rules), &Way::Ssh(&ssh, None))?;
    // The server takes its time to end: nobody has to wait for that to know how it went.
    let reported = report(context, args, (&reference, &entries), &done);
    drop(serving);
    reported
}
