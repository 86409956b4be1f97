//! Sends the file by udpcast (Debian's `udpcast`): multicast in slices that every receiver acknowledges, with and
//! without an erasure code.

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

/// The group in which sender and receivers find each other. udpcast's defaults do not work in the lab: its hosts have
/// no broadcast address, and a switch does not forward 224.0.0.1 like other groups.
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
    job.wait_until_ready(&mut crew);
    let mut command = job.star.host(0).command("udp-sender");
    command.args(["--interface", "eth0", "--file", &job.file(), "--nokbd", "--no-progress"]);
    // Repeats the hello: at 1 % loss one of 16 receivers may miss a single one, and the sender would start without it.
    command.args(["--rexmit-hello-interval", "100", "--max-wait", "30"]);
    command
        .args(["--mcast-rdv-address", RENDEZVOUS, "--min-receivers", &receivers.len().to_string()])
        .args(options);
    crew.start(&mut command)?;
    job.await_ends(&mut crew, &receivers)
}
