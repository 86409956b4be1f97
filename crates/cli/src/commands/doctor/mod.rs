//! `diskcast doctor`: whether multicast works between a server and this machine, and what to do if it does not.

mod findings;

use std::net::SocketAddr;
use std::time::Duration;

use base::ErrorKind;
use base::units::show_seconds;
use findings::{Finding, Observed, findings};
use net::api::{ProbeGrant, ProbeRequest};
use net::client::Client;
use net::clock::Stop;
use net::interface::{self, Interface};
use net::probe::{Heard, ListenOptions, PROBE_MAX, listen};
use serde_json::json;

use super::Context;
use crate::args::ServerAccess;
use crate::args::parse::parse_lifetime;
use crate::exit::{Exit, Failure, Result};
use crate::{clock, connect, interrupt};

/// Test the network between a server and this machine: does multicast arrive, and keep arriving?
///
/// The server sends packets of several sizes to a group, this machine joins it and answers. The doctor says what is
/// wrong, what follows for a fetch, and what to type on common switches. Some faults take minutes to show: a switch
/// that forgets who wants multicast does so after about five. Ctrl-C ends the test early; what is known by then is
/// shown. As root the doctor also sees what a firewall on this machine drops, and looks for the network's querier.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast doctor https://10.0.0.1:7717 --token-file join.token
  diskcast doctor https://10.0.0.1:7717 --token-file join.token --for 20s
  diskcast doctor https://10.0.0.1:7717 --token-file join.token --json")]
pub(crate) struct Args {
    /// The server: `host`, `host:port` or a URL [default: that of --repo]
    #[arg(value_name = "SERVER")]
    pub server: Option<String>,
    /// How long to listen, at most 20 minutes
    #[arg(long = "for", value_name = "TIME", value_parser = parse_lifetime, default_value = "330s")]
    pub time: Duration,
    /// Network interface for multicast, by name or address [default: that of the route to the server]
    #[arg(long, value_name = "INTERFACE")]
    pub interface: Option<String>,
    #[command(flatten)]
    pub access: ServerAccess,
}

impl Args {
    /// Takes the server of `--repo` if none is given.
    pub(crate) fn settle(&mut self, server: Option<&str>) -> Result<()> {
        self.server = self.server.take().or_else(|| server.map(str::to_owned));
        match self.server {
            Some(_) => Ok(()),
            None => Err(Failure::new(
                Exit::Usage,
                "`diskcast doctor` tests the way to a server, and none is named",
            )
            .hint("diskcast doctor SERVER, or --repo https://SERVER")),
        }
    }
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    if args.time > PROBE_MAX {
        return Err(Failure::new(Exit::Usage, "--for takes at most 20 minutes"));
    }
    let chosen = args.interface.as_deref().map(interface::choose).transpose()?;
    let stop = Stop::new();
    let named = args.server.as_deref().expect("it is settled");
    let client = connect::client(named, &args.access, &context.global.keys, Stop::new(), context.output)?;
    let server = client.address()?;
    let asked = clock::now();
    client.token_grant()?;
    let round_trip = asked.elapsed();
    let interface = match chosen {
        Some(interface) => interface,
        None => interface::towards(server)?.0,
    };
    let way = Way { server, is_local: interface::is_local(server.ip())?, interface };
    context.output.note(&way.describe(round_trip));
    let mine = interface::all()?;
    let is_here = mine.iter().any(|one| one.addresses.contains(&server.ip()));
    let observed = |seen_as, ttl, ipv4, heard: &Heard| {
        findings(&Observed {
            interface: &way.interface,
            is_local: way.is_local,
            is_here,
            seen_as,
            ttl,
            ipv4,
            heard,
        })
    };
    // A server offers no multicast there.
    if way.interface.loopback {
        return tell(context, &Heard::default(), &observed(None, 1, true, &Heard::default()));
    }
    let grant = match client.probe(&way.request()) {
        Ok(grant) => grant,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(
                Failure::from(error).hint("the server is older than this program: it knows no doctor")
            );
        }
        Err(error) => return Err(error.into()),
    };
    let stopper = stop.clone();
    interrupt::cooperate(move || stopper.stop())?;
    let heard = hear(context, &client, &grant, &way, args.time, stop)?;
    let seen_as = Some(grant.peer).filter(|peer| !mine.iter().any(|one| one.addresses.contains(peer)));
    tell(context, &heard, &observed(seen_as, grant.ttl, grant.group.is_ipv4(), &heard))
}

/// The way to the server.
struct Way {
    server: SocketAddr,
    interface: Interface,
    /// Whether the server is in one of this machine's networks.
    is_local: bool,
}

impl Way {
    fn describe(&self, round_trip: Duration) -> String {
        let Self { server, interface, .. } = self;
        let address =
            interface.address(server.is_ipv4()).map_or_else(String::new, |address| format!(" {address}"));
        let how = if self.is_local { "in the same network" } else { "behind a router" };
        format!(
            "server {server} answers after {:.1} ms, {how}; this machine: {}{address}, MTU {}",
            round_trip.as_secs_f64() * 1e3,
            interface.name,
            interface.mtu()
        )
    }

    fn request(&self) -> ProbeRequest {
        // As a fetch asks for its session.
        ProbeRequest { families: self.interface.families(self.server.is_ipv4()) }
    }
}

fn hear(
    context: &Context,
    client: &Client,
    grant: &ProbeGrant,
    way: &Way,
    time: Duration,
    stop: Stop,
) -> Result<Heard> {
    let output = context.output;
    output.note(&format!(
        "listening to group {} for {} (Ctrl-C ends this early)",
        grant.group,
        show_seconds(time.as_secs())
    ));
    let options = ListenOptions { interface: way.interface.clone(), time, stop };
    let (started, mut told_at) = (clock::now(), Duration::ZERO);
    let mut observe = |heard: &Heard| {
        let elapsed = started.elapsed();
        // Often at the beginning, when there is news, and later every half minute.
        let pause = if elapsed < Duration::from_secs(12) { 5 } else { 30 };
        if elapsed >= told_at + Duration::from_secs(pause) {
            told_at = elapsed;
            output.note(&format!("{:>5}  {}", show_seconds(elapsed.as_secs()), progress(heard)));
        }
    };
    Ok(listen(grant, &options, &|| client.probe_view(grant.probe), &mut observe)?)
}

fn progress(heard: &Heard) -> String {
    let arrived: u32 = heard.sizes.values().sum();
    let queries = match (heard.reached, heard.querier) {
        (None, _) => String::new(),
        (_, None) => ", no querier heard yet".to_owned(),
        (_, Some(querier)) => format!(", querier {}", querier.address),
    };
    let reports = format!("{} of {} reports at the server", heard.reports_arrived, heard.reports_sent);
    format!("{arrived} packets arrived, {reports}{queries}")
}

fn tell(context: &Context, heard: &Heard, found: &[Finding]) -> Result<()> {
    let faults: Vec<_> = found
        .iter()
        .map(|one| json!({ "fault": one.fault, "what": one.what, "so": one.so, "try": one.try_this }))
        .collect();
    let record = json!({
        "type": "doctor", "works": found.is_empty(), "findings": faults, "seconds": heard.time.as_secs(),
        "rounds_sent": heard.rounds_sent, "rounds_heard": heard.rounds, "sizes": heard.sizes,
        "sizes_at_server": heard.sizes_at_server,
        "reports_sent": heard.reports_sent, "reports_arrived": heard.reports_arrived,
        "stopped_after_seconds": heard.stopped_after.map(|after| after.as_secs()),
        "querier": heard.querier.map(|querier| querier.address),
    });
    context.output.answer(&record, || show(heard, found) + "\n")?;
    match found.first() {
        None => Ok(()),
        // It is all said.
        Some(_) => Err(Failure::new(Exit::Failed, "the network is not fit for multicast yet")),
    }
}

fn show(heard: &Heard, found: &[Finding]) -> String {
    if found.is_empty() {
        let largest = heard.sizes.last_key_value().map_or(0, |(size, _)| *size);
        let mut text = format!(
            "Multicast works: packets of up to {largest} bytes arrived for {}, and the reports reached the server.",
            show_seconds(heard.time.as_secs())
        );
        match heard.querier {
            Some(querier) => text.push_str(&format!("\nA querier is there: {}.", querier.address)),
            None if heard.reached.is_none() => {
                text.push_str("\nRun as root, the doctor also looks for a querier.")
            }
            None => {
                text.push_str("\nNo querier was heard in this time: switches ask every 125 s by default.")
            }
        }
        return text;
    }
    let each = found.iter().map(|finding| {
        let lines: String = finding.try_this.iter().map(|line| format!("\n    {line}")).collect();
        let try_this = if lines.is_empty() { String::new() } else { format!("\n  Try:{lines}") };
        let mut what = finding.what.clone();
        if let Some(first) = what.get(..1).map(str::to_uppercase) {
            what.replace_range(..1, &first);
        }
        format!("{what}.\n  {}{try_this}", finding.so)
    });
    each.collect::<Vec<_>>().join("\n\n")
}
