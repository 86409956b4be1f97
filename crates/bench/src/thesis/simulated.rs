//! The test system of seed 001 in virtual time, with all of its bytes and hosts: 1 to 60 hosts of 1 Gbit/s at two
//! switches, a frontend with 10 Gbit/s, 9.77 GB and 899 MB. Multicast and machines that serve each other by the
//! simulator (`Setting::thesis` lists its assumptions); scp as a fluid that fills the frontend's link or a host's.
//! BitTorrent's blocks are many: the 899 MB are simulated, and their times multiplied for the 9.77 GB.

use std::process::Command;

use serde_json::{Value, json};

use crate::cloud::link_seconds;
use crate::context::{Context, timed};
use crate::figure::{Bar, Figure};
use crate::{Group, Result};

pub(super) const GROUP: Group = Group {
    figures: &[
        ("thesis.sim", "s until the last of 60 simulated hosts has the 9.77 GB of table 6.1; shown"),
        ("thesis.sim_small", "the same for the 899 MB of table 6.2; shown"),
    ],
    measure,
};

const HOSTS: [u32; 7] = [1, 10, 20, 30, 40, 50, 60];
/// Both images in MiB.
const LARGE: u32 = 9318;
const SMALL: u32 = 857;
/// Policies of the simulator, and what the rows call them.
const POLICIES: [(&str, &str); 3] =
    [("hybrid", "diskcast"), ("multicast", "multicast alone"), ("server", "no multicast")];

fn measure(context: &Context) -> Result<Vec<Figure>> {
    let torrents = HOSTS.map(|hosts| simulate(context, "torrent", hosts, SMALL));
    let torrents = torrents.into_iter().collect::<Result<Vec<_>>>()?;
    Ok(vec![
        // The best of the seed with 60 machines; NFS is not compared.
        figure(context, "thesis.sim", (LARGE, &torrents), ("BitTorrent", 311.5))?,
        figure(context, "thesis.sim_small", (SMALL, &torrents), ("UFTP", 74.8))?,
    ])
}

fn figure(
    context: &Context,
    name: &str,
    (mebibytes, torrents): (u32, &[Value]),
    (best, seconds): (&str, f64),
) -> Result<Figure> {
    let (mut rows, mut last) = (vec![], f64::NAN);
    for (&hosts, torrent) in HOSTS.iter().zip(torrents) {
        let mut row = json!({ "hosts": hosts, "scp, a fluid, s": fluid(mebibytes, hosts) });
        let mut add = |words: &str, said: &Value, times: f64| {
            row[format!("{words}, last s")] = json!(said["network_max"].as_f64().map(|last| last * times));
            row[format!("{words}, median s")] =
                json!(said["network_median"].as_f64().map(|half| half * times));
            row[format!("{words}, images sent")] = said["images"].clone();
        };
        for (policy, words) in POLICIES {
            add(words, &simulate(context, policy, hosts, mebibytes)?, 1.0);
        }
        add("BitTorrent", torrent, f64::from(mebibytes) / f64::from(SMALL));
        last = row["diskcast, last s"].as_f64().ok_or("the simulator did not say when the last was done")?;
        rows.push(row);
    }
    Ok(Figure::new(name, &[last], "s", Bar::Shown)
        .peer("seed 001", &format!("{best}, its best with 60 machines"), seconds, "s")
        .on(
            &format!(
                "{mebibytes} MiB that do not compress, starts within a second; BitTorrent: {SMALL} MiB, its times in \
                 proportion"
            ),
            "virtual time",
        )
        .with(rows.into()))
}

fn simulate(context: &Context, policy: &str, hosts: u32, mebibytes: u32) -> Result<Value> {
    let mut command = Command::new(context.diskcast.with_file_name("diskcast-sim"));
    command.args(["--thesis", policy, "--json"]);
    command.args(["--receivers", &hosts.to_string(), "--mib", &mebibytes.to_string()]);
    Ok(serde_json::from_str(timed(&mut command)?.output.trim())?)
}

/// Seconds of so many copies that share the frontend's link, and are no faster than a host's.
fn fluid(mebibytes: u32, hosts: u32) -> f64 {
    let image = link_seconds(f64::from(mebibytes) * f64::from(1 << 20));
    image * (f64::from(hosts) / 10.0).max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_copies_fill_the_frontends_link() {
        assert!((fluid(9318, 1) - 83.0).abs() < 1.0);
        assert!((fluid(9318, 10) - fluid(9318, 1)).abs() < 1e-9);
        assert!((fluid(9318, 60) / fluid(9318, 1) - 6.0).abs() < 1e-9);
    }
}
