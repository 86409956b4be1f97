//! The table of machines for people.

use base::units::show_bytes;
use net::api::{JobProgress, MachineStatus, Machines};
use serde_json::Value;

use crate::commands::Context;
use crate::exit::Result;
use crate::ui::table::{Align, Table};

pub(super) fn show(context: &Context, machines: &Machines) -> Result<()> {
    let output = context.output;
    if machines.machines.is_empty() {
        output.note("no machine has booted from here yet");
    }
    if machines.open_seconds > 0 {
        output.note(&format!("every machine that calls in the next {} s is admitted", machines.open_seconds));
    }
    let mut table = Table::new(&[
        ("NAME", Align::Left),
        ("CARD", Align::Left),
        ("GROUPS", Align::Left),
        ("DISKS", Align::Left),
        ("SEEN", Align::Left),
        ("JOB", Align::Left),
    ]);
    let mut records: Vec<Value> = Vec::new();
    for machine in &machines.machines {
        table.row([
            machine.name.clone().unwrap_or_else(|| "-".to_owned()),
            machine.mac.clone(),
            machine.groups.join(" "),
            disks(machine),
            seen(machine),
            job(machine),
        ]);
        let mut record = serde_json::to_value(machine).expect("a machine is plain data");
        record["type"] = "host".into();
        records.push(record);
    }
    output.list(&records, &table)?;
    if !output.is_json() {
        for machine in &machines.machines {
            if let Some(reason) = machine.job.as_ref().and_then(|job| job.reason.as_ref()) {
                output.note(&format!("{}: {reason}", machine.name.as_ref().unwrap_or(&machine.mac)));
            }
        }
    }
    Ok(())
}

fn disks(machine: &MachineStatus) -> String {
    let disks = machine.facts.iter().flat_map(|facts| &facts.disks);
    disks.map(|disk| show_bytes(disk.size_bytes)).collect::<Vec<_>>().join(", ")
}

fn seen(machine: &MachineStatus) -> String {
    match (machine.seen_seconds_ago, &machine.seen_in) {
        (Some(seconds), Some(step)) => format!("{seconds} s ago, {step}"),
        _ => "-".to_owned(),
    }
}

fn job(machine: &MachineStatus) -> String {
    match &machine.job {
        _ if !machine.admitted => "not admitted".to_owned(),
        Some(job) => format!("{}: {}{}", job.work, job.stage.name(), progress(machine)),
        None => "-".to_owned(),
    }
}

/// How far its agent is with its job.
fn progress(machine: &MachineStatus) -> String {
    let Some(JobProgress { step, done_bytes, total_bytes }) = &machine.progress else { return String::new() };
    let percent = (u128::from(*done_bytes) * 100).checked_div(u128::from(*total_bytes));
    percent.map_or_else(String::new, |percent| format!(", {step} {percent} %"))
}
