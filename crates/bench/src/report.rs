//! Writes `docs/measurements.md` and its plots from the notebook: of the last run of all headline figures.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Deserialize;
use serde_json::Value;

use crate::Result;
use crate::context::{notebook, root};
use crate::figure::{Bar, Figure};
use crate::{cluster, shares, side_by_side, sweep_plot, thesis};

#[derive(Deserialize)]
struct Entry {
    #[serde(flatten)]
    figure: Figure,
    commit: String,
    machine: String,
    date: String,
    run: Option<String>,
}

const INTRODUCTION: &str = "\
# Measurements

The last run of `make bench`: the headline figures, all of one commit. A figure holds its value against a bar; what
other programs reached on the same workload stands beside it, from the same run. Rates count 10^6 bytes. The network is
a lab of namespaces on one machine: server, switch and hosts share its cores. `bench/results.jsonl` has earlier runs,
and the diagnostics that `make bench ONLY='NAME …'` measures.
";

/// Explanations that follow the tables of a group.
const NOTES: &[(&str, &str)] = &[("multicast", MULTICAST_NOTE)];

const MULTICAST_NOTE: &str = include_str!("multicast_note.md");

/// Writes the page and its plots. `describe` says what a figure measures.
pub(crate) fn write(describe: shares::Describe<'_>) -> Result<()> {
    let text = std::fs::read_to_string(notebook())?;
    let mut newest: BTreeMap<String, Entry> = BTreeMap::new();
    let entries = text.lines().map(serde_json::from_str).collect::<std::result::Result<Vec<Entry>, _>>()?;
    let run = entries.iter().filter_map(|entry| entry.run.clone()).max();
    let run = run.ok_or("there was no run of all headline figures yet: `make bench`")?;
    for entry in entries.into_iter().filter(|entry| entry.run.as_ref() == Some(&run)) {
        newest.insert(entry.figure.name.clone(), entry);
    }
    let last = newest.values().max_by_key(|entry| &entry.date).ok_or("the run is empty")?;
    let Entry { machine, commit, date, .. } = last;
    let mut page = format!("{INTRODUCTION}\n{machine}; commit {commit}; {run} to {date}.\n");
    let mut groups: BTreeMap<&str, Vec<&Entry>> = BTreeMap::new();
    for (name, entry) in &newest {
        groups.entry(name.split('.').next().unwrap_or(name)).or_default().push(entry);
    }
    let plots = root().join("docs/plots");
    std::fs::create_dir_all(&plots)?;
    for (group, entries) in groups {
        section(&mut page, group, &entries)?;
        let notes = NOTES.iter().filter(|(about, _)| *about == group);
        notes.for_each(|(_, note)| page.push_str(note));
        if let Some(entry) = entries.iter().find(|entry| entry.figure.name == side_by_side::FIGURE) {
            side_by_side::write(&mut page, &entry.figure, &plots.join("side_by_side.svg"))?;
        }
        for plot in &sweep_plot::PLOTS {
            if let Some(entry) = entries.iter().find(|entry| entry.figure.name == plot.figure) {
                sweep_plot::write(&mut page, plot, &entry.figure, &plots)?;
            }
        }
        entries.iter().try_for_each(|entry| cluster::write_plot(&mut page, &entry.figure, &plots))?;
        entries.iter().try_for_each(|entry| thesis::write_plot(&mut page, &entry.figure, &plots))?;
        let file = plots.join(format!("{group}.svg"));
        let figures: Vec<_> = entries.iter().map(|entry| &entry.figure).collect();
        if shares::draw(&file, group, &figures, describe)? {
            let title = shares::title(group);
            write!(page, "\n![{title}: each value against its limit](plots/{group}.svg)\n")?;
        }
    }
    std::fs::write(root().join("docs/measurements.md"), page)?;
    Ok(())
}

fn section(page: &mut String, group: &str, entries: &[&Entry]) -> Result<()> {
    write!(
        page,
        "\n## {group}\n\n| figure | value | bar | holds | peers in the same run | workload and sink |\n"
    )?;
    writeln!(page, "|---|---|---|---|---|---|")?;
    for Entry { figure, .. } in entries {
        let bar = match figure.bar {
            Bar::AtLeast(bar) => format!("≥ {bar:.3}"),
            Bar::AtMost(bar) => format!("≤ {bar:.3}"),
            Bar::Shown => "shown".to_owned(),
        };
        let holds = figure.holds.map_or("–", |holds| if holds { "yes" } else { "**no**" });
        let peers: Vec<_> = figure
            .peers
            .iter()
            .map(|peer| {
                let flags = if peer.flags.is_empty() { String::new() } else { format!(" ({})", peer.flags) };
                format!("{}{flags}: {:.3} {}", peer.name, peer.value, peer.unit)
            })
            .collect();
        let Figure { name, value, unit, workload, sink, .. } = figure;
        let peers = peers.join("<br>");
        let sink = if sink == "-" { String::new() } else { format!("; {sink}") };
        writeln!(page, "| `{name}` | {value:.3} {unit} | {bar} | {holds} | {peers} | {workload}{sink} |")?;
    }
    let own = entries.iter().filter(|entry| entry.figure.name != side_by_side::FIGURE);
    let mut shown: Vec<(&Value, Vec<&str>)> = Vec::new();
    for Entry { figure, .. } in own {
        // Figures of one run may have the same rows.
        match shown.iter_mut().find(|(details, _)| **details == figure.details) {
            Some((_, names)) => names.push(&figure.name),
            None => shown.push((&figure.details, vec![&figure.name])),
        }
    }
    shown.iter().try_for_each(|(details, names)| table(page, names, details))
}

/// Writes a table for the figures `names`, whose `details` are a list of rows. What is too long for a cell is only in
/// the results.
fn table(page: &mut String, names: &[&str], details: &Value) -> Result<()> {
    let Some(rows) = details.as_array().filter(|rows| !rows.is_empty()) else { return Ok(()) };
    let Some(first) = rows[0].as_object() else { return Ok(()) };
    let is_plain = |value: &Value| match value {
        Value::Array(values) => values.iter().all(|value| !value.is_object() && !value.is_array()),
        value => !value.is_object(),
    };
    let columns: Vec<_> = first.iter().filter(|(_, value)| is_plain(value)).map(|(key, _)| key).collect();
    let named: Vec<_> = columns.iter().map(|column| column.as_str()).collect();
    let names = names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    write!(page, "\n{names}:\n\n| {} |\n|{}\n", named.join(" | "), "---|".repeat(columns.len()))?;
    for row in rows {
        let cells: Vec<_> = columns.iter().map(|column| cell(&row[column.as_str()])).collect();
        writeln!(page, "| {} |", cells.join(" | "))?;
    }
    Ok(())
}

fn cell(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_f64() => {
            let number = number.as_f64().unwrap_or(f64::NAN);
            if number.abs() < 100.0 { format!("{number:.2}") } else { format!("{number:.0}") }
        }
        Value::Array(values) => values.iter().map(cell).collect::<Vec<_>>().join(" "),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}
