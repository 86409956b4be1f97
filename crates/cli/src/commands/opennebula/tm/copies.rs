//! Disks that begin as images: CLONE and LN.

use std::time::Duration;

use base::limits::SECTOR_BYTES;
use base::units::show_bytes;
use base::{Digest, Instant};
use net::api::{Copies, HostJob, Put, WORK_FORMAT};
use net::clock::Stop;
use net::deploy::{Host, HostState, Meeting, Rules, Way};

use crate::args::ServerAccess;
use crate::commands::Context;
use crate::commands::opennebula::place::{Place, Source};
use crate::commands::opennebula::settings::{Form, Repository, Settings, address};
use crate::commands::opennebula::vm::Machine;
use crate::commands::opennebula::volume;
use crate::exit::{Exit, Failure, Result};
use crate::{connect, interrupt, repository, runtime, version};

/// How often it is said how far a disk is.
const REPORT: Duration = Duration::from_secs(10);
/// How long the server may take to answer at first.
const WAIT: Duration = Duration::from_secs(20);
const MIB: u64 = 1 << 20;

/// What is to be where.
pub(super) struct Order<'a> {
    pub source: &'a Source,
    pub target: &'a Place,
    pub form: Form,
    /// The least size of the disk, in MB.
    pub size_mb: Option<u64>,
}

/// Makes the disk of a machine a copy of its image.
pub(super) fn clone(context: &Context, source: &str, target: &str, machine: &str) -> Result<()> {
    make(context, &Source::parse(source)?, &Place::parse(target)?, machine)
}

/// Makes it the newest version of an image that the machine keeps.
pub(super) fn link(context: &Context, source: &str, target: &str, machine: &str) -> Result<()> {
    let source = Source::parse(source)?;
    if source.is_pinned() {
        let text = format!("{source} is one version for ever: what a machine changes could not be kept");
        return Err(Failure::new(Exit::Refused, text)
            .hint("clone the image (oneimage clone), and make the clone persistent"));
    }
    make(context, &source, &Place::parse(target)?, machine)
}

fn make(context: &Context, source: &Source, target: &Place, machine: &str) -> Result<()> {
    let settings = Settings::load()?;
    // A kernel or an initrd is a file that nobody changes.
    let Some(number) = target.disk() else {
        return place(context, &settings, &Order { source, target, form: Form::Full, size_mb: None });
    };
    let machine = Machine::ask(machine)?;
    let disk = machine.disk(number)?;
    let form = disk.form(&settings)?;
    if let Some(format) = disk.format.as_deref().filter(|format| *format != form.format()) {
        let text = format!("disk {number} is to be {format}, but DISKCAST_COPY makes it {}", form.format());
        return Err(Failure::new(Exit::Refused, text).hint(
            "DRIVER and DISKCAST_COPY must agree: overlay and demand are qcow2, share, full and volume are raw",
        ));
    }
    place(context, &settings, &Order { source, target, form, size_mb: disk.size_mb })
}

/// Does it by a job of the host, which waits for the fetch of another job if that brings the same image.
pub(super) fn place(context: &Context, settings: &Settings, order: &Order<'_>) -> Result<()> {
    let repository = settings.repository(&order.source.repository)?;
    let Found { reference, root, bytes } = find(context, repository, &order.source.name)?;
    let folder = order.target.folder();
    let store = folder.rsplit_once('/').map_or("", |(store, _)| store);
    // The folder, and who tells OpenNebula how much is used of it.
    let mut before = format!("mkdir -p {folder} && echo diskcast >{store}/.monitor");
    let mut target = order.target.path.clone();
    let copy = match order.form {
        Form::Overlay => Some(Copies::Overlay),
        Form::Share => Some(Copies::Share),
        Form::Demand => Some(Copies::Demand),
        Form::Full | Form::Volume => None,
    };
    let mut options = Vec::new();
    if copy.is_none() {
        // A host gets disk after disk, and machines start from them.
        let serves: &[&str] =
            if settings.serve_seconds == 0 { &["--serve-for", "0"] } else { &["--memory-only"] };
        options.extend(serves.iter().map(|word| (*word).to_owned()));
    }
    let size_bytes = order.size_mb.map(|size| size * MIB);
    if order.form == Form::Volume {
        let device = volume::device(settings, order.target)?;
        before = format!("{before}\n{}", volume::make(&device, &target, size_bytes.unwrap_or(0), bytes));
        target = device;
        // What it had before it was this volume may be of others.
        options.extend(["--free".to_owned(), "zero".to_owned()]);
    }
    let put = Put {
        reference,
        root: root.to_hex(),
        copy,
        mount: (order.form == Form::Demand).then(|| settings.mount.clone()),
        serve_seconds: settings.serve_seconds,
        options,
        before: Some(before),
        ..Put::default()
    };
    let job = HostJob {
        format: WORK_FORMAT,
        server: repository.server.clone(),
        token: repository.token()?,
        target,
        put,
        size_bytes: size_bytes.filter(|_| order.form != Form::Volume),
        // A script that was killed may have begun; no machine has run from the disk yet. What a new volume has is
        // nothing to compare with.
        resume: order.form != Form::Volume,
        replace: true,
        meets: false,
    };
    let host = Host { name: order.target.host.clone(), address: address(&order.target.host), job };
    let stop = Stop::new();
    let asked = stop.clone();
    interrupt::cooperate(move || asked.stop())?;
    let mut told = Instant::default();
    // Without a place to meet, its host goes alone.
    let place = runtime::folder_for("meetings").ok();
    let meeting = place.map(|place| Meeting::of(place, root, settings.window()));
    let way = Way::Ssh(settings.ssh(), meeting.as_ref());
    let done = net::deploy::run(&[host], (root, Rules::default()), &way, &stop, |deploy, now| {
        if let HostState::Working { done, total, .. } = deploy.host(0)
            && now.since(told) >= REPORT
        {
            told = now;
            let (done, total) = (show_bytes(*done), show_bytes(*total));
            context.output.remark(&format!("INFO: {}: {done} of {total}", order.target));
        }
    });
    match done.host(0) {
        HostState::Ready { .. } => Ok(()),
        HostState::Failed { why } => {
            Err(Failure::new(Exit::Failed, format!("host {}: {why}", order.target.host)))
        }
        _ => Err(Failure::new(Exit::Interrupted, "it was called off")),
    }
}

/// A version.
struct Found {
    /// `image@number`.
    reference: String,
    /// The name of its content.
    root: Digest,
    /// Size of its disk.
    bytes: u64,
}

/// The version that `name` means now, as the server has it.
fn find(context: &Context, repository: &Repository, name: &str) -> Result<Found> {
    let reference = repository::reference(name)?;
    let access = ServerAccess { token_file: Some(repository.token_file.clone()), wait: WAIT };
    let client =
        connect::client(&repository.server, &access, &context.global.keys, Stop::new(), context.output)?;
    let manifest = version::find(context, &client, client.url(), &reference)?.manifest;
    let reference = format!("{}@{}", manifest.image, manifest.number);
    let bytes = manifest.size_sectors * SECTOR_BYTES;
    Ok(Found { reference, root: manifest.root.name(), bytes })
}
