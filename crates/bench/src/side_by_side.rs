//! Writes the table and the plot that compare all tools, from the details of `multicast.vs_best_peer`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use plotters::prelude::*;
use serde::Deserialize;

use crate::Result;
use crate::figure::Figure;

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
    write!(
        page,
        "\n![time until the last host has everything, by tool and network](plots/side_by_side.svg)\n\n"
    )?;
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

const DISKCAST: RGBColor = RGBColor(46, 125, 50);
const OTHER: RGBColor = RGBColor(96, 125, 139);
const ENDED: RGBColor = RGBColor(207, 216, 220);

/// Width of the plot, height of its title and legend, height of a panel without bars, and of a bar, in pixels.
const WIDTH: i32 = 1240;
const HEAD: i32 = 64;
const PANEL: i32 = 74;
const BAR: i32 = 19;
/// Most panels side by side.
const COLUMNS: usize = 4;

/// One network and workload, with the tools that were measured there.
struct Cell<'a> {
    network: &'a str,
    workload: &'a str,
    bars: Vec<&'a Row>,
}

/// The cells in which there is something to compare, those with the most tools first: so that panels in a line are of
/// about the same height.
fn cells(rows: &[Row]) -> Vec<Cell<'_>> {
    let mut cells: Vec<Cell<'_>> = Vec::new();
    for row in rows {
        let (network, workload) = (row.network.as_str(), row.workload.as_str());
        match cells.iter_mut().find(|cell| (cell.network, cell.workload) == (network, workload)) {
            Some(cell) => cell.bars.push(row),
            None => cells.push(Cell { network, workload, bars: vec![row] }),
        }
    }
    cells.retain(|cell| cell.bars.len() > 1);
    cells.sort_by_key(|cell| std::cmp::Reverse(cell.bars.len()));
    cells
}

/// Draws a panel for each cell, with a bar for each tool. The panels of the last line share its whole width.
fn plot(file: &Path, rows: &[Row]) -> Result<()> {
    let cells = cells(rows);
    let height = |line: &[Cell<'_>]| i32::try_from(line[0].bars.len()).map(|bars| PANEL + BAR * bars);
    let heights = cells.chunks(COLUMNS).map(height).collect::<std::result::Result<Vec<i32>, _>>()?;
    let size = (u32::try_from(WIDTH)?, u32::try_from(HEAD + heights.iter().sum::<i32>())?);
    let area = SVGBackend::new(file, size).into_drawing_area();
    area.fill(&WHITE)?;
    head(&area)?;
    let mut rest = area.split_vertically(HEAD).1;
    for (line, height) in cells.chunks(COLUMNS).zip(heights) {
        let (here, below) = rest.split_vertically(height);
        for (panel, cell) in here.split_evenly((1, line.len())).iter().zip(line) {
            draw_panel(panel, cell, (height - PANEL) / BAR)?;
        }
        rest = below;
    }
    area.present()?;
    Ok(())
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// The title and the legend.
fn head(area: &Area<'_>) -> Result<()> {
    let title = "Time until the last host has the whole file or image, by tool and network (less is better)";
    area.draw(&Text::new(title, (8, 8), ("sans-serif", 18).into_font()))?;
    let legend = [
        (8, DISKCAST, "diskcast"),
        (110, OTHER, "another tool, in the same run"),
        (330, ENDED, "ended unfinished, after four times diskcast's time: the bar is a lower bound"),
    ];
    for (left, colour, words) in legend {
        area.draw(&Rectangle::new([(left, 38), (left + 14, 50)], colour.filled()))?;
        area.draw(&Text::new(words, (left + 20, 38), ("sans-serif", 12).into_font()))?;
    }
    Ok(())
}

/// `4 at 1 Gbit/s, 1 % loss` as `4 hosts at 1 Gbit/s, 1 % loss`.
fn hosts(network: &str) -> String {
    match network.split_once(" at ") {
        Some(("1", links)) => format!("1 host at {links}"),
        Some((count, links)) => format!("{count} hosts at {links}"),
        None => network.to_owned(),
    }
}

/// Draws a cell, with room for `count` bars.
fn draw_panel(panel: &Area<'_>, cell: &Cell<'_>, count: i32) -> Result<()> {
    let Cell { network, workload, bars } = cell;
    let longest = bars.iter().filter_map(|row| row.last).fold(0.1, f64::max);
    let small = ("sans-serif", 11).into_font();
    panel.draw(&Text::new(hosts(network), (8, 4), ("sans-serif", 13).into_font()))?;
    panel.draw(&Text::new(*workload, (8, 20), small.clone()))?;
    let mut chart = ChartBuilder::on(panel)
        .margin(6)
        .margin_top(36)
        .x_label_area_size(32)
        .y_label_area_size(92)
        .build_cartesian_2d(0.0..longest * 1.3, 0..count)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .light_line_style(WHITE)
        .x_labels(5)
        .x_label_style(small.clone())
        .x_desc("seconds")
        .axis_desc_style(small.clone())
        .x_label_formatter(&|seconds| seconds_of(*seconds))
        .draw()?;
    for (place, row) in bars.iter().enumerate() {
        let place = count - 1 - i32::try_from(place)?;
        let last = row.last.unwrap_or(0.0);
        let colour = match (row.tool.as_str(), row.done) {
            ("diskcast", true) => DISKCAST,
            (_, true) => OTHER,
            (_, false) => ENDED,
        };
        let mut bar = Rectangle::new([(0.0, place), (last, place + 1)], colour.filled());
        bar.set_margin(2, 2, 0, 0);
        chart.draw_series([bar])?;
        let words = match (row.done, row.last) {
            (true, _) => format!("{last:.1}"),
            (false, Some(_)) => format!("> {last:.1}"),
            (false, None) => "not done".to_owned(),
        };
        let (x, y) = chart.backend_coord(&(last, place + 1));
        let (left, top) = panel.get_base_pixel();
        panel.draw(&Text::new(words, (x - left + 4, y - top + 3), small.clone()))?;
        let (x, _) = chart.backend_coord(&(0.0, place));
        panel.draw(&Text::new(row.tool.clone(), (x - left - 90, y - top + 3), small.clone()))?;
    }
    Ok(())
}

/// A label of the axis, with the decimals that it needs.
fn seconds_of(seconds: f64) -> String {
    let text = format!("{seconds:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
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
            row("4 at 1 Gbit/s", "diskcast", Some(2.5), true),
            row("4 at 1 Gbit/s", "uftp", None, false),
            row("4 at 1 Gbit/s", "scp", Some(10.0), false),
            row("8 at 1 Gbit/s", "diskcast", Some(2.5), true),
        ]);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("plot.svg");
        let mut page = String::new();
        write(&mut page, &Figure::new(FIGURE, &[1.0], "ratio", Bar::Shown).with(rows), &file).unwrap();
        assert!(page.contains("| chain | 2.50 |") && page.contains("| > – |"), "{page}");
        let drawn = std::fs::read_to_string(file).unwrap();
        for words in
            ["not done", "&gt; 10.0", "1 host at 1 Gbit/s", "4 hosts at", "seconds", "(less is better)"]
        {
            assert!(drawn.contains(words), "{words} is missing");
        }
        assert!(!drawn.contains("8 hosts"), "there is nothing to compare with");
    }
}
