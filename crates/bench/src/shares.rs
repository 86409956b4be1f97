//! Draws a plot for a group of figures: how far each of them is on the right side of its bar.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::Result;
use crate::figure::{Bar, Figure};

/// Titles of the plots, by the first part of the figures' names.
const TITLES: &[(&str, &str)] = &[
    ("capture", "Capture of a disk as an image"),
    ("cluster", "Storage on many devices"),
    ("deploy", "An image on many hosts, by ssh"),
    ("disks", "The disks that people have, beside the tools that they use today"),
    ("doctor", "Faults of networks that `diskcast doctor` finds"),
    ("fetch", "One image from a server to 1, 4 and 8 hosts"),
    ("frisbee", "The measurements of the Frisbee paper"),
    ("hostile", "Hosts served while others attack the server"),
    ("install", "Install of an image onto a target"),
    ("mirror", "Disks that run before their image has arrived"),
    ("multicast", "Multicast to many hosts, with losses, slow hosts and other traffic"),
    ("netboot", "Bare machines that boot from the network"),
    ("network", "Multicast on networks with faults and other traffic"),
    ("opennebula", "Machines of OpenNebula"),
    ("peers", "Machines that serve each other, beside other tools and multicast alone"),
    ("switch", "An agent on a switch: requests that it sends to machines nearby"),
    ("thesis", "Seed 001 once more: one image, its ways and ours"),
    ("torrent", "BitTorrent, beside multicast and other clients"),
    ("versions", "Commits, clones, many writers and prunes of one repository"),
];

/// Longer bars are cut off; otherwise the others would be too short to compare.
const SHARE_MAX: f64 = 2.0;

const GOOD: RGBColor = RGBColor(46, 125, 50);
const BAD: RGBColor = RGBColor(198, 40, 40);

const WIDTH: i32 = 960;
/// The part of the width in which bars are drawn; their values stand to the right of it.
const LEFT: i32 = 16;
const RIGHT: i32 = 750;
/// Heights: title and legend, one figure, the axis with its title.
const HEAD: i32 = 62;
const ROW: i32 = 42;
const FOOT: i32 = 56;
/// Longest description, in characters: more do not fit into a line.
const DESCRIPTION_MAX: usize = 180;

/// Title of the plot of `group`.
pub(crate) fn title(group: &str) -> &str {
    TITLES.iter().find(|(name, _)| *name == group).map_or(group, |(_, title)| title)
}

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

/// What the figure of a name measures, and its place among all figures; `None` for one that is not known any more.
pub(crate) type Describe<'a> = &'a dyn Fn(&str) -> Option<(usize, &'static str)>;

/// Draws a bar for each figure that has a [`share`], in the order of `describe`, in which a description may mean the
/// one before. False if no figure has one.
pub(crate) fn draw(file: &Path, group: &str, figures: &[&Figure], describe: Describe<'_>) -> Result<bool> {
    let place = |figure: &Figure| describe(&figure.name).map_or(usize::MAX, |(place, _)| place);
    let mut shares: Vec<(&Figure, f64)> =
        figures.iter().filter_map(|figure| Some((*figure, share(figure)?))).collect();
    shares.sort_by_key(|(figure, _)| place(figure));
    if shares.is_empty() {
        return Ok(false);
    }
    let bottom = HEAD + ROW * i32::try_from(shares.len())?;
    let size = (u32::try_from(WIDTH)?, u32::try_from(bottom + FOOT)?);
    let area = SVGBackend::new(file, size).into_drawing_area();
    area.fill(&WHITE)?;
    head(&area, group)?;
    let widest = shares.iter().map(|(_, share)| *share).fold(1.2, f64::max).min(SHARE_MAX);
    axis(&area, widest, bottom, shares.iter().any(|(_, share)| *share > widest))?;
    for (row, (figure, share)) in shares.iter().enumerate() {
        let top = HEAD + ROW * i32::try_from(row)?;
        let what = describe(&figure.name).map_or("", |(_, what)| what);
        text(&area, &label(&figure.name, what), (LEFT, top + 4), 12, BLACK)?;
        let colour = if figure.holds == Some(true) { GOOD } else { BAD };
        let end = across(share.min(widest), widest);
        area.draw(&Rectangle::new([(LEFT, top + 20), (end, top + 36)], colour.filled()))?;
        // Not through the descriptions.
        let one = across(1.0, widest);
        area.draw(&PathElement::new([(one, top + 18), (one, top + 38)], BLACK.stroke_width(2)))?;
        text(&area, &value(figure), (RIGHT + 10, top + 22), 12, colour)?;
    }
    area.present()?;
    Ok(true)
}

/// The title and the legend.
fn head(area: &DrawingArea<SVGBackend<'_>, Shift>, group: &str) -> Result<()> {
    text(area, &format!("{}: measured values against their limits", title(group)), (LEFT, 8), 18, BLACK)?;
    for (left, colour, words) in [(LEFT, GOOD, "keeps its limit"), (LEFT + 130, BAD, "misses its limit")] {
        area.draw(&Rectangle::new([(left, 38), (left + 14, 50)], colour.filled()))?;
        text(area, words, (left + 20, 38), 12, BLACK)?;
    }
    let line = LEFT + 270;
    area.draw(&PathElement::new([(line, 36), (line, 52)], BLACK.stroke_width(2)))?;
    text(area, "the limit: the bar of the figure in the table", (line + 8, 38), 12, BLACK)?;
    text(area, "value (limit)", (RIGHT + 10, 38), 12, BLACK)
}

/// Lines at each fifth, and below them the axis with its title.
/// `is_cut`: some bars are longer.
fn axis(area: &DrawingArea<SVGBackend<'_>, Shift>, widest: f64, bottom: i32, is_cut: bool) -> Result<()> {
    for fifth in 0..=10 {
        let share = f64::from(fifth) / 5.0;
        if share > widest {
            break;
        }
        let x = across(share, widest);
        area.draw(&PathElement::new([(x, HEAD), (x, bottom + 4)], RGBColor(215, 215, 215)))?;
        text(area, &format!("{share:.1}"), (x - 8, bottom + 8), 12, BLACK)?;
    }
    area.draw(&PathElement::new([(LEFT, bottom), (RIGHT, bottom)], BLACK))?;
    let cut = if is_cut { format!("; longer bars are cut at {widest:.1}") } else { String::new() };
    let words = format!(
        "margin (ratio, 1.0 = exactly the limit, more is better): value ÷ limit, or limit ÷ value where less is \
         better{cut}"
    );
    text(area, &words, (LEFT, bottom + 30), 12, BLACK)
}

/// Where a bar of this share ends, in pixels.
fn across(share: f64, widest: f64) -> i32 {
    #[expect(clippy::cast_possible_truncation, reason = "pixels of a picture")]
    let pixels = (share / widest * f64::from(RIGHT - LEFT)).round() as i32;
    LEFT + pixels
}

/// The name of a figure, and what it measures. The description without its bar, which stands beside the value.
fn label(name: &str, description: &str) -> String {
    let what = description.split("; at ").next().unwrap_or(description);
    let what = match what.char_indices().nth(DESCRIPTION_MAX) {
        Some((end, _)) => format!("{} …", what[..end].trim_end()),
        None => what.to_owned(),
    };
    if what.is_empty() { name.to_owned() } else { format!("{name}: {what}") }
}

/// The value, and the bar in brackets, with their unit.
fn value(figure: &Figure) -> String {
    let Figure { value, unit, .. } = figure;
    let bar = match figure.bar {
        Bar::AtLeast(bar) => format!("≥ {}", short(bar)),
        Bar::AtMost(bar) => format!("≤ {}", short(bar)),
        Bar::Shown => "none".to_owned(),
    };
    format!("{} {unit} ({bar})", short(*value))
}

/// A number with three decimals, or as few as it has.
fn short(number: f64) -> String {
    let text = format!("{number:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn text(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    words: &str,
    at: (i32, i32),
    size: u32,
    colour: RGBColor,
) -> Result<()> {
    area.draw(&Text::new(words.to_owned(), at, ("sans-serif", size).into_font().color(&colour)))?;
    Ok(())
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

    #[test]
    fn a_plot_says_what_it_shows() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("plot.svg");
        let shown = Figure::new("capture.extra", &[1.0], "s", Bar::Shown);
        assert!(!draw(&file, "capture", &[&shown], &|_| None).unwrap(), "there is nothing to draw");
        let memory = Figure::new("capture.memory", &[16.5], "MiB", Bar::AtMost(256.0));
        let rate = Figure::new("capture.rate", &[100.0], "MB/s", Bar::AtLeast(200.0));
        let describe = |name: &str| match name {
            "capture.memory" => Some((1, "peak of memory; at most 256")),
            _ => Some((0, "plain bytes captured per second; at least 200")),
        };
        assert!(draw(&file, "capture", &[&memory, &rate, &shown], &describe).unwrap());
        let drawn = std::fs::read_to_string(file).unwrap();
        for words in [
            "Capture of a disk as an image: measured values against their limits",
            "capture.memory: peak of memory\n",
            "16.5 MiB (≤ 256)",
            "100 MB/s (≥ 200)",
            "misses its limit",
            "margin (ratio, 1.0 = exactly the limit",
        ] {
            assert!(drawn.contains(words), "{words} is missing");
        }
        assert!(!drawn.contains("capture.extra"));
        assert!(drawn.find("capture.rate") < drawn.find("capture.memory"), "the order of the descriptions");
    }
}
