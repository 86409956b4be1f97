//! Plots of the cluster's experiments beside what seeds 002 and 003 say of their own.

use std::fmt::Write as _;
use std::path::Path;

use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use serde_json::Value;

use crate::Result;
use crate::figure::Figure;

const SIZE: (u32, u32) = (960, 420);
const RED: RGBColor = RGBColor(198, 40, 40);
const BLUE: RGBColor = RGBColor(33, 97, 140);
const GREEN: RGBColor = RGBColor(46, 125, 50);
const GREY: RGBColor = RGBColor(120, 120, 120);

type Points = Vec<(f64, f64)>;

/// Appends the plot of a figure to the page, if it has one.
pub(crate) fn write(page: &mut String, figure: &Figure, plots: &Path) -> Result<()> {
    let (file, words) = match figure.name.as_str() {
        "cluster.scaling" => ("cluster_clients.svg", "what clients that read at the same time get together"),
        "cluster.incast" => {
            ("cluster_incast.svg", "what one client gets of its link, by the devices of a stripe")
        }
        "cluster.incast_sequence" => ("cluster_sequence.svg", "what one device sends over time"),
        "cluster.figure5_read" => {
            ("cluster_figure5.svg", "what clients of 100 devices read and write together")
        }
        "cluster.boots_150" => ("cluster_boots.svg", "when the last of many machines has booted"),
        _ => return Ok(()),
    };
    let path = plots.join(file);
    match figure.name.as_str() {
        "cluster.scaling" => clients(figure, &path)?,
        "cluster.incast" => widths(figure, &path)?,
        "cluster.figure5_read" => figure_5(figure, &path)?,
        "cluster.boots_150" => boots(figure, &path)?,
        _ => sequences(figure, &path)?,
    }
    write!(page, "\n![{words}](plots/{file})\n")?;
    Ok(())
}

fn rows(figure: &Figure) -> &[Value] {
    figure.details.as_array().map_or(&[], Vec::as_slice)
}

fn points(figure: &Figure, x: &str, y: &str) -> Points {
    let number = |row: &Value, key: &str| row[key].as_f64().unwrap_or(f64::NAN);
    rows(figure).iter().map(|row| (number(row, x), number(row, y))).collect()
}

/// Figure 6 of the seed: the sum over clients.
fn clients(figure: &Figure, file: &Path) -> Result<()> {
    let ours = points(figure, "clients", "links filled");
    let area = SVGBackend::new(file, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let title =
        "Clients that read at the same time from 10 devices: links that they fill together (more is better)";
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..13.0, 0.0..13.0)?;
    chart
        .configure_mesh()
        .x_desc("clients")
        .y_desc("bandwidth of all, in links of one client")
        .x_label_formatter(&|clients| format!("{clients:.0}"))
        .y_label_formatter(&|links| format!("{links:.0}"))
        .light_line_style(WHITE)
        .draw()?;
    let series: [(&str, Points, RGBColor); 3] = [
        ("every link full", vec![(0.0, 0.0), (12.0, 12.0)], GREY),
        ("diskcast, 50 Mbit/s for each client", ours, GREEN),
        // 400 MB/s on links of 125 MB/s.
        ("seed 002 (text): linear to 6, up to 400 MB/s with 12", vec![(12.0, 3.2)], RED),
    ];
    for (words, points, colour) in series {
        let style = colour.stroke_width(2);
        let size = if colour == GREY { 0 } else { 4 };
        chart
            .draw_series(LineSeries::new(points, style).point_size(size))?
            .label(words)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    legend(&mut chart, SeriesLabelPosition::UpperLeft)?;
    area.present()?;
    Ok(())
}

/// Figure 2 of the seed: one client, and ever more devices in a flat stripe.
fn widths(figure: &Figure, file: &Path) -> Result<()> {
    let area = SVGBackend::new(file, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let title =
        "One client behind a switch port with 64 KiB: share of its link, by the devices of a flat stripe";
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..46.0, 0.0..1.0)?;
    chart
        .configure_mesh()
        .x_desc("devices that answer at the same time")
        .y_desc("share of the link (more is better)")
        .x_label_formatter(&|devices| format!("{devices:.0}"))
        .light_line_style(WHITE)
        .draw()?;
    let best = |words: &str| {
        let own = figure.peers.iter().filter(|peer| peer.name == "diskcast" && peer.flags.ends_with(words));
        own.map(|peer| peer.value).fold(f64::INFINITY, f64::min)
    };
    let level = |share: f64| vec![(3.0, share), (31.0, share)];
    let series: [(&str, Points, RGBColor, u32); 5] = [
        ("flat, 2004's TCP", points(figure, "width", "2004's TCP: share of the link"), RED, 4),
        ("flat, today's TCP", points(figure, "width", "today's TCP: share of the link"), BLUE, 4),
        ("diskcast, 2004's TCP", level(best("2004's TCP")), GREEN, 0),
        ("diskcast, today's TCP", level(best("today's TCP")), RGBColor(129, 199, 132), 0),
        // 87 MB/s of 125.
        ("seed 002 (text): linear to here, falls past 14", vec![(3.0, 0.3), (7.0, 0.7)], GREY, 4),
    ];
    for (words, points, colour, size) in series {
        let style = colour.stroke_width(2);
        chart
            .draw_series(LineSeries::new(points, style).point_size(size))?
            .label(words)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    legend(&mut chart, SeriesLabelPosition::LowerRight)?;
    area.present()?;
    Ok(())
}

/// Figure 3 of the seed: bytes over time, with those that were sent again.
fn sequences(figure: &Figure, file: &Path) -> Result<()> {
    let area = SVGBackend::new(file, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let pair = |value: &Value| Some((value[0].as_f64()?, value[1].as_f64()?));
    for (panel, row) in area.split_evenly((1, 2)).iter().zip(rows(figure)) {
        let series = |key: &str| -> Points {
            row[key][0].as_array().map_or(&[][..], Vec::as_slice).iter().filter_map(pair).collect()
        };
        let (sent, again) = (series("sent"), series("again"));
        let most = sent.iter().map(|point| point.1).fold(0.1, f64::max);
        let last = sent.iter().map(|point| point.0).fold(0.1, f64::max);
        let title = format!(
            "{} devices, receive buffers of {} KB: {:.1} MB/s",
            row["devices"],
            row["receive buffer KB"],
            row["MB/s"].as_f64().unwrap_or(f64::NAN)
        );
        let mut chart = ChartBuilder::on(panel)
            .caption(title, ("sans-serif", 16))
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(60)
            .build_cartesian_2d(0.0..last, 0.0..most * 1.05)?;
        chart
            .configure_mesh()
            .x_desc("seconds")
            .y_desc("MB that one device has sent")
            .light_line_style(WHITE)
            .draw()?;
        chart.draw_series(sent.into_iter().map(|point| Circle::new(point, 1, BLUE.filled())))?;
        chart
            .draw_series(again.into_iter().map(|point| Circle::new(point, 3, RED.filled())))?
            .label("sent again")
            .legend(|(x, y)| Circle::new((x + 9, y), 3, RED.filled()));
        legend(&mut chart, SeriesLabelPosition::UpperLeft)?;
    }
    area.present()?;
    Ok(())
}

/// Figure 5 of the seed: what clients get together, of 100 devices.
fn figure_5(figure: &Figure, file: &Path) -> Result<()> {
    let area = SVGBackend::new(file, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let title = "Clients of 100 devices, simulated: what they read and store together (more is better)";
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..62.0, 0.0..6000.0)?;
    chart
        .configure_mesh()
        .x_desc("clients, each with a link of 1 Gbit/s")
        .y_desc("MB/s")
        .x_label_formatter(&|clients| format!("{clients:.0}"))
        .y_label_formatter(&|rate| format!("{rate:.0}"))
        .light_line_style(WHITE)
        .draw()?;
    let of_100 = |y: &str| -> Points {
        points(figure, "clients", y).into_iter().filter(|(clients, _)| *clients <= 60.0).collect()
    };
    let series: [(&str, Points, RGBColor, u32); 6] = [
        ("links and disks allow: read", of_100("read limit MB/s"), GREY, 0),
        ("links and disks allow: durable, 8 + 2", of_100("write limit MB/s"), GREY, 0),
        ("diskcast reads", of_100("read MB/s"), GREEN, 4),
        ("diskcast stores durably, 8 + 2", of_100("write MB/s"), BLUE, 4),
        ("seed 002 (text): read, its peak", vec![(60.0, 3100.0)], RED, 5),
        ("seed 002 (text): written at 8 + 1, its peak", vec![(60.0, 2700.0)], RGBColor(239, 154, 154), 5),
    ];
    for (words, points, colour, size) in series {
        let style = colour.stroke_width(2);
        chart
            .draw_series(LineSeries::new(points, style).point_size(size))?
            .label(words)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    legend(&mut chart, SeriesLabelPosition::UpperLeft)?;
    area.present()?;
    Ok(())
}

/// The boots of seed 003: until the last of many machines has what its boot reads.
fn boots(figure: &Figure, file: &Path) -> Result<()> {
    let area = SVGBackend::new(file, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let title =
        "Machines that boot from 50 devices, simulated: until the last has what it reads (less is better)";
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..155.0, (0.1..1000.0).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("machines that begin at the same time")
        .y_desc("seconds")
        .x_label_formatter(&|machines| format!("{machines:.0}"))
        .light_line_style(WHITE)
        .draw()?;
    let tree = points(figure, "machines", "full copy by a tree s");
    let thirtieth: Points = tree.iter().map(|(machines, seconds)| (*machines, seconds / 30.0)).collect();
    let series: [(&str, Points, RGBColor, u32); 4] = [
        ("full copy by a tree, without the boot", tree, BLUE, 4),
        ("seed 003 (text): up to 30 times as fast as that", thirtieth, RED, 0),
        ("diskcast", points(figure, "machines", "last s"), GREEN, 4),
        ("links allow", points(figure, "machines", "limit s"), GREY, 0),
    ];
    for (words, points, colour, size) in series {
        let style = colour.stroke_width(2);
        chart
            .draw_series(LineSeries::new(points, style).point_size(size))?
            .label(words)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE)
        .border_style(RGBColor(215, 215, 215))
        .draw()?;
    area.present()?;
    Ok(())
}

type Chart<'a> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

fn legend<'a>(chart: &mut Chart<'a>, position: SeriesLabelPosition) -> Result<()> {
    chart
        .configure_series_labels()
        .position(position)
        .background_style(WHITE)
        .border_style(RGBColor(215, 215, 215))
        .draw()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::figure::Bar;

    #[test]
    fn each_experiment_has_its_plot() {
        let folder = tempfile::tempdir().unwrap();
        let draw = |name: &str, rows: Value, file: &str, words: &str| {
            let mut page = String::new();
            let figure = Figure::new(name, &[1.0], "ratio", Bar::Shown)
                .peer("diskcast", "1 at a time, 2004's TCP", 0.9, "of the link")
                .with(rows);
            write(&mut page, &figure, folder.path()).unwrap();
            assert!(page.contains(file), "{page}");
            let drawn = std::fs::read_to_string(folder.path().join(file)).unwrap();
            assert!(drawn.contains(words), "{words} is missing");
        };
        let clients = json!([{ "clients": 1, "links filled": 0.9 }, { "clients": 12, "links filled": 11.0 }]);
        draw("cluster.scaling", clients, "cluster_clients.svg", "up to 400 MB/s");
        let widths = json!([{ "width": 3, "2004's TCP: share of the link": 0.4 }]);
        draw("cluster.incast", widths, "cluster_incast.svg", "flat, 2004&apos;s TCP");
        let rates = json!([{ "clients": 60, "read MB/s": 3000.0, "read limit MB/s": 4000.0 }]);
        draw("cluster.figure5_read", rates, "cluster_figure5.svg", "diskcast reads");
        let boots = json!([{ "machines": 150, "last s": 3.0, "full copy by a tree s": 30.0 }]);
        draw("cluster.boots_150", boots, "cluster_boots.svg", "up to 30 times");
        let sent = json!([{
            "devices": 30, "receive buffer KB": 256, "MB/s": 20.0, "sent": [[[0.0, 0.0], [1.0, 2.0]]],
            "again": [[[1.0, 0.5]]],
        }]);
        draw(
            "cluster.incast_sequence",
            sent,
            "cluster_sequence.svg",
            "30 devices, receive buffers of 256 KB: 20.0",
        );
    }
}
