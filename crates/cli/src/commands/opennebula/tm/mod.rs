//! The transfer manager: disks of machines on hosts.

mod backup;
mod copies;
mod files;
mod migrate;
mod moves;
mod snapshots;
mod usage;
mod volumes;

use crate::commands::Context;
use crate::exit::{Exit, Failure, Result};

/// Does what OpenNebula asks for, and returns what it is to read.
pub(super) fn act(context: &Context, action: &str, words: &[String]) -> Result<String> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    // `CLONE.ssh`: the system datastore is of another driver, which makes no difference here.
    let action = action.split('.').next().unwrap_or_default().to_ascii_lowercase();
    let none = |done: Result<()>| done.map(|()| String::new());
    match (action.as_str(), &*words) {
        // What runs on a host, without settings.
        ("monitor_ds", [folder]) => usage::of_machines(folder),
        ("monitor", [_, ..]) => usage::of_store(),
        ("clone", [source, target, machine, _]) => none(copies::clone(context, source, target, machine)),
        ("ln", [source, target, machine, _]) => none(copies::link(context, source, target, machine)),
        ("mkimage", [size, format, target, machine, _]) => none(files::image(size, format, target, machine)),
        ("mkswap", [size, target, _, _]) => none(files::swap(size, target)),
        ("context", [parts @ .., target, _, _]) if !parts.is_empty() => none(files::context(parts, target)),
        ("delete", [target, _, _]) => none(files::delete(target)),
        ("mv", [from, to, machine, _]) => none(moves::to_host(context, from, to, machine)),
        ("mvds", [from, source, machine, _]) => none(moves::to_image(from, source, machine)),
        ("cpds", [from, source, snapshot, machine, _]) => {
            none(moves::to_new_image(from, source, snapshot, machine))
        }
        ("resize", [target, size, machine, _]) => none(files::resize(target, size, machine)),
        ("snap_create" | "snap_revert" | "snap_delete", [target, snapshot, machine, _]) => {
            none(snapshots::act(&action, target, snapshot, machine))
        }
        ("snap_create_live", [target, snapshot, machine, _]) => {
            none(snapshots::create_live(target, snapshot, machine))
        }
        ("premigrate" | "postmigrate" | "failmigrate", [from, to, folder, rest @ ..]) => {
            none(migrate::act(&action, (from, to, folder), &words, rest))
        }
        ("prebackup" | "prebackup_live" | "postbackup" | "postbackup_live", [folder, disks, ..]) => {
            none(backup::act(&action, folder, disks))
        }
        ("restore", [folder, machine, image, _, disk]) => {
            none(backup::restore(context, folder, machine, image, disk))
        }
        _ => Err(Failure::new(Exit::Usage, format!("no action `{action}` with {} arguments", words.len()))),
    }
}
