//! Figures of many more receivers than a lab can run, in the simulator's virtual time: 32 MiB with 1 % loss.

use std::process::Command;

use serde_json::{Value, json};

use super::most;
use crate::context::{Context, said};
use crate::figure::{Bar, Figure};
use crate::{Group, Result};

pub(super) const GROUP: Group = Group {
    figures: &[
        (
            "multicast.sim_growth",
            "virtual time of the last of 10,000 receivers over that of one; at most 1.15",
        ),
        (
            "multicast.sim_control",
            "control bytes into the server over its data, 10 to 10,000 receivers; at most 0.01",
        ),
        ("multicast.sim_wall", "seconds that the run of 10,000 receivers takes here; at most 300"),
    ],
    measure,
};

const RECEIVERS: &[u32] = &[1, 10, 100, 1000, 10_000];

fn measure(context: &Context) -> Result<Vec<Figure>> {
    let program = context.diskcast.with_file_name("diskcast-sim");
    let (mut rows, mut seconds, mut control, mut wall) = (vec![], vec![], vec![], f64::NAN);
    for &receivers in RECEIVERS {
        let said = said(Command::new(&program).args([
            "--room",
            &receivers.to_string(),
            "--loss",
            "10000",
            "--mib",
            "32",
            "--json",
        ]))?;
        let line: Value = said
            .lines()
            .rev()
            .find_map(|line| serde_json::from_str(line).ok())
            .ok_or_else(|| format!("no JSON from the simulator: {said}"))?;
        let number = |name: &str| line[name].as_f64().ok_or_else(|| format!("no {name} in {line}"));
        let share = number("control_bytes")? / number("data_bytes")?;
        seconds.push(number("seconds")?);
        // The last value stays: that of the most receivers.
        wall = number("wall_seconds")?;
        if receivers > 1 {
            control.push(share);
        }
        rows.push(json!({
            "receivers": receivers, "virtual s": number("seconds")?,
            "over one receiver": number("seconds")? / seconds[0],
            "data MiB": number("data_bytes")? / f64::from(1 << 20), "control per mille": share * 1000.0, "wall s": wall,
        }));
    }
    let growth = seconds[seconds.len() - 1] / seconds[0];
    let figure = |name: &str, value: f64, unit: &str, bar: f64| {
        Figure::new(name, &[value], unit, Bar::AtMost(bar)).on("32 MiB, 1 % loss, simulated", "counted")
    };
    Ok(vec![
        figure("multicast.sim_growth", growth, "ratio", 1.15).with(json!(rows)),
        figure("multicast.sim_control", most(&control), "ratio", 0.01),
        figure("multicast.sim_wall", wall, "s", 300.0),
    ])
}
