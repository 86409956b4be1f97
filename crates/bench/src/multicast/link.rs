//! Figures of one session on shaped links: the last host's time divided by the link time, which the image's bytes take
//! on a link without loss, and the number of images that the server sent.

use serde_json::json;

use super::bound::images_needed;
use super::{GIGABIT, RUNS, SINK, most, rate_words, star};
use crate::context::Context;
use crate::figure::{Bar, Figure, median};
use crate::transfer::{library, transfer};
use crate::{Group, Result};

/// A network, the size of the random disk that is sent over it besides a Debian image, and the bars.
struct Cell {
    /// Name of the figure for the last host's time.
    figure: &'static str,
    hosts: u32,
    /// Bits per second of each link.
    rate: u64,
    loss_per_million: u32,
    random_mebibytes: u64,
    /// Most link times that the last host may take.
    bar: f64,
    /// Name of the figure for the images that the server sends, and its bar.
    images: Option<(&'static str, f64)>,
    /// Name of the figure for the bytes on the server's wire divided by the payload, and its bar.
    overhead: Option<(&'static str, f64)>,
}

pub(super) const SIXTEEN: Group = Group {
    figures: &[
        ("multicast.16_hosts", "last of 16 hosts over link time, 400 Mbit/s, no loss; at most 1.05"),
        ("multicast.16_hosts_bytes", "images that the server sent to 16 hosts, no loss; at most 1.01"),
        ("multicast.16_hosts_overhead", "bytes on the server's wire over payload; at most 1.07"),
    ],
    measure: |context| {
        let cell = Cell {
            figure: "multicast.16_hosts",
            hosts: 16,
            rate: 400_000_000,
            loss_per_million: 0,
            random_mebibytes: 256,
            bar: 1.05,
            images: Some(("multicast.16_hosts_bytes", 1.01)),
            overhead: Some(("multicast.16_hosts_overhead", 1.07)),
        };
        measure(context, &cell)
    },
};

pub(super) const EIGHT: Group = Group {
    figures: &[("multicast.8_hosts", "last of 8 hosts over link time, 1 Gbit/s, no loss; at most 1.05")],
    measure: |context| {
        let cell = Cell {
            figure: "multicast.8_hosts",
            hosts: 8,
            rate: GIGABIT,
            loss_per_million: 0,
            random_mebibytes: 512,
            bar: 1.05,
            images: None,
            overhead: None,
        };
        measure(context, &cell)
    },
};

pub(super) const SIXTEEN_LOSS_1: Group = Group {
    figures: &[
        ("multicast.16_hosts_loss1", "last of 16 hosts over link time, 100 Mbit/s, 1 % loss; at most 1.08"),
        ("multicast.16_hosts_loss1_bytes", "images that the server sent to 16 hosts, 1 % loss; at most 1.05"),
    ],
    measure: |context| {
        let cell = Cell {
            figure: "multicast.16_hosts_loss1",
            hosts: 16,
            rate: 100_000_000,
            loss_per_million: 10_000,
            random_mebibytes: 128,
            bar: 1.08,
            images: Some(("multicast.16_hosts_loss1_bytes", 1.05)),
            overhead: None,
        };
        measure(context, &cell)
    },
};

pub(super) const SIXTEEN_LOSS_10: Group = Group {
    figures: &[
        ("multicast.16_hosts_loss10", "last of 16 hosts over link time, 100 Mbit/s, 10 % loss; at most 1.35"),
        (
            "multicast.16_hosts_loss10_bytes",
            "images that the server sent to 16 hosts, 10 % loss; at most 1.22",
        ),
    ],
    measure: |context| {
        let cell = Cell {
            figure: "multicast.16_hosts_loss10",
            hosts: 16,
            rate: 100_000_000,
            loss_per_million: 100_000,
            random_mebibytes: 128,
            bar: 1.35,
            images: Some(("multicast.16_hosts_loss10_bytes", 1.22)),
            overhead: None,
        };
        measure(context, &cell)
    },
};

pub(super) const ONE_LOSS_1: Group = Group {
    figures: &[("multicast.1_host_loss1", "one host over link time, 1 Gbit/s, 1 % loss; at most 1.10")],
    measure: |context| {
        let cell = Cell {
            figure: "multicast.1_host_loss1",
            hosts: 1,
            rate: GIGABIT,
            loss_per_million: 10_000,
            random_mebibytes: 512,
            bar: 1.10,
            images: None,
            overhead: None,
        };
        measure(context, &cell)
    },
};

fn measure(context: &Context, cell: &Cell) -> Result<Vec<Figure>> {
    let (repo, loads) = library(context, &[cell.random_mebibytes], true)?;
    let options = star(cell.hosts, cell.rate, cell.loss_per_million);
    let loss = f64::from(cell.loss_per_million) / 1e6;
    let (mut ratios, mut images, mut overheads, mut rows) = (vec![], vec![], vec![], vec![]);
    let mut bounds = vec![];
    for load in &loads {
        let (mut ratio, mut sent, mut overhead) = (vec![], vec![], vec![]);
        for _ in 0..RUNS {
            let done = transfer(context, &repo, &load.name, &options)?;
            ratio.push(done.ratio());
            sent.push(done.images_sent()?);
            overhead.push(done.overhead()?);
            rows.push(done.row(load)?);
            // The mean number of blocks per object, as blocks are repaired in groups of one object each.
            let blocks = done.served.number("blocks_in_image")? / done.served.number("objects")?.max(1);
            bounds.push(images_needed(cell.hosts, u32::try_from(blocks)?, loss));
        }
        ratios.push(median(&ratio));
        images.push(median(&sent));
        overheads.push(median(&overhead));
    }
    let workload = format!(
        "the worse of {} and {}, {} hosts, {}, {} % loss",
        loads[0].words,
        loads[1].words,
        cell.hosts,
        rate_words(cell.rate),
        cell.loss_per_million / 10_000
    );
    let figure = |name: &str, values: &[f64], bar| {
        Figure::new(name, &[most(values)], "ratio", Bar::AtMost(bar)).on(&workload, SINK)
    };
    let bound = |figure: Figure| match loss > 0.0 {
        true => figure.peer(
            "least possible",
            "a perfect code over groups of as many blocks",
            most(&bounds),
            "images",
        ),
        false => figure,
    };
    let mut figures = vec![bound(figure(cell.figure, &ratios, cell.bar)).with(json!(rows))];
    figures.extend(cell.images.map(|(name, bar)| bound(figure(name, &images, bar))));
    figures.extend(cell.overhead.map(|(name, bar)| figure(name, &overheads, bar)));
    Ok(figures)
}
