//! `diskcast mount`: shows versions as files and makes writable disks from them, until it is unmounted or gets a
//! signal.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base::{Error, ErrorKind};
use daemon::auth::tokens::{Keeper, Place, kept_in};
use mirror::fuse::{Content, DiskSettings, MountOptions, Origin, Sharing, mount};
use mirror::{BootProfiles, Images, MirrorOptions, MulticastOptions, Sighting, Source, Swarm};
use net::client::Client;
use net::clock::Stop;
use net::peer::{PeerOptions, SpoolLimits};
use serde::Serialize;
use serde_json::json;
use store::Reference;

use super::Context;
use crate::args::ServerAccess;
use crate::args::parse::{parse_lifetime, parse_owner, parse_rate, parse_size};
use crate::exit::{Exit, Failure, Result};
use crate::seen::Seen;
use crate::{clock, connect, interrupt, notify, repository};

/// Mount all versions as files in a folder, and make writable disks from them
///
/// /IMAGE/NUMBER is a version's disk, /IMAGE/latest and /IMAGE/TAG are links to one. Data is fetched when it is read,
/// and kept in the folder of --folder. `echo clone NAME IMAGE > DIR/_control` creates the writable disk
/// DIR/_clones/NAME, `echo commit NAME > DIR/_control` makes a version of what was written to it. Ends when it is
/// unmounted, or on SIGINT or SIGTERM; writable disks reappear with the next mount. A repository in a local folder is
/// asked before the servers, one in S3 after them; with --from no repository is used unless --repo or DISKCAST_REPO
/// names it. See docs/mount.md.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast mount /mnt/images
  diskcast mount /mnt/images --from https://10.0.0.1:7717 --token-file join.token
  diskcast mount /mnt/images --from https://10.0.0.1:7717 --token-file join.token --share
  mount -o ro,loop,offset=1048576 /mnt/images/debian/latest /mnt/debian
  echo clone vm1 debian:stable > /mnt/images/_control")]
pub(crate) struct Args {
    /// Mount point, an empty folder
    pub dir: PathBuf,
    /// Server that has images; may be repeated, servers are asked in this order
    #[arg(long, value_name = "SERVER")]
    pub from: Vec<String>,
    /// File with the servers' token [or the token itself in DISKCAST_TOKEN]
    #[arg(long, value_name = "FILE", env = "DISKCAST_TOKEN_FILE", hide_env_values = true)]
    pub token_file: Option<PathBuf>,
    /// How long to wait for a server's first answer
    #[arg(long, value_name = "TIME", value_parser = parse_lifetime, default_value = "20s")]
    pub wait: std::time::Duration,
    /// Folder for fetched data and writable disks; each mount needs its own [default: next to the default repository]
    #[arg(long, value_name = "FOLDER", env = "DISKCAST_MOUNT", hide_env_values = true)]
    pub folder: Option<PathBuf>,
    /// Maximum size of fetched data there; the least recently used is deleted first
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "64G")]
    pub keep: u64,
    /// Let a read fail after this time without an answer from any source; a process that waits cannot be killed before
    #[arg(long, value_name = "TIME", value_parser = parse_lifetime, default_value = "60s")]
    pub give_up: std::time::Duration,
    /// Also fetch the rest of disks in use, at this rate
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub background: Option<u64>,
    /// Maximum number of chunks to read ahead of a sequential read; 0 for none
    #[arg(long, value_name = "COUNT", default_value_t = 32)]
    pub ahead: u64,
    /// Share what is read of versions with other machines that read the same ones: by multicast of the first server,
    /// and from machine to machine
    #[arg(long)]
    pub share: bool,
    /// Network interface for multicast, by name or address [default: that of the route to the server]
    #[arg(long, value_name = "INTERFACE", requires = "share")]
    pub interface: Option<String>,
    /// Owner of all files: numbers of user and group [default: the user who mounts]
    #[arg(long, value_name = "UID:GID", value_parser = parse_owner)]
    pub owner: Option<(u32, u32)>,
    /// Do not let the kernel read completely fetched versions directly
    #[arg(long)]
    pub no_passthrough: bool,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    let folder = match &args.folder {
        Some(folder) => std::path::absolute(folder)?,
        None => repository::default_mount_folder()?,
    };
    let connected = Connected::new(context, args, &folder)?;
    if context.global.dry_run {
        return plan(context, args, &connected);
    }
    let output = context.output;
    let options = MountOptions {
        disks: settings(args, folder.clone()),
        owner: args.owner.unwrap_or_else(whoever_mounts),
        now: SystemTime::UNIX_EPOCH + Duration::from_secs(clock::unix_seconds()),
        log: Arc::new(move |event| output.event(&Happened { text: event.to_string() })),
    };
    let Connected { content, names, tokens } = connected;
    let tell = Box::new(move |server: &str, news| {
        output.event(&Happened { text: daemon::attached::Event::of_token(server, news).to_string() });
    });
    let _keeper = Keeper::start(tokens, tell)?;
    let mounted = Arc::new(mount(&args.dir, content, options).map_err(explain)?);
    let stopped = Arc::clone(&mounted);
    interrupt::cooperate(move || {
        notify::stopping();
        if let Err(error) = stopped.stop() {
            output.warning(&base::chain(&error));
        }
    })?;
    let (dir, from) = (args.dir.display(), names.join(" "));
    let record = json!({
        "type": "mounted", "dir": args.dir.display().to_string(), "folder": folder.display().to_string(),
        "from": names,
    });
    context.output.answer(&record, || format!("mounted {from} at {dir}; `umount {dir}` ends it\n"))?;
    notify::ready(&format!("mounted at {dir}"));
    Ok(mounted.wait()?)
}

fn settings(args: &Args, folder: PathBuf) -> DiskSettings {
    DiskSettings {
        folder,
        bytes_max: args.keep,
        mirror: MirrorOptions {
            give_up: Some(args.give_up),
            ahead_chunks_max: args.ahead,
            background_bytes_per_second: args.background.unwrap_or(0) / 8,
            ..MirrorOptions::default()
        },
        passthrough: !args.no_passthrough,
    }
}

fn whoever_mounts() -> (u32, u32) {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

/// Adds a hint to the failure of a mount.
fn explain(error: Error) -> Failure {
    let hint = match error.kind() {
        ErrorKind::Exists => "each mount keeps its disks in a folder of its own: --folder names another",
        ErrorKind::Refused => "mounting needs fusermount3 (package fuse3), or root",
        _ => "the folder and /dev/fuse must exist: `modprobe fuse`",
    };
    Failure::from(error).hint(hint)
}

fn plan(context: &Context, args: &Args, connected: &Connected) -> Result<()> {
    let images = connected.content.origin.images()?.len();
    let record = json!({
        "type": "plan", "dir": args.dir.display().to_string(), "from": connected.names, "images": images,
    });
    context.output.result(&record, || {
        format!(
            "{}mount {images} images of {} at {}\n",
            context.would(),
            connected.names.join(" "),
            args.dir.display()
        )
    })
}

/// An event of a mount, for the log.
#[derive(Serialize)]
#[serde(tag = "type", rename = "event")]
struct Happened {
    text: String,
}

impl std::fmt::Display for Happened {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// The sources of a mount.
struct Connected {
    content: Content,
    names: Vec<String>,
    /// Name of each server, a client with short timeouts, and the place of its token.
    tokens: Vec<(String, Arc<Client>, Place)>,
}

impl Connected {
    fn new(context: &Context, args: &Args, folder: &Path) -> Result<Self> {
        let access = ServerAccess { token_file: args.token_file.clone(), wait: args.wait };
        let mut places: Vec<Arc<dyn Images>> = Vec::new();
        let (mut sources, mut names, mut tokens) = (Vec::new(), Vec::new(), Vec::new());
        let mut addresses = Vec::new();
        for server in &args.from {
            let (keys, output) = (&context.global.keys, context.output);
            let place = connect::place(&access, Some(kept_in(folder, server)))?;
            let credential = place.credential()?;
            // Wait long for the first answer only: later requests keep a process waiting that, for example, lists a
            // folder.
            let first =
                connect::client_by(server, Arc::clone(&credential), args.wait, keys, Stop::new(), output)?;
            first.repository()?;
            let client = Arc::new(connect::quick_by(server, credential, keys, Stop::new())?);
            sources.push(Source::server(server, Arc::clone(&client)));
            tokens.push((server.clone(), Arc::clone(&client), place));
            addresses.push(client.url().to_owned());
            places.push(client);
            names.push(server.clone());
        }
        if args.from.is_empty() || context.global.repo.is_some() {
            let repository = Arc::new(repository::open(&context.global)?);
            let is_here = repository::absolute_location(&context.global)?.1;
            let at = if is_here { 0 } else { sources.len() };
            names.insert(at, repository.name().to_owned());
            sources.insert(at, Source::repository(Arc::clone(&repository)));
            addresses.insert(at, repository::place(&context.global)?);
            places.insert(at, repository);
        }
        let seen = Seen::of(context);
        let watch = move |index: usize, reference: &Reference, found: &Sighting| {
            seen.judge(&addresses[index], reference, found)
        };
        let origin = Origin::new(places, repository::stamp).watched_by(Box::new(watch));
        let sharing = match tokens.first().filter(|_| args.share) {
            Some((server, client, _)) => {
                // A repository of this machine comes before it.
                let source = names.iter().position(|name| name == server).unwrap_or(0);
                Some(sharing(context, args, client, source))
            }
            None if args.share => {
                let text = "--share needs a server (--from): it brings machines together";
                return Err(Failure::new(Exit::Usage, text));
            }
            None => None,
        };
        Ok(Self { content: Content { origin, sources, sharing }, names, tokens })
    }
}

/// How versions are shared with other machines of the server of `client`, which is the source `source`.
fn sharing(context: &Context, args: &Args, client: &Arc<Client>, source: usize) -> Sharing {
    let output = context.output;
    let spool = SpoolLimits::of_attached_disk();
    let options = PeerOptions { spool, ..PeerOptions::of_this_machine() };
    let asks = Arc::clone(client);
    let swarm = move || Swarm::of(&asks, options.clone(), move |words| output.note(words));
    let multicast = match MulticastOptions::of(client, args.interface.as_deref(), &repository::host_name()) {
        Ok(multicast) => {
            Some(MulticastOptions { tell: Arc::new(move |words| output.note(words)), ..multicast })
        }
        Err(error) => {
            output.warning(&format!("goes on without multicast: {}", base::chain(&error)));
            None
        }
    };
    let boots = Arc::clone(client) as Arc<dyn BootProfiles>;
    Sharing { source, swarm: Box::new(swarm), multicast, boots, stamp: repository::stamp }
}
