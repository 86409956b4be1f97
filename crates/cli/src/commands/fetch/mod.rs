//! `diskcast fetch`: fetches a version from a server and writes it to a disk or a file.

mod aside;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::units::{show_bytes, show_duration};
use disk::WriteAt;
use image::{Catalogue, Installer, Manifest, SignedManifest};
use net::client::Client;
use net::clock::Stop;
use net::fetch::{FetchOptions, FetchReport, HostReporter, OnTarget};
use net::interface;
use net::peer::{Node, PeerOptions};
use serde_json::json;

use super::Context;
use super::by_torrent;
use super::install::{after_install, check_targets, explain, left_in, open_targets, report_record, sentence};
use super::serving::{serve, while_there};
use crate::args::parse::{parse_buffer, parse_rate, parse_size, parse_window};
use crate::args::{Effort, ServerAccess, Transport, Writing};
use crate::exit::{Exit, Failure, Result};
use crate::target::Drafts;
use crate::ui::progress::{Meter, show_rate};
use crate::{connect, interrupt, repository, target, version};

/// Stands for `--serve-for`.
const SERVE_FOR: &str = "DISKCAST_SERVE_FOR";

/// Fetch an image from a server and write it to a disk or a file
///
/// Joins the server's multicast session, at any time, and fetches the rest from machines that have it, or from the
/// server by unicast. Serves what it has to others while it runs. Prints at the end how many bytes came each way.
/// Continues if multicast stops working or, for some time, if the server cannot be reached.
#[derive(Debug, Clone, clap::Args)]
#[command(
    override_usage = "diskcast fetch [OPTIONS] [SERVER] <NAME> <TARGET>",
    after_help = "\
Examples:
  diskcast fetch https://10.0.0.1:7717 classroom /dev/sda --token-file join.token
  diskcast fetch https://images.example:7717 web:stable disk.img --transport unicast
  diskcast fetch https://10.0.0.1:7717 classroom /dev/sda --serve-for 10m
  diskcast fetch https://10.0.0.1:7717 classroom /dev/sda --torrent --serve-for 1h
  diskcast fetch --repo https://10.0.0.1:7717 classroom /dev/sda"
)]
pub(crate) struct Args {
    /// URL of the server [default: that of --repo]
    #[arg(value_name = "SERVER")]
    pub server: String,
    /// Version to fetch: image, image:tag or image@version
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Block device, or file to create or overwrite; `null:` receives and verifies, but writes nothing
    #[arg(value_name = "TARGET")]
    pub third: Option<PathBuf>,
    /// Set from the positional arguments ([`Args::settle`]).
    #[arg(skip)]
    pub target: PathBuf,
    #[command(flatten)]
    pub access: ServerAccess,
    /// How to fetch the data
    #[arg(long, value_enum, default_value_t = Transport::Auto)]
    pub transport: Transport,
    /// Fetch by BitTorrent, from a server with `serve --torrent` and from all that fetch the same; peers connect to
    /// this TCP port. Nothing is encrypted on the way
    #[arg(
        long,
        value_name = "PORT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "6881",
        conflicts_with_all = ["transport", "interface", "no_peers", "upload_limit", "spool"]
    )]
    pub torrent: Option<u16>,
    /// Network interface for multicast, by name or address [default: that of the route to the server]
    #[arg(long, value_name = "INTERFACE")]
    pub interface: Option<String>,
    /// Name of this machine in the server's statistics [default: its host name]
    #[arg(long, value_name = "NAME")]
    pub receiver: Option<String>,
    /// Memory for multicast data that is incomplete or not written yet; more memory helps a slow disk
    #[arg(long, value_name = "SIZE", value_parser = parse_buffer, default_value = "64M")]
    pub buffer: u64,
    /// Get nothing from other machines, and serve them nothing
    #[arg(long)]
    pub no_peers: bool,
    /// Go on serving other machines for this time after the end, for example 10m; Ctrl-C ends it sooner. 0 ends with
    /// the fetch [default: in the background, as long as the fetch took, from 30 s to 10 min]
    #[arg(long, value_name = "TIME", value_parser = parse_window, env = SERVE_FOR)]
    pub serve_for: Option<Duration>,
    /// After the end, serve others from memory only, because a machine starts from the target at once
    #[arg(long, conflicts_with = "torrent")]
    pub memory_only: bool,
    /// Serve a copy of the target, so that a machine may start from it at once: a snapshot of a logical volume, or the
    /// blocks of a file on XFS or btrfs
    #[arg(
        long,
        requires = "torrent",
        requires = "serve_for",
        conflicts_with_all = ["form", "also", "into"]
    )]
    pub serve_copy: bool,
    /// Send at most so much to other machines, for example 200M (bits per second) [default: no limit]
    #[arg(long, value_name = "RATE", value_parser = parse_rate, conflicts_with = "no_peers")]
    pub upload_limit: Option<u64>,
    /// Memory for what other machines get [default: a quarter of what is free, at most 1G]; the rest they get from the
    /// target
    #[arg(long, value_name = "SIZE", value_parser = parse_size, conflicts_with_all = ["torrent", "no_peers"])]
    pub spool_memory: Option<u64>,
    /// Keep so much for other machines in a file, beyond that memory
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "0")]
    pub spool: u64,
    /// Folder of that file, which has no name there
    #[arg(long, value_name = "FOLDER", default_value = "/var/tmp")]
    pub spool_folder: PathBuf,
    /// The switch or rack of this machine: machines at one place serve each other first [default: as the server knows]
    #[arg(long, value_name = "NAME")]
    pub place: Option<String>,
    #[command(flatten)]
    pub writing: Writing,
    #[command(flatten)]
    pub effort: Effort,
}

impl Args {
    /// Whether the machine may go on serving in the background, if nobody says for how long.
    fn may_serve_aside(&self) -> bool {
        let serves = self.serve_for.is_none() && !self.no_peers && self.transport == Transport::Auto;
        serves && self.torrent.is_none() && !target::is_null(&self.target)
    }

    /// Takes the arguments for what they are: without SERVER there are two, and the server is that of `--repo`.
    pub(crate) fn settle(&mut self, server: Option<&str>) -> Result<()> {
        // The variable is for all fetches of a machine.
        let by_option = std::env::var_os(SERVE_FOR).is_none();
        if self.no_peers && by_option && self.serve_for.is_some_and(|time| !time.is_zero()) {
            let text = "with --no-peers nobody is served: leave out --serve-for";
            return Err(Failure::new(Exit::Usage, text));
        }
        if let Some(target) = self.third.take() {
            self.target = target;
            return Ok(());
        }
        let (Some(server), false) = (server, self.server.contains("://")) else {
            let text = "`diskcast fetch` takes a server, an image and a target";
            return Err(Failure::new(Exit::Usage, text)
                .hint("diskcast fetch SERVER NAME TARGET, or --repo https://SERVER and NAME TARGET"));
        };
        let name = std::mem::replace(&mut self.server, server.to_owned());
        self.target = std::mem::replace(&mut self.name, name).into();
        Ok(())
    }
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    let starter = aside::Starter::of_this_process().transpose()?;
    if starter.is_none()
        && !context.global.dry_run
        && args.may_serve_aside()
        && let Some(done) = aside::run()
    {
        return done;
    }
    run_here(context, args, starter)
}

/// Does it in this process, for `starter` if there is one.
fn run_here(context: &Context, args: &Args, starter: Option<aside::Starter>) -> Result<()> {
    let targets = target::resolve_all(&args.target, &args.writing, context.output)?;
    let reference = repository::reference(&args.name)?;
    if args.target.as_os_str() == target::STDOUT {
        let text =
            "what is fetched arrives in any order, and standard output takes it from first to last only";
        return Err(
            Failure::new(Exit::Usage, text).hint("fetch into a file, or use `diskcast install NAME -`")
        );
    }
    args.interface.as_deref().map(interface::choose).transpose()?;
    let stop = Stop::new();
    let client = Arc::new(connect::client(
        &args.server,
        &args.access,
        &context.global.keys,
        stop.clone(),
        context.output,
    )?);
    let _keeper = connect::keep_token(context, &client)?;
    let version = version::find(context, &*client, client.url(), &reference)?;
    let manifest = &version.manifest;
    if context.global.dry_run {
        return plan(context, args, &targets, (manifest, &client));
    }
    let name = args.receiver.clone().unwrap_or_else(repository::host_name);
    let reference = format!("{}@{}", manifest.image, manifest.number);
    let reporter = HostReporter::start(&client, &name, reference);
    let joins_first = args.transport != Transport::Unicast && args.torrent.is_none();
    let reporter = if joins_first { reporter } else { reporter.at_once() };
    let reporter = if target::is_null(&args.target) { reporter.only_verifying() } else { reporter };
    if let Some(port) = args.torrent {
        let (disks, drafts) = match open_all(context, args, &targets, (manifest, &client), &stop) {
            Ok(opened) => opened,
            Err(refused) => {
                reporter.refused(&refused.message);
                return Err(refused);
            }
        };
        let place = args.place.as_deref().map_or(0, daemon::place_number);
        let serve_for = args.serve_for.filter(|time| !time.is_zero());
        let serve_copy = args.serve_copy;
        let way = by_torrent::Way { port, place, serve_for, serve_copy, stop };
        let writes = by_torrent::Writes { targets: &targets, writing: &args.writing, effort: &args.effort };
        return by_torrent::fetch(context, (&client, &version), writes, (disks, drafts, reporter), &way);
    }
    let (done, on_target) = match open_all(context, args, &targets, (manifest, &client), &stop) {
        Ok((disks, drafts)) => {
            let done = fetch(context, args, &client, &version, (disks, name, reporter), stop.clone())?;
            drafts.finish()?;
            done
        }
        Err(refused) => {
            reporter.refused(&refused.message);
            return Err(refused);
        }
    };
    let record = record(&targets, manifest, &done);
    context.output.result(&record, || text(args, &targets, &done))?;
    after_install(&targets, manifest, &args.writing, context.output)?;
    let Some(node) = done.node.as_deref().filter(|_| args.serve_for != Some(Duration::ZERO)) else {
        return Ok(());
    };
    if let Some(on_target) = on_target {
        serve_from(&on_target, args, &targets[0], node)?;
    }
    go_on(context, args.serve_for, (&client, &stop), (node, done.received), starter)
}

/// Serves others after the end: for `time` if it is said, else in the background for as long as the fetch took.
fn go_on(
    context: &Context,
    time: Option<Duration>,
    (client, stop): (&Client, &Stop),
    (node, took): (&Node, Duration),
    starter: Option<aside::Starter>,
) -> Result<()> {
    match (time, starter) {
        (Some(time), _) => serve(context, (client, stop), time, &|| node.traffic().sent_bytes),
        // Nobody would get through to a narrow one.
        (None, Some(starter)) if !node.is_narrow() => {
            let time = aside::serving_time(took);
            starter.leave(context, time)?;
            while_there(client, time, stop);
            Ok(())
        }
        (None, _) => Ok(()),
    }
}

/// Says what would be written.
fn plan(
    context: &Context,
    args: &Args,
    targets: &[PathBuf],
    (manifest, client): (&Manifest, &Client),
) -> Result<()> {
    check_form(args)?;
    let beginnings = target::beginnings(targets, &args.writing);
    check_targets(&beginnings, manifest, (client, client.cipher()), &args.writing)?;
    let catalogue = Catalogue::load(manifest, client, client.cipher())?;
    for target in &beginnings {
        target::show_old(target, manifest, &catalogue, &args.writing, context.output)?;
    }
    let record = json!({
        "type": "plan", "image": manifest.image, "number": manifest.number,
        "target": targets[0].display().to_string(), "targets": target::texts(targets),
        "into": args.writing.into, "encoded_bytes": manifest.statistics.encoded_bytes,
    });
    context.output.result(&record, || target::plan(&beginnings, manifest, &args.writing))
}

/// How this machine takes part in serving others.
fn peers(args: &Args) -> Option<PeerOptions> {
    let mut options = PeerOptions::of_this_machine();
    options.spool.file_bytes = args.spool;
    options.spool.memory_bytes = args.spool_memory.unwrap_or(options.spool.memory_bytes);
    options.spool.folder.clone_from(&args.spool_folder);
    options.place = args.place.as_deref().map_or(0, daemon::place_number);
    options.upload_bytes_per_second = args.upload_limit.map(|bits| bits / 8);
    (!args.no_peers).then_some(options)
}

/// Refuses what the target can't have, and what is not written as it arrives.
fn check_form(args: &Args) -> Result<()> {
    if args.writing.compress {
        let text = "--compress takes a disk from a repository, not through a server";
        return Err(Failure::new(Exit::Usage, text).hint("`qemu-img convert -c` compresses it afterwards"));
    }
    Ok(())
}

/// Opens the targets if the image may be written to them.
fn open_all(
    context: &Context,
    args: &Args,
    targets: &[PathBuf],
    (manifest, client): (&Manifest, &Client),
    stop: &Stop,
) -> Result<(Vec<Arc<dyn WriteAt>>, Drafts)> {
    check_form(args)?;
    let beginnings = target::beginnings(targets, &args.writing);
    check_targets(&beginnings, manifest, (client, client.cipher()), &args.writing)?;
    for target in &beginnings {
        target::confirm(target, manifest, &context.global, Some(&args.writing))?;
    }
    interrupt::leaves(left_in(&args.target));
    let asked = stop.clone();
    interrupt::cooperate(move || asked.stop())?;
    open_targets(targets, manifest, &args.writing, &args.effort)
}

fn fetch(
    context: &Context,
    args: &Args,
    client: &Arc<Client>,
    version: &SignedManifest,
    (disks, name, reporter): (Vec<Arc<dyn WriteAt>>, String, HostReporter),
    stop: Stop,
) -> Result<(FetchReport, Option<Arc<OnTarget>>)> {
    let meter = Meter::new(context.output, context.global.quiet).of_network(reporter.arrived());
    let meter = Arc::new(meter);
    let mut install = target::options(&args.target, &args.writing, &args.effort);
    install.decode = !target::is_null(&args.target);
    let on_target = serves_target(args, &disks);
    let watcher = meter.clone();
    let progress = reporter.watch(meter.clone());
    let (output, writing) = (context.output, args.writing.clone());
    let begin = Box::new(move |catalogue: Arc<Catalogue>| {
        for disk in &disks {
            let old = image::old_signatures(&catalogue, &**disk, disk.geometry().size_bytes)?;
            // A failure to print must not stop the work.
            watcher.suspend(|| drop(target::show_signatures(&old, &writing, output)));
        }
        Installer::begin_several(catalogue, disks, install, progress)
    });
    let teller = meter.clone();
    let options = FetchOptions {
        transport: transport(args.transport),
        interface: args.interface.clone(),
        buffer_bytes: args.buffer,
        peers: peers(args),
        on_target: on_target.clone(),
        arrived: Arc::clone(reporter.arrived()),
        stop,
        tell: Arc::new(move |words: &str| teller.suspend(|| output.remark(words))),
        ..FetchOptions::new(name)
    };
    let done = net::fetch::fetch(client, version, begin, &options);
    meter.finish();
    reporter.end(done.as_ref());
    // The disks are closed; it held one of them.
    match (&on_target, done.as_ref().ok().and_then(|done| done.node.as_ref())) {
        (Some(target), Some(node)) => target.leave(node),
        (Some(target), None) => target.close(),
        (None, _) => {}
    }
    done.map(|done| (done, on_target)).map_err(|error| {
        let failure = explain(error, &args.target);
        if failure.exit == Exit::Interrupted { interrupt::failure() } else { failure }
    })
}

/// The first of the targets, if others may get what memory does not keep from there.
fn serves_target(args: &Args, disks: &[Arc<dyn WriteAt>]) -> Option<Arc<OnTarget>> {
    let disk = Arc::clone(disks.first().filter(|_| !target::is_null(&args.target))?);
    Some(Arc::new(OnTarget::new(move |recoder, id| recoder.object(id, &*disk))))
}

fn transport(choice: Transport) -> net::fetch::Transport {
    match choice {
        Transport::Auto => net::fetch::Transport::Auto,
        Transport::Multicast => net::fetch::Transport::Multicast,
        Transport::Unicast => net::fetch::Transport::Unicast,
    }
}

/// Lets others have what is on the target, now that it is closed: it is opened for each read.
fn serve_from(on_target: &OnTarget, args: &Args, target: &Path, node: &Node) -> Result<()> {
    if args.memory_only || args.writing.into.is_some() || !target::is_plain(target, &args.writing) {
        return Ok(());
    }
    let target = std::path::absolute(target)?;
    on_target.read_by(move |recoder, id| recoder.object(id, &disk::open_source(&target).ok()?));
    on_target.is_whole(node);
    Ok(())
}

/// The transports that carried the bytes, as text.
fn way(done: &FetchReport) -> String {
    let names: Vec<_> = ways(done).into_iter().map(|(_, name)| name).collect();
    match &names[..] {
        [] => "nothing".to_owned(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// What came by each transport that brought anything.
fn ways(done: &FetchReport) -> Vec<(u64, &'static str)> {
    let all =
        [(done.multicast_bytes, "multicast"), (done.peer_bytes, "peers"), (done.unicast_bytes, "unicast")];
    all.into_iter().filter(|(bytes, _)| *bytes > 0).collect()
}

fn record(targets: &[PathBuf], manifest: &Manifest, done: &FetchReport) -> serde_json::Value {
    json!({
        "type": "fetched", "reference": done.reference, "root": manifest.root.name().to_hex(),
        "sector_bytes": manifest.logical_sector_bytes,
        "target": targets[0].display().to_string(), "targets": target::texts(targets),
        "transport": way(done),
        "multicast_bytes": done.multicast_bytes, "unicast_bytes": done.unicast_bytes,
        "peer_bytes": done.peer_bytes, "peers": peer_record(done),
        "served_bytes": done.node.as_ref().map(|node| node.traffic().sent_bytes),
        "unicast_reason": done.unicast_reason, "sessions": done.sessions,
        "received_seconds": done.received.as_secs_f64(), "installed_seconds": done.installed.as_secs_f64(),
        "report": report_record(&done.install),
    })
}

/// What it asked other machines for, and what came of it.
fn peer_record(done: &FetchReport) -> serde_json::Value {
    let counters = &done.peer_counters;
    json!({
        "requests": counters.requests, "repeated": counters.repeated, "unanswered": counters.unanswered,
        "objects_from_peers": counters.from_members, "objects_from_server": counters.from_server,
        "waits": counters.waits, "liars": counters.liars, "failures": counters.failures,
        "doubled": counters.doubled, "crowded": counters.crowded,
    })
}

fn text(args: &Args, targets: &[PathBuf], done: &FetchReport) -> String {
    let bytes = done.multicast_bytes + done.peer_bytes + done.unicast_bytes;
    let rate = show_rate(bytes, done.received);
    let (received, installed) = (show_duration(done.received), show_duration(done.installed));
    let by = |(bytes, name): (u64, &str)| match name {
        "peers" => format!("{} from other machines", show_bytes(bytes)),
        name => format!("{} by {name}", show_bytes(bytes)),
    };
    let ways = match ways(done) {
        none if none.is_empty() => "nothing had to be fetched".to_owned(),
        some => some.into_iter().map(by).collect::<Vec<_>>().join(", "),
    };
    let why = done
        .unicast_reason
        .as_ref()
        .filter(|_| args.transport != Transport::Unicast)
        .map(|why| format!("unicast because {why}\n"))
        .unwrap_or_default();
    if target::is_null(&args.target) {
        let took = format!("received in {received} ({rate})");
        let verified = show_bytes(bytes);
        return format!(
            "fetched {}: {ways}, {took}\n{why}{verified} verified, nothing written\n",
            done.reference
        );
    }
    format!(
        "fetched {} to {}: {ways}, received in {received} ({rate}), installed after {installed}\n{why}{}\n",
        done.reference,
        target::list(targets, &args.writing),
        sentence(&done.install, &args.target)
    )
}
