//! The settings of TCP that seed 002 tried against incast (section 4), one at a time from today's TCP.

use serde_json::{Value, json};

use super::incast::{Brought, CONTENTS, DEVICES, brought, components, filled, read_flat, shape, striped};
use super::rack::Rack;
use super::tcp::Change;
use crate::context::Context;
use crate::figure::{Bar, Figure};
use crate::{Group, Result};

pub(super) const GROUP: Group = Group {
    figures: &[
        (
            "cluster.sweep_sack",
            "a flat layout over 31 devices without SACK over the same with it, today's TCP, a switch port with 64 KiB; \
             shown",
        ),
        ("cluster.sweep_timeout", "the same with timeouts from 20 ms over 200 ms; shown"),
        ("cluster.sweep_receive", "the same with receive buffers of 64 KiB over up to 6 MiB; shown"),
    ],
    measure,
};

const CHANGES: [Change; 5] = [
    Change::Nothing,
    Change::NoSack,
    Change::ShortTimeout,
    Change::Receive(256 << 10),
    Change::Receive(64 << 10),
];
const BUFFERS: [u64; 2] = [64 << 10, 256 << 10];
const WIDTHS: [usize; 2] = [10, DEVICES as usize];
const SESSIONS: u64 = 2;
/// Contents that the product reads at the same time.
const AT_ONCE: usize = 8;

fn measure(context: &Context) -> Result<Vec<Figure>> {
    let rack = filled(context, SESSIONS)?;
    let mut settings = vec![];
    for change in CHANGES {
        let [small, large] = BUFFERS.map(|buffer_bytes| cell(&rack, change, buffer_bytes));
        settings.push((change, [small?, large?]));
    }
    Ok(figures(&settings))
}

/// What a setting brought with one size of the switch port's buffer.
struct Cell {
    /// By [`WIDTHS`].
    flat: Vec<Brought>,
    product: Brought,
}

fn cell(rack: &Rack, change: Change, buffer_bytes: u64) -> Result<Cell> {
    shape(rack, buffer_bytes)?;
    let mut hosts = rack.device_hosts().chain([rack.client_host(0)]);
    hosts.try_for_each(|host| change.apply(rack.star.host(host)))?;
    let components = components(rack)?;
    let flat = WIDTHS.iter().map(|&width| brought(rack, || read_flat(rack, &components[..width])));
    let flat = flat.collect::<Result<_>>()?;
    Ok(Cell { flat, product: brought(rack, || striped(rack, SESSIONS * CONTENTS, AT_ONCE))? })
}

fn figures(settings: &[(Change, [Cell; 2])]) -> Vec<Figure> {
    let widest = |wanted: Change| {
        let found = settings.iter().find(|(change, _)| *change == wanted);
        found.and_then(|(_, cells)| cells[0].flat.last()).map_or(f64::NAN, |brought| brought.share)
    };
    let rows: Vec<Value> = settings.iter().map(|(change, cells)| row(*change, cells)).collect();
    let figure = |name: &str, change: Change| {
        let figure = Figure::new(name, &[widest(change) / widest(Change::Nothing)], "ratio", Bar::Shown);
        figure
            .peer("flat", "today's TCP, timeouts from 200 ms", widest(Change::Nothing), "of the link")
            .on("blocks of 3 MiB; 400 Mbit/s, each device a seventh of that", super::LAB)
            .with(json!(rows))
    };
    vec![
        figure("cluster.sweep_sack", Change::NoSack),
        figure("cluster.sweep_timeout", Change::ShortTimeout),
        figure("cluster.sweep_receive", Change::Receive(64 << 10)),
    ]
}

fn row(change: Change, cells: &[Cell; 2]) -> Value {
    let mut row = json!({ "TCP": change.words() });
    for (cell, buffer) in cells.iter().zip(BUFFERS) {
        let port = format!("{} KiB", buffer >> 10);
        for (brought, width) in cell.flat.iter().zip(WIDTHS) {
            row[format!("{port}: {width} devices")] = brought.share.into();
        }
        row[format!("{port}: timeouts of {DEVICES}")] =
            cell.flat.last().map_or(0, |brought| brought.losses.timeouts).into();
        row[format!("{port}: diskcast")] = cell.product.share.into();
    }
    row
}
