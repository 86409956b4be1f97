//! `diskcast cluster certificate`: what other programs verify the parts of a cluster by.

use cluster::Authority;
use serde_json::json;

use crate::commands::Context;
use crate::exit::Result;
use crate::repository;

/// Print the certificate by which other programs recognise the parts of a cluster
///
/// As PEM text. The token alone determines it, and it never expires: no cluster needs to run. It is not a secret.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast cluster certificate --cluster-token /etc/diskcast/cluster.token > cluster.pem
  curl --cacert cluster.pem https://10.0.0.7:7420/device/v1/status")]
pub(crate) struct Args {}

pub(crate) fn run(context: &Context, _: &Args) -> Result<()> {
    let pem = Authority::of(&repository::cluster_token(&context.global)?)?.pem();
    context.output.result(&json!({"type": "certificate", "pem": pem}), || pem.clone())
}
