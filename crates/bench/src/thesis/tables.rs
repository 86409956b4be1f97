//! Tables 6.1 and 6.2 of seed 001: one image to 1, 4, 8 and 16 hosts by each of its ways and by ours, with a fortieth
//! of its bytes. The server's link is ten times as fast as those of the hosts, as there. Ours include ssh to each host;
//! of the other tools servers and receivers run before the clock starts, without the locks and files that the seed's
//! scripts needed. NFS is left out: the kernel of the lab has none.

use std::time::Duration;

use lab::Star;
use serde_json::{Value, json};

use super::{IMAGE_THERE, MEBIBYTES, SERVER_TIMES, link_seconds, speed_up};
use crate::context::Context;
use crate::deploy::Site;
use crate::figure::{Bar, Figure};
use crate::peer::{PEERS, State};
use crate::room::star;
use crate::{Group, Result, load};

pub(super) const LARGE: Group = Group {
    figures: &[
        (
            "thesis.table_6_1",
            "last of 16 hosts by `diskcast deploy` over the best of scp, UDPcast, UFTP and aria2; shown",
        ),
        (
            "thesis.scp_model",
            "time of scp to 16 hosts over that of 16 images on the server's link, which is ten times as fast; shown",
        ),
    ],
    measure: large,
};

pub(super) const SMALL: Group = Group {
    figures: &[(
        "thesis.table_6_2",
        "the same for a small image, deployed as QCOW2, on links on which it takes as long as in seed 001; shown",
    )],
    measure: small,
};

const HOSTS: &[u32] = &[1, 4, 8, 16];
/// The ways of the seed, as the tools of today are called here.
const TOOLS: &[&str] = &["aria2", "scp", "udpcast", "uftp"];
/// Column of a tool's or our own times.
const OURS: &str = "diskcast deploy";
/// A run ends after so many images on a link, or after some time.
const PATIENCE: f64 = 12.0;
const PATIENCE_MIN: Duration = Duration::from_secs(60);
const PLACE: &str = "network namespaces on one machine; ours to files in tmpfs, read back";
/// Seconds in a table: VMs, BitTorrent, SCP, UDPcast, UFTP.
type Published = [(u32, [f64; 4]); 7];
const TABLE_6_1: Published = [
    (1, [175.60, 189.70, 216.22, 218.50]),
    (10, [273.67, 200.60, 254.44, 317.20]),
    (20, [255.80, 294.20, 281.11, 347.20]),
    (30, [270.33, 428.70, 293.78, 381.10]),
    (40, [303.00, 567.50, 308.67, 414.90]),
    (50, [345.80, 702.60, 318.33, 459.20]),
    (60, [311.50, 848.30, 323.67, 488.20]),
];
const TABLE_6_2: Published = [
    (1, [25.30, 17.00, 65.90, 48.00]),
    (10, [56.70, 19.30, 72.20, 54.60]),
    (20, [70.10, 29.20, 77.60, 62.00]),
    (30, [80.90, 39.80, 78.20, 64.10]),
    (40, [86.90, 55.80, 79.10, 68.00]),
    (50, [94.10, 66.20, 82.70, 72.70]),
    (60, [96.25, 80.40, 90.10, 74.80]),
];

/// An image and its network.
struct Load {
    mebibytes: u64,
    rate: u64,
    /// Seconds that are one in the rows.
    unit: f64,
    /// Further options of `diskcast deploy`.
    options: &'static [&'static str],
}

fn large(context: &Context) -> Result<Vec<Figure>> {
    const RATE: u64 = 100_000_000;
    let load = Load { mebibytes: MEBIBYTES, rate: RATE, unit: link_seconds(MEBIBYTES, RATE), options: &[] };
    let (ratio, mut rows) = load.measure(context)?;
    rows.extend(published(&TABLE_6_1, IMAGE_THERE));
    let hosts = HOSTS.last().ok_or("there are hosts")?;
    let scp = rows.iter().find(|row| row["hosts"] == *hosts).and_then(|row| row["scp"].as_f64());
    #[expect(clippy::cast_precision_loss, reason = "ten")]
    let model = f64::from(*hosts) / SERVER_TIMES as f64;
    let words = format!(
        "{MEBIBYTES} MiB of random data; hosts at 100 Mbit/s, the server at ten times that; times in images on a \
         host's link, which is 78.2 s in seed 001"
    );
    Ok(vec![
        Figure::new("thesis.table_6_1", &[ratio], "ratio", Bar::Shown).on(&words, PLACE).with(json!(rows)),
        Figure::new("thesis.scp_model", &[scp.ok_or("scp did not end")? / model], "ratio", Bar::Shown)
            .on(&words, "network namespaces on one machine; to /dev/null"),
    ])
}

fn small(context: &Context) -> Result<Vec<Figure>> {
    // 899 MB and 1 Gbit/s, divided by 40: seconds compare, and what does not depend on the size weighs as much.
    let load = Load { mebibytes: 21, rate: 25_000_000, unit: 1.0, options: &["--", "--as", "qcow2"] };
    let (ratio, mut rows) = load.measure(context)?;
    rows.extend(published(&TABLE_6_2, 1.0));
    let words = "21 MiB of random data; hosts at 25 Mbit/s, the server at ten times that; times in seconds";
    Ok(vec![
        Figure::new("thesis.table_6_2", &[ratio], "ratio", Bar::Shown).on(words, PLACE).with(json!(rows)),
    ])
}

/// The rows of a table of the seed, in units of so many seconds.
fn published(table: &Published, unit: f64) -> impl Iterator<Item = Value> {
    table.iter().map(move |(machines, [torrent, scp, udpcast, uftp])| {
        json!({
            "where": "seed 001", "hosts": machines, "aria2": torrent / unit, "scp": scp / unit,
            "udpcast": udpcast / unit, "uftp": uftp / unit,
        })
    })
}

/// The seconds of a table of the seed, 1 or 2, for each of its ways.
pub(super) fn published_points(table: u32) -> Vec<(&'static str, Vec<(f64, f64)>)> {
    let table = if table == 1 { &TABLE_6_1 } else { &TABLE_6_2 };
    let points =
        |way: usize| table.iter().map(|(machines, seconds)| (f64::from(*machines), seconds[way])).collect();
    ["BitTorrent", "SCP", "UDPcast", "UFTP"]
        .into_iter()
        .zip(0..)
        .map(|(name, way)| (name, points(way)))
        .collect()
}

impl Load {
    /// The rows, and the time of ours over the best of the others, with the most hosts. A tool that does not end has
    /// no time.
    fn measure(&self, context: &Context) -> Result<(f64, Vec<Value>)> {
        let file = load::random_file(context, self.mebibytes << 20)?;
        let bound =
            Duration::from_secs_f64(link_seconds(self.mebibytes, self.rate) * PATIENCE).max(PATIENCE_MIN);
        let (mut rows, mut ratio) = (vec![], f64::NAN);
        for &hosts in HOSTS {
            let mut row = json!({ "where": "lab", "hosts": hosts });
            let mut best = f64::INFINITY;
            for name in TOOLS {
                let tool = PEERS.iter().find(|peer| peer.name.to_lowercase().contains(name));
                let star = Star::build(&star(hosts, self.rate, 0))?;
                speed_up(&star, self.rate)?;
                let tool = tool.ok_or("there is such a tool")?;
                let trial = tool.run_in(context, &star, self.rate, &file, bound)?;
                let time = (trial.state == State::Done).then(|| trial.last(bound) / self.unit);
                best = best.min(time.unwrap_or(f64::INFINITY));
                row[name] = json!(time);
            }
            let ours = self.deployed(context, hosts)? / self.unit;
            row[OURS] = json!(ours);
            ratio = ours / best;
            rows.push(row);
        }
        std::fs::remove_file(file)?;
        Ok((ratio, rows))
    }

    /// Seconds of a deployment by ssh to so many hosts.
    fn deployed(&self, context: &Context, hosts: u32) -> Result<f64> {
        let site = Site::new(context, hosts, (self.rate, usize::try_from(self.mebibytes)?))?;
        speed_up(&site.star, self.rate)?;
        site.deploy_to(hosts, self.options)
    }
}
