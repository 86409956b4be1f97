//! `diskcast attach`: runs a disk from an image that is still being fetched, until a signal or `diskcast detach` ends
//! it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use daemon::attached::{
    AttachOptions, Attached, CacheSettings, End, Event, KeySettings, ServerSettings, Settings, Status,
    TlsSettings, exists, prepare,
};
use daemon::auth::tokens::{Place, kept_in};
use image::Manifest;
use mirror::{BootProfiles, Images, MulticastOptions, Source, Swarm};
use net::client::Client;
use net::clock::Stop;
use net::interface;
use net::peer::{PeerOptions, SpoolLimits};
use serde_json::json;
use store::{Reference, Repository};

use super::Context;
use super::disks::folder_of;
use crate::args::parse::{parse_background, parse_lifetime, parse_rate, parse_size};
use crate::args::{DisksFolder, Global, Keys, ServerAccess};
use crate::exit::{Exit, Failure, Result};
use crate::{connect, interrupt, notify, repository, target, version};

/// Attach a disk: run a machine from an image that is still being fetched
///
/// Serves the disk by NBD at once. Data that the machine reads is fetched first and kept locally; data that it writes
/// stays local until `diskcast commit --disk` makes a version of it. Ends on SIGINT or SIGTERM. The same command, or
/// only the disk's name, continues afterwards, also after a crash; clients keep the disk if they reconnect (QEMU's
/// reconnect-delay). The options of a disk are stored with it. A repository in a local folder is asked before the
/// servers, one in S3 after them; with --from no repository is used unless --repo or DISKCAST_REPO names it. If --cache
/// names a folder, data from servers is also kept there, for all disks that use the same folder. Machines with disks of
/// the same version serve each other what they got from the first server, while they run.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast attach classroom:stable --name vm1 --from https://10.0.0.1:7717 --token-file join.token
  qemu-system-x86_64 ... -drive file=nbd:unix:/var/lib/diskcast/disks/vm1/nbd.sock,format=raw,if=virtio
  diskcast attach vm1                       continue with this disk")]
pub(crate) struct Args {
    /// Version that a new disk begins as: image, image:tag or image@version; or the name of an existing disk
    pub image: String,
    /// Name of the disk on this machine [default: the name of its image]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    #[command(flatten)]
    pub place: DisksFolder,
    /// Server that has the image; may be repeated, servers are asked in this order
    #[arg(long, value_name = "SERVER")]
    pub from: Vec<String>,
    /// File with the token for all servers; if repeated, one for each server [or the token itself in DISKCAST_TOKEN]
    #[arg(
        long,
        value_name = "FILE",
        env = "DISKCAST_TOKEN_FILE",
        value_delimiter = ':',
        hide_env_values = true
    )]
    pub token_file: Vec<PathBuf>,
    /// How long to wait for a server's first answer when a new disk begins [default: 20s]
    #[arg(long, value_name = "TIME", value_parser = parse_lifetime)]
    pub wait: Option<std::time::Duration>,
    /// Unix socket for NBD clients [default: nbd.sock in the disk's folder]
    #[arg(long, value_name = "PATH")]
    pub nbd: Option<PathBuf>,
    /// Also serve NBD by TCP; other addresses than loopback need --tls-cert, --tls-key and --tls-client-ca
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<std::net::SocketAddr>,
    /// Certificate for TCP clients, which then must use TLS: a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Private key of the certificate
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// TCP clients must show a certificate that an authority in this PEM file has signed
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_client_ca: Option<PathBuf>,
    /// Keep the disk's bytes on this block device instead of in a file; the whole device is overwritten
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<PathBuf>,
    /// Use the device although the image was captured from it
    #[arg(long, requires = "device")]
    pub onto_source: bool,
    /// Refuse writes
    #[arg(long)]
    pub read_only: bool,
    /// Let a read fail after this time without an answer from any source [default: it waits]
    #[arg(long, value_name = "TIME", value_parser = parse_lifetime)]
    pub give_up: Option<std::time::Duration>,
    /// Also fetch the rest of the disk, at this rate, until it needs no source any more; `off` to disable
    #[arg(long, value_name = "RATE|off", value_parser = parse_background)]
    pub background: Option<u64>,
    /// Maximum number of chunks to read ahead of a sequential read; 0 for none [default: 32]
    #[arg(long, value_name = "COUNT")]
    pub ahead: Option<u64>,
    /// Do not prefetch what other machines have read, and do not record what this machine reads
    #[arg(long)]
    pub no_profile: bool,
    /// Do not use multicast, by which the first server sends once what many starting machines read
    #[arg(long, conflicts_with = "interface")]
    pub no_multicast: bool,
    /// Network interface for multicast, by name or address [default: that of the route to the server]
    #[arg(long, value_name = "INTERFACE")]
    pub interface: Option<String>,
    /// Get nothing from other machines, and serve them nothing
    #[arg(long, conflicts_with_all = ["spool", "upload_limit"])]
    pub no_peers: bool,
    /// Send at most so much to other machines, for example 200M (bits per second) [default: no limit]
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub upload_limit: Option<u64>,
    /// Keep so much for other machines in a file in /var/tmp, beyond a sixteenth of the free memory [default: 0]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub spool: Option<u64>,
    /// Create the disk, or change its options, but do not run it: a service runs it later
    #[arg(long)]
    pub prepare: bool,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    let reference = repository::reference(&args.image)?;
    let name = args.name.clone().unwrap_or_else(|| reference.image().to_string());
    let folder = folder_of(&args.place, &name)?;
    let kept = Settings::load(&folder)?;
    let settings = match kept {
        Some(kept) => again(kept, args)?,
        None => anew(context, args, &name)?,
    };
    // From here on use the stored settings, not this process's options.
    let context = &Context { global: global(&context.global, &settings), output: context.output };
    let stop = Stop::new();
    let connected = Connected::new(context, &settings, &folder, &stop)?;
    let begin =
        if exists(&folder) { None } else { Some(begin(context, &settings, &connected, args.onto_source)?) };
    if context.global.dry_run {
        return plan(context, &settings, &folder, begin.as_ref());
    }
    let output = context.output;
    let log = Arc::new(move |event: &Event| output.event(event));
    let multicast = multicast(context, &settings, &connected);
    let commit_to = connected.commit_to(context, &settings)?;
    let Connected { sources, boot_profiles, connections, swarm, .. } = connected;
    let tokens = connections
        .into_iter()
        .map(|connection| (connection.url, connection.client, connection.place))
        .collect();
    let options = AttachOptions {
        folder: folder.clone(),
        settings,
        begin,
        sources,
        boot_profiles,
        multicast,
        swarm,
        commit_to,
        tokens,
        stamp: Arc::new(repository::stamp),
        stop,
        log,
    };
    if args.prepare {
        let base = prepare(options)?;
        return prepared(context, &name, &folder, &base);
    }
    let attached = Attached::start(options)?;
    interrupt::at_last(attached.thawer());
    interrupt::cooperate(attached.leaver())?;
    announce(context, &folder, &attached.status())?;
    notify::ready(&format!("serves the disk {name}"));
    let end = attached.wait();
    notify::stopping();
    if end == End::Left {
        output.note(&format!("`diskcast attach {name}` goes on with the disk"));
    }
    Ok(())
}

/// The settings of a new disk.
fn anew(context: &Context, args: &Args, name: &str) -> Result<Settings> {
    let mut settings = Settings::new(name, &args.image);
    let global = &context.global;
    if args.from.is_empty() || global.repo.is_some() {
        settings.repository = Some(repository::absolute_location(global)?.0);
    }
    if let Some(cache) = &global.cache {
        let folder = absolute_cache(cache)?;
        settings.cache = Some(CacheSettings { folder, bytes_max: global.cache_size });
    }
    let absolute = |path: &Option<PathBuf>| path.as_ref().map(std::path::absolute).transpose();
    let keys = &global.keys;
    settings.keys = KeySettings {
        sign: absolute(&keys.sign_key)?,
        encryption: absolute(&keys.encryption_key)?,
        trust: keys.trust.iter().map(std::path::absolute).collect::<std::io::Result<_>>()?,
        allow_untrusted: keys.allow_untrusted,
    };
    change(&mut settings, args)?;
    Ok(settings)
}

/// The settings of an existing disk: the stored ones, changed by the options that are given now.
fn again(mut kept: Settings, args: &Args) -> Result<Settings> {
    if args.image != kept.image && args.image != kept.name {
        let text = format!("the disk `{}` exists already, and began as {}", kept.name, kept.image);
        return Err(Failure::new(Exit::Refused, text).hint(format!(
            "`diskcast attach {0}` goes on with it, `diskcast detach {0} --discard` deletes it, --name names another",
            kept.name
        )));
    }
    change(&mut kept, args)?;
    Ok(kept)
}

/// Sets those `settings` for which an option is given.
fn change(settings: &mut Settings, args: &Args) -> Result<()> {
    if !args.from.is_empty() {
        settings.servers = servers(args)?;
    }
    if let Some(wait) = args.wait {
        settings.wait_seconds = wait.as_secs();
    }
    if let Some(path) = &args.nbd {
        settings.nbd = std::path::absolute(path)?;
    }
    settings.listen = args.listen.or(settings.listen);
    if let (Some(certificate), Some(key)) = (&args.tls_cert, &args.tls_key) {
        let (certificate, key) = (std::path::absolute(certificate)?, std::path::absolute(key)?);
        let client_authority = args.tls_client_ca.as_ref().map(std::path::absolute).transpose()?;
        settings.tls = Some(TlsSettings { certificate, key, client_authority });
    }
    if let Some(path) = &args.device {
        settings.device = Some(std::path::absolute(path)?);
    }
    settings.read_only |= args.read_only;
    settings.give_up_seconds = args.give_up.map(|time| time.as_secs()).or(settings.give_up_seconds);
    settings.background_bytes_per_second = args.background.unwrap_or(settings.background_bytes_per_second);
    settings.without_profile |= args.no_profile;
    settings.ahead_chunks = args.ahead.unwrap_or(settings.ahead_chunks);
    settings.no_multicast = args.no_multicast || (settings.no_multicast && args.interface.is_none());
    args.interface.as_deref().map(interface::choose).transpose()?;
    settings.interface = args.interface.clone().or(settings.interface.take());
    let wants_peers = args.spool.is_some() || args.upload_limit.is_some();
    settings.no_peers = args.no_peers || (settings.no_peers && !wants_peers);
    settings.spool_bytes = args.spool.unwrap_or(settings.spool_bytes);
    settings.upload_bytes_per_second =
        args.upload_limit.map(|bits| bits / 8).or(settings.upload_bytes_per_second);
    Ok(())
}

/// The servers, each with its token file.
fn servers(args: &Args) -> Result<Vec<ServerSettings>> {
    let files = &args.token_file;
    if files.len() > 1 && files.len() != args.from.len() {
        let text = format!("{} servers, and {} files of tokens", args.from.len(), files.len());
        return Err(
            Failure::new(Exit::Usage, text).hint("give one --token-file for all, or one for each --from")
        );
    }
    if files.iter().any(|file| file == Path::new("-")) {
        return Err(Failure::new(Exit::Usage, "a token from standard input cannot be read again")
            .hint("put it into a file that stays: --token-file FILE"));
    }
    let file = |index: usize| files.get(index).or(files.first()).map(std::path::absolute).transpose();
    let server =
        |(index, url): (usize, &String)| Ok(ServerSettings { url: url.clone(), token_file: file(index)? });
    args.from.iter().enumerate().map(server).collect()
}

fn absolute_cache(cache: &str) -> Result<String> {
    if cache == "off" {
        return Ok(cache.to_owned());
    }
    Ok(std::path::absolute(cache)?.to_string_lossy().into_owned())
}

/// The common options with the values of the disk's settings.
fn global(here: &Global, settings: &Settings) -> Global {
    let mut global = here.clone();
    global.repo.clone_from(&settings.repository);
    global.cache = settings.cache.as_ref().map(|cache| cache.folder.clone());
    global.cache_size = settings.cache.as_ref().map_or(here.cache_size, |cache| cache.bytes_max);
    let keys = &settings.keys;
    global.keys = Keys {
        sign_key: keys.sign.clone(),
        encryption_key: keys.encryption.clone(),
        trust: keys.trust.clone(),
        allow_untrusted: keys.allow_untrusted,
        allow_older: here.keys.allow_older,
        seen: here.keys.seen.clone(),
    };
    global
}

/// A server that is a source.
struct Connection {
    url: String,
    /// The place of its token.
    place: Place,
    /// A client with short timeouts. All clients of the server share its token.
    client: Arc<Client>,
}

/// The sources of the disk.
struct Connected {
    sources: Vec<Source>,
    /// The servers.
    connections: Vec<Connection>,
    repository: Option<Arc<Repository>>,
    /// The boot profiles: from a server if there is one, since machines that start exchange their reads only through
    /// a server.
    boot_profiles: Option<Arc<dyn BootProfiles>>,
    /// Other machines that have what the first server has.
    swarm: Option<Arc<Swarm>>,
}

impl Connected {
    /// Where commits go: the repository, or else the first server, whose token may refuse them.
    fn commit_to(&self, context: &Context, settings: &Settings) -> Result<Option<Arc<dyn Images>>> {
        if let Some(repository) = &self.repository {
            return Ok(Some(Arc::clone(repository) as Arc<dyn Images>));
        }
        let Some(connection) = self.connections.first() else { return Ok(None) };
        Ok(Some(Arc::new(patient(context, settings, connection)?)))
    }

    /// Opens the repository and makes clients of the servers, without sending requests to them.
    fn new(context: &Context, settings: &Settings, folder: &Path, stop: &Stop) -> Result<Self> {
        let (mut sources, mut connections, mut swarm) = (Vec::new(), Vec::<Connection>::new(), None);
        let cache = repository::chosen_cache(&context.global)?;
        for server in &settings.servers {
            let (url, keys) = (&server.url, &context.global.keys);
            let place = connect::place(&access(settings, server), Some(kept_in(folder, url)))?;
            let client = Arc::new(connect::quick_by(url, place.credential()?, keys, stop.clone())?);
            let source = Source::server(url, Arc::clone(&client));
            let joins = connections.is_empty() && !settings.no_peers;
            sources.push(match (joins, &cache) {
                (true, _) => {
                    let peers = swarm.insert(peers(context, settings, &client));
                    source.with_peers(peers, cache.clone())
                }
                (false, Some(cache)) => source.cached(Arc::clone(cache)),
                (false, None) => source,
            });
            connections.push(Connection { url: url.clone(), place, client });
        }
        let repository = match &settings.repository {
            None => None,
            Some(_) => match repository::open(&context.global) {
                Ok(repository) => Some(Arc::new(repository)),
                // The disk can do without the repository while a server answers.
                Err(failure)
                    if matches!(failure.exit, Exit::Failed | Exit::Unauthorized) && !sources.is_empty() =>
                {
                    context.output.warning(&format!("goes on without its repository: {}", failure.message));
                    None
                }
                Err(failure) => return Err(failure),
            },
        };
        let mut boot_profiles =
            connections.first().map(|connection| Arc::clone(&connection.client) as Arc<dyn BootProfiles>);
        if let Some(repository) = &repository {
            let source = Source::repository(Arc::clone(repository));
            boot_profiles.get_or_insert_with(|| Arc::clone(repository) as Arc<dyn BootProfiles>);
            // A local folder is asked before the servers, a bucket after them.
            let is_here = repository::absolute_location(&context.global)?.1;
            sources.insert(if is_here { 0 } else { sources.len() }, source);
        }
        Ok(Self { sources, connections, repository, boot_profiles, swarm })
    }
}

/// Swarms of the server of `client`.
fn peers(context: &Context, settings: &Settings, client: &Arc<Client>) -> Arc<Swarm> {
    let spool = SpoolLimits { file_bytes: settings.spool_bytes, ..SpoolLimits::of_attached_disk() };
    let upload_bytes_per_second = settings.upload_bytes_per_second;
    let options = PeerOptions { spool, upload_bytes_per_second, ..PeerOptions::of_this_machine() };
    let output = context.output;
    Swarm::of(client, options, move |words| output.note(words))
}

/// The multicast options; `None` if multicast is off, or there is no interface for it.
fn multicast(context: &Context, settings: &Settings, connected: &Connected) -> Option<MulticastOptions> {
    let server = &connected.connections.first().filter(|_| !settings.no_multicast)?.client;
    let output = context.output;
    match MulticastOptions::of(server, settings.interface.as_deref(), &settings.name) {
        Ok(multicast) => {
            Some(MulticastOptions { tell: Arc::new(move |words| output.note(words)), ..multicast })
        }
        Err(error) => {
            output.warning(&format!("goes on without multicast: {}", base::chain(&error)));
            None
        }
    }
}

fn access(settings: &Settings, server: &ServerSettings) -> ServerAccess {
    let wait = Duration::from_secs(settings.wait_seconds);
    ServerAccess { token_file: server.token_file.clone(), wait }
}

/// Another client of the same server, which waits for answers and tells the user so.
fn patient(context: &Context, settings: &Settings, connection: &Connection) -> Result<Client> {
    let (credential, keys) = (Arc::clone(connection.client.credential()), &context.global.keys);
    let wait = Duration::from_secs(settings.wait_seconds);
    connect::client_by(&connection.url, credential, wait, keys, Stop::new(), context.output)
}

/// Finds the version that a new disk begins as, at the first source that has it.
fn begin(
    context: &Context,
    settings: &Settings,
    connected: &Connected,
    onto_source: bool,
) -> Result<Manifest> {
    let reference = repository::reference(&settings.image)?;
    let manifest = first_that_has(context, settings, connected, &reference)?;
    if let Some(device) = &settings.device {
        target::check_device(device, &manifest, onto_source)?;
        if !context.global.dry_run {
            target::confirm(device, &manifest, &context.global, None)?;
        }
    }
    Ok(manifest)
}

fn first_that_has(
    context: &Context,
    settings: &Settings,
    connected: &Connected,
    reference: &Reference,
) -> Result<Manifest> {
    let from_repository = || {
        let repository = connected.repository.as_ref()?;
        let place = repository::place(&context.global);
        Some(place.and_then(|place| version::find(context, &**repository, &place, reference)))
    };
    let is_here = match &settings.repository {
        Some(_) => repository::absolute_location(&context.global)?.1,
        None => false,
    };
    let from_servers = connected.connections.iter().map(|connection| {
        let client = patient(context, settings, connection)?;
        version::find(context, &client, client.url(), reference)
    });
    let before = is_here.then(from_repository).flatten();
    let behind = std::iter::once_with(|| if is_here { None } else { from_repository() }).flatten();
    let mut first = None;
    for found in before.into_iter().chain(from_servers).chain(behind) {
        match found {
            Ok(version) => return Ok(version.manifest),
            // Another source may have it. A version without a trusted signature is an error at once.
            Err(failure) if matches!(failure.exit, Exit::NotFound | Exit::Failed | Exit::Unauthorized) => {
                first.get_or_insert(failure);
            }
            Err(failure) => return Err(failure),
        }
    }
    Err(first.unwrap_or_else(|| Failure::new(Exit::Usage, "a disk needs a repository or a server")))
}

fn plan(context: &Context, settings: &Settings, folder: &Path, begin: Option<&Manifest>) -> Result<()> {
    let nbd = settings.nbd_socket(folder);
    let number = begin.map(|manifest| manifest.number);
    let record = json!({
        "type": "plan", "name": settings.name, "image": settings.image, "number": number,
        "nbd": nbd.display().to_string(), "new": begin.is_some(),
    });
    context.output.result(&record, || {
        let (name, socket) = (&settings.name, nbd.display());
        match begin {
            Some(Manifest { image, number, .. }) => {
                format!("{}attach {image}@{number} as {name} at {socket}\n", context.would())
            }
            None => format!("{}go on with the disk {name} at {socket}\n", context.would()),
        }
    })
}

fn prepared(context: &Context, name: &str, folder: &Path, base: &Manifest) -> Result<()> {
    let (Manifest { image, number, .. }, folder) = (base, folder.display().to_string());
    let record =
        json!({ "type": "prepared", "name": name, "image": image, "number": number, "folder": folder });
    context.output.result(&record, || {
        format!("the disk {name} of {image}@{number} is ready; `diskcast attach {name}` runs it\n")
    })
}

fn announce(context: &Context, folder: &Path, status: &Status) -> Result<()> {
    let mut record = serde_json::to_value(status).expect("a status is plain data");
    record["type"] = json!("attached");
    record["folder"] = json!(folder.display().to_string());
    context.output.answer(&record, || {
        let Status { name, image, number, .. } = status;
        format!("attached {image}@{number} as {name}: {}\n", status.nbd.join(" "))
    })
}
