//! The table of machines for people.

use base::units::show_bytes;
use net::api::{JobProgress, JobStage, KeyStatus, MachineStatus, Machines};
use serde_json::Value;

use crate::clock;
use crate::commands::Context;
use crate::exit::Result;
use crate::ui::table::{Align, Table};

/// Shows the table, or those of its machines that were asked for.
pub(super) fn show(context: &Context, machines: &Machines, is_part: bool) -> Result<()> {
    let output = context.output;
    if machines.machines.is_empty() {
        output.note(if is_part { "no machine matches" } else { "no machine has booted from here yet" });
    }
    if machines.open_seconds > 0 {
        output.note(&format!("every machine that calls in the next {} s is admitted", machines.open_seconds));
    }
    // Most sites fix none.
    let has_addresses = machines.machines.iter().any(|machine| machine.address.is_some());
    let address = if has_addresses { "CARD, ADDRESS" } else { "CARD" };
    let mut table = Table::new(&[
        ("NAME", Align::Left),
        (address, Align::Left),
        ("GROUPS", Align::Left),
        ("DISKS", Align::Left),
        ("KEY", Align::Left),
        ("FROM", Align::Left),
        ("SEEN", Align::Left),
        ("JOB", Align::Left),
    ]);
    let mut records: Vec<Value> = Vec::new();
    for machine in &machines.machines {
        table.row([
            machine.name.clone().unwrap_or_else(|| "-".to_owned()),
            machine.address.map_or_else(|| machine.mac.clone(), |at| format!("{} {at}", machine.mac)),
            machine.groups.join(" "),
            disks(machine),
            key(machine).map_or_else(|| "-".to_owned(), marked),
            key(machine).map_or_else(|| "-".to_owned(), from),
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
            let name = machine.name.as_ref().unwrap_or(&machine.mac);
            let reason = machine.job.as_ref().and_then(|job| job.reason.clone());
            for note in reason.into_iter().chain(notes(machine)) {
                output.note(&format!("{name}: {note}"));
            }
        }
    }
    Ok(())
}

/// Machines that were just admitted, with the keys that this lets in; `would` begins each line.
pub(super) fn admitted(machines: &[MachineStatus], would: &str) -> String {
    let line = |machine: &MachineStatus| {
        let name = machine.name.as_ref().unwrap_or(&machine.mac);
        let key = match (&machine.named_key, key(machine)) {
            (Some(named), _) => format!("its key is {named}"),
            (None, Some(key)) => format!("its key is {}, from {}", marked(key), from(key)),
            (None, None) => "its key will be the first one that calls".to_owned(),
        };
        format!("{would}admitted {name}: {key}\n")
    };
    match machines.is_empty() {
        true => "no machine waits to be admitted\n".to_owned(),
        false => machines.iter().map(line).collect(),
    }
}

/// The key with which a machine called last.
fn key(machine: &MachineStatus) -> Option<&KeyStatus> {
    let runs = machine.facts.as_ref().is_some_and(|facts| facts.runs);
    if runs { machine.agent_key.as_ref() } else { machine.key.as_ref() }
}

fn marked(key: &KeyStatus) -> String {
    format!("{}{}", key.fingerprint, if key.confirmed { "" } else { "?" })
}

fn from(key: &KeyStatus) -> String {
    let address = key.address.map_or_else(|| "-".to_owned(), |address| address.to_string());
    match key.since {
        0 => address,
        since => format!("{address} since {}", clock::short(&clock::show_unix(since))),
    }
}

/// What an administrator should look at.
fn notes(machine: &MachineStatus) -> Vec<String> {
    let followed = key(machine).filter(|key| key.followed && !key.confirmed).map(|key| {
        format!(
            "the key {} went on with a job that another key had begun: diskcast hosts admit {0}, if the machine was \
             started again and shows it",
            key.fingerprint
        )
    });
    let rival = machine.rival.as_ref().map(|rival| {
        let name = &rival.fingerprint;
        format!(
            "another machine calls with the same card, with the key {name}, from {}, and gets nothing: \
             diskcast hosts admit {name}, if that is the right one",
            from(rival)
        )
    });
    let named = machine.named_key.as_ref().map(|name| format!("only the key {name} is accepted"));
    followed.into_iter().chain(rival).chain(named).collect()
}

pub(super) fn disks(machine: &MachineStatus) -> String {
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
        Some(job) if job.is_early(clock::unix_seconds()) => {
            format!(
                "{}: {}, from {}",
                job.work,
                job.stage.name(),
                clock::short(&clock::show_unix(job.begins))
            )
        }
        Some(job) if job.stage == JobStage::Taken => {
            format!("{}: {}{}", job.work, job.stage.name(), progress(machine))
        }
        Some(job) => format!("{}: {}", job.work, job.stage.name()),
        None => "-".to_owned(),
    }
}

/// How far its agent is with its job.
fn progress(machine: &MachineStatus) -> String {
    let Some(JobProgress { step, done_bytes, total_bytes }) = &machine.progress else { return String::new() };
    let percent = (u128::from(*done_bytes) * 100).checked_div(u128::from(*total_bytes));
    percent.map_or_else(String::new, |percent| format!(", {step} {percent} %"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_job_says_when_it_begins_and_how_far_it_is() {
        let status = |job: Value, progress: Value| -> MachineStatus {
            let machine = json!({
                "mac": "52:54:00:00:00:01", "admitted": true, "job": job, "progress": progress,
            });
            serde_json::from_value(machine).unwrap()
        };
        let install = |stage: &str, begins: u64| {
            let reference = "web@3";
            json!({ "job": 1, "work": "install", "reference": reference, "stage": stage, "begins": begins })
        };
        let half = json!({ "step": "install", "done_bytes": 90, "total_bytes": 180 });
        // 2100-01-01T00:00:00Z.
        let late = 4_102_444_800;
        for (job_of_it, progress, expected) in [
            (install("queued", late), Value::Null, "install web@3: queued, from 2100-01-01 00:00"),
            (install("queued", 1), Value::Null, "install web@3: queued"),
            (install("taken", 0), half.clone(), "install web@3: taken, install 50 %"),
            (install("failed", 0), half, "install web@3: failed"),
        ] {
            assert_eq!(job(&status(job_of_it, progress)), expected);
        }
    }
}
