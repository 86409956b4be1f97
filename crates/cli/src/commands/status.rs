//! `diskcast status`: what became of the machines that fetch from a server.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use base::units::{show_bits_per_second, show_bytes, show_seconds};
use net::api::{HostStage, HostStatus, SessionStatus, Status};
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
/// STAGE is `tree` (it joined), `comparing` (it reads what its disk holds already), `receiving`, `written`,
/// `verified`, `failed` or `gone` (no report for some seconds). DONE and LEFT are about the present stage. The same
/// is on the server's page, at `/` of its address, for a browser.
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
        return show(context, &client.status()?);
    }
    interrupt::cooperate(move || stop.stop())?;
    watch(context, &client)
}

fn watch(context: &Context, client: &Client) -> Result<()> {
    let is_screen = std::io::stdout().is_terminal() && !context.output.is_json();
    while !client.options().stop.is_stopped() {
        let status = client.status()?;
        if is_screen {
            let mut stdout = std::io::stdout().lock();
            stdout.write_all(CLEAR.as_bytes())?;
            stdout.flush()?;
        }
        show(context, &status)?;
        client.options().stop.pause(INTERVAL);
    }
    Ok(())
}

fn show(context: &Context, status: &Status) -> Result<()> {
    let output = context.output;
    if status.hosts.is_empty() && status.sessions.is_empty() {
        output.note("no machine has fetched since the server started");
    }
    if output.is_json() || !status.hosts.is_empty() {
        let (records, table) = hosts(&status.hosts);
        output.list(&records, &table)?;
        if !output.is_json() {
            let reasons = status.hosts.iter().filter_map(|host| Some((host, host.reason.as_ref()?)));
            for (HostStatus { host, address, .. }, reason) in reasons {
                output.note(&printable(&format!("{host} ({address}): {reason}")));
            }
        }
    }
    if output.is_json() || !status.sessions.is_empty() {
        let (records, table) = sessions(&status.sessions);
        output.list(&records, &table)?;
    }
    Ok(())
}

fn hosts(hosts: &[HostStatus]) -> (Vec<Value>, Table) {
    let mut table = Table::new(&[
        ("MACHINE", Align::Left),
        ("ADDRESS", Align::Left),
        ("IMAGE", Align::Left),
        ("STAGE", Align::Left),
        ("DONE", Align::Right),
        ("RATE", Align::Right),
        ("LEFT", Align::Right),
    ]);
    let mut records = Vec::new();
    for host in hosts {
        let percent = host.percent().filter(|_| host.stage != HostStage::Verified);
        table.row([
            host.host.clone(),
            host.address.to_string(),
            host.reference.clone(),
            host.stage.name().to_owned(),
            percent.map_or_else(String::new, |percent| format!("{percent} %")),
            host.rate_bytes_per_second.map_or_else(String::new, |rate| format!("{}/s", show_bytes(rate))),
            host.left_seconds.map_or_else(String::new, show_seconds),
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
        ("LOST", Align::Right),
        ("RESENT", Align::Right),
    ]);
    let mut records = Vec::new();
    for session in sessions {
        let again = session.resent_late + session.resent_buffer_full + session.resent_lost;
        table.row([
            session.reference.clone(),
            if session.running { "running" } else { "ended" }.to_owned(),
            session.receivers.to_string(),
            session.rate_bits_per_second.map_or_else(String::new, show_bits_per_second),
            show_bytes(session.payload_bytes),
            session.loss.map_or_else(String::new, |loss| format!("{:.1} %", loss * 100.0)),
            percent_of(again, session.blocks_sent),
        ]);
        records.push(record("session", session));
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
