//! Figure 6.7 of seed 001: BitTorrent to hosts at one switch, and to as many at two. The link between the switches
//! carries as much for each far host as there: 10 Gbit/s for 15 hosts of 1 Gbit/s.

use std::path::Path;
use std::time::Duration;

use lab::{Star, StarOptions, SwitchOptions};
use serde_json::{Value, json};

use super::{HOSTS, link_seconds, speed_up};
use crate::context::Context;
use crate::figure::{Bar, Figure, median};
use crate::peer::{PEERS, State};
use crate::room::star;
use crate::torrent::{fetch_all, open};
use crate::transfer::{Load, library};
use crate::{Group, Result, load};

pub(super) const GROUP: Group = Group {
    figures: &[
        (
            "thesis.figure_6_7",
            "last of 16 hosts at two switches over the last of 16 at one, by BitTorrent with known places; shown",
        ),
        ("thesis.figure_6_7_bytes", "images over the link between the switches in these runs; shown"),
    ],
    measure,
};

const ROUNDS: usize = 3;
const RATE: u64 = 100_000_000;
const MEBIBYTES: u64 = 128;
/// Hosts from this one on are at the other switch.
const FAR: u32 = HOSTS / 2 + 1;
const LINK_RATE: u64 = RATE * (HOSTS / 2) as u64 * 10 / 15;
/// A run of another tool ends after so many images on a link.
const PATIENCE: f64 = 12.0;

/// Who fetches how.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// diskcast, whose server knows which host is at which switch.
    Places,
    /// diskcast without that.
    Ours,
    /// aria2 with opentracker.
    Aria2,
}

/// A run. Times are in images on a host's link.
struct Run {
    last: f64,
    mean: f64,
    /// Images over the link between the switches, down.
    down: f64,
}

fn measure(context: &Context) -> Result<Vec<Figure>> {
    let scene = Scene::new(context)?;
    let mut rows: Vec<Value> = vec![];
    let (mut ratios, mut theirs, mut crossed) = (vec![], vec![], vec![]);
    for (way, words) in [
        (Way::Places, "diskcast, places known"),
        (Way::Ours, "diskcast, places not known"),
        (Way::Aria2, "aria2, opentracker"),
    ] {
        let mut one_switch = vec![];
        for switches in [1, 2] {
            let runs = (0..ROUNDS).map(|_| scene.run(way, switches)).collect::<Result<Vec<_>>>()?;
            let all = |value: fn(&Run) -> f64| runs.iter().map(value).collect::<Vec<_>>();
            let lasts = all(|run| run.last);
            rows.push(json!({
                "way": words, "switches": switches, "last, images": median(&lasts),
                "mean, images": median(&all(|run| run.mean)), "images over the link": median(&all(|run| run.down)),
            }));
            if switches == 1 {
                one_switch = lasts;
                continue;
            }
            let over: Vec<f64> = lasts.iter().zip(&one_switch).map(|(two, one)| two / one).collect();
            match way {
                Way::Places => (ratios, crossed) = (over, all(|run| run.down)),
                Way::Aria2 => theirs = over,
                Way::Ours => {}
            }
        }
    }
    let words = format!(
        "{MEBIBYTES} MiB of random data, {HOSTS} hosts at 100 Mbit/s, the server at ten times that, {} Mbit/s between \
         the switches",
        LINK_RATE / 1_000_000
    );
    let sink = "files in tmpfs, read back";
    Ok(vec![
        Figure::new("thesis.figure_6_7", &ratios, "ratio", Bar::Shown)
            .peer("seed 001", "30 machines, rTorrent, pieces of 4 MB", 1.15, "ratio")
            .peer("aria2 + opentracker", "256 KiB pieces, all peers", median(&theirs), "ratio")
            .on(&words, sink)
            .with(json!(rows)),
        Figure::new("thesis.figure_6_7_bytes", &crossed, "images", Bar::Shown).on(&words, sink),
    ])
}

struct Scene<'a> {
    context: &'a Context,
    repo: std::path::PathBuf,
    load: Load,
    file: std::path::PathBuf,
    places: String,
}

/// The lab: far hosts at a switch of their own, or all at one.
fn options(switches: u32) -> StarOptions {
    let far = SwitchOptions {
        hosts: (FAR..=HOSTS).collect(),
        rate_bits_per_second: Some(LINK_RATE),
        ..SwitchOptions::default()
    };
    let switches = if switches == 2 { vec![far] } else { vec![] };
    StarOptions { switches, ..star(HOSTS, RATE, 0) }
}

impl<'a> Scene<'a> {
    fn new(context: &'a Context) -> Result<Self> {
        let (repo, mut loads) = library(context, &[MEBIBYTES], false)?;
        let places = context.folder()?.join("places");
        // Addresses are the same in each lab.
        let star = Star::build(&options(1))?;
        let line = |host: u32| {
            let place = if host < FAR { "near" } else { "far" };
            format!("{}/32 {place}\n", star.host(host).ipv4())
        };
        std::fs::write(&places, (1..=HOSTS).map(line).collect::<String>())?;
        let file = load::random_file(context, MEBIBYTES << 20)?;
        let places = places.to_string_lossy().into_owned();
        Ok(Self { context, repo, load: loads.remove(0), file, places })
    }

    fn run(&self, way: Way, switches: u32) -> Result<Run> {
        let (options, alone) = (options(switches), link_seconds(MEBIBYTES, RATE));
        let (seconds, down): (Vec<f64>, u64) = if way == Way::Aria2 {
            let star = Star::build(&options)?;
            speed_up(&star, RATE)?;
            let bound = Duration::from_secs_f64(alone * PATIENCE);
            let aria2 = PEERS.iter().find(|peer| peer.name.contains("aria2")).ok_or("there is aria2")?;
            let trial = aria2.run_in(self.context, &star, RATE, &self.file, bound)?;
            if trial.state != State::Done {
                return Err(format!("aria2: {:?}", trial.state).into());
            }
            (trial.seconds, down(&star, switches)?)
        } else {
            // All at one switch are at one place.
            let know = way == Way::Places && switches == 2;
            let serve: &[&str] = if know { &["--places", &self.places] } else { &[] };
            let room = open(self.context, &self.repo as &Path, &self.load, &options, serve)?;
            speed_up(&room.star, RATE)?;
            let done = fetch_all(&room, &self.load)?;
            (done.iter().map(|host| host.ended - host.began).collect(), down(&room.star, switches)?)
        };
        #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
        Ok(Run {
            last: seconds.iter().copied().fold(0.0, f64::max) / alone,
            mean: seconds.iter().sum::<f64>() / seconds.len() as f64 / alone,
            down: down as f64 / (MEBIBYTES << 20) as f64,
        })
    }
}

/// Bytes down the link between the switches.
fn down(star: &Star, switches: u32) -> Result<u64> {
    Ok(if switches == 2 { star.uplink_traffic(1)?.down.bytes } else { 0 })
}
