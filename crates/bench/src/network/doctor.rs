//! Whether `diskcast doctor` names the faults of networks, and whether a fetch on such a network ends right.

use std::process::Stdio;
use std::time::Duration;

use lab::{Host, Star, StarOptions};
use serde_json::{Value, json};

use crate::context::{Context, json_line};
use crate::figure::{Bar, Figure};
use crate::room::Room;
use crate::transfer::library;
use crate::{Group, Result};

pub(super) const GROUP: Group = Group {
    figures: &[(
        "doctor.faults",
        "share of the networks (one healthy, 9 with a fault) that the doctor names and on which a fetch ends right; 1",
    )],
    measure,
};

const MEBIBYTES: u64 = 16;
/// How long a switch that forgets remembers.
const MEMORY: Duration = Duration::from_secs(5);

/// A network with a fault.
struct Case {
    /// What the doctor calls it; empty of a healthy network.
    fault: &'static str,
    /// How long it takes to show, as `--for` takes it.
    time: &'static str,
    snooping: bool,
    /// Makes the fault; returns the host on which to ask, if that is not host 1.
    make: fn(&mut Star) -> base::Result<Option<Host>>,
}

const CASES: &[Case] = &[
    Case { fault: "", time: "5s", snooping: true, make: |_| Ok(None) },
    Case {
        fault: "no-multicast",
        time: "5s",
        snooping: true,
        make: |star| star.filter_groups(1).map(|()| None),
    },
    Case { fault: "local-firewall", time: "5s", snooping: true, make: |star| star.deafen(1).map(|()| None) },
    Case { fault: "reports", time: "5s", snooping: true, make: |star| star.refuse_udp(0).map(|()| None) },
    Case { fault: "mtu", time: "5s", snooping: true, make: |star| star.narrow(1, 1400).map(|()| None) },
    Case {
        fault: "no-querier",
        time: "20s",
        snooping: false,
        make: |star| star.forget_groups(MEMORY, None).map(|()| None),
    },
    Case {
        fault: "membership",
        time: "25s",
        snooping: false,
        make: |star| star.forget_groups(MEMORY, Some(2 * MEMORY)).map(|()| None),
    },
    Case { fault: "nat", time: "5s", snooping: true, make: |star| star.behind(1, true).map(Some) },
    Case { fault: "router", time: "5s", snooping: true, make: |star| star.behind(1, false).map(Some) },
    Case { fault: "loss", time: "20s", snooping: true, make: |star| star.set_loss(1, 50_000).map(|()| None) },
];

#[expect(clippy::cast_precision_loss, reason = "a handful of cases")]
fn measure(context: &Context) -> Result<Vec<Figure>> {
    let (repo, loads) = library(context, &[MEBIBYTES], false)?;
    let mut rows = Vec::new();
    for case in CASES {
        let options = StarOptions { hosts: 2, snooping: case.snooping, ..StarOptions::default() };
        let mut room = Room::open_with(context, &[&repo], &options)?;
        let host = (case.make)(&mut room.star)?.unwrap_or_else(|| room.star.host(1).clone());
        let (named, transport) = try_case(&room, &host, case, &loads[0].name)?;
        rows.push(json!({
            "network": if case.fault.is_empty() { "healthy" } else { case.fault }, "doctor": named.join(" "),
            "right": named.first().map_or("", String::as_str) == case.fault, "fetch": transport,
        }));
    }
    let right = rows.iter().filter(|row| row["right"] == true && row["fetch"] != "failed").count();
    let value = right as f64 / CASES.len() as f64;
    let workload = format!("{} networks, {MEBIBYTES} MiB", CASES.len());
    let figure = Figure::new("doctor.faults", &[value], "ratio", Bar::AtLeast(1.0));
    Ok(vec![figure.on(&workload, super::SINK).with(Value::from(rows))])
}

/// What the doctor finds, and how a fetch got the image.
fn try_case(room: &Room, host: &Host, case: &Case, image: &str) -> Result<(Vec<String>, String)> {
    let program = room.binary().to_string_lossy().into_owned();
    let url = format!("{}:7717", room.star.host(0).ipv4());
    let output = host
        .command(&program)
        .args(["--json", "--quiet", "doctor", &url, "--for", case.time, "--token-file"])
        .arg(room.token(0))
        .stdin(Stdio::null())
        .output()?;
    let said = json_line(&String::from_utf8_lossy(&output.stdout), "doctor")?;
    let findings = said["findings"].as_array().cloned().unwrap_or_default();
    let named = findings.iter().filter_map(|finding| finding["fault"].as_str().map(str::to_owned)).collect();
    let mut fetch = host.command(&program);
    room.fetch_arguments(&mut fetch, 0, image, "null:");
    let output = fetch.stdin(Stdio::null()).output()?;
    let fetched = json_line(&String::from_utf8_lossy(&output.stdout), "fetched");
    let transport =
        fetched.map_or_else(|_| "failed".into(), |line| line["transport"].as_str().unwrap_or("").into());
    Ok((named, transport))
}
