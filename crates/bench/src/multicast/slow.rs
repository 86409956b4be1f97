//! The figure of one host with a slow port or a slow disk, which must not slow down the other hosts.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::{RUNS, SINK, most, rate_words, star};
use crate::context::Context;
use crate::crew::{Crew, Member};
use crate::figure::{Bar, Figure, median};
use crate::room::{Fetched, Room, collect, last};
use crate::transfer::{Load, library};
use crate::{Group, Result};

pub(super) const GROUP: Group = Group {
    figures: &[(
        "multicast.slow_host",
        "last of 15 hosts with a 16th at a tenth of the link, by its port or its disk, over without; at most 1.05",
    )],
    measure,
};

const HOSTS: u32 = 16;
const RATE: u64 = 400_000_000;
const SLOW: u64 = RATE / 10;
/// The host that may be slow.
const LAST: u32 = HOSTS;
/// Time limit for the slow host after the other hosts have received everything.
const SLOW_PATIENCE: Duration = Duration::from_secs(90);

/// The part of the slow host that runs at a tenth of the link.
#[derive(Clone, Copy, PartialEq)]
enum Bottleneck {
    None,
    Port,
    Disk,
}

impl Bottleneck {
    fn words(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Port => "port of a tenth of the link",
            Self::Disk => "disk of a tenth of the link",
        }
    }
}

fn measure(context: &Context) -> Result<Vec<Figure>> {
    let (repo, loads) = library(context, &[128], true)?;
    let (mut ratios, mut rows) = (vec![], vec![]);
    for load in &loads {
        let mut without = f64::NAN;
        for bottleneck in [Bottleneck::None, Bottleneck::Port, Bottleneck::Disk] {
            let (mut times, mut slow) = (vec![], Value::Null);
            for run in 0..RUNS {
                // The slow host's time depends only on its bottleneck, so only the first run waits for it.
                let (others, own) = room(context, &repo, load, bottleneck, run == 0)?;
                times.push(others);
                slow = own.map_or(slow, |own| own);
            }
            let others = median(&times);
            if bottleneck == Bottleneck::None {
                without = others;
            } else {
                ratios.push(others / without);
            }
            rows.push(json!({
                "workload": load.words, "bottleneck of the 16th": bottleneck.words(), "last of the other 15 s": others,
                "over without": others / without, "slow host s": slow["seconds"],
                "its bottleneck needs s": slow["needs"], "its unicast bytes": slow["unicast"],
            }));
        }
    }
    let workload = format!(
        "the worst of {} and {}, with a slow port and a slow disk, 16 hosts, {}",
        loads[0].words,
        loads[1].words,
        rate_words(RATE)
    );
    Ok(vec![
        Figure::new("multicast.slow_host", &[most(&ratios)], "ratio", Bar::AtMost(1.05))
            .on(&workload, &format!("{SINK}; of the slow disk a file behind FUSE, nbdkit --filter=rate"))
            .with(json!(rows)),
    ])
}

/// Seconds until the last of the other 15 hosts had received everything and, with `wait`, the slow host's own numbers.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn room(
    context: &Context,
    repo: &Path,
    load: &Load,
    bottleneck: Bottleneck,
    wait: bool,
) -> Result<(f64, Option<Value>)> {
    let room = Room::open_with(context, &[repo], &star(HOSTS, RATE, 0))?;
    if bottleneck == Bottleneck::Port {
        room.star.shape_host(LAST, SLOW, 1 << 20)?;
    }
    let mut crew = Crew::new();
    let mut disk = None;
    if bottleneck == Bottleneck::Disk {
        disk = Some(context.folder()?);
        // Making the folder must not count.
        crew.restart_clock();
    }
    let mut members = vec![];
    for host in room.clients() {
        let mut command = match &disk {
            Some(folder) if host == LAST => slow_disk(&room, load, folder),
            _ => room.fetch_command(host, 0, &load.name, "null:"),
        };
        members.push(crew.start(&mut command)?);
    }
    let slow = members.pop().expect("16 hosts");
    let others = last(&collect(&mut crew, &members)?);
    if !wait || bottleneck == Bottleneck::None {
        crew.kill(slow);
        return Ok((others, None));
    }
    let Some(own) = own_time(&mut crew, slow)? else {
        let seconds = format!("not after {:.0}", crew.seconds());
        return Ok((others, Some(json!({ "seconds": seconds, "needs": null, "unicast": null }))));
    };
    // Encoded bytes go through a port, decoded bytes onto a disk.
    let received = own.report["multicast_bytes"].as_u64().unwrap_or(0) + own.unicast_bytes();
    let written = own.report["report"]["written_bytes"].as_u64().unwrap_or(0);
    let bytes = if disk.is_some() { written } else { received };
    let needs = bytes as f64 * 8.0 / SLOW as f64;
    let seconds = if disk.is_some() { own.ended } else { own.received };
    Ok((others, Some(json!({ "seconds": seconds, "needs": needs, "unicast": own.unicast_bytes() }))))
}

/// The slow host's fetch; `None` if it did not end within [`SLOW_PATIENCE`].
fn own_time(crew: &mut Crew, slow: Member) -> Result<Option<Fetched>> {
    let until = Duration::from_secs_f64(crew.seconds()) + SLOW_PATIENCE;
    crew.wait(&[slow], until)?.first().map(Fetched::of).transpose()
}

/// A fetch onto a slow disk: a file that `nbdfuse` offers, backed by memory and limited to a tenth of the link's rate.
/// The mount is visible only in the mount namespace of this command, and ends with it.
fn slow_disk(room: &Room, load: &Load, folder: &Path) -> Command {
    let mut command = room.star.host(LAST).command("bash");
    let script = format!(
        "set -e\n\
         nbdfuse disk --command nbdkit -s --exit-with-parent memory 4G --filter=rate rate={SLOW} burstiness=0.5 &\n\
         trap 'fusermount3 -u -z disk' EXIT\n\
         while ! [ -s disk/nbd ]; do sleep 0.02; done\n\
         \"$@\""
    );
    std::fs::create_dir_all(folder.join("disk")).expect("a folder of this run takes another");
    command.current_dir(folder).args(["-c", &script, "bash"]).arg(room.binary());
    room.fetch_arguments(&mut command, 0, &load.name, "disk/nbd");
    // Received objects are verified by their digests anyway; reading the slow disk back would double the time.
    command.arg("--no-verify");
    command
}
