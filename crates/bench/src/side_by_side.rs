//! Writes the table and the plot that compare all tools, from the details of `multicast.vs_best_peer`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use plotters::prelude::*;
use serde::Deserialize;

use crate::Result;
use crate::figure::Figure;
use crate::peer::PEERS;

/// The figure that has the rows.
pub(crate) const FIGURE: &str = "multicast.vs_best_peer";

/// The result of one tool in one cell, as a row of the figure's details. Times are absent if no host finished.
#[derive(Deserialize)]
struct Row {
    network: String,
    workload: String,
    tool: String,
    flags: String,
    runs: u32,
    #[serde(rename = "first s")]
    first: Option<f64>,
    #[serde(rename = "mean s")]
    mean: Option<f64>,
    #[serde(rename = "last s")]
    last: Option<f64>,
    #[serde(rename = "over diskcast")]
    over: Option<f64>,
    #[serde(rename = "server bytes / file")]
    bytes: Option<f64>,
    state: String,
    done: bool,
}

const INTRODUCTION: &str = include_str!("side_by_side.md");

/// Appends the table, and draws the plot to `file`.
pub(crate) fn write(page: &mut String, figure: &Figure, file: &Path) -> Result<()> {
    let rows: Vec<Row> = serde_json::from_value(figure.details.clone())?;
    write!(page, "\n### Side by side\n{INTRODUCTION}")?;
    write!(page, "\n![time of the last host by tool](plots/side_by_side.svg)\n\n")?;
    writeln!(
        page,
        "| hosts and links | workload | tool | first s | mean s | last s | over diskcast | server bytes / file | \
            runs | state |"
    )?;
    writeln!(page, "|---|---|---|---|---|---|---|---|---|---|")?;
    let mut flags = BTreeMap::new();
    for row in &rows {
        let Row { network, workload, tool, runs, state, .. } = row;
        let [first, mean, last, over, bytes] =
            [row.first, row.mean, row.last, row.over, row.bytes].map(|value| match value {
                Some(value) => format!("{value:.2}"),
                None => "–".to_owned(),
            });
        let bound = if row.done { "" } else { "> " };
        writeln!(
            page,
            "| {network} | {workload} | {tool} | {first} | {mean} | {bound}{last} | {bound}{over} | {bytes} | \
                {runs} | {state} |"
        )?;
        flags.insert(tool, &row.flags);
    }
    write!(page, "\nSettings:\n\n")?;
    for (tool, flags) in flags {
        writeln!(page, "- {tool}: {flags}")?;
    }
    plot(file, &rows)
}

/// Draws a panel for each cell, with a bar for each tool.
fn plot(file: &Path, rows: &[Row]) -> Result<()> {
    let mut cells: Vec<(&str, &str)> = Vec::new();
    for row in rows {
        let cell = (row.network.as_str(), row.workload.as_str());
        if !cells.contains(&cell) {
            cells.push(cell);
        }
    }
    let columns = 4;
    let lines = cells.len().div_ceil(columns);
    let area = SVGBackend::new(file, (1240, u32::try_from(190 * lines)?)).into_drawing_area();
    area.fill(&WHITE)?;
    for (panel, (network, workload)) in area.split_evenly((lines, columns)).iter().zip(&cells) {
        let bars: Vec<&Row> =
            rows.iter().filter(|row| row.network == *network && row.workload == *workload).collect();
        draw_panel(panel, network, workload, &bars)?;
    }
    area.present()?;
    Ok(())
}

fn draw_panel(
    panel: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    network: &str,
    workload: &str,
    bars: &[&Row],
) -> Result<()> {
    let longest = bars.iter().filter_map(|row| row.last).fold(0.1, f64::max);
    // All panels have the same thickness of bars, also those with few tools.
    let count = i32::try_from(bars.len().max(PEERS.len() + 1))?;
    let small = ("sans-serif", 11).into_font();
    let workload = workload.replace(" of incompressible data", ", random").replace("a ", "");
    panel.draw(&Text::new(format!("{network}; {workload}"), (8, 4), ("sans-serif", 12).into_font()))?;
    let mut chart = ChartBuilder::on(panel)
        .margin(6)
        .margin_top(20)
        .x_label_area_size(18)
        .y_label_area_size(92)
        .build_cartesian_2d(0.0..longest * 1.25, 0..count)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .light_line_style(WHITE)
        .x_labels(5)
        .x_label_style(small.clone())
        .x_label_formatter(&|seconds| format!("{seconds:.0} s"))
        .draw()?;
    for (place, row) in bars.iter().enumerate() {
        let place = count - 1 - i32::try_from(place)?;
        let last = row.last.unwrap_or(0.0);
        let colour = match (row.tool.as_str(), row.done) {
            ("diskcast", _) => RGBColor(46, 125, 50),
            (_, true) => RGBColor(96, 125, 139),
            (_, false) => RGBColor(207, 216, 220),
        };
        let mut bar = Rectangle::new([(0.0, place), (last, place + 1)], colour.filled());
        bar.set_margin(2, 2, 0, 0);
        chart.draw_series([bar])?;
        let words = if row.done { format!("{last:.1}") } else { "not done".to_owned() };
        let (x, y) = chart.backend_coord(&(last, place + 1));
        let (left, top) = panel.get_base_pixel();
        panel.draw(&Text::new(words, (x - left + 4, y - top + 3), small.clone()))?;
        let (x, _) = chart.backend_coord(&(0.0, place));
        panel.draw(&Text::new(row.tool.clone(), (x - left - 90, y - top + 3), small.clone()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::figure::Bar;

    #[test]
    fn the_table_and_its_plot_are_made() {
        let row = |network: &str, tool: &str, last: Option<f64>, done| {
            json!({
                "network": network, "workload": "256 MiB of incompressible data", "tool": tool, "flags": "as it \
                    is", "runs": 3,
                "first s": last, "mean s": last, "last s": last, "over diskcast": last, "server bytes / file": 1.0,
                "state": "ok", "done": done,
            })
        };
        let rows = json!([
            row("1 at 1 Gbit/s", "diskcast", Some(2.0), true),
            row("1 at 1 Gbit/s", "chain", Some(2.5), true),
            row("4 at 1 Gbit/s", "uftp", None, false),
        ]);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("plot.svg");
        let mut page = String::new();
        write(&mut page, &Figure::new(FIGURE, &[1.0], "ratio", Bar::Shown).with(rows), &file).unwrap();
        assert!(page.contains("| chain | 2.50 |") && page.contains("| > – |"), "{page}");
        assert!(std::fs::read_to_string(file).unwrap().contains("not done"));
    }
}
