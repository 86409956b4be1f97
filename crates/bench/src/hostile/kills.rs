//! What kills cost a transfer: how often the image crosses a host's link while the server, or the host's own fetch, is
//! killed again and again.

use std::path::Path;
use std::time::Duration;

use base::Chance;
use serde_json::json;

use super::{HOSTS, RATE, SINK_FILES};
use crate::context::Context;
use crate::crew::Crew;
use crate::figure::{Bar, Figure};
use crate::room::{Room, collect};
use crate::transfer::{Load, library};
use crate::{Group, Result};

pub(super) const GROUP: Group = Group {
    figures: &[(
        "hostile.kills",
        "bytes that a host gets while the server, or its own fetch by unicast, is killed 50 times, over without, the \
         worst; at most 1.1",
    )],
    measure,
};

const MEBIBYTES: u64 = 512;
const KILLS: u64 = 50;
/// Time between two kills: from the first, up to the sum.
const BETWEEN: Duration = Duration::from_millis(300);
const BETWEEN_MORE: Duration = Duration::from_millis(600);

#[derive(Clone, Copy, PartialEq)]
enum Victim {
    Nobody,
    Server,
    /// The fetch of host 1.
    Host,
}

/// Whether hosts use multicast. What a host gets by unicast is what it fetches. By multicast it also gets what others
/// asked for, and what is sent while it starts again.
#[derive(Clone, Copy, PartialEq)]
enum By {
    Multicast,
    Unicast,
}

fn measure(context: &Context) -> Result<Vec<Figure>> {
    let (repo, loads) = library(context, &[MEBIBYTES], false)?;
    let (load, image) = (&loads[0], crate::load::random_disk(context, MEBIBYTES << 20)?);
    let run = |victim, by| run(context, &repo, load, &image, (victim, by));
    let (mut worst, mut rows): (f64, _) = (0.0, vec![]);
    for (by, victim, words) in [
        (By::Multicast, Victim::Server, "the server"),
        (By::Unicast, Victim::Host, "a host's fetch by unicast"),
        (By::Multicast, Victim::Host, "a host's fetch by multicast (not in the figure)"),
    ] {
        let ((without, _), (got, seconds)) = (run(Victim::Nobody, by)?, run(victim, by)?);
        let images = got / without;
        if (by, victim) != (By::Multicast, Victim::Host) {
            worst = worst.max(images);
        }
        rows.push(
            json!({ "killed": format!("{words}, {KILLS} times"), "images": images, "last host s": seconds }),
        );
    }
    let workload =
        format!("{}, {HOSTS} hosts, 100 Mbit/s links; each disk is compared with the image", load.words);
    Ok(vec![
        Figure::new("hostile.kills", &[worst], "images", Bar::AtMost(1.1))
            .on(&workload, SINK_FILES)
            .with(json!(rows)),
    ])
}

/// The most bytes that a host got over its link until all had everything, and how many seconds it took.
fn run(
    context: &Context,
    repo: &Path,
    load: &Load,
    image: &Path,
    (victim, by): (Victim, By),
) -> Result<(f64, f64)> {
    let mut room = Room::open(context, repo, HOSTS, RATE)?;
    let disks = context.folder()?;
    let target = |host: u32| disks.join(format!("disk-{host}")).to_string_lossy().into_owned();
    let (mut crew, mut killed) = (Crew::new(), Crew::new());
    let mut chance = Chance::from_seed(1);
    let command = |room: &Room, host: u32| {
        let mut command = room.fetch_command(host, 0, &load.name, &target(host));
        if by == By::Unicast {
            command.args(["--transport", "unicast"]);
        }
        command
    };
    let first = if victim == Victim::Host { 2 } else { 1 };
    let steady =
        (first..=HOSTS).map(|host| crew.start(&mut command(&room, host))).collect::<Result<Vec<_>>>()?;
    let mut at = Duration::ZERO;
    let mut fetch = None;
    if victim == Victim::Host {
        fetch = Some(killed.start(&mut command(&room, 1))?);
    }
    let kills = if victim == Victim::Nobody { 0 } else { KILLS };
    for kill in 0..kills {
        at += BETWEEN + BETWEEN_MORE.mul_f64(f64::from(u32::try_from(chance.below(1000))?) / 1000.0);
        crew.wait_until(at);
        match fetch {
            None => room.kill_and_restart(0, repo)?,
            Some(member) => {
                if killed.next(Duration::ZERO).is_some_and(|ended| ended.member == member) {
                    return Err(format!("the fetch ended by itself before kill {kill}").into());
                }
                killed.kill(member);
                fetch = Some(killed.start(&mut command(&room, 1))?);
            }
        }
    }
    if let Some(member) = fetch {
        // The ends of those that were killed are of no interest.
        loop {
            let ended = killed.next(Duration::from_secs(300)).ok_or("a fetch timed out")?;
            if ended.member == member {
                ended.check()?;
                break;
            }
        }
    }
    collect(&mut crew, &steady)?;
    let seconds = crew.seconds();
    let traffic = room.star.traffic()?;
    // Of the host whose fetch was killed, or of the one that got most.
    let hosts = if victim == Victim::Host { &traffic[1..2] } else { &traffic[1..] };
    let received = hosts.iter().map(|link| link.received.bytes).max().unwrap_or(0);
    for host in 1..=HOSTS {
        if std::fs::read(target(host))? != std::fs::read(image)? {
            return Err(format!("the disk of host {host} is not the image").into());
        }
        std::fs::remove_file(target(host))?;
    }
    #[expect(clippy::cast_precision_loss, reason = "a ratio")]
    Ok((received as f64, seconds))
}
