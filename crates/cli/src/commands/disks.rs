//! `diskcast disks`: lists attached disks and their state.

use std::path::PathBuf;

use base::{ErrorKind, units::show_bytes};
use daemon::attached::{Answer, Damaged, Request, Settings, Status, Waits, ask};
use daemon::auth::tokens::TokenStatus;
use serde_json::{Value, json};
use store::ImageName;

use super::Context;
use crate::args::DisksFolder;
use crate::exit::{Exit, Failure, Result};
use crate::repository;
use crate::ui::table::{Align, Table};

/// List attached disks
///
/// HERE is the part of the disk that is local, and DIRTY is what was written since its base version. The other columns
/// count encoded bytes since the disk's process started: DEMANDED is what a read waited for, PREFETCHED is what was
/// fetched before it was read, and UNUSED is the part of PREFETCHED that was not read yet. PEERS is the part of all
/// this that came from other machines, and SERVED is what other machines got from this disk.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast disks
  diskcast disks vm1 --json")]
pub(crate) struct Args {
    /// List only this disk
    pub name: Option<String>,
    #[command(flatten)]
    pub place: DisksFolder,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    let names = match &args.name {
        Some(name) => vec![name.clone()],
        None => names(&args.place)?,
    };
    if names.is_empty() {
        context.output.note("no disks yet: `diskcast attach IMAGE` makes one");
        return Ok(());
    }
    let mut table = Table::new(&[
        ("DISK", Align::Left),
        ("BASE", Align::Left),
        ("SIZE", Align::Right),
        ("HERE", Align::Right),
        ("DIRTY", Align::Right),
        ("DEMANDED", Align::Right),
        ("PREFETCHED", Align::Right),
        ("UNUSED", Align::Right),
        ("PEERS", Align::Right),
        ("SERVED", Align::Right),
        ("CLIENTS", Align::Right),
        ("TROUBLE", Align::Left),
    ]);
    let (mut records, mut details) = (Vec::new(), Vec::new());
    for name in names {
        let folder = folder_of(&args.place, &name)?;
        let image = match Settings::load(&folder) {
            Ok(settings) => settings.ok_or_else(|| no_such_disk(&name))?.image,
            Err(error) if args.name.is_some() => return Err(error.into()),
            // A damaged disk must not hide the others.
            Err(_) => "?".to_owned(),
        };
        match ask(&folder, &Request::Status, &mut |_| {}) {
            Ok(Answer::Status(status)) => {
                table.row(cells(&status));
                records.push(record(&status));
                details.extend(trouble(&status).into_iter().map(|(_, why)| format!("{name}: {why}")));
            }
            Ok(_) => {
                return Err(Failure::new(
                    Exit::Failed,
                    format!("the disk `{name}` sent an answer of the wrong type"),
                ));
            }
            Err(error) => {
                let nobody = error.kind() == ErrorKind::NotRunning;
                let state = if nobody { "stopped" } else { "does not answer" };
                let mut row = vec![name.clone(), image.clone()];
                row.resize(10, String::new());
                row.extend([state.to_owned(), String::new()]);
                table.row(row);
                records.push(json!({ "type": "disk", "name": name, "state": state, "image": image }));
            }
        }
    }
    context.output.list(&records, &table)?;
    if !context.output.is_json() {
        details.iter().for_each(|why| context.output.note(why));
    }
    Ok(())
}

/// The folder of the disk called `name`.
pub(crate) fn folder_of(place: &DisksFolder, name: &str) -> Result<PathBuf> {
    // Disk names follow the rules of image names, so each is a valid folder name.
    let name: ImageName = name.parse()?;
    Ok(std::path::absolute(all(place)?)?.join(name.as_str()))
}

pub(crate) fn no_such_disk(name: &str) -> Failure {
    Failure::new(Exit::NotFound, format!("there is no disk `{name}`"))
        .hint("`diskcast disks` lists what there is")
}

fn all(place: &DisksFolder) -> Result<PathBuf> {
    match &place.folder {
        Some(folder) => Ok(folder.clone()),
        None => repository::default_disks_folder(),
    }
}

/// The names of all disks, in order.
fn names(place: &DisksFolder) -> Result<Vec<String>> {
    let folder = all(place)?;
    let entries = match std::fs::read_dir(&folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.and_then(Iterator::collect::<std::io::Result<Vec<_>>>),
    };
    let entries = entries.map_err(|error| Failure::from(error).context(folder.display()))?;
    let names = entries.into_iter().filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<_> = names.filter(|name| name.parse::<ImageName>().is_ok()).collect();
    // A folder without settings is not a disk.
    names.retain(|name| !matches!(Settings::load(&folder.join(name)), Ok(None)));
    names.sort();
    Ok(names)
}

fn cells(status: &Status) -> Vec<String> {
    vec![
        status.name.clone(),
        format!("{}@{}", status.image, status.number),
        show_bytes(status.size_bytes),
        format!("{} %", here_percent(status)),
        show_bytes(status.dirty_bytes),
        show_bytes(status.demanded_bytes),
        show_bytes(status.prefetched_bytes + status.background_bytes),
        show_bytes(status.prefetched_unused_bytes),
        show_bytes(status.peer_bytes),
        show_bytes(status.served_bytes),
        status.clients.to_string(),
        trouble(status).into_iter().map(|(what, _)| what).collect::<Vec<_>>().join(", "),
    ]
}

/// Problems that need attention: each as a short and as a long text.
fn trouble(status: &Status) -> Vec<(String, String)> {
    let mut trouble = Vec::new();
    if let Some(Waits { what, seconds, why }) = &status.waits {
        let why = why.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
        trouble.push((
            format!("waits {seconds} s"),
            format!("reads have waited for {what} for {seconds} s{why}"),
        ));
    }
    if status.damaged_count > 0 {
        let all = status.damaged.iter().map(|damaged| {
            let Damaged { what, source, why } = damaged;
            format!("{source} has no undamaged {what}: {why}")
        });
        trouble.push((format!("{} damaged", status.damaged_count), all.collect::<Vec<_>>().join("; ")));
    }
    for TokenStatus { server, expires, state, why } in &status.tokens {
        let at = expires.as_deref().unwrap_or("an unknown time");
        let why = why.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
        let (what, words) = match state.as_str() {
            "good" | "unknown" => continue,
            "ending" => {
                ("token ends", format!("the token for {server} ends at {at}, and was not renewed{why}"))
            }
            "expired" => ("token expired", format!("the token for {server} has expired at {at}{why}")),
            _ => ("token rejected", format!("{server} rejects the token{why}")),
        };
        trouble.push((what.to_owned(), words));
    }
    trouble
}

/// Percentage that is local, rounded down: 100 means everything.
fn here_percent(status: &Status) -> u64 {
    let (here, all) = (u128::from(status.local_bytes), u128::from(status.size_bytes.max(1)));
    u64::try_from(here * 100 / all).expect("at most a hundred")
}

fn record(status: &Status) -> Value {
    let mut record = serde_json::to_value(status).expect("a status is plain data");
    record["type"] = json!("disk");
    record["state"] = json!("running");
    record
}
