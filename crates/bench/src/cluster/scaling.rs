//! Clients that read at the same time, each behind a link of its own, as in figure 6 of seed 002.

use std::sync::{Arc, Barrier};
use std::time::Instant;

use futures::executor::block_on;
use object_store::ObjectStoreExt as _;
use serde_json::{Value, json};

use super::rack::{Rack, name};
use crate::context::Context;
use crate::figure::{Bar, Figure};
use crate::{Group, Result};

pub(super) const GROUP: Group = Group {
    figures: &[(
        "cluster.scaling",
        "bandwidth of the slowest of 1, 2, 4 and 8 clients over the rate of its link, each reads contents of its own \
         from ten devices; at least 0.9",
    )],
    measure,
};

const DEVICES: u32 = 10;
/// The link of each client. The devices' links have no limit: two cores carry as much as 12 clients take.
const RATE: u64 = 50_000_000;
const BUFFER_BYTES: u64 = 256 << 10;
const COUNTS: [u32; 6] = [1, 2, 4, 6, 8, 12];
/// Most clients that the bar counts; the others are as in the seed.
const BARRED: u32 = 8;
const CLIENTS: u32 = 12;
/// What each client reads.
const CONTENTS: u64 = 3;
const CONTENT_BYTES: usize = 16 << 20;

fn measure(context: &Context) -> Result<Vec<Figure>> {
    context.calm()?;
    let rack = Rack::start(context, DEVICES, CLIENTS)?;
    rack.put(0, u64::from(CLIENTS) * CONTENTS, CONTENT_BYTES)?;
    for client in 0..CLIENTS {
        rack.star.shape_host(rack.client_host(client), RATE, BUFFER_BYTES)?;
    }
    let (mut least, mut rows) = (f64::INFINITY, vec![]);
    for count in COUNTS {
        let shares = read(&rack, count)?;
        let worst = shares.iter().copied().fold(f64::INFINITY, f64::min);
        if count <= BARRED {
            least = least.min(worst);
        }
        rows.push(row(count, worst, &shares));
    }
    let workload = "3 contents of 16 MiB for each client, read whole one after the other, 50 Mbit/s, of which \
                    frames leave 0.956";
    let figure = Figure::new("cluster.scaling", &[least], "ratio", Bar::AtLeast(0.9));
    Ok(vec![figure.on(workload, super::LAB).with(json!(rows))])
}

#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn row(count: u32, worst: f64, shares: &[f64]) -> Value {
    let sum: f64 = shares.iter().sum();
    json!({
        "clients": count, "slowest over its link": worst, "mean over its link": sum / shares.len() as f64,
        "links filled": sum, "all MB/s": sum * RATE as f64 / 8e6,
    })
}

/// `count` clients that know nothing yet read at the same time; what each gets of its link.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn read(rack: &Rack, count: u32) -> Result<Vec<f64>> {
    let start = Arc::new(Barrier::new(count as usize));
    let mut clients = vec![];
    for number in 0..count {
        let start = Arc::clone(&start);
        let own = u64::from(number) * CONTENTS..u64::from(number + 1) * CONTENTS;
        clients.push(rack.with_client(rack.client_host(number), move |client| {
            start.wait();
            let began = Instant::now();
            let mut bytes = 0;
            for content in own {
                let read = block_on(async { client.get(&name(content)).await?.bytes().await });
                bytes += read.map_err(|error| error.to_string())?.len();
            }
            Ok(bytes as f64 * 8.0 / began.elapsed().as_secs_f64() / RATE as f64)
        })?);
    }
    clients.into_iter().map(super::rack::Running::end).collect()
}
