//! Sends the file along a chain of TCP connections: each host receives it and forwards it to the next host at the same
//! time (Debian's `socat`, and tee).

use super::{Job, Peer};
use crate::Result;
use crate::crew::Crew;

pub(super) const PEER: Peer = Peer {
    name: "chain",
    flags: "socat -b 262144 | tee on each host, TCP cubic; to /dev/null, size checked",
    run,
};

const PORT: u16 = 9009;

fn run(job: &Job<'_>) -> Result<Vec<Option<f64>>> {
    let mut crew = Crew::new();
    let bytes = job.bytes()?.to_string();
    let mut hosts = Vec::new();
    for (place, host) in job.receivers().iter().enumerate() {
        let listen = format!("socat -u -b 262144 TCP-LISTEN:{PORT},reuseaddr STDOUT");
        let script = match job.receivers().get(place + 1) {
            Some(next) => {
                let next = next.ipv4();
                format!(
                    "{listen} | tee >(socat -u -b 262144 STDIN TCP:{next}:{PORT},retry=100,interval=0.05) | wc -c"
                )
            }
            None => format!("{listen} | wc -c"),
        };
        let check = format!(
            "set -o pipefail; got=$({script}); [ \"$got\" = {bytes} ] || {{ echo \"$got bytes\" >&2; exit 1; }}"
        );
        // bash, since `>(...)` is no POSIX shell syntax.
        let mut command = host.command("bash");
        hosts.push(crew.start(command.args(["-c", &check]))?);
    }
    job.wait_until_ready(&mut crew);
    let first = job.star.host(1).ipv4();
    let mut command = job.star.host(0).command("socat");
    let source = format!("FILE:{}", job.file());
    crew.start(command.args(["-u", "-b", "262144", &source, &format!("TCP:{first}:{PORT}")]))?;
    job.await_ends(&mut crew, &hosts)
}
