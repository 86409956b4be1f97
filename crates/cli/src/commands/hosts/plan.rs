//! What a job would do, before it is given: which machines it is for, and what each would do on which disk.

use net::api::{JobStatus, JobsMade, MachineStatus, Put, Work};
use net::client::Client;
use serde_json::{Value, json};

use super::names::names;
use super::table::disks;
use crate::commands::Context;
use crate::exit::Result;
use crate::ui::prompt;
use crate::ui::table::{Align, Table};

/// Shows it as the answer of a dry run.
pub(super) fn show(context: &Context, client: &Client, planned: &JobsMade) -> Result<()> {
    let (records, table) = of(client, planned)?;
    context.output.list(&records, &table)
}

/// Shows it on standard error, and asks whether that is to be done. `Refused` if not, or if nobody is there to ask.
pub(super) fn confirm(context: &Context, client: &Client, planned: &JobsMade) -> Result<()> {
    let (_, table) = of(client, planned)?;
    table.render(None).lines().for_each(|line| context.output.note(line));
    prompt::confirm(&question(planned), "say --yes if you are sure")
}

/// Whether work destroys what a machine has, so that somebody must agree to it.
pub(super) fn overwrites(work: &Work) -> bool {
    match work {
        Work::Install { .. } | Work::Wipe | Work::Put(_) => true,
        Work::Capture { .. } | Work::Shell => false,
    }
}

/// What somebody must agree to.
fn question(planned: &JobsMade) -> String {
    let (work, of) = (&planned.work, names(&planned.machines));
    match work {
        Work::Wipe => format!("the disks of {of} will be erased"),
        Work::Put(Put { reference, copy: Some(_), .. }) => {
            format!("the targets of {of} will become copies of {reference}")
        }
        Work::Put(Put { reference, .. }) => format!("the targets of {of} will be overwritten by {reference}"),
        Work::Install { reference, .. } => format!("the disks of {of} will be overwritten by {reference}"),
        Work::Capture { .. } | Work::Shell => format!("{of} will do: {work}"),
    }
}

/// A row for each machine, with the job that it would lose.
fn of(client: &Client, planned: &JobsMade) -> Result<(Vec<Value>, Table)> {
    let now = client.machines()?.machines;
    let mut table = Table::new(&[
        ("NAME", Align::Left),
        ("CARD", Align::Left),
        ("DISKS", Align::Left),
        ("WOULD DO", Align::Left),
        ("ON", Align::Left),
        ("INSTEAD OF", Align::Left),
    ]);
    let mut records = Vec::new();
    for machine in &planned.machines {
        let MachineStatus { mac, name, job: Some(job), .. } = machine else { continue };
        let before = now.iter().find(|one| one.mac == *mac).and_then(|one| one.job.as_ref());
        let lost =
            before.filter(|job| job.is_open()).map(|job| format!("{}: {}", job.work, job.stage.name()));
        let JobStatus { work, disk, .. } = job;
        table.row([
            name.clone().unwrap_or_else(|| "-".to_owned()),
            mac.clone(),
            disks(machine),
            work.to_string(),
            disk.clone().unwrap_or_else(|| "its only disk".to_owned()),
            lost.clone().unwrap_or_else(|| "-".to_owned()),
        ]);
        records.push(json!({
            "type": "plan", "mac": mac, "name": name, "job": work, "disk": disk, "instead_of": lost,
        }));
    }
    Ok((records, table))
}
