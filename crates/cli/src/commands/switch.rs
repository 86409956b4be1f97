//! `diskcast switch`: an agent on a switch, which names machines nearby to those that fetch.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use serde_json::{Value, json};
use switch::{Choice, SwitchAgent, SwitchOptions, SwitchStatus};

use super::Context;
use crate::exit::Result;
use crate::{interrupt, notify};

/// Time between two writes of the metrics.
const METRICS_EVERY: Duration = Duration::from_secs(1);

/// Let a switch send requests to machines nearby, before they reach the server
///
/// Runs on a switch that is a Linux bridge. It reads the small packets by which machines that fetch tell the server
/// what they have and ask it who has the rest, and passes a question on to a machine at this switch that has the
/// answer. The image itself never passes through it. Needs root and `nft`; no key, no token, and no change at the
/// server or the machines. Ends on SIGINT or SIGTERM. However it ends, requests go to the server as before.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast switch --bridge br0 --server 10.0.0.1:7717
  diskcast switch --ports swp1,swp2,swp3 --server 10.0.0.1:7717
  diskcast switch --bridge br0 --server 10.0.0.1:7717 --metrics /var/lib/node_exporter/diskcast.prom")]
pub(crate) struct Args {
    /// The bridge whose ports are looked after
    #[arg(long, value_name = "NAME", required_unless_present = "ports")]
    pub bridge: Option<String>,
    /// The ports, if not all of the bridge
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',', conflicts_with = "bridge")]
    pub ports: Vec<String>,
    /// Address and port of the server, as the machines reach it
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub server: SocketAddr,
    /// Decide in the kernel, at the port, for most requests; only in a build with the feature `ebpf`
    #[arg(long)]
    pub ebpf: bool,
    /// Write counters to this file every second, in the text format of Prometheus
    #[arg(long, value_name = "FILE")]
    pub metrics: Option<PathBuf>,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    let ports = match &args.bridge {
        Some(bridge) => Choice::Bridge(bridge.clone()),
        None => Choice::Ports(args.ports.clone()),
    };
    let agent = SwitchAgent::start(SwitchOptions { ports, server: args.server, in_kernel: args.ebpf })?;
    let (stop, stopped) = channel();
    interrupt::cooperate(move || {
        // The receiver is there as long as the command runs.
        let _ = stop.send(());
    })?;
    announce(context, args, &agent.status())?;
    notify::ready(&format!("redirects requests to {}", args.server));
    let mut holds = true;
    while stopped.recv_timeout(METRICS_EVERY) == Err(RecvTimeoutError::Timeout) {
        let status = agent.status();
        if status.holds != holds {
            holds = status.holds;
            context.output.warning(match holds {
                true => "the rules are back: requests come to this switch again",
                false => "the rules were removed by somebody: all requests go to the server",
            });
        }
        if let Some(path) = &args.metrics {
            write(path, &metrics(&status))?;
        }
    }
    notify::stopping();
    let status = agent.status();
    drop(agent);
    if let Some(path) = &args.metrics {
        write(path, &metrics(&SwitchStatus { holds: false, ..status.clone() }))?;
    }
    context.output.result(&record("switch_ended", &status), || summary(&status))
}

fn announce(context: &Context, args: &Args, status: &SwitchStatus) -> Result<()> {
    let ports: Vec<&str> = status.ports.iter().map(|port| port.name.as_str()).collect();
    let record = json!({
        "type": "switching", "ports": ports, "server": args.server.to_string(), "ebpf": args.ebpf,
    });
    context.output.answer(&record, || {
        let place = if args.ebpf { "in the kernel" } else { "in this process" };
        format!(
            "requests to {} that arrive at {} go to machines nearby that can answer them (decided {place})\n\
             without this process they go to the server\n",
            args.server,
            ports.join(", ")
        )
    })
}

fn record(kind: &str, status: &SwitchStatus) -> Value {
    let mut record = json!({ "type": kind, "members": status.members, "swarms": status.swarms });
    for (name, _, value) in counters(status) {
        record[name] = value.into();
    }
    record
}

fn summary(status: &SwitchStatus) -> String {
    let found = status.counters;
    format!(
        "{} of {} requests went to machines nearby, {} were to wait for one, {} went to the server; {} reports\n",
        found.redirected + found.redirected_in_kernel,
        found.requests + found.redirected_in_kernel,
        found.waits,
        found.passed,
        found.reports
    )
}

/// Name, meaning and value of each counter.
fn counters(status: &SwitchStatus) -> [(&'static str, &'static str, u64); 11] {
    let found = status.counters;
    [
        ("reports", "Reports of members that counted", found.reports),
        (
            "refused",
            "Reports and leaves that did not: tables full, or the member is heard elsewhere",
            found.refused,
        ),
        ("leaves", "Members that left", found.leaves),
        ("requests", "Requests that came to the agent", found.requests),
        ("redirected", "Requests that the agent sent to members", found.redirected),
        (
            "redirected_in_kernel",
            "Requests that the kernel sent to members by itself",
            found.redirected_in_kernel,
        ),
        ("waits", "Requests that were to wait: somebody nearby is about to have the objects", found.waits),
        ("passed", "Requests that the agent left to the server", found.passed),
        ("invalid", "Frames that were damaged or not understood", found.invalid),
        ("unsent", "Frames that could not be sent", found.unsent),
        ("lost", "Frames that found the agent's queue full", found.lost),
    ]
}

/// The text format of Prometheus.
fn metrics(status: &SwitchStatus) -> String {
    let mut text = String::new();
    let gauges = [
        ("members", "Members that were heard lately", status.members),
        ("swarms", "Their swarms", status.swarms),
        ("ports", "Ports that the agent looks after", status.ports.len()),
        ("holds", "1 if requests come to the agent", usize::from(status.holds)),
    ];
    for (name, help, value) in gauges {
        let name = format!("diskcast_switch_{name}");
        let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}\n");
    }
    for (name, help, value) in counters(status) {
        let name = format!("diskcast_switch_{name}_total");
        let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} counter\n{name} {value}\n");
    }
    text
}

/// Replaces a file, so that nobody reads half of it.
fn write(path: &Path, text: &str) -> Result<()> {
    let context = || format!("write `{}`", path.display());
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let beside = PathBuf::from(name);
    // A link there would lead where somebody else wants.
    let _ = std::fs::remove_file(&beside);
    let written = File::create_new(&beside).and_then(|mut file| file.write_all(text.as_bytes()));
    let written = written.and_then(|()| std::fs::rename(&beside, path));
    Ok(written.map_err(|error| base::Error::from_io(context(), error))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_have_a_help_a_type_and_a_value_each() {
        let text = metrics(&SwitchStatus { members: 3, ..SwitchStatus::default() });
        assert!(text.contains("\ndiskcast_switch_members 3\n"), "{text}");
        let values: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert!(values.len() > counters(&SwitchStatus::default()).len());
        assert_eq!(text.lines().count(), 3 * values.len());
        for value in values {
            let (name, number) = value.split_once(' ').unwrap();
            assert!(number.parse::<u64>().is_ok(), "{value}");
            for comment in [format!("# HELP {name} "), format!("# TYPE {name} ")] {
                assert_eq!(text.matches(&comment).count(), 1, "{name}");
            }
        }
    }
}
