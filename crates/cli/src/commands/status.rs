//! `diskcast status`: what became of the machines that fetch from a server.

use std::collections::HashMap;
use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use base::units::{show_bits_per_second, show_bytes, show_seconds};
use net::api::{HostStage, HostStatus, SessionStatus, Status, SwarmStatus};
use net::client::Client;
use net::clock::Stop;
use serde_json::{Value, json};

use super::Context;
use crate::args::ServerAccess;
use crate::exit::Result;
use crate::ui::table::{Align, Table, printable};
use crate::{connect, interrupt};

/// Time between two looks with `--watch`.
const INTERVAL: Duration = Duration::from_secs(2);
/// Erases the screen and goes to its first line (ECMA-48).
const CLEAR: &str = "\x1b[2J\x1b[H";

/// Show the machines that fetch from a server, how far each is, and how it ended
///
/// STAGE is `tree` (it joined), `comparing` (it reads what its disk holds already), `receiving`, `written` (read back
/// now, if DONE has a figure), `verified`, `failed` or `gone` (no report for some seconds). DONE and LEFT are about the
/// disk in the present stage, RATE is what arrives from the network, PEERS the part of it that other machines sent.
/// LATE, LOST and FULL are the parts of what a session sent again: for machines that joined late, for machines that
/// lost packets, and for machines whose buffers were full. A browser shows the same on the server's page, at `/` of its
/// address.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast status https://10.0.0.1:7717 --token-file join.token
  diskcast status https://10.0.0.1:7717 --token-file join.token --watch
  diskcast status https://10.0.0.1:7717 --token-file join.token --json")]
pub(crate) struct Args {
    /// The server: `host`, `host:port` or a URL
    ///
    /// [default: that of --repo, else localhost]
    #[arg(value_name = "SERVER")]
    pub server: Option<String>,
    /// Show it again every two seconds, until Ctrl-C
    #[arg(long)]
    pub watch: bool,
    /// Show all fetches of each machine, and not just its last one; --json always does
    #[arg(long)]
    pub all: bool,
    #[command(flatten)]
    pub access: ServerAccess,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    let stop = Stop::new();
    let client = connect::client(
        args.server.as_deref().unwrap_or("localhost"),
        &args.access,
        &context.global.keys,
        stop.clone(),
        context.output,
    )?;
    if !args.watch {
        return show(context, &client.status()?, args.all);
    }
    interrupt::cooperate(move || stop.stop())?;
    watch(context, &client, args.all)
}

fn watch(context: &Context, client: &Client, all: bool) -> Result<()> {
    let is_screen = std::io::stdout().is_terminal() && !context.output.is_json();
    while !client.options().stop.is_stopped() {
        let status = client.status()?;
        if is_screen {
            let mut stdout = std::io::stdout().lock();
            stdout.write_all(CLEAR.as_bytes())?;
            stdout.flush()?;
        }
        show(context, &status, all)?;
        client.options().stop.pause(INTERVAL);
    }
    Ok(())
}

fn show(context: &Context, status: &Status, all: bool) -> Result<()> {
    let output = context.output;
    let (shown, folded) = if all || output.is_json() {
        (status.hosts.iter().collect(), 0)
    } else {
        without_earlier(&status.hosts)
    };
    if status.hosts.is_empty() && status.sessions.is_empty() {
        output.note("no machine has fetched an image that this token is for, since the server started");
    }
    if output.is_json() || !status.hosts.is_empty() {
        let (records, table) = hosts(&shown);
        output.list(&records, &table)?;
        if folded > 0 {
            output
                .note(&format!("{folded} earlier fetches of these machines are left out; --all shows them"));
        }
        if !output.is_json() {
            let reasons = shown.iter().filter_map(|host| Some((host, host.reason.as_ref()?)));
            for (HostStatus { host, address, .. }, reason) in reasons {
                output.note(&printable(&format!("{host} ({address}): {reason}")));
            }
        }
    }
    if output.is_json() || !status.sessions.is_empty() {
        let (records, table) = sessions(&status.sessions);
        output.list(&records, &table)?;
    }
    if output.is_json() || !status.swarms.is_empty() {
        let (records, table) = swarms(&status.swarms);
        output.list(&records, &table)?;
    }
    Ok(())
}

/// What each machine does, or did last; and how many ended fetches before it are left out.
fn without_earlier(hosts: &[HostStatus]) -> (Vec<&HostStatus>, usize) {
    // What runs comes after all that ended.
    let age = |host: &HostStatus| host.ended.then_some(host.quiet_seconds);
    let mut last = HashMap::new();
    for host in hosts {
        let least = last.entry((&host.host, host.address)).or_insert_with(|| age(host));
        *least = (*least).min(age(host));
    }
    let is_last = |host: &&HostStatus| !host.ended || last[&(&host.host, host.address)] == age(host);
    let shown: Vec<_> = hosts.iter().filter(is_last).collect();
    let folded = hosts.len() - shown.len();
    (shown, folded)
}

fn hosts(hosts: &[&HostStatus]) -> (Vec<Value>, Table) {
    let mut table = Table::new(&[
        ("MACHINE", Align::Left),
        ("ADDRESS", Align::Left),
        ("IMAGE", Align::Left),
        ("STAGE", Align::Left),
        ("DONE", Align::Right),
        ("RATE", Align::Right),
        ("LEFT", Align::Right),
        ("PEERS", Align::Right),
    ]);
    let mut records = Vec::new();
    for host in hosts {
        let is_done = host.ended && host.stage == HostStage::Written || host.stage == HostStage::Verified;
        let percent = host.percent().filter(|_| !is_done);
        table.row([
            host.host.clone(),
            host.address.to_string(),
            host.reference.clone(),
            host.stage.name().to_owned(),
            percent.map_or_else(String::new, |percent| format!("{percent} %")),
            host.rate_bytes_per_second
                .map_or_else(String::new, |rate| show_bits_per_second(rate.saturating_mul(8))),
            host.left_seconds.map_or_else(String::new, show_seconds),
            peer_share(host),
        ]);
        records.push(record("host", host));
    }
    (records, table)
}

fn sessions(sessions: &[SessionStatus]) -> (Vec<Value>, Table) {
    let mut table = Table::new(&[
        ("SESSION", Align::Left),
        ("STATE", Align::Left),
        ("HOSTS", Align::Right),
        ("RATE", Align::Right),
        ("SENT", Align::Right),
        ("LOSS", Align::Right),
        ("LATE", Align::Right),
        ("LOST", Align::Right),
        ("FULL", Align::Right),
    ]);
    let mut records = Vec::new();
    for session in sessions {
        let again = |blocks| percent_of(blocks, session.blocks_sent);
        table.row([
            session.reference.clone(),
            if session.running { "running" } else { "ended" }.to_owned(),
            session.receivers.to_string(),
            session.rate_bits_per_second.map_or_else(String::new, show_bits_per_second),
            show_bytes(session.payload_bytes),
            session.loss.map_or_else(String::new, |loss| format!("{:.1} %", loss * 100.0)),
            again(session.resent_late),
            again(session.resent_lost),
            again(session.resent_buffer_full),
        ]);
        records.push(record("session", session));
    }
    (records, table)
}

/// The part of what arrived that other machines sent.
fn peer_share(host: &HostStatus) -> String {
    let all = host.multicast_bytes.saturating_add(host.peer_bytes).saturating_add(host.unicast_bytes);
    if host.peer_bytes == 0 { String::new() } else { percent_of(host.peer_bytes, all) }
}

fn swarms(swarms: &[SwarmStatus]) -> (Vec<Value>, Table) {
    let mut table =
        Table::new(&[("SERVE EACH OTHER", Align::Left), ("HOSTS", Align::Right), ("WHOLE", Align::Right)]);
    let mut records = Vec::new();
    for swarm in swarms {
        table.row([swarm.reference.clone(), swarm.members.to_string(), swarm.whole.to_string()]);
        records.push(record("swarm", swarm));
    }
    (records, table)
}

fn percent_of(part: u64, of: u64) -> String {
    let permille = (u128::from(part) * 1000).checked_div(u128::from(of));
    permille.map_or_else(String::new, |permille| format!("{}.{} %", permille / 10, permille % 10))
}

fn record(kind: &str, data: &impl serde::Serialize) -> Value {
    let mut record = serde_json::to_value(data).unwrap_or_else(|_| json!({}));
    record["type"] = kind.into();
    record
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A status with only what this server must tell.
    fn host(more: &str) -> HostStatus {
        let text = format!(
            r#"{{"host": "pc1", "address": "10.0.0.7", "reference": "web@1", "done_bytes": 500, "total_bytes": 500,
            "runtime_seconds": 4, "quiet_seconds": 0, "multicast_bytes": 0, "unicast_bytes": 0, {more}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn earlier_fetches_of_a_machine_are_left_out() {
        let ended = |quiet: u32| HostStatus {
            quiet_seconds: quiet.into(),
            ..host(r#""stage": "verified", "ended": true"#)
        };
        let running = host(r#""stage": "receiving", "ended": false"#);
        let other = HostStatus { host: "pc2".to_owned(), ..ended(900) };
        let all = [ended(700), ended(60), other.clone()];
        assert_eq!(without_earlier(&all), (vec![&ended(60), &other], 1));
        let all = [ended(60), running.clone(), other.clone(), running.clone()];
        assert_eq!(without_earlier(&all), (vec![&running, &other, &running], 1));
    }

    #[test]
    fn a_machine_that_is_done_does_not_look_like_one_at_work() {
        let shown = |more: &str| hosts(&[&host(more)]).1.render(Some(100));
        assert!(shown(r#""stage": "written", "ended": false"#).contains("100 %"));
        assert!(!shown(r#""stage": "written", "ended": true"#).contains('%'));
        assert!(!shown(r#""stage": "verified""#).contains('%'), "of an older server");
        let running = shown(r#""stage": "receiving", "rate_bytes_per_second": 7500000, "left_seconds": 90"#);
        assert!(running.contains("60.0 Mbit/s") && running.contains("1m30s"), "{running}");
    }

    #[test]
    fn a_session_shows_what_it_sent_again_by_cause_within_100_columns() {
        let session = SessionStatus {
            reference: "classroom-2026@1234".into(),
            group: "239.192.1.2:7718".parse().unwrap(),
            running: true,
            receivers: 1000,
            rate_bits_per_second: Some(100_000_000),
            image_bytes: 1 << 40,
            payload_bytes: 1023 << 30,
            loss: Some(1.0),
            blocks_sent: 1000,
            resent_late: 666,
            resent_buffer_full: 1000,
            resent_lost: 2,
            unicast_bytes: 0,
        };
        let shown = sessions(&[session]).1.render(None);
        let words: Vec<_> = shown.lines().map(|line| line.split("  ").map(str::trim)).collect();
        let columns: Vec<Vec<_>> =
            words.into_iter().map(|line| line.filter(|word| !word.is_empty()).collect()).collect();
        assert_eq!(columns[0][5..], ["LOSS", "LATE", "LOST", "FULL"]);
        assert_eq!(columns[1][3..], ["100 Mbit/s", "1023 GiB", "100.0 %", "66.6 %", "0.2 %", "100.0 %"]);
        assert!(shown.lines().all(|line| line.chars().count() <= 100), "{shown}");
    }
}
