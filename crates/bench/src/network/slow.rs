//! The figures of a host on a slow port beside hosts on fast ones.

use std::path::Path;

use serde_json::{Value, json};

use super::{GIGABIT, SINK};
use crate::context::Context;
use crate::crew::Crew;
use crate::figure::{Bar, Figure, median};
use crate::room::{Fetched, Room, collect, last, star};
use crate::transfer::{Load, library};
use crate::{Group, Result};

pub(super) const GROUP: Group = Group {
    figures: &[
        (
            "network.slow_beside",
            "a host at 20 Mbit/s beside 3 at 100, server at 1 Gbit/s, over its time alone; at most 1.2",
        ),
        (
            "network.slow_beside_others",
            "last of 3 hosts at 100 Mbit/s beside one at 20, over without it; at most 1.10",
        ),
    ],
    measure,
};

const FAST: u64 = 100_000_000;
const SLOW: u64 = 20_000_000;
const FAST_HOSTS: u32 = 3;
/// The slow host.
const LAST: u32 = FAST_HOSTS + 1;
const MEBIBYTES: u64 = 64;
const RUNS: usize = 3;
const BUFFER_BYTES: u64 = 1 << 20;

fn measure(context: &Context) -> Result<Vec<Figure>> {
    let (repo, loads) = library(context, &[MEBIBYTES], false)?;
    let load = &loads[0];
    let mut times = [vec![], vec![], vec![], vec![]];
    for _ in 0..RUNS {
        let alone = last(&run(context, &repo, load, &[LAST])?);
        let without = last(&run(context, &repo, load, &[1, 2, 3])?);
        let together = run(context, &repo, load, &[1, 2, 3, LAST])?;
        let (slow, others) = together.split_last().ok_or("four hosts fetched")?;
        for (all, time) in times.iter_mut().zip([alone, slow.received, without, last(others)]) {
            all.push(time);
        }
    }
    let [alone, slow, without, others] = times.each_ref().map(|times| median(times));
    let details: Value = json!([{
        "slow host alone s": alone, "slow host s": slow, "others without s": without, "others s": others,
        "runs": times,
    }]);
    let workload = format!("{}, median of {RUNS}", load.words);
    Ok(vec![
        Figure::new("network.slow_beside", &[slow / alone], "ratio", Bar::AtMost(1.2))
            .on(&workload, SINK)
            .with(details),
        Figure::new("network.slow_beside_others", &[others / without], "ratio", Bar::AtMost(1.10))
            .on(&workload, SINK),
    ])
}

/// The fetches of these hosts, which start together.
fn run(context: &Context, repo: &Path, load: &Load, hosts: &[u32]) -> Result<Vec<Fetched>> {
    let room = Room::open_with(context, &[repo], &star(LAST, FAST, 0))?;
    room.star.shape_host(0, GIGABIT, BUFFER_BYTES)?;
    room.star.shape_host(LAST, SLOW, BUFFER_BYTES)?;
    let mut crew = Crew::new();
    let members = hosts
        .iter()
        .map(|&host| crew.start(&mut room.fetch_command(host, 0, &load.name, "null:")))
        .collect::<Result<Vec<_>>>()?;
    collect(&mut crew, &members)
}
