//! Writes `docs/measurements.md` and its plots from the newest entry of each figure in the notebook.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use plotters::prelude::*;
use serde::Deserialize;

use crate::Result;
use crate::context::Context;
use crate::figure::{Bar, Figure};
use crate::side_by_side;

#[derive(Deserialize)]
struct Entry {
    #[serde(flatten)]
    figure: Figure,
    commit: String,
    machine: String,
    date: String,
}

const INTRODUCTION: &str = "\
# Measurements

Made by `make bench` from the newest entry of each figure in `bench/results.jsonl`. A figure holds its value against a
bar; what other programs reached on the same workload stands beside it, from the same run. Rates count 10^6 bytes.
The network is a lab of namespaces on one machine: server, switch and hosts share its cores.
";

/// Explanations that follow the tables of a group.
const NOTES: &[(&str, &str)] = &[("multicast", MULTICAST_NOTE)];

const MULTICAST_NOTE: &str = include_str!("multicast_note.md");

/// Writes the page and its plots.
pub(crate) fn write(context: &Context) -> Result<()> {
    let text = std::fs::read_to_string(context.notebook())?;
    let mut newest: BTreeMap<String, Entry> = BTreeMap::new();
    for line in text.lines() {
        let entry: Entry = serde_json::from_str(line)?;
        newest.insert(entry.figure.name.clone(), entry);
    }
    let last = newest.values().max_by_key(|entry| entry.date.clone()).ok_or("the notebook is empty")?;
    let mut page = format!("{INTRODUCTION}\nMachine: {}.\n", last.machine);
    let mut groups: BTreeMap<&str, Vec<&Entry>> = BTreeMap::new();
    for (name, entry) in &newest {
        groups.entry(name.split('.').next().unwrap_or(name)).or_default().push(entry);
    }
    let plots = context.root.join("docs/plots");
    std::fs::create_dir_all(&plots)?;
    for (group, entries) in groups {
        section(&mut page, group, &entries)?;
        let notes = NOTES.iter().filter(|(about, _)| *about == group);
        notes.for_each(|(_, note)| page.push_str(note));
        if let Some(entry) = entries.iter().find(|entry| entry.figure.name == side_by_side::FIGURE) {
            side_by_side::write(&mut page, &entry.figure, &plots.join("side_by_side.svg"))?;
        }
        let file = plots.join(format!("{group}.svg"));
        if plot(&file, &entries)? {
            write!(page, "\n![{group}: share of each bar](plots/{group}.svg)\n")?;
        }
    }
    std::fs::write(context.root.join("docs/measurements.md"), page)?;
    Ok(())
}

fn section(page: &mut String, group: &str, entries: &[&Entry]) -> Result<()> {
    write!(
        page,
        "\n## {group}\n\n| figure | value | bar | holds | peers in the same run | workload and sink | commit |\n"
    )?;
    writeln!(page, "|---|---|---|---|---|---|---|")?;
    for Entry { figure, commit, .. } in entries {
        let bar = match figure.bar {
            Bar::AtLeast(bar) => format!("≥ {bar:.3}"),
            Bar::AtMost(bar) => format!("≤ {bar:.3}"),
            Bar::Shown => "shown".to_owned(),
        };
        let holds = figure.holds.map_or("–", |holds| if holds { "yes" } else { "**no**" });
        let peers: Vec<_> = figure
            .peers
            .iter()
            .map(|peer| format!("{} ({}): {:.3} {}", peer.name, peer.flags, peer.value, peer.unit))
            .collect();
        let Figure { name, value, unit, workload, sink, .. } = figure;
        let peers = peers.join("<br>");
        writeln!(
            page,
            "| `{name}` | {value:.3} {unit} | {bar} | {holds} | {peers} | {workload}; {sink} | {commit} |"
        )?;
    }
    for Entry { figure, .. } in entries.iter().filter(|entry| entry.figure.name != side_by_side::FIGURE) {
        table(page, figure)?;
    }
    Ok(())
}

/// Writes a table for a figure whose details are a list of rows.
fn table(page: &mut String, figure: &Figure) -> Result<()> {
    let Some(rows) = figure.details.as_array().filter(|rows| !rows.is_empty()) else { return Ok(()) };
    let Some(columns) = rows[0].as_object().map(|row| row.keys().cloned().collect::<Vec<_>>()) else {
        return Ok(());
    };
    write!(page, "\n`{}`:\n\n| {} |\n|{}\n", figure.name, columns.join(" | "), "---|".repeat(columns.len()))?;
    for row in rows {
        let cells: Vec<_> = columns.iter().map(|column| cell(&row[column])).collect();
        writeln!(page, "| {} |", cells.join(" | "))?;
    }
    Ok(())
}

fn cell(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::String(text) => text.clone(),
        serde_json::Value::Number(number) if number.is_f64() => {
            format!("{:.2}", number.as_f64().unwrap_or(f64::NAN))
        }
        other => other.to_string(),
    }
}

/// Longer bars are cut off; otherwise the others would be too short to compare.
const SHARE_MAX: f64 = 2.0;

/// Value divided by bar, or the inverse if less is better: 1 or more if the figure holds.
fn share(figure: &Figure) -> Option<f64> {
    match figure.bar {
        Bar::AtLeast(bar) => Some(figure.value / bar),
        // The best possible value; avoids a division by zero.
        Bar::AtMost(_) if figure.value == 0.0 => Some(SHARE_MAX),
        Bar::AtMost(bar) => Some(bar / figure.value),
        Bar::Shown => None,
    }
}

/// Draws a bar for each figure, with its [`share`] as length. False if no figure has one.
fn plot(file: &Path, entries: &[&Entry]) -> Result<bool> {
    let shares: Vec<(&str, f64)> = entries
        .iter()
        .filter_map(|entry| Some((entry.figure.name.as_str(), share(&entry.figure)?)))
        .collect();
    if shares.is_empty() {
        return Ok(false);
    }
    let rows = i32::try_from(shares.len())?;
    let widest = shares.iter().map(|(_, share)| *share).fold(1.2, f64::max).min(SHARE_MAX);
    let area = SVGBackend::new(file, (760, u32::try_from(72 + 28 * rows)?)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(200)
        .build_cartesian_2d(0.0..widest * 1.05, (0..rows - 1).into_segmented())?;
    let name_of = |row: &SegmentValue<i32>| match row {
        SegmentValue::CenterOf(row) => {
            usize::try_from(*row).ok().and_then(|row| shares.get(row)).map_or("", |(name, _)| name).to_owned()
        }
        _ => String::new(),
    };
    chart
        .configure_mesh()
        .disable_y_mesh()
        .x_desc("margin: 1 is the bar, more is better; cut at 2")
        .y_label_formatter(&name_of)
        .y_labels(shares.len())
        .draw()?;
    chart.draw_series(shares.iter().enumerate().map(|(row, (_, share))| {
        let row = i32::try_from(row).expect("few figures");
        let colour = if *share >= 1.0 { RGBColor(46, 125, 50) } else { RGBColor(198, 40, 40) };
        let corners = [(0.0, SegmentValue::Exact(row)), (share.min(widest), SegmentValue::Exact(row + 1))];
        let mut bar = Rectangle::new(corners, colour.filled());
        bar.set_margin(4, 4, 0, 0);
        bar
    }))?;
    chart.draw_series(LineSeries::new(
        [(1.0, SegmentValue::Exact(0)), (1.0, SegmentValue::Exact(rows))],
        BLACK.stroke_width(2),
    ))?;
    area.present()?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_one_where_a_figure_just_holds() {
        let of = |value: f64, bar| share(&Figure::new("a", &[value], "s", bar));
        assert_eq!([of(2.0, Bar::AtLeast(2.0)), of(2.0, Bar::AtMost(2.0))], [Some(1.0); 2]);
        assert_eq!([of(1.0, Bar::AtLeast(2.0)), of(4.0, Bar::AtMost(2.0))], [Some(0.5); 2]);
        assert_eq!([of(0.0, Bar::AtMost(0.0)), of(1.0, Bar::AtMost(0.0))], [Some(SHARE_MAX), Some(0.0)]);
        assert_eq!(of(1.0, Bar::Shown), None);
    }
}
