//! Figures without a shaped link: the rate that the processors allow, compared with a bare sender on the same
//! machine.

use lab::StarOptions;
use serde_json::json;

use super::bare::{Reached, fastest};
use super::sealed::PLAIN;
use super::{RUNS, SINK, least, most};
use crate::context::Context;
use crate::figure::{Bar, Figure, median};
use crate::transfer::{library, transfer, transfer_serving};
use crate::{Group, Result};

pub(super) const GROUP: Group = Group {
    figures: &[
        (
            "multicast.unshaped",
            "rate to 1, 4 and 16 hosts over that of a bare sender whose receivers check tags and digests, \
             the least; at least 0.8",
        ),
        (
            "multicast.sealed_unshaped",
            "time to 1, 4 and 16 hosts with encrypted packets over that without, the most; at most 1.15",
        ),
    ],
    measure,
};

/// Numbers of hosts, each with the index in [`MEBIBYTES`] of the data that they fetch.
const ROOMS: &[(u32, usize)] = &[(1, 0), (4, 1), (16, 2)];
/// MiB of incompressible data, enough to keep the hosts busy for seconds.
const MEBIBYTES: &[u64] = &[2048, 1024, 512];

#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn measure(context: &Context) -> Result<Vec<Figure>> {
    let (repo, loads) = library(context, MEBIBYTES, true)?;
    let (debian, random) = loads.split_last().ok_or("no images")?;
    let (mut shares, mut prices, mut rows, mut bare) = (vec![], vec![], vec![], vec![]);
    for &(hosts, index) in ROOMS {
        let Reached { rate, loss } = fastest(hosts)?;
        bare.push((hosts, rate));
        for load in [&random[index], debian] {
            let options = StarOptions { hosts: hosts + 1, ..StarOptions::default() };
            let (mut rates, mut plain_rates, mut cpu, mut sent) = (vec![], vec![], vec![], vec![]);
            for _ in 0..RUNS {
                let done = transfer(context, &repo, &load.name, &options)?;
                rates.push(done.image_bytes as f64 / done.last());
                cpu.push(done.served.cpu_seconds);
                sent.push(done.images_sent()?);
                let plain = transfer_serving(context, &repo, &load.name, &options, &[PLAIN])?;
                plain_rates.push(plain.image_bytes as f64 / plain.last());
            }
            let (ours, plain) = (median(&rates), median(&plain_rates));
            // A Debian image is transferred before the rate is steady: its rate is shown, but has no bar.
            if load.name != debian.name {
                shares.push(ours / rate);
                prices.push(plain / ours);
            }
            rows.push(json!({
                "hosts": hosts, "workload": load.words, "MB/s": ours / 1e6,
                "MB/s in plain": plain / 1e6, "bare sender MB/s": rate / 1e6, "ratio": ours / rate,
                "bare sender's loss": format!("{:.4} %", loss * 100.0),
                "images sent": median(&sent), "server CPU s": median(&cpu),
            }));
        }
    }
    let workload = "2048, 1024 and 512 MiB of incompressible data to 1, 4 and 16 hosts, links without a rate";
    let figure = Figure::new("multicast.unshaped", &[least(&shares)], "ratio", Bar::AtLeast(0.8));
    let figure = bare.iter().fold(figure.on(workload, SINK), |figure, (hosts, rate)| {
        let flags = "UDP_SEGMENT, tags made before; receivers check tags and BLAKE3; at most 0.1 % loss";
        figure.peer(&format!("bare sender, {hosts} hosts"), flags, rate / 1e6, "MB/s")
    });
    let price = Figure::new("multicast.sealed_unshaped", &[most(&prices)], "ratio", Bar::AtMost(1.15));
    Ok(vec![figure.with(json!(rows)), price.on(workload, SINK)])
}
