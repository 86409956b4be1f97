//! Attached disks that boot within a minute of each other and serve each other, without multicast.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mirror::{Mirror, Served as _};
use serde_json::{Value, json};

use super::most;
use crate::boots::{LINKS, MACHINES, Start, With, boot};
use crate::context::Context;
use crate::crew::Crew;
use crate::figure::{Bar, Figure, median};
use crate::room::Room;
use crate::{Group, Result};

pub(super) const GROUP: Group = Group {
    figures: &[
        (
            "peers.boots",
            "bytes that the server sent for 16 attached disks that boot within a minute, over one's; at most 1.1",
        ),
        ("peers.boots_time", "the longest of those boots over one alone; at most 1.2"),
    ],
    measure,
};

const RUNS: usize = 3;
/// The starts are spread evenly over this time. One boot alone takes about nine seconds.
const SPREAD: Duration = Duration::from_secs(60);

/// Machines that were started one after the other.
struct Booted {
    /// The time of each, in seconds.
    seconds: Vec<f64>,
    /// Bytes that the server sent, with Ethernet headers.
    sent: u64,
    words: Value,
}

/// Boots the first `machines` hosts, `gap` apart. Each disk stays attached until all have booted.
fn boots(context: &Context, room: &Room, start: &Arc<Start>, with: With, machines: u32) -> Result<Booted> {
    let gap = SPREAD / MACHINES;
    let before = room.star.sent_on_wire(0)?;
    let (crew, mut booting) = (Crew::new(), Vec::new());
    for host in 1..=machines {
        crew.wait_until(gap * (host - 1));
        let (start, folder) = (Arc::clone(start), context.folder()?);
        let run = move || -> std::result::Result<(f64, Arc<Mirror>), String> {
            let begin = Instant::now();
            let mirror = boot(&start, with, &folder).map_err(|error| base::chain(&*error))?;
            Ok((begin.elapsed().as_secs_f64(), mirror))
        };
        booting.push(room.star.host(host).run(run)?);
    }
    let mut booted = Vec::new();
    for machine in booting {
        booted.push(machine.join().map_err(|_| "a machine panicked")??);
    }
    let sent = room.star.sent_on_wire(0)? - before;
    let seconds: Vec<f64> = booted.iter().map(|(seconds, _)| *seconds).collect();
    let disks = || booted.iter().map(|(_, mirror)| mirror);
    let words = json!({
        "seconds": seconds, "sent": sent,
        "overdue": disks().map(|disk| disk.swarm_traffic().overdue).collect::<Vec<_>>(),
        "shunned": disks().map(|disk| disk.swarm_traffic().shunned).collect::<Vec<_>>(),
        "from other machines": disks().map(|disk| disk.swarm_traffic().peer_bytes).collect::<Vec<_>>(),
        "served": disks().map(|disk| disk.swarm_traffic().served_bytes).collect::<Vec<_>>(),
        "nodes": disks().map(|disk| disk.counters().node_bytes).collect::<Vec<_>>(),
        "waited": disks().map(|disk| disk.counters().demanded_chunks).collect::<Vec<_>>(),
        "retries": disks().map(|disk| disk.counters().retries).sum::<u64>(),
    });
    disks().try_for_each(|disk| disk.close())?;
    Ok(Booted { seconds, sent, words })
}

#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn measure(context: &Context) -> Result<Vec<Figure>> {
    let (room, start) = Start::new(context)?;
    let (mut plain, mut alone) = (Vec::new(), Vec::new());
    // By turns, so that whatever else this machine does meets both.
    for _ in 0..RUNS {
        plain.push(boots(context, &room, &start, With::Nothing, 1)?);
        alone.push(boots(context, &room, &start, With::Peers, 1)?);
    }
    let time = |runs: &[Booted]| median(&runs.iter().map(|run| most(&run.seconds)).collect::<Vec<_>>());
    let bytes = |runs: &[Booted]| median(&runs.iter().map(|run| run.sent as f64).collect::<Vec<_>>());
    let (best_time, best_bytes) = (time(&plain).min(time(&alone)), bytes(&plain).min(bytes(&alone)));
    let mut together = Vec::new();
    for _ in 0..RUNS {
        together.push(boots(context, &room, &start, With::Peers, MACHINES)?);
    }
    let sent: Vec<f64> = together.iter().map(|run| run.sent as f64 / best_bytes).collect();
    let times: Vec<f64> = together.iter().map(|run| most(&run.seconds) / best_time).collect();
    let words = format!(
        "{} reads of a boot and a small job of Debian 12, {MACHINES} starts spread over {} s, no multicast",
        start.reads.len(),
        SPREAD.as_secs()
    );
    let all = |runs: &[Booted]| runs.iter().map(|run| run.words.clone()).collect::<Vec<_>>();
    let details = json!({
        "alone without peers": all(&plain), "alone": all(&alone), "together": all(&together),
    });
    let mebibytes = |bytes: f64| bytes / f64::from(1 << 20);
    Ok(vec![
        Figure::new("peers.boots", &sent, "ratio", Bar::AtMost(1.1))
            .peer("one alone, without peers", "", mebibytes(bytes(&plain)), "MiB")
            .peer("one alone", "", mebibytes(bytes(&alone)), "MiB")
            .on(&words, LINKS)
            .with(details),
        Figure::new("peers.boots_time", &times, "ratio", Bar::AtMost(1.2))
            .peer("one alone, without peers", "", time(&plain), "s")
            .peer("one alone", "", time(&alone), "s")
            .on(&words, LINKS),
    ])
}
