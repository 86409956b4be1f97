//! `diskcast cluster try`: a whole cluster on this machine, each part a process of its own.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use cluster::Width;
use cluster::client::{Cluster, ClusterAccess};
use serde_json::json;
use store::{Location, Repository, Setting};

use crate::args::parse::parse_width;
use crate::commands::Context;
use crate::commands::metadata::token_in;
use crate::exit::{Exit, Failure, Result};
use crate::{clock, interrupt, notify, repository};

/// Longest wait for the parts to find each other.
const START_MAX: Duration = Duration::from_secs(60);
/// Longest wait for the end of a part.
const END_MAX: Duration = Duration::from_secs(10);
/// Time between two looks at the parts.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Run a whole cluster on this machine, to try it
///
/// Starts a metadata service and devices, each a process of its own with a folder of its own, and makes a repository
/// there. Kill any of the processes: with 8+2, two may be away at any time, and nothing that was stored is missing. A
/// device that ended comes back with the command that is printed for it, or with the next start of this one. Ends on
/// SIGINT or SIGTERM; the folder stays.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast cluster try /srv/try --devices 10
  diskcast cluster try try --devices 5 --width 3+2 --listen 127.0.0.1:7500")]
pub(crate) struct Args {
    /// Folder of all its parts; made if it is missing
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
    /// How many devices
    #[arg(long, value_name = "COUNT", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=200))]
    pub devices: u16,
    /// Data and parity parts of what is stored
    #[arg(long, value_name = "DATA+PARITY", value_parser = parse_width, default_value = "8+2")]
    pub width: Width,
    /// Address of the metadata service; the devices take the ports after it
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7400")]
    pub listen: SocketAddr,
    /// Plain HTTP between the parts
    #[arg(long)]
    pub no_tls: bool,
}

impl Args {
    fn location(&self) -> String {
        format!("{}://{}", if self.no_tls { "cluster+http" } else { "cluster" }, self.listen)
    }
}

/// One process of the cluster.
struct Part {
    name: String,
    /// With which it comes back.
    words: Vec<String>,
    child: Option<Child>,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    let wanted = u16::from(args.width.components());
    if args.devices < wanted {
        let text = format!("{} devices are too few for {} parts", args.devices, wanted);
        return Err(Failure::new(Exit::Usage, text).hint("more --devices, or a smaller --width such as 2+1"));
    }
    let port = args.listen.port();
    if port == 0 || port.checked_add(args.devices).is_none() {
        let text = format!("the devices need {} ports after {port}", args.devices);
        return Err(Failure::new(Exit::Usage, text).hint("another --listen, such as 127.0.0.1:7400"));
    }
    daemon::private_file::make_folder(&args.folder)?;
    let folder = std::path::absolute(&args.folder)?;
    let token = folder.join("cluster.token");
    token_in(&token)?;
    let (end, ended) = channel();
    interrupt::cooperate(move || {
        // The receiver is there as long as the command runs.
        let _ = end.send(());
    })?;
    let plain = args.no_tls.then(|| "--no-tls".to_owned());
    let begin = |words: Vec<String>, name: &str| {
        let database = if name == "metadata" { "metadata.redb" } else { "device.redb" };
        let is_new = !folder.join(name).join(database).exists();
        start(words.into_iter().chain(plain.clone()).collect(), name, is_new)
    };
    let mut parts = vec![begin(metadata_words(args, &folder, &token), "metadata")?];
    for number in 1..=args.devices {
        parts.push(begin(device_words(args, number, &folder, &token), &format!("device-{number:02}"))?);
    }
    let global = crate::args::Global {
        repo: Some(args.location()),
        cluster_token: Some(token.clone()),
        ..context.global.clone()
    };
    ready(&global, args, &mut parts)?;
    announce(context, args, &token, &parts)?;
    notify::ready("runs a cluster");
    while ended.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
        look(context, &mut parts);
    }
    notify::stopping();
    context.output.note("stopping the cluster");
    // All of them first, so that they end at the same time.
    parts.iter_mut().filter_map(|part| part.child.as_mut()).for_each(|child| drop(child.stdin.take()));
    Ok(())
}

impl Drop for Part {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It ends by itself when its standard input is closed, unless it hangs.
            drop(child.stdin.take());
            let end = clock::now() + END_MAX;
            while matches!(child.try_wait(), Ok(None)) && clock::now() < end {
                clock::pause(LOOK_EVERY);
            }
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn metadata_words(args: &Args, folder: &Path, token: &Path) -> Vec<String> {
    let Width { data, parity } = args.width;
    let words = [
        "cluster",
        "metadata",
        &text(&folder.join("metadata")),
        "--listen",
        &args.listen.to_string(),
        "--width",
    ];
    let mut words: Vec<String> = words.map(str::to_owned).to_vec();
    words.extend([format!("{data}+{parity}"), "--cluster-token".to_owned(), text(token)]);
    words
}

fn device_words(args: &Args, number: u16, folder: &Path, token: &Path) -> Vec<String> {
    let name = format!("device-{number:02}");
    let mut listen = args.listen;
    listen.set_port(args.listen.port().saturating_add(number));
    [
        "cluster",
        "device",
        &text(&folder.join(&name)),
        "--metadata",
        &args.listen.to_string(),
        "--listen",
        &listen.to_string(),
        "--domain",
        &name,
        "--cluster-token",
        &text(token),
    ]
    .map(str::to_owned)
    .to_vec()
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn start(words: Vec<String>, name: &str, is_new: bool) -> Result<Part> {
    let program = std::env::current_exe()?;
    let child = Command::new(program)
        .args(&words)
        .args(is_new.then_some("--new"))
        .args(["--with-parent", "--quiet"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()?;
    Ok(Part { name: name.to_owned(), words, child: Some(child) })
}

/// Waits until all devices have joined, and makes the repository.
fn ready(global: &crate::args::Global, args: &Args, parts: &mut [Part]) -> Result<()> {
    let end = clock::now() + START_MAX;
    let location = global.repo.clone().unwrap_or_default();
    loop {
        for part in &mut *parts {
            if let Some(status) = part.child.as_mut().and_then(|child| child.try_wait().ok().flatten()) {
                return Err(Failure::new(Exit::Failed, format!("{} ended at once: {status}", part.name)));
            }
        }
        let up = repository::cluster_token(global).ok().and_then(|token| {
            let status = Cluster::status(&ClusterAccess::parse(&location, token).ok()?).ok()?;
            let up = status.devices.iter().filter(|view| view.device.state == cluster::State::Up);
            let up = up.filter(|view| !view.health.searching);
            Some(status.formed && up.count() >= usize::from(args.devices))
        });
        if up == Some(true) {
            break;
        }
        if clock::now() > end {
            return Err(Failure::new(Exit::Failed, "the devices did not all join within a minute"));
        }
        clock::pause(LOOK_EVERY);
    }
    let access = ClusterAccess::parse(&location, repository::cluster_token(global)?)?;
    let joined = Arc::new(Cluster::open(&access.of_repository())?);
    let setting = Setting { cluster: Some(joined), stamp: Some(repository::stamp()), ..Setting::default() };
    Repository::open_or_create_with(&location.parse::<Location>()?, &setting)?;
    Ok(())
}

fn announce(context: &Context, args: &Args, token: &Path, parts: &[Part]) -> Result<()> {
    let pids: Vec<_> =
        parts.iter().filter_map(|part| Some((&part.name, part.child.as_ref()?.id()))).collect();
    let location = args.location();
    let record = json!({
        "type": "cluster", "location": location, "token_file": token.display().to_string(),
        "processes": pids.iter().map(|(name, pid)| json!({"name": name, "pid": pid})).collect::<Vec<_>>(),
    });
    context.output.result(&record, || {
        use std::fmt::Write as _;
        let mut text = String::new();
        let Width { data, parity } = args.width;
        writeln!(text, "a cluster of {} devices, {data}+{parity}; any {parity} may fail", args.devices)
            .expect("a String takes everything");
        for (name, pid) in &pids {
            writeln!(text, "  {name:<12} process {pid}").expect("a String takes everything");
        }
        let token = token.display();
        let lines = [
            "in another terminal:",
            &format!("  export DISKCAST_REPO={location} DISKCAST_CLUSTER_TOKEN={token}"),
            "  diskcast capture disk.img classroom",
            "  diskcast cluster status",
        ];
        text + &lines.join("\n") + "\n"
    })
}

/// Tells which parts have ended since the last look.
fn look(context: &Context, parts: &mut [Part]) {
    for part in parts {
        let ended = part.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
        if let Some(status) = ended {
            part.child = None;
            let again = format!("diskcast {}", part.words.join(" "));
            context.output.remark(&format!("{} ended: {status}; back with: {again}", part.name));
        }
    }
}
