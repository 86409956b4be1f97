//! `diskcast cluster status`: the devices of a cluster, and whether all is well.

mod health;

use base::units::show_bytes;
use cluster::State;
use cluster::client::{Cluster, ClusterAccess};
use cluster::wire::{ClusterStatus, DeviceView};
use serde_json::json;
use store::Location;

use crate::commands::Context;
use crate::exit::{Exit, Failure, Result};
use crate::repository;
use crate::ui::table::{Align, Table};

use health::health;

/// Show the devices of a cluster, and whether all is well
///
/// INDEX shows the parts of the index that a device holds; the device still copies those in brackets. SILENT is the
/// time since the device was last heard. A device that is `down` counts as if its data were still there; what it should
/// hold is read from the others. The line below the table says what is wrong, and `all is well` only if nothing is.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast cluster status --repo cluster://127.0.0.1:7400 --cluster-token cluster.token
  diskcast cluster status --json")]
pub(crate) struct Args {}

pub(crate) fn run(context: &Context, _: &Args) -> Result<()> {
    let access = access(context)?;
    let status = Cluster::status(&access)?;
    let records: Vec<_> =
        status.devices.iter().map(|device| json!({"type": "device", "device": device})).collect();
    let output = context.output;
    output.list(&records, &table(&status))?;
    let record = json!({
        "type": "cluster", "cluster": status.cluster, "leader": status.leader, "waits_for": status.waits_for,
        "epoch": status.epoch, "data": status.k, "parity": status.m,
        "formed": status.formed, "segments_open": status.segments_open,
        "segments_sealed": status.segments_sealed, "segments_lacking": status.segments_lacking,
        "segments_unprotected": status.segments_unprotected,
        "segments_unreadable": status.segments_unreadable, "segments_emptied": status.segments_emptied,
        "compacting": status.compacting, "rebuilding": status.rebuilding, "records": status.records,
    });
    output.result(&record, || summary(&status))
}

/// The cluster that the options name.
pub(super) fn access(context: &Context) -> Result<ClusterAccess> {
    let location = context.global.repo.clone();
    let location =
        location.filter(|repo| matches!(repo.parse(), Ok(Location::Cluster(_)))).ok_or_else(|| {
            Failure::new(Exit::Usage, "which cluster?")
                .hint("--repo cluster://HOST:PORT or DISKCAST_REPO name it")
        })?;
    Ok(ClusterAccess::parse(&location, repository::cluster_token(&context.global)?)?)
}

fn table(status: &ClusterStatus) -> Table {
    let mut table = Table::new(&[
        ("DEVICE", Align::Right),
        ("ADDRESS", Align::Left),
        ("DOMAIN", Align::Left),
        ("STATE", Align::Left),
        ("USED", Align::Right),
        ("FREE", Align::Right),
        ("INDEX", Align::Right),
        ("SILENT", Align::Right),
    ]);
    for DeviceView { device, used, slots, copying, silent_ms, .. } in &status.devices {
        let copying = if *copying > 0 { format!(" ({copying})") } else { String::new() };
        table.row([
            device.device.to_string(),
            place(&device.address).to_owned(),
            device.domain.clone(),
            state(device.state).to_owned(),
            show_bytes(*used),
            show_bytes(device.free),
            format!("{slots}{copying}"),
            format!("{}.{} s", silent_ms / 1000, silent_ms % 1000 / 100),
        ]);
    }
    table
}

/// The host and port in an address.
fn place(address: &str) -> &str {
    address.split("//").nth(1).unwrap_or(address)
}

fn state(state: State) -> &'static str {
    match state {
        State::Up => "up",
        State::Draining => "draining",
        State::Down => "down",
        State::Lost => "lost",
    }
}

fn summary(status: &ClusterStatus) -> String {
    let (k, m) = (status.k, status.m);
    let (open, sealed) = (status.segments_open, status.segments_sealed);
    let rebuild = match status.rebuilding {
        0 => String::new(),
        parts => format!("; {parts} parts of segments are to be rebuilt"),
    };
    let leader = match &status.leader {
        None => String::new(),
        Some(leader) => format!("; {} leads", place(leader)),
    };
    let garbage = match (status.compacting, status.segments_emptied) {
        (0, 0) => String::new(),
        (0, emptied) => format!("; {emptied} are empty and will be removed"),
        (some, emptied) => format!("; {some} are to be compacted, {emptied} are empty and will be removed"),
    };
    let mended: u64 = status.devices.iter().map(|view| view.health.mended).sum();
    let mended = match mended {
        0 => String::new(),
        bytes => format!("; {} of damage were mended", show_bytes(bytes)),
    };
    let health = health(status);
    format!(
        "{k}+{m}, epoch {}{leader}; {sealed} segments, {open} open{garbage}{rebuild}{mended}; {health}\n",
        status.epoch
    )
}
