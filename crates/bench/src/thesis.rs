//! Table 6.1 of seed 001 once more: one image to 1, 4, 8 and 16 hosts by each of its ways and by ours. A fortieth of
//! its bytes; times are in units of one image on a link, which is 78.2 s there. Ours include ssh to each host.

use std::time::Duration;

use serde_json::{Value, json};

use crate::context::Context;
use crate::deploy::Site;
use crate::figure::{Bar, Figure};
use crate::peer::{PEERS, State};
use crate::room::star;
use crate::{Group, Result, load};

pub(crate) const GROUP: Group = Group {
    figures: &[
        (
            "thesis.table_6_1",
            "last of 16 hosts by `diskcast deploy` over the best of scp, UDPcast, UFTP and aria2; shown",
        ),
        ("thesis.scp_model", "time of scp to 16 hosts over that of 16 images on the server's link; shown"),
    ],
    measure,
};

/// 9.77 GB, divided by 40.
const MEBIBYTES: usize = 233;
const RATE: u64 = 200_000_000;
const HOSTS: &[u32] = &[1, 4, 8, 16];
/// The ways of the thesis, as the tools of today are called here.
const TOOLS: &[&str] = &["scp", "udpcast", "uftp", "aria2"];
/// A run ends after so many images on a link.
const PATIENCE: f64 = 24.0;
/// Seconds in table 6.1: VMs, BitTorrent, SCP, UDPcast, UFTP.
const PUBLISHED: &[(u32, [f64; 4])] = &[
    (1, [175.60, 189.70, 216.22, 218.50]),
    (10, [273.67, 200.60, 254.44, 317.20]),
    (20, [255.80, 294.20, 281.11, 347.20]),
    (60, [311.50, 848.30, 323.67, 488.20]),
];
/// 9.77 GB at 1 Gbit/s, in seconds.
const IMAGE_THERE: f64 = 78.2;

fn measure(context: &Context) -> Result<Vec<Figure>> {
    let file = load::random_file(context, (MEBIBYTES as u64) << 20)?;
    #[expect(clippy::cast_precision_loss, reason = "a size in bytes")]
    let image = ((MEBIBYTES as u64) << 23) as f64 / RATE as f64;
    let bound = Duration::from_secs_f64(image * PATIENCE);
    let (mut rows, mut last, mut scp) = (Vec::<Value>::new(), f64::NAN, f64::NAN);
    for &hosts in HOSTS {
        let mut row = json!({ "hosts": hosts });
        let mut best = f64::INFINITY;
        for name in TOOLS {
            let tool = PEERS.iter().find(|peer| peer.name.to_lowercase().contains(name));
            let trial =
                tool.ok_or("there is such a tool")?.run(context, &star(hosts, RATE, 0), &file, bound)?;
            let time = trial.last(bound) / image;
            row[format!("{name}, images")] = json!(time);
            if trial.state == State::Done {
                best = best.min(time);
            }
            if *name == "scp" {
                scp = time;
            }
        }
        let ours = deployed(context, hosts)? / image;
        row["diskcast deploy, images"] = json!(ours);
        last = ours / best;
        rows.push(row);
    }
    std::fs::remove_file(file)?;
    for (machines, [torrent, scp, udpcast, uftp]) in PUBLISHED {
        rows.push(json!({
            "VMs in the thesis": machines, "aria2, images": torrent / IMAGE_THERE, "scp, images": scp / IMAGE_THERE,
            "udpcast, images": udpcast / IMAGE_THERE, "uftp, images": uftp / IMAGE_THERE,
        }));
    }
    let words = format!("{MEBIBYTES} MiB of random data, links of 200 Mbit/s");
    let place = "network namespaces on one machine; ours to files on its disk, read back";
    Ok(vec![
        Figure::new("thesis.table_6_1", &[last], "ratio", Bar::Shown).on(&words, place).with(json!(rows)),
        Figure::new("thesis.scp_model", &[scp / 16.0], "ratio", Bar::Shown).on(&words, place),
    ])
}

/// Seconds of a deployment by ssh to so many hosts.
fn deployed(context: &Context, hosts: u32) -> Result<f64> {
    let site = Site::new(context, hosts, (RATE, MEBIBYTES))?;
    let names: Vec<String> = (1..=hosts).map(|host| format!("{host}.out")).collect();
    let targets: Vec<(u32, &str)> = (1..=hosts).zip(names.iter().map(String::as_str)).collect();
    let (seconds, _) = site.deploy(&targets, &site.program(), &[])?;
    site.clear()?;
    Ok(seconds)
}
