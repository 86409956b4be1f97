//! Jobs for machines that ask a server what to do: those that boot from the network, and those that run an agent.

use net::api::{After, Put, Work};

use super::args::CopyForm;
use super::{Args, following};
use crate::commands::Context;
use crate::commands::hosts::{self, Terms};
use crate::commands::work::check_options;
use crate::exit::{Exit, Failure, Result};
use crate::inventory;

/// Gives them the job.
pub(super) fn run(context: &Context, args: &Args) -> Result<()> {
    let (work, terms) = work(args)?;
    let machines = inventory::names(&args.machines)?;
    let manager = hosts::manager(context, &args.server)?;
    match hosts::give(context, &manager, work, &machines, &terms, args.window)? {
        Some(made) if args.follow => following::follow(context, &manager, &made, args.by_ssh.time),
        _ => Ok(()),
    }
}

/// What they are to do, and on which disk.
fn work(args: &Args) -> Result<(Work, Terms)> {
    let by = &args.by_ssh;
    let usage = |text: &str, hint: &str| Err(Failure::new(Exit::Usage, text).hint(hint));
    let Some(target) = &by.target else {
        let hooks = [by.before.is_some(), by.written.is_some(), by.after.is_some()];
        let ways = [by.copy.is_some(), by.serve_for.is_some()];
        if ways.contains(&true) || hooks.contains(&true) || !by.options.is_empty() {
            let hint = "name it for agents of hosts that run, or the hosts by --to for ssh";
            let text =
                "--copy, --serve-for, --before, --written, --after and options of fetch need a --target";
            return usage(text, hint);
        }
        let after =
            After { own: !args.as_captured, accept_stale_ids: args.accept_stale_ids, grow: args.grow };
        return Ok((Work::Install { reference: args.name.clone(), after }, args.terms.clone()));
    };
    if args.terms.disk.is_some() || args.as_captured || args.accept_stale_ids || args.grow {
        let hint = "options of fetch, such as --grow, stand behind `--`";
        return usage(
            "--disk, --as-captured, --accept-stale-ids and --grow are for machines that boot from the network",
            hint,
        );
    }
    let put = Put {
        reference: args.name.clone(),
        root: String::new(),
        copy: by.copy.map(CopyForm::of_job),
        mount: by.mount(),
        retried: false,
        serve_seconds: by.serve_seconds()?,
        options: by.options.clone(),
        before: by.before.clone(),
        written: by.script()?,
        after: by.after.clone(),
    };
    check_options([(&put, target.as_str())])?;
    Ok((Work::Put(put), Terms { disk: Some(target.clone()), ..args.terms.clone() }))
}
