//! `diskcast fetch --torrent`: fetches by BitTorrent. Pieces go through the same install as objects: it checks the
//! target first, erases old signatures, writes what has the right plain digest, and reads everything back.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::units::{show_bytes, show_duration};
use base::{Error, ErrorKind};
use disk::logical_volume::Snapshot;
use disk::{ReadAt, WriteAt};
use image::{Catalogue, InstallOptions, InstallReport, Installer, SignedManifest};
use net::client::Client;
use net::clock::{Clock, Stop, jitter};
use net::fetch::{Counting, HostReporter};
use serde_json::json;
use torrent::fetch::{Fetched, Job};
use torrent::{Metainfo, TargetContent};

use super::Context;
use super::install::{after_install, explain, report_record, sentence};
use super::serving;
use crate::args::{Effort, Writing};
use crate::exit::{Exit, Failure, Result};
use crate::interrupt;
use crate::target::{self, Drafts};
use crate::ui::progress::{Meter, show_rate};

/// How a version is fetched.
pub(crate) struct Way {
    /// Where peers connect.
    pub port: u16,
    /// Number of this machine's place; 0 if the server may know it.
    pub place: u32,
    /// How long it is served to others afterwards.
    pub serve_for: Option<Duration>,
    /// Whether a copy of it is served, and not the target itself.
    pub serve_copy: bool,
    pub stop: Stop,
}

/// Where it is written, and how.
pub(crate) struct Writes<'a> {
    pub targets: &'a [PathBuf],
    pub writing: &'a Writing,
    pub effort: &'a Effort,
}

/// What was done.
struct Done {
    fetched: Fetched,
    content: Arc<TargetContent>,
    /// Bytes of objects that came from the server, since no piece brought them.
    unicast_bytes: u64,
    received: Duration,
    installed: Duration,
    install: InstallReport,
}

/// Fetches `version` to `disks`, which are open.
pub(crate) fn fetch(
    context: &Context,
    (client, version): (&Arc<Client>, &SignedManifest),
    writes: Writes<'_>,
    (disks, drafts, reporter): (Vec<Arc<dyn WriteAt>>, Drafts, HostReporter),
    way: &Way,
) -> Result<()> {
    let Writes { targets, writing, effort } = writes;
    let meter = Arc::new(Meter::new(context.output, context.global.quiet).of_network(reporter.arrived()));
    let options = target::options(&targets[0], writing, effort);
    let task =
        Task { context, client, version, disks, options, writing, reporter: &reporter, meter: &meter, way };
    let done = task.install();
    // It holds the target, which a machine may want for itself.
    drop(task);
    meter.finish();
    reporter.end_install(done.as_ref().map(|done| &done.install));
    let done = done.map_err(|error| {
        let failure: Failure = explain(error, &targets[0]);
        if failure.exit == Exit::Interrupted { interrupt::failure() } else { failure }
    })?;
    drafts.finish()?;
    let reference = format!("{}@{}", version.manifest.image, version.manifest.number);
    // Before anybody is told that the target is ready.
    let copy = way.serve_copy.then(|| ServedCopy::of(context, &targets[0], &done.content)).transpose();
    let told =
        context.output.result(&record(&reference, targets, &done), || text(&reference, &writes, &done));
    let finished = told.and_then(|()| after_install(targets, &version.manifest, writing, context.output));
    let (finished, copy) = match copy {
        Ok(copy) => (finished, copy),
        Err(failure) => (finished.and(Err(failure)), None),
    };
    let served = finished.and_then(|()| match way.serve_for {
        Some(time) => serve_others(context, &done.fetched, time, &way.stop),
        None => Ok(()),
    });
    // Nobody reads the copy any more.
    drop(done);
    served.and(copy.map_or(Ok(()), ServedCopy::remove))
}

/// A copy of the target that is served in its place. A file has no name, and is gone with this process.
struct ServedCopy(Option<Snapshot>);

impl ServedCopy {
    /// Makes it, and serves it as `content`.
    fn of(context: &Context, target: &Path, content: &TargetContent) -> Result<Self> {
        let (source, snapshot) = if target.is_file() {
            let copy = target.with_file_name(format!(".diskcast-serves-{}", std::process::id()));
            disk::second_copy::share_blocks(target, &copy)
                .map_err(|error| Failure::from(error).hint("the image is there; leave out --serve-copy"))?;
            let source = disk::open_source(&copy);
            std::fs::remove_file(&copy)?;
            (source?, None)
        } else {
            let snapshot = super::capture::snapshot(context, target, "leave out --serve-copy")?;
            (disk::open_source(&snapshot.volume().path())?, Some(snapshot))
        };
        content.serve_from(Arc::new(source));
        Ok(Self(snapshot))
    }

    fn remove(self) -> Result<()> {
        Ok(self.0.map_or(Ok(()), |snapshot| snapshot.volume().remove())?)
    }
}

/// A fetch that is about to begin.
struct Task<'a> {
    context: &'a Context,
    client: &'a Arc<Client>,
    version: &'a SignedManifest,
    disks: Vec<Arc<dyn WriteAt>>,
    options: InstallOptions,
    writing: &'a Writing,
    reporter: &'a HostReporter,
    meter: &'a Arc<Meter>,
    way: &'a Way,
}

impl Task<'_> {
    fn install(&self) -> base::Result<Done> {
        let clock = Clock::start();
        let manifest = &self.version.manifest;
        let bytes = self.client.torrent(&format!("{}@{}", manifest.image, manifest.number))?;
        let (torrent, tracker) = Metainfo::parse(&bytes)?;
        let wrong = |what: &str| Error::new(ErrorKind::Corrupt, format!("the server's torrent {what}"));
        let tracker = tracker.ok_or_else(|| wrong("names no tracker"))?;
        let catalogue = Arc::new(Catalogue::load(manifest, &**self.client, self.client.cipher())?);
        if torrent.length() != catalogue.layout().size_bytes() {
            return Err(wrong("is of another version"));
        }
        let installer = self.begin(&catalogue)?;
        let disk: Arc<dyn ReadAt> = Arc::clone(&self.disks[0]) as _;
        let content = Arc::new(TargetContent::new(catalogue, disk, installer));
        let job = Job {
            have: content.pieces(torrent.piece_bytes())?,
            torrent: Arc::new(torrent),
            tracker,
            content: Arc::clone(&content) as Arc<_>,
            listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, self.way.port)),
            place: self.way.place,
            chance: jitter(),
            is_stopped: &|| self.way.stop.is_stopped(),
        };
        let fetched = torrent::fetch::fetch(job)?;
        let installer = content.take_installer().expect("it was put there");
        if let Some(why) = &fetched.gave_up {
            self.meter.suspend(|| self.context.output.remark(&format!("continuing by unicast: {why}")));
        }
        // Nothing, if all pieces came.
        installer.pull(&Counting::new(&**self.client, self.reporter.arrived()))?;
        let received = clock.elapsed();
        let install = installer.finish()?;
        let (unicast_bytes, installed) = (self.reporter.arrived().unicast_bytes(), clock.elapsed());
        Ok(Done { fetched, content, unicast_bytes, received, installed, install })
    }

    fn begin(&self, catalogue: &Arc<Catalogue>) -> base::Result<Installer> {
        for disk in &self.disks {
            let old = image::old_signatures(catalogue, &**disk, disk.geometry().size_bytes)?;
            // A failure to print must not stop the work.
            let output = self.context.output;
            self.meter.suspend(|| drop(target::show_signatures(&old, self.writing, output)));
        }
        let progress = self.reporter.watch(self.meter.clone());
        Installer::begin_several(Arc::clone(catalogue), self.disks.clone(), self.options, progress)
    }
}

/// Serves other machines for `time`, or until Ctrl-C.
fn serve_others(context: &Context, fetched: &Fetched, time: Duration, stop: &Stop) -> Result<()> {
    serving::serving(context, time)?;
    stop.pause(time);
    serving::served(context, fetched.torrent.traffic().sent_bytes)
}

fn record(reference: &str, targets: &[PathBuf], done: &Done) -> serde_json::Value {
    let traffic = done.fetched.torrent.traffic();
    json!({
        "type": "fetched", "reference": reference, "transport": "torrent",
        "target": targets[0].display().to_string(), "targets": target::texts(targets),
        "torrent_bytes": traffic.received_bytes, "unicast_bytes": done.unicast_bytes,
        "served_bytes": traffic.sent_bytes, "unicast_reason": done.fetched.gave_up,
        "received_seconds": done.received.as_secs_f64(), "installed_seconds": done.installed.as_secs_f64(),
        "report": report_record(&done.install),
    })
}

fn text(reference: &str, writes: &Writes<'_>, done: &Done) -> String {
    let bytes = done.fetched.torrent.traffic().received_bytes;
    let unicast = match done.unicast_bytes {
        0 => String::new(),
        bytes => format!(", {} by unicast", show_bytes(bytes)),
    };
    let (received, rate) = (show_duration(done.received), show_rate(bytes, done.received));
    format!(
        "fetched {reference} to {}: {} by BitTorrent{unicast}, received in {received} ({rate}), \
         installed after {}\n{}\n",
        target::list(writes.targets, writes.writing),
        show_bytes(bytes),
        show_duration(done.installed),
        sentence(&done.install, &writes.targets[0])
    )
}
