//! Figures of hosts that do not start together: 16 starts spread evenly over the time of one transfer.
//!
//! With multicast alone the server must send at least 31/16 images. Host `i`, counted from 0, starts when `i`
//! sixteenths of the image were sent. After one pass over the image, the last host has only the last sixteenth and
//! lacks the other fifteen. These include all that the other late hosts lack, so sending them once more serves all
//! hosts: 1 + 15/16 = 1.94 images. The bar allows 2 % more.

use std::path::Path;
use std::time::Duration;

use serde_json::json;

use super::{RUNS, SINK, most, rate_words, star};
use crate::context::Context;
use crate::figure::{Bar, Figure, median};
use crate::room::Room;
use crate::transfer::{Load, Transfer, library, transfer};
use crate::{Group, Result};

pub(super) const GROUP: Group = Group {
    figures: &[
        (
            "multicast.skew",
            "a host's own time over its time alone, 16 starts over one transfer time, the most; at most 1.08",
        ),
        (
            "multicast.skew_bytes",
            "images that the server sent, 16 starts over one transfer time; at most 1.98",
        ),
    ],
    measure,
};

const HOSTS: u32 = 16;
const RATE: u64 = 200_000_000;

fn measure(context: &Context) -> Result<Vec<Figure>> {
    let (repo, loads) = library(context, &[128], true)?;
    let (mut ratios, mut images, mut rows) = (vec![], vec![], vec![]);
    for load in &loads {
        let mut alone = vec![];
        for _ in 0..RUNS {
            alone.push(transfer(context, &repo, &load.name, &star(1, RATE, 0))?.last());
        }
        let alone = median(&alone);
        let (mut ratio, mut sent) = (vec![], vec![]);
        for _ in 0..RUNS {
            let done = spread(context, &repo, load, alone)?;
            let own: Vec<f64> = done.fetched.iter().map(|host| host.received - host.began).collect();
            ratio.push(most(&own) / alone);
            sent.push(done.images_sent()?);
            let mut row = done.row(load)?;
            row["alone s"] = json!(alone);
            row["own time median s"] = json!(median(&own));
            row["own time most s"] = json!(most(&own));
            rows.push(row);
        }
        ratios.push(median(&ratio));
        images.push(median(&sent));
    }
    let workload = format!("the worse of {} and {}, {}", loads[0].words, loads[1].words, rate_words(RATE));
    Ok(vec![
        Figure::new("multicast.skew", &[most(&ratios)], "ratio", Bar::AtMost(1.08))
            .on(&workload, SINK)
            .with(json!(rows)),
        Figure::new("multicast.skew_bytes", &[most(&images)], "images", Bar::AtMost(1.98))
            .on(&workload, SINK),
    ])
}

/// A transfer to all hosts, whose starts are spread evenly over `over` seconds.
fn spread(context: &Context, repo: &Path, load: &Load, over: f64) -> Result<Transfer> {
    let options = star(HOSTS, RATE, 0);
    let room = Room::open_with(context, &[repo], &options)?;
    let after = |host: u32| Duration::from_secs_f64(over) * (host - 1) / HOSTS;
    let fetched = room.fetch(&load.name, |_| "null:".to_owned(), after)?;
    Transfer::of(room, fetched, &options)
}
