//! Plots of the measurements of seed 001, beside the values that it published.

use std::fmt::Write as _;
use std::ops::Range;
use std::path::Path;

use plotters::prelude::*;
use serde_json::Value;

use crate::Result;
use crate::figure::Figure;

const SIZE: (u32, u32) = (960, 440);
const GREEN: RGBColor = RGBColor(46, 125, 50);
const RED: RGBColor = RGBColor(198, 40, 40);
const BLUE: RGBColor = RGBColor(33, 97, 140);
const ORANGE: RGBColor = RGBColor(239, 108, 0);
const GREY: RGBColor = RGBColor(120, 120, 120);
/// The tools of tables 6.1 and 6.2: column, its name there, colour.
const TOOLS: [(&str, &str, RGBColor); 4] = [
    ("aria2", "BitTorrent", BLUE),
    ("scp", "scp", RED),
    ("udpcast", "UDPcast", ORANGE),
    ("uftp", "UFTP", GREY),
];
/// Tests of table 6.3, in their order.
const TESTS: [&str; 4] = ["write", "rewrite", "read", "reread"];

type Points = Vec<(f64, f64)>;

/// A line of a plot. What was published is thin and pale.
struct Line {
    words: String,
    points: Points,
    colour: RGBColor,
    is_published: bool,
}

/// A plot with its axes.
struct Plot {
    file: &'static str,
    title: &'static str,
    x: &'static str,
    y: &'static str,
    range: Range<f64>,
    /// The least top of the y axis.
    top: f64,
    label: fn(f64) -> String,
    legend: SeriesLabelPosition,
    lines: Vec<Line>,
}

/// Appends the plot of a figure to the page, if it has one.
pub(crate) fn write(page: &mut String, figure: &Figure, plots: &Path) -> Result<()> {
    let plot = match figure.name.as_str() {
        "thesis.table_6_1" => table(
            figure,
            "thesis_6_1.svg",
            "Table 6.1: 9.77 GB to many hosts (lab: a fortieth), until the last has it (less is better)",
            "times of one image on a link",
        ),
        "thesis.table_6_2" => table(
            figure,
            "thesis_6_2.svg",
            "Table 6.2: 899 MB to many hosts (lab: a fortieth of bytes and rates), until the last has it",
            "seconds (less is better)",
        ),
        "thesis.table_6_3" => disks(figure),
        "thesis.figure_6_6" => pieces(figure),
        "thesis.figure_6_7" => switches(figure),
        "thesis.sim" => simulated(figure, "thesis_sim.svg", 1),
        "thesis.sim_small" => simulated(figure, "thesis_sim_small.svg", 2),
        _ => return Ok(()),
    };
    plot.draw(&plots.join(plot.file))?;
    write!(page, "\n![{}](plots/{})\n", plot.title, plot.file)?;
    Ok(())
}

fn rows(figure: &Figure) -> &[Value] {
    figure.details.as_array().map_or(&[], Vec::as_slice)
}

/// The points of the rows whose `key` is `of`; rows without a value have none.
fn points(figure: &Figure, (key, of): (&str, &str), x: impl Fn(&Value) -> Option<f64>, y: &str) -> Points {
    let rows = rows(figure).iter().filter(|row| key.is_empty() || row[key] == of);
    rows.filter_map(|row| Some((x(row)?, row[y].as_f64()?))).collect()
}

fn hosts(row: &Value) -> Option<f64> {
    row["hosts"].as_f64()
}

fn whole(number: f64) -> String {
    format!("{number:.0}")
}

fn measured(words: &str, points: Points, colour: RGBColor) -> Line {
    Line { words: words.to_owned(), points, colour, is_published: false }
}

fn published(words: &str, points: Points, colour: RGBColor) -> Line {
    Line { words: words.to_owned(), points, colour, is_published: true }
}

fn table(figure: &Figure, file: &'static str, title: &'static str, y: &'static str) -> Plot {
    let mut lines = vec![measured(
        "diskcast deploy, lab",
        points(figure, ("where", "lab"), hosts, "diskcast deploy"),
        GREEN,
    )];
    for (column, there, colour) in TOOLS {
        let of = |whence: &str| points(figure, ("where", whence), hosts, column);
        lines.push(measured(&format!("{column}, lab"), of("lab"), colour));
        lines.push(published(&format!("{there}, seed 001"), of("seed 001"), colour));
    }
    hosts_plot(file, title, y, lines)
}

fn hosts_plot(file: &'static str, title: &'static str, y: &'static str, lines: Vec<Line>) -> Plot {
    let legend = SeriesLabelPosition::UpperLeft;
    Plot { file, title, x: "hosts", y, range: 0.0..62.0, top: 1.0, label: whole, legend, lines }
}

fn simulated(figure: &Figure, file: &'static str, table: u32) -> Plot {
    let of = |column: &str| points(figure, ("", ""), hosts, column);
    let there = super::tables::published_points(table);
    let mut lines = vec![
        measured("diskcast", of("diskcast, last s"), GREEN),
        measured("multicast alone", of("multicast alone, last s"), RGBColor(129, 199, 132)),
        measured("from machine to machine, no multicast", of("no multicast, last s"), ORANGE),
        measured("BitTorrent", of("BitTorrent, last s"), BLUE),
        measured("scp, a fluid", of("scp, a fluid, s"), RED),
    ];
    let colours = [BLUE, RED, ORANGE, GREY];
    for ((words, points), colour) in there.into_iter().zip(colours) {
        lines.push(published(&format!("{words}, seed 001"), points, colour));
    }
    let title = match table {
        1 => "Simulated: 9.77 GB to 1 to 60 hosts of 1 Gbit/s, until the last has it (less is better)",
        _ => "Simulated: 899 MB to 1 to 60 hosts of 1 Gbit/s, until the last has it (less is better)",
    };
    hosts_plot(file, title, "seconds", lines)
}

fn pieces(figure: &Figure) -> Plot {
    let x = |row: &Value| row["piece KiB"].as_f64().map(f64::log2);
    let best =
        rows(figure).iter().find(|row| row["piece KiB"] == 256).and_then(|row| row["mean, images"].as_f64());
    let over = |column: &str| -> Points {
        let all = points(figure, ("", ""), x, column).into_iter();
        all.map(|(x, y)| (x, y / best.unwrap_or(f64::NAN))).collect()
    };
    let lines = vec![
        measured("diskcast, mean of 16 hosts", over("mean, images"), GREEN),
        measured("diskcast, last of 16 hosts", over("last, images"), BLUE),
        published("seed 001, mean of 60 (text: about 5 % at 8 MB)", vec![(8.0, 1.0), (13.0, 1.05)], RED),
    ];
    Plot {
        file: "thesis_6_6.svg",
        title: "Figure 6.6: time by BitTorrent, by the size of pieces (less is better)",
        x: "size of pieces",
        y: "over the mean with 256 KiB",
        range: 5.8..17.2,
        top: 1.5,
        label: |power| {
            let kib = power.exp2();
            if kib < 1024.0 { format!("{kib:.0} KiB") } else { format!("{:.0} MiB", kib / 1024.0) }
        },
        legend: SeriesLabelPosition::LowerLeft,
        lines,
    }
}

fn switches(figure: &Figure) -> Plot {
    let x = |row: &Value| row["switches"].as_f64();
    let over = |way: &str| -> Points {
        let all = points(figure, ("way", way), x, "last, images");
        let one = all.first().map_or(f64::NAN, |point| point.1);
        all.iter().map(|(x, y)| (*x, y / one)).collect()
    };
    let lines = vec![
        measured("diskcast, places known", over("diskcast, places known"), GREEN),
        measured("diskcast, places not known", over("diskcast, places not known"), BLUE),
        measured("aria2, opentracker", over("aria2, opentracker"), ORANGE),
        published("seed 001: 15 %", vec![(1.0, 1.0), (2.0, 1.15)], RED),
    ];
    Plot {
        file: "thesis_6_7.svg",
        title: "Figure 6.7: the last host by BitTorrent, all at one switch and half of them at another",
        x: "switches",
        y: "time over that with one switch (less is better)",
        range: 0.9..2.1,
        top: 1.3,
        label: |switches| if switches.fract() == 0.0 { whole(switches) } else { String::new() },
        legend: SeriesLabelPosition::LowerLeft,
        lines,
    }
}

fn disks(figure: &Figure) -> Plot {
    let x = |row: &Value| TESTS.iter().position(|test| row["test"] == *test).map(|at| at as f64);
    let of = |whence: &str, column: &str| points(figure, ("where", whence), x, column);
    let (ours, there) = ("a guest, QCOW2 over a raw image", "seed 001, IOzone");
    let mut lines = vec![];
    for (column, colour) in [("QCOW2/LVM %", RED), ("QCOW2/raw %", BLUE), ("raw/LVM %", ORANGE)] {
        let name = column.trim_end_matches(" %");
        lines.push(measured(name, of(ours, column), colour));
        lines.push(published(&format!("{name}, seed 001"), of(there, column), colour));
    }
    Plot {
        file: "thesis_6_3.svg",
        title: "Table 6.3: throughput of a guest on a QCOW2 over a raw image, a raw file and a logical volume",
        x: "test",
        y: "percent (100: equal)",
        range: -0.2..3.2,
        top: 120.0,
        label: |at| {
            let test = TESTS.iter().zip(0u8..).find(|(_, index)| (f64::from(*index) - at).abs() < 1e-9);
            test.map_or(String::new(), |(test, _)| (*test).to_owned())
        },
        legend: SeriesLabelPosition::LowerLeft,
        lines,
    }
}

impl Plot {
    fn draw(&self, file: &Path) -> Result<()> {
        let values = self.lines.iter().flat_map(|line| line.points.iter().map(|point| point.1));
        let top = values.fold(self.top, f64::max) * 1.05;
        let area = SVGBackend::new(file, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(self.title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(60)
            .build_cartesian_2d(self.range.clone(), 0.0..top)?;
        chart
            .configure_mesh()
            .x_desc(self.x)
            .y_desc(self.y)
            .x_label_formatter(&|x| (self.label)(*x))
            .light_line_style(WHITE)
            .draw()?;
        for line in self.lines.iter().filter(|line| !line.points.is_empty()) {
            let (opacity, width) = if line.is_published { (0.45, 1) } else { (1.0, 2) };
            let style = line.colour.mix(opacity).stroke_width(width);
            chart
                .draw_series(LineSeries::new(line.points.clone(), style).point_size(if width == 1 {
                    2
                } else {
                    3
                }))?
                .label(&line.words)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        }
        chart
            .configure_series_labels()
            .position(self.legend.clone())
            .background_style(WHITE.mix(0.8))
            .border_style(RGBColor(215, 215, 215))
            .draw()?;
        area.present()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::figure::Bar;

    fn drawn(name: &str, rows: Value, file: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        let mut page = String::new();
        let figure = Figure::new(name, &[1.0], "ratio", Bar::Shown).with(rows);
        write(&mut page, &figure, folder.path()).unwrap();
        assert!(page.contains(&format!("(plots/{file})")), "{page}");
        std::fs::read_to_string(folder.path().join(file)).unwrap()
    }

    #[test]
    fn each_measurement_has_its_plot_with_what_was_published() {
        let lab = json!({ "where": "lab", "hosts": 1, "scp": 1.0, "diskcast deploy": 1.1 });
        let there = json!({ "where": "seed 001", "hosts": 60, "scp": 10.8 });
        let table = drawn("thesis.table_6_1", json!([lab, there]), "thesis_6_1.svg");
        assert!(table.contains("scp, lab") && table.contains("scp, seed 001"));
        assert!(!table.contains("UFTP"), "there is no such column");
        let piece = |kib: u32| json!({ "piece KiB": kib, "mean, images": 1.2, "last, images": 1.3 });
        let pieces = drawn("thesis.figure_6_6", json!([piece(64), piece(256)]), "thesis_6_6.svg");
        assert!(pieces.contains("about 5 %"));
        let run =
            |switches: u32| json!({ "way": "aria2, opentracker", "switches": switches, "last, images": 1.2 });
        let switches = drawn("thesis.figure_6_7", json!([run(1), run(2)]), "thesis_6_7.svg");
        assert!(switches.contains("aria2, opentracker") && switches.contains("15 %"));
        let test = |test: &str| json!({ "where": "seed 001, IOzone", "test": test, "raw/LVM %": 80.0 });
        let disks = drawn("thesis.table_6_3", json!([test("write"), test("reread")]), "thesis_6_3.svg");
        assert!(disks.contains("raw/LVM, seed 001") && disks.contains("reread"));
        let row = json!({ "hosts": 60, "diskcast, last s": 90.0 });
        let simulated = drawn("thesis.sim", json!([row]), "thesis_sim.svg");
        assert!(simulated.contains("diskcast") && simulated.contains("BitTorrent, seed 001"));
        let mut page = String::new();
        write(&mut page, &Figure::new("thesis.scp_model", &[1.0], "ratio", Bar::Shown), Path::new("/"))
            .unwrap();
        assert!(page.is_empty());
    }
}
