//! What the encryption of packets costs on shaped links.

use serde_json::json;

use super::{GIGABIT, SINK, star};
use crate::context::Context;
use crate::figure::{Bar, Figure, median};
use crate::transfer::{library, transfer, transfer_serving};
use crate::{Group, Result};

pub(super) const GROUP: Group = Group {
    figures: &[(
        "multicast.sealed",
        "last of 4 hosts with encrypted packets over the same without, 1 Gbit/s; at most 1.03",
    )],
    measure,
};

/// The option of `serve` that turns encryption off.
pub(super) const PLAIN: &str = "--plain-multicast";
/// Runs with and without, in turn.
const RUNS: usize = 5;
const MEBIBYTES: u64 = 512;

fn measure(context: &Context) -> Result<Vec<Figure>> {
    let (repo, loads) = library(context, &[MEBIBYTES], false)?;
    let options = star(4, GIGABIT, 0);
    let (mut encrypted, mut plain, mut rows) = (vec![], vec![], vec![]);
    for load in &loads {
        for _ in 0..RUNS {
            let with = transfer(context, &repo, &load.name, &options)?;
            let without = transfer_serving(context, &repo, &load.name, &options, &[PLAIN])?;
            rows.push(json!({
                "encrypted s": with.last(), "server CPU s": with.served.cpu_seconds,
                "plain s": without.last(), "server CPU s in plain": without.served.cpu_seconds,
            }));
            encrypted.push(with.last());
            plain.push(without.last());
        }
    }
    let ratio = median(&encrypted) / median(&plain);
    let workload = format!("{MEBIBYTES} MiB of incompressible data to 4 hosts, 1 Gbit/s links");
    let figure = Figure::new("multicast.sealed", &[ratio], "ratio", Bar::AtMost(1.03));
    Ok(vec![figure.on(&workload, SINK).with(json!(rows))])
}
