//! Figures of reading a whole disk and of random reads, both cold: over a link of 1 Gbit/s, with nothing on the host.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use base::Chance;
use serde_json::{Value, json};

use crate::context::{Context, timed};
use crate::figure::{Bar, Figure};
use crate::load::chunks;
use crate::reader::Nbd;
use crate::replay::Setting;
use crate::site::{DISK, Site};
use crate::trace::{Event, Kind};
use crate::way::{Had, Place, Way};
use crate::{Group, Result};

pub(crate) const GROUP: Group = Group {
    figures: &[
        ("mirror.cold_read", "nbdcopy of a disk of 4 GiB with some 800 MiB of data, 1 Gbit/s; at most 3 s"),
        ("mirror.cold_random", "median of cold random reads of 4 KiB, less the round trip; at most 1.5 ms"),
    ],
    measure,
};

const ROUNDS: usize = 3;
const RANDOM_READS: usize = 200;

fn measure(context: &Context) -> Result<Vec<Figure>> {
    let setting = Setting::new(context)?;
    let site = Site::open(context, &setting.machine, &setting.repository, Duration::ZERO, true)?;
    Ok(vec![whole(context, &site)?, random(context, &setting, &site)?])
}

/// The socket of a disk that is served.
fn socket(had: &Had) -> Result<&Path> {
    match &had.place {
        Place::Socket(socket) => Ok(socket),
        Place::File(path) => Err(format!("`{}` is not served", path.display()).into()),
    }
}

#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn whole(context: &Context, site: &Site) -> Result<Figure> {
    let read = |way: Way| -> Result<(f64, f64)> {
        let before = site.sent()?;
        let had = site.have(context, way)?;
        let uri = format!("nbd+unix:///{DISK}?socket={}", socket(&had)?.display());
        let taken = timed(site.command("nbdcopy").args([&uri, "null:"]))?;
        Ok((taken.seconds, (site.sent()? - before) as f64 / 1048576.0))
    };
    let (mut runs, mut rows) = (vec![], vec![]);
    for _ in 0..ROUNDS {
        let (seconds, mebibytes) = read(Way::Attached)?;
        runs.push(seconds);
        rows.push(json!({ "disk": "diskcast", "s": seconds, "MiB over the link": mebibytes }));
    }
    let mut figure = Figure::new("mirror.cold_read", &runs, "s", Bar::AtMost(3.0));
    for way in [Way::Qemu, Way::Nbdkit, Way::Curl(&["cow"])] {
        let (seconds, mebibytes) = read(way)?;
        rows.push(json!({ "disk": way.name(), "s": seconds, "MiB over the link": mebibytes }));
        figure = figure.peer(&way.name(), way.flags(), seconds, "s");
    }
    let work = "nbdcopy to null: of a Debian 12 disk of 4 GiB";
    Ok(figure.on(work, "1 Gbit/s, the server's page cache warm, nothing on the host").with(json!(rows)))
}

fn random(context: &Context, setting: &Setting, site: &Site) -> Result<Figure> {
    let reads = scattered(&setting.repository)?;
    let round_trip = site.round_trip_ms()?;
    let latencies = |way: Way| -> Result<[f64; 3]> {
        let had = site.have(context, way)?;
        let mut client = Nbd::connect(socket(&had)?, DISK)?;
        // The first read also fetches the tree, where there is one; it is not counted.
        client.replay(&reads[..1], |_, _| Ok(()))?;
        let replayed = client.replay(&reads[1..], |_, _| Ok(()))?;
        Ok([50, 99, 100].map(|percent| replayed.percentile(percent) - round_trip))
    };
    let row = |name: &str, [p50, p99, most]: [f64; 3]| -> Value {
        json!({ "disk": name, "p50 ms": p50, "p99 ms": p99, "longest ms": most })
    };
    let (mut runs, mut rows) = (vec![], vec![]);
    for _ in 0..ROUNDS {
        let times = latencies(Way::Attached)?;
        runs.push(times[0]);
        rows.push(row("diskcast", times));
    }
    let mut figure = Figure::new("mirror.cold_random", &runs, "ms", Bar::AtMost(1.5));
    for way in [Way::Qemu, Way::Nbdkit, Way::Curl(&["cow"])] {
        let times = latencies(way)?;
        rows.push(row(&way.name(), times));
        figure = figure.peer(&way.name(), way.flags(), times[0], "ms");
    }
    let work =
        format!("{RANDOM_READS} reads of 4 KiB, each in another chunk with content, one after the other");
    let sink = format!("1 Gbit/s, without the round trip of {round_trip:.3} ms in which a connection stands");
    Ok(figure.on(&work, &sink).with(json!(rows)))
}

/// Reads of the first 4 KiB of randomly chosen chunks with content.
fn scattered(repository: &Path) -> Result<Vec<Event>> {
    let (chunks, chunk_bytes) = chunks(repository)?;
    let places: Vec<u64> = chunks.keys().map(|index| index * chunk_bytes).collect();
    let (mut chance, mut taken) = (Chance::from_seed(5), HashSet::new());
    while taken.len() <= RANDOM_READS.min(places.len() - 1) {
        let place = usize::try_from(chance.below(places.len() as u64))?;
        taken.insert(place);
    }
    let mut order: Vec<usize> = taken.into_iter().collect();
    order.sort_by_key(|&place| base::Digest::of(&place.to_le_bytes()).to_hex());
    let event = |place: usize| Event { kind: Kind::Read, offset: places[place], bytes: 4096, in_flight: 1 };
    Ok(order.into_iter().map(event).collect())
}
