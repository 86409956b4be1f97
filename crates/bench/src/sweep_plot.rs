//! Draws what a server sends over the time between starts, a line for each policy, from the details of
//! `peers.start_delay` and `peers.start_delay_lab`.

use std::fmt::Write as _;
use std::path::Path;

use plotters::prelude::*;

use crate::Result;
use crate::figure::Figure;

/// A plot of the rows of a figure.
pub(crate) struct Plot {
    /// The figure that has the rows.
    pub figure: &'static str,
    /// Name of the plot's file.
    pub file: &'static str,
    title: &'static str,
    /// The policies: key in the rows, words, colour, width of the line.
    lines: &'static [(&'static str, &'static str, RGBColor, u32)],
    /// Decimals of the times.
    decimals: usize,
}

const RED: RGBColor = RGBColor(198, 40, 40);
const ORANGE: RGBColor = RGBColor(239, 108, 0);
const BLUE: RGBColor = RGBColor(33, 97, 140);
const GREEN: RGBColor = RGBColor(46, 125, 50);

pub(crate) const PLOTS: [Plot; 2] = [
    Plot {
        figure: "peers.start_delay",
        file: "start_delay.svg",
        title: "What the server sends to 30 machines, by the time between their starts (less is better)",
        lines: &[
            ("multicast images", "multicast alone", RED, 2),
            ("swp2p images", "redirected at the switch (SWP2P's model)", ORANGE, 5),
            ("switch images", "diskcast, redirected at the switch", BLUE, 2),
            ("hybrid images", "diskcast", GREEN, 2),
        ],
        decimals: 0,
    },
    Plot {
        figure: "peers.start_delay_lab",
        file: "start_delay_lab.svg",
        title: "The same in the lab, at a tenth of the times: what the server sends to 30 hosts (less is better)",
        lines: &[
            ("multicast images", "multicast alone", RED, 2),
            ("server images", "no multicast, redirected by the server", ORANGE, 5),
            ("switch images", "no multicast, redirected at the switch", BLUE, 2),
            ("hybrid images", "diskcast", GREEN, 2),
        ],
        decimals: 1,
    },
];
const SIZE: (u32, u32) = (960, 420);

/// Draws a plot into the folder `plots`, and appends it to the page.
pub(crate) fn write(page: &mut String, plot: &Plot, figure: &Figure, plots: &Path) -> Result<()> {
    let file = plots.join(plot.file);
    let rows = figure.details.as_array().map_or(&[][..], Vec::as_slice);
    let value = |row: &serde_json::Value, key: &str| row[key].as_f64().unwrap_or(f64::NAN);
    let last = rows.iter().map(|row| value(row, "start delay s")).fold(1.0, f64::max);
    let area = SVGBackend::new(&file, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(plot.title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..last, (0.9..40.0).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("seconds between starts")
        .y_desc("images sent (log scale)")
        .x_label_formatter(&|seconds| format!("{seconds:.*}", plot.decimals))
        .y_label_formatter(&|images| format!("{images:.0}"))
        .light_line_style(WHITE)
        .draw()?;
    for (key, words, colour, width) in plot.lines {
        let points: Vec<(f64, f64)> =
            rows.iter().map(|row| (value(row, "start delay s"), value(row, key))).collect();
        let style = colour.stroke_width(*width);
        chart
            .draw_series(LineSeries::new(points, style).point_size(2))?
            .label(*words)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::MiddleRight)
        .background_style(WHITE)
        .border_style(RGBColor(215, 215, 215))
        .draw()?;
    area.present()?;
    let words = "images that the server sends, by the time between starts";
    write!(page, "\n![{words}](plots/{})\n", plot.file)?;
    Ok(())
}
