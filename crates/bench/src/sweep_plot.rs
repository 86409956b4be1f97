//! Draws what a server sends over the time between starts, a line for each policy, from the details of
//! `peers.start_delay`.

use std::fmt::Write as _;
use std::path::Path;

use plotters::prelude::*;

use crate::Result;
use crate::figure::Figure;

/// The figure that has the rows.
pub(crate) const FIGURE: &str = "peers.start_delay";

/// The policies: key in the rows, words, colour, width of the line.
const LINES: [(&str, &str, RGBColor, u32); 4] = [
    ("multicast images", "multicast alone", RGBColor(198, 40, 40), 2),
    ("swp2p images", "redirected at the switch (SWP2P's model)", RGBColor(239, 108, 0), 5),
    ("switch images", "diskcast, redirected at the switch", RGBColor(33, 97, 140), 2),
    ("hybrid images", "diskcast", RGBColor(46, 125, 50), 2),
];
const SIZE: (u32, u32) = (960, 420);

/// Draws the plot to `file`, and appends it to the page.
pub(crate) fn write(page: &mut String, figure: &Figure, file: &Path) -> Result<()> {
    let rows = figure.details.as_array().map_or(&[][..], Vec::as_slice);
    let value = |row: &serde_json::Value, key: &str| row[key].as_f64().unwrap_or(f64::NAN);
    let last = rows.iter().map(|row| value(row, "start delay s")).fold(1.0, f64::max);
    let area = SVGBackend::new(file, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let title = "What the server sends to 30 machines, by the time between their starts (less is better)";
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..last, (0.9..40.0).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("seconds between starts")
        .y_desc("images sent (log scale)")
        .y_label_formatter(&|images| format!("{images:.0}"))
        .light_line_style(WHITE)
        .draw()?;
    for (key, words, colour, width) in LINES {
        let points: Vec<(f64, f64)> =
            rows.iter().map(|row| (value(row, "start delay s"), value(row, key))).collect();
        let style = colour.stroke_width(width);
        chart
            .draw_series(LineSeries::new(points, style).point_size(2))?
            .label(words)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::MiddleRight)
        .background_style(WHITE)
        .border_style(RGBColor(215, 215, 215))
        .draw()?;
    area.present()?;
    write!(page, "\n![images that the server sends, by the time between starts](plots/start_delay.svg)\n")?;
    Ok(())
}
