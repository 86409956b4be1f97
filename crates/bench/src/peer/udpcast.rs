//! udpcast (Debian's `udpcast`): multicast with acknowledged slices, with and without erasure code.

use super::{Job, Peer};
use crate::Result;
use crate::crew::Crew;

pub(super) const PLAIN: Peer =
    Peer { name: "udpcast", flags: "hello repeated each 100 ms; to /dev/null", run: |job| run(job, &[]) };

pub(super) const FEC: Peer = Peer {
    name: "udpcast --fec",
    flags: "8x8/128, hello repeated each 100 ms; to /dev/null",
    run: |job| run(job, &["--fec", "8x8/128"]),
};

/// Where sender and receivers find each other: the hosts of the lab have no broadcast address, and a switch does not
/// carry its default, 224.0.0.1, as it does a group's.
const RENDEZVOUS: &str = "239.77.0.9";

fn run(job: &Job<'_>, options: &[&str]) -> Result<Vec<Option<f64>>> {
    let mut crew = Crew::new();
    let mut receivers = Vec::new();
    for host in job.receivers() {
        let mut command = host.command("udp-receiver");
        command.args(["--interface", "eth0", "--file", "/dev/null", "--nokbd", "--nosync", "--no-progress"]);
        command.args(["--exit-wait", "50", "--mcast-rdv-address", RENDEZVOUS]);
        receivers.push(crew.start(&mut command)?);
    }
    job.flush(&mut crew);
    let mut command = job.star.host(0).command("udp-sender");
    command.args(["--interface", "eth0", "--file", &job.file(), "--nokbd", "--no-progress"]);
    // One receiver in sixteen misses a single hello at 1 % loss, and the sender would go without it.
    command.args(["--rexmit-hello-interval", "100", "--max-wait", "30"]);
    command
        .args(["--mcast-rdv-address", RENDEZVOUS, "--min-receivers", &receivers.len().to_string()])
        .args(options);
    crew.start(&mut command)?;
    job.await_ends(&mut crew, &receivers)
}
