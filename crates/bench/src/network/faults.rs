//! Figures of networks with faults: what a deaf host, a cable that is pulled, or a machine that reboots costs the
//! healthy hosts of a transfer, compared with the same transfer without the fault.

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::context::{Context, json_line};
use crate::crew::{Crew, Member};
use crate::figure::{Bar, Figure, median};
use crate::room::{Room, collect, last};
use crate::transfer::{Load, library};
use crate::{Group, Result};

pub(super) const GROUP: Group = Group {
    figures: &[
        (
            "network.deaf_first",
            "last of 3 hosts that start 9 s after a host that hears no multicast, over without it; at most 1.10",
        ),
        (
            "network.deaf_beside",
            "last of 3 hosts beside one that hears no multicast, over without it; at most 1.15",
        ),
        (
            "network.cable_server",
            "last of 3 hosts, the server's cable out for 6 s, less these, over without; at most 1.10",
        ),
        ("network.cable_client", "a host whose cable is out for 8 s, less these, over without; at most 1.15"),
        (
            "network.cable_client_others",
            "last of 2 hosts beside one whose cable is out for 8 s, over without; at most 1.10",
        ),
        (
            "network.reboot",
            "last of 3 hosts while a fourth reboots and resumes the install of its disk, over without; at most 1.05",
        ),
    ],
    measure,
};

const RATE: u64 = 100_000_000;
const MEBIBYTES: u64 = 64;
const RUNS: usize = 3;
/// The hosts that are healthy, and the one that is not.
const HEALTHY: u32 = 3;
const OTHER: u32 = HEALTHY + 1;
/// How much earlier the deaf host starts.
const LATER: Duration = Duration::from_secs(9);
/// When a fault begins, after the start of the hosts.
const FAULT_AT: Duration = Duration::from_secs(2);
const SERVER_OUT: Duration = Duration::from_secs(6);
const CLIENT_OUT: Duration = Duration::from_secs(8);
/// Longest time of a whole run.
const PATIENCE: Duration = Duration::from_secs(300);
/// How long a machine takes to boot.
const REBOOT: Duration = Duration::from_secs(3);

/// What goes wrong.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    DeafFirst,
    DeafBeside,
    CableServer,
    CableClient,
    Reboot,
}

/// Seconds of the hosts that the figures are about, from their own start.
struct Times {
    /// The last of the healthy hosts.
    healthy: f64,
    /// The last of those whose cable stayed.
    others: f64,
}

fn measure(context: &Context) -> Result<Vec<Figure>> {
    let (repo, loads) = library(context, &[MEBIBYTES], false)?;
    let times =
        |fault| -> Result<Vec<Times>> { (0..RUNS).map(|_| run(context, &repo, &loads[0], fault)).collect() };
    let last_of = |times: &[Times]| median(&times.iter().map(|time| time.healthy).collect::<Vec<_>>());
    let without = last_of(&times(Fault::None)?);
    let mut figures = vec![];
    let mut add = |name: &str, seconds: &[f64], outage: Duration, most: f64| {
        let ratios: Vec<f64> = seconds.iter().map(|time| (time - outage.as_secs_f64()) / without).collect();
        let details: Value = json!([{
            "fault": name, "seconds": seconds, "seconds without": without, "outage s": outage.as_secs(),
        }]);
        figures.push(
            Figure::new(name, &[median(&ratios)], "ratio", Bar::AtMost(most))
                .on(
                    &format!(
                        "{}, {HEALTHY} hosts and one more, 100 Mbit/s, median of {RUNS}",
                        loads[0].words
                    ),
                    super::SINK,
                )
                .with(details),
        );
    };
    for (fault, name, outage, most) in [
        (Fault::DeafFirst, "network.deaf_first", Duration::ZERO, 1.10),
        (Fault::DeafBeside, "network.deaf_beside", Duration::ZERO, 1.15),
        (Fault::CableServer, "network.cable_server", SERVER_OUT, 1.10),
        (Fault::CableClient, "network.cable_client", CLIENT_OUT, 1.15),
        (Fault::Reboot, "network.reboot", Duration::ZERO, 1.05),
    ] {
        let times = times(fault)?;
        let healthy: Vec<f64> = times.iter().map(|time| time.healthy).collect();
        add(name, &healthy, outage, most);
        if fault == Fault::CableClient {
            let others: Vec<f64> = times.iter().map(|time| time.others).collect();
            add("network.cable_client_others", &others, Duration::ZERO, 1.10);
        }
    }
    Ok(figures)
}

fn run(context: &Context, repo: &Path, load: &Load, fault: Fault) -> Result<Times> {
    let room = Room::open(context, repo, HEALTHY + 1, RATE)?;
    // The host that is deaf or killed is in a crew of its own, whose failures do not matter.
    let (mut crew, mut ailing) = (Crew::new(), Crew::new());
    let start =
        |crew: &mut Crew, host: u32| crew.start(&mut room.fetch_command(host, 0, &load.name, "null:"));
    let is_deaf = matches!(fault, Fault::DeafFirst | Fault::DeafBeside);
    if is_deaf {
        room.star.deafen(OTHER)?;
    }
    let disk = context.folder()?.join("disk-of-the-one-that-reboots");
    let install = |crew: &mut Crew, more: &[&str]| {
        crew.start(room.fetch_command(OTHER, 0, &load.name, &disk.to_string_lossy()).args(more))
    };
    let other = match fault {
        Fault::DeafFirst | Fault::DeafBeside => Some(start(&mut ailing, OTHER)?),
        Fault::Reboot => Some(install(&mut ailing, &[])?),
        Fault::None | Fault::CableServer | Fault::CableClient => None,
    };
    let began = if fault == Fault::DeafFirst { LATER } else { Duration::ZERO };
    crew.wait_until(began);
    let members = (1..=HEALTHY).map(|host| start(&mut crew, host)).collect::<Result<Vec<_>>>()?;
    let at = |after: Duration| began + FAULT_AT + after;
    let mut resumed = None;
    match (fault, other) {
        (Fault::CableServer, _) => pull_cable(&room, &crew, 0, at(Duration::ZERO)..at(SERVER_OUT))?,
        (Fault::CableClient, _) => pull_cable(&room, &crew, HEALTHY, at(Duration::ZERO)..at(CLIENT_OUT))?,
        (Fault::Reboot, Some(other)) => {
            crew.wait_until(at(Duration::ZERO));
            ailing.kill(other);
            crew.wait_until(at(REBOOT));
            resumed = Some(install(&mut ailing, &["--resume"])?);
        }
        _ => {}
    }
    let fetched = collect(&mut crew, &members)?;
    if let Some(resumed) = resumed {
        check_resumed(&mut ailing, resumed)?;
        std::fs::remove_file(&disk)?;
    }
    let first = fetched.iter().map(|host| host.began).fold(f64::MAX, f64::min);
    let others = &fetched[..fetched.len() - 1];
    Ok(Times { healthy: last(&fetched) - first, others: last(others) - first })
}

/// Waits for the fetch of a host that was killed and started again. It must have kept what it had written before.
fn check_resumed(crew: &mut Crew, member: Member) -> Result<()> {
    loop {
        let ended = crew.next(PATIENCE).ok_or("the host that rebooted did not end")?;
        if ended.member == member {
            ended.check()?;
            let kept = json_line(&ended.output, "fetched")?["report"]["kept_bytes"].as_u64().unwrap_or(0);
            return if kept > 0 {
                Ok(())
            } else {
                Err("the host that rebooted kept nothing of its disk".into())
            };
        }
    }
}

/// Pulls the cable of a host for this time.
fn pull_cable(room: &Room, crew: &Crew, host: u32, time: Range<Duration>) -> Result<()> {
    crew.wait_until(time.start);
    room.star.cut(host)?;
    crew.wait_until(time.end);
    Ok(room.star.heal(host)?)
}
