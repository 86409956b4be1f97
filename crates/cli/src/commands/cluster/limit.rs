//! `diskcast cluster limit`: what a group may use.

use base::units::show_bytes;
use cluster::client::Cluster;
use cluster::wire::Limits;
use serde_json::json;

use super::status::access;
use crate::args::parse::parse_size;
use crate::commands::Context;
use crate::exit::Result;

/// Limit what a group may store, and how fast it may read and write
///
/// The group is that of --repo: 1 unless the location ends with another one. Limits count what lies on disks and passes
/// to them, with parity, and are shared out evenly to the devices, which learn them with their next heartbeats. A put
/// for which a quota has no room fails, and writes nothing. Without an option, this shows the limits.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast cluster limit --quota 2T --rate 400M --repo cluster://127.0.0.1:7400/7
  diskcast cluster limit --quota none")]
pub(crate) struct Args {
    /// Bytes on disks; `none` for no limit
    #[arg(long, value_name = "SIZE", value_parser = parse_limit)]
    #[allow(clippy::option_option, reason = "an option that may be left out, or say that there is no limit")]
    pub quota: Option<Limit>,
    /// Bytes per second, read and written; `none` for no limit
    #[arg(long, value_name = "SIZE", value_parser = parse_limit)]
    pub rate: Option<Limit>,
}

/// A limit that was given.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limit(Option<u64>);

fn parse_limit(text: &str) -> std::result::Result<Limit, String> {
    if text == "none" {
        return Ok(Limit(None));
    }
    match parse_size(text)? {
        0 => Err("expected more than 0, or none".to_owned()),
        bytes => Ok(Limit(Some(bytes))),
    }
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    let access = access(context)?;
    let group = access.group;
    let known = Cluster::status(&access)?.limits.into_iter().find(|known| known.group == group);
    let before = known.map_or_else(Limits::default, |known| known.limits);
    let given = |limit: Option<Limit>, known: Option<u64>| limit.map_or(known, |Limit(limit)| limit);
    let limits = Limits { quota: given(args.quota, before.quota), rate: given(args.rate, before.rate) };
    let would = if limits == before { "" } else { context.would() };
    if limits != before && !context.global.dry_run {
        Cluster::limit(&access, group, limits)?;
    }
    let record = json!({"type": "limits", "group": group, "quota": limits.quota, "rate": limits.rate});
    context.output.result(&record, || {
        let show = |limit: Option<u64>| limit.map_or_else(|| "any amount".to_owned(), show_bytes);
        let (quota, rate) = (show(limits.quota), show(limits.rate));
        format!("{would}group {group} may store {quota}, and read and write {rate} a second\n")
    })
}
