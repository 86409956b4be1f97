//! Rounds of faults of a cluster of real processes.

use serde_json::json;

use crate::context::Context;
use crate::figure::{Bar, Figure};
use crate::{Group, Result};

pub(crate) const GROUP: Group = Group {
    figures: &[(
        "cluster.faults",
        "100 rounds of faults of a cluster: lost images, false restores, what hangs or stays unwell; at most 0 rounds",
    )],
    measure,
};

const ROUNDS: u64 = 100;

/// Rounds that end with anything but a cluster that is well and has all that it acknowledged.
fn measure(context: &Context) -> Result<Vec<Figure>> {
    let folder = context.folder()?;
    let wrong = lab::ClusterFaults { program: &context.diskcast, folder: &folder }.run(0..ROUNDS);
    let figure = Figure::new("cluster.faults", &[wrong.len() as f64], "rounds", Bar::AtMost(0.0))
        .on(
            "six devices of 3 + 2 and three metadata services over etcd, each host a network namespace; the leader \
             cut off and a device dead, clocks, older copies, disks that are not mounted, kills",
            "files",
        )
        .with(json!(wrong));
    Ok(vec![figure])
}
