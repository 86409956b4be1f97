//! `diskcast cluster metadata`: the metadata service of a cluster.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use cluster::{ClusterToken, Opening, Width};
use daemon::cluster_parts::etcd_files::EtcdFiles;
use daemon::cluster_parts::{ClusterPart, MetadataOptions, MetadataPlace, serve_metadata};
use serde_json::json;

use super::Context;
use crate::args::parse::{parse_lifetime, parse_width};
use crate::exit::{Exit, Failure, Result};
use crate::{interrupt, notify};

/// Say which devices a cluster has, and what lies where
///
/// The first part of a cluster: devices join it, and clients learn from it where to read and write. It never sees the
/// data itself. Makes the cluster, and the file with its token, if they are missing. Ends on SIGINT or SIGTERM; data
/// stays readable meanwhile. With --etcd several instances share their state: one leads, and another one takes over
/// when it ends. All of them need the same token.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast cluster metadata /var/lib/diskcast/metadata --cluster-token /etc/diskcast/cluster.token
  diskcast cluster metadata meta --width 4+1 --cluster-token cluster.token
  diskcast cluster metadata --etcd https://etcd-1:2379,https://etcd-2:2379,https://etcd-3:2379 --etcd-ca etcd.pem \\
    --cluster-token cluster.token --listen 10.0.0.1:7400")]
pub(crate) struct Args {
    /// Folder of its database, of one instance alone
    #[arg(value_name = "FOLDER", required_unless_present = "etcd", conflicts_with = "etcd")]
    pub folder: Option<PathBuf>,
    /// Make a cluster although its token exists already. Without this option, a token without a database is refused:
    /// the database may have been lost
    #[arg(long, conflicts_with = "etcd")]
    pub new: bool,
    /// Keep its state in etcd, for several instances: addresses of etcd's members
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    pub etcd: Vec<String>,
    #[command(flatten)]
    pub access: Access,
    /// Beginning of the names of this cluster's keys in etcd
    #[arg(long, value_name = "NAME", default_value = "diskcast", requires = "etcd")]
    pub etcd_prefix: String,
    /// Address and TCP port
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7400")]
    pub listen: SocketAddr,
    /// Data and parity parts of what is stored: with 8+2, any two of ten devices may be lost. A cluster keeps the width
    /// that it was made with
    #[arg(long, value_name = "DATA+PARITY", value_parser = parse_width, default_value = "8+2")]
    pub width: Width,
    /// How long a device may be silent before others take its place, times one and a half
    #[arg(long, value_name = "TIME", value_parser = parse_lifetime, default_value = "3s")]
    pub lease: Duration,
    /// How long capabilities last. The space of deleted data is used again only after this time: until then, clients
    /// that found the data before can still read it
    #[arg(long, value_name = "TIME", value_parser = parse_lifetime, default_value = "1h")]
    pub reclaim_after: Duration,
    #[command(flatten)]
    pub serving: Serving,
}

/// How etcd and an instance recognise each other.
#[derive(Debug, clap::Args)]
pub(crate) struct Access {
    /// Certificate of the authority that signed those of etcd's members, which have https:// addresses (PEM)
    #[arg(long, value_name = "FILE", requires = "etcd")]
    pub etcd_ca: Option<PathBuf>,
    /// Certificate that etcd wants to see (PEM)
    #[arg(long, value_name = "FILE", requires = "etcd_ca", requires = "etcd_key")]
    pub etcd_certificate: Option<PathBuf>,
    /// Its key (PEM)
    #[arg(long, value_name = "FILE", requires = "etcd_certificate")]
    pub etcd_key: Option<PathBuf>,
    /// User of etcd
    #[arg(long, value_name = "NAME", requires = "etcd", requires = "etcd_password_file")]
    pub etcd_user: Option<String>,
    /// File with the user's password
    #[arg(long, value_name = "FILE", requires = "etcd_user")]
    pub etcd_password_file: Option<PathBuf>,
}

impl Access {
    fn files(&self) -> EtcdFiles {
        EtcdFiles {
            authority: self.etcd_ca.clone(),
            certificate: self.etcd_certificate.clone().zip(self.etcd_key.clone()),
            user: self.etcd_user.clone().zip(self.etcd_password_file.clone()),
        }
    }
}

/// How a part of a cluster serves.
#[derive(Debug, clap::Args)]
pub(crate) struct Serving {
    /// Plain HTTP instead of TLS, on a network where nobody else can listen. Then all parts need it, and the location
    /// is cluster+http://HOST:PORT
    #[arg(long)]
    pub no_tls: bool,
    /// End when standard input ends: with the program that started this one
    #[arg(long, hide = true)]
    pub with_parent: bool,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    let file = context.global.cluster_token.clone();
    let file = file.or_else(|| Some(args.folder.as_ref()?.join("cluster.token"))).ok_or_else(|| {
        Failure::new(Exit::Usage, "with --etcd, which token?")
            .hint("--cluster-token or DISKCAST_CLUSTER_TOKEN name its file, the same for all instances")
    })?;
    let place = match &args.folder {
        Some(folder) => {
            daemon::private_file::make_folder(folder)?;
            // The first start makes both.
            let opening = if args.new || !file.exists() { Opening::OrNew } else { Opening::Existing };
            MetadataPlace::Folder(folder.clone(), opening)
        }
        None => MetadataPlace::Etcd {
            members: args.etcd.clone(),
            files: args.access.files(),
            prefix: args.etcd_prefix.clone(),
        },
    };
    let token = token_in(&file)?;
    let output = context.output;
    let part = serve_metadata(MetadataOptions {
        place,
        listen: args.listen,
        token,
        width: args.width,
        lease: args.lease,
        reclaim_after: args.reclaim_after,
        tls: !args.serving.no_tls,
        notes: Arc::new(move |note| output.remark(note)),
    });
    let part = part?;
    let address = part.address();
    let record =
        json!({"type": "metadata", "address": address.to_string(), "token_file": file.display().to_string()});
    output.result(&record, || {
        let token = file.display();
        format!("metadata service at {address}; devices and clients need the token in {token}\n")
    })?;
    until_the_end(context, part, &args.serving, &format!("the metadata service at {address}"))
}

/// The token in `file`, which is made if it is missing.
pub(crate) fn token_in(file: &Path) -> Result<ClusterToken> {
    if !file.exists() {
        let token = ClusterToken::random()?;
        daemon::private_file::write_private(file, &format!("{}\n", token.as_str()))?;
    }
    Ok(String::from_utf8_lossy(&daemon::private_file::read_private(file)?).parse()?)
}

/// Waits for a signal, for the end of the parent, or until the part fails.
pub(crate) fn until_the_end(
    context: &Context,
    mut part: ClusterPart,
    serving: &Serving,
    name: &str,
) -> Result<()> {
    let (end, ended) = channel::<Option<base::Error>>();
    let signal = end.clone();
    interrupt::cooperate(move || drop(signal.send(None)))?;
    if serving.with_parent {
        watch_parent(end.clone());
    }
    part.on_failure(move |error| drop(end.send(Some(error))));
    notify::ready(&format!("serves {name}"));
    let reason = ended.recv().ok().flatten();
    notify::stopping();
    context.output.note(&format!("{name} ends"));
    part.shutdown();
    reason.map_or(Ok(()), |error| Err(Failure::from(error.within(format!("{name} can't go on")))))
}

fn watch_parent(end: Sender<Option<base::Error>>) {
    std::thread::spawn(move || {
        // Nothing is ever sent there: it ends with the parent.
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        let _ = end.send(None);
    });
}
