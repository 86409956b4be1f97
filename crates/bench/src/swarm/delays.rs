//! The sweep of start delays in the lab: 30 hosts, at a tenth of the times and a fortieth of the bytes of seed 004.
//!
//! Its receivers get 730 MB in 2 to 3 s, then decode and write for 8 to 9 s, and serve others all that time. Here a
//! host gets 18 MiB by a link of 600 Mbit/s in some 0.3 s, and then goes on to serve for a second. With starts 0.4 s
//! apart or more few hosts are busy at a time, so the policies run at the same time, each in a lab of its own. When all
//! start together, the machine's cores are the limit, not the links.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use super::agents::Agents;
use super::{Done, RUNS, SINK, done, fetch_in};
use crate::context::Context;
use crate::figure::{Bar, Figure, median};
use crate::room::{Room, star};
use crate::transfer::{Load, library};
use crate::{Group, Result};

pub(super) const GROUP: Group = Group {
    figures: &[
        (
            "peers.start_delay_lab",
            "bytes that the server sends over those of multicast alone, 30 hosts in the lab, the worst of four start \
             delays; at most 1.02",
        ),
        (
            "switch.start_delay_lab",
            "bytes redirected by a switch of the lab over those redirected by the server, the worst of four start \
             delays; at most 1.05",
        ),
    ],
    measure,
};

const HOSTS: u32 = 30;
const RATE: u64 = 600_000_000;
const MEBIBYTES: u64 = 18;
/// Seconds between successive starts; in the seed ten times as many.
const DELAYS: [f64; 4] = [0.0, 0.4, 0.9, 1.5];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Policy {
    Hybrid,
    Multicast,
    Server,
    Switch,
}

/// The policies, by their names in the rows.
const POLICIES: [(Policy, &str); 4] = [
    (Policy::Hybrid, "hybrid"),
    (Policy::Multicast, "multicast"),
    (Policy::Server, "server"),
    (Policy::Switch, "switch"),
];

/// A repository of its own for each policy, since their servers run at the same time.
struct Scene<'a> {
    context: &'a Context,
    shelves: Vec<(PathBuf, Load)>,
}

/// What a policy costs at a delay.
#[derive(Clone, Copy)]
struct Cost {
    images: f64,
    /// The median host's own time.
    seconds: f64,
}

impl Scene<'_> {
    fn run(&self, at: usize, delay: f64) -> Result<Cost> {
        let (policy, (repo, load)) = (POLICIES[at].0, &self.shelves[at]);
        let serve: &[&str] = match policy {
            Policy::Hybrid | Policy::Multicast => &[],
            Policy::Server | Policy::Switch => &["--no-multicast"],
        };
        let options: &[&str] =
            if policy == Policy::Multicast { &["--no-peers"] } else { &["--serve-for", "1s"] };
        let room = Room::open_serving(self.context, &[repo], &star(HOSTS, RATE, 0), serve)?;
        let agents = (policy == Policy::Switch).then(|| Agents::start(&room, 1)).transpose()?;
        let after = |host: u32| Duration::from_secs_f64(delay * f64::from(host - 1));
        let fetched = fetch_in(&room, load, room.clients(), options, after)?;
        agents.map(Agents::end).transpose()?;
        let done: Done = done(room, fetched)?;
        Ok(Cost { images: done.images(), seconds: median(&done.own()) })
    }

    /// All policies, at the same time if few hosts are busy at a time.
    fn at(&self, delay: f64) -> Result<Vec<Cost>> {
        if delay == 0.0 {
            let runs = |at| -> Result<Cost> {
                // An object more or less is 1.4 % of the image.
                let runs = (0..3 * RUNS).map(|_| self.run(at, delay)).collect::<Result<Vec<_>>>()?;
                let of = |value: fn(&Cost) -> f64| median(&runs.iter().map(value).collect::<Vec<_>>());
                Ok(Cost { images: of(|run| run.images), seconds: of(|run| run.seconds) })
            };
            return (0..POLICIES.len()).map(runs).collect();
        }
        std::thread::scope(|scope| {
            let run = |at| scope.spawn(move || self.run(at, delay).map_err(|error| error.to_string()));
            let runs: Vec<_> = (0..POLICIES.len()).map(run).collect();
            runs.into_iter().map(|run| Ok(run.join().map_err(|_| "a thread panicked")??)).collect()
        })
    }
}

fn measure(context: &Context) -> Result<Vec<Figure>> {
    let mut shelves = vec![];
    for _ in POLICIES {
        let (repo, mut loads) = library(context, &[MEBIBYTES], false)?;
        shelves.push((repo, loads.remove(0)));
    }
    let scene = Scene { context, shelves };
    let (mut rows, mut hybrid, mut switch): (Vec<Value>, f64, f64) = (vec![], 0.0, 0.0);
    for delay in DELAYS {
        let costs = scene.at(delay)?;
        hybrid = hybrid.max(costs[0].images / costs[1].images);
        switch = switch.max(costs[3].images / costs[2].images);
        let mut row = json!({ "start delay s": delay });
        for ((_, name), cost) in POLICIES.iter().zip(&costs) {
            row[format!("{name} images")] = cost.images.into();
            row[format!("{name} s")] = cost.seconds.into();
        }
        rows.push(row);
    }
    let workload =
        "30 hosts, 18 MiB of incompressible data, 600 Mbit/s, starts 0 to 1.5 s apart; fetch --serve-for 1s";
    Ok(vec![
        Figure::new("peers.start_delay_lab", &[hybrid], "ratio", Bar::AtMost(1.02))
            .on(workload, SINK)
            .with(json!(rows)),
        Figure::new("switch.start_delay_lab", &[switch], "ratio", Bar::AtMost(1.05)).on(workload, SINK),
    ])
}
