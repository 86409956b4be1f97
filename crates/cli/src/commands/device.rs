//! `diskcast cluster device`: one disk of a cluster.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use cluster::Opening;
use daemon::cluster_parts::{DeviceOptions, serve_device};
use serde_json::json;

use super::Context;
use super::metadata::{Serving, until_the_end};
use crate::args::parse::parse_rate;
use crate::exit::Result;
use crate::repository;

/// Offer the space of a folder to a cluster
///
/// One process for each disk: it keeps objects in files, serves them over HTTP, and checks a capability on every
/// command. Joins the cluster by its metadata service, and comes back after a restart as the device that it was. Ends
/// on SIGINT or SIGTERM; the cluster goes on without it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast cluster device /srv/disk-1 --new --metadata 127.0.0.1:7400 --cluster-token /etc/diskcast/cluster.token
  diskcast cluster device /srv/disk-1 --metadata 127.0.0.1:7400 --cluster-token /etc/diskcast/cluster.token
  diskcast cluster device /srv/disk-2 --metadata 10.0.0.1:7400 --listen 10.0.0.7:7420 --domain rack-3")]
pub(crate) struct Args {
    /// Folder of its objects, on a disk of its own
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
    /// Make a device in this folder, once. Without this option an empty folder is refused: perhaps its disk is not
    /// mounted
    #[arg(long)]
    pub new: bool,
    /// Address of the metadata service; of several instances, all of them
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',', required = true)]
    pub metadata: Vec<String>,
    /// Address and TCP port
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// Address at which clients reach it, if it is not that of --listen
    #[arg(long, value_name = "HOST:PORT")]
    pub address: Option<String>,
    /// Name for everything that fails together with this device: parts of stored data are spread over these domains
    /// [default: the host's name]
    #[arg(long, value_name = "NAME")]
    pub domain: Option<String>,
    /// How fast it rebuilds what lost devices held, in bits per second [default: as fast as it can]
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub rebuild_rate: Option<u64>,
    /// How fast it looks through its disk for damage, in bits per second
    #[arg(long, value_name = "RATE", value_parser = parse_rate, default_value = "64M")]
    pub scrub_rate: u64,
    #[command(flatten)]
    pub serving: Serving,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    let output = context.output;
    let part = serve_device(DeviceOptions {
        folder: args.folder.clone(),
        opening: if args.new { Opening::OrNew } else { Opening::Existing },
        listen: args.listen,
        address: args.address.clone(),
        metadata: args.metadata.clone(),
        token: repository::cluster_token(&context.global)?,
        domain: args.domain.clone().unwrap_or_else(repository::host_name),
        rebuild_bytes_per_second: args.rebuild_rate.map(|bits| bits / 8),
        scrub_bytes_per_second: args.scrub_rate / 8,
        tls: !args.serving.no_tls,
        notes: Arc::new(move |note| output.remark(note)),
    });
    let part = part?;
    let address = part.address();
    let folder = args.folder.display().to_string();
    let record = json!({"type": "device", "address": address.to_string(), "folder": folder});
    output.result(&record, || format!("device {folder} at {address}\n"))?;
    until_the_end(context, part, &args.serving, &format!("the device {folder}"))
}
