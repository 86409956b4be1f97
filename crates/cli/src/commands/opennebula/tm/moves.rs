//! Disks that go elsewhere: to another host, or back to the repository.

use super::copies::{self, Order};
use super::snapshots::{name_inside, name_of_volume};
use super::volumes::{self, Volume};
use crate::commands::Context;
use crate::commands::opennebula::host::{self, What};
use crate::commands::opennebula::place::{Place, Source};
use crate::commands::opennebula::settings::{Form, Settings};
use crate::commands::opennebula::vm::Machine;
use crate::commands::opennebula::volume::either;
use crate::exit::{Exit, Failure, Result};

/// End of the names of overlays that are there while a folder is moved.
const MOVING: &str = ".moving";

/// Moves a machine's folder to another host. The call for each disk is of no account: it is in the folder.
pub(super) fn to_host(context: &Context, from: &str, to: &str, machine: &str) -> Result<()> {
    let (from, to) = (Place::parse(from)?, Place::parse(to)?);
    if from == to || from.disk().is_some() {
        return Ok(());
    }
    if !from.is_of_a_machine() || !to.is_of_a_machine() {
        return Err(Failure::new(Exit::Refused, format!("`{from}` or `{to}` is not a machine's folder")));
    }
    let machine = Machine::ask(machine)?;
    if machine.lost_its_host() {
        return Ok(());
    }
    let settings = Settings::load()?;
    // Under another name until it is complete, and again once it is to go: whoever finds a folder finds all of it.
    let (part, gone) = (format!("{}.part", to.path), format!("{}.gone", from.path));
    let drop_gone = format!("drop_volumes {gone}/disk.*\nrm -rf {gone}");
    let Some(bases) = bases(&settings, &machine, &from)? else {
        // It was moved before, and nobody heard of it; or it is nowhere.
        host::run(&settings, &to.host, &format!("cd {}", to.path), b"")?;
        return host::run(&settings, &from.host, &drop_gone, b"").map(drop);
    };
    let part = Place { host: to.host.clone(), path: part };
    host::run(&settings, &to.host, &format!("rm -rf {0}\nmkdir -p {0}", part.path), b"")?;
    if is_one_place(&settings, &from, &to, &part)? {
        return host::run(&settings, &to.host, &format!("rm -rf {}", part.path), b"").map(drop);
    }
    let volumes = volumes::list(&settings, &from)?;
    let mut left_out = String::new();
    for Volume { disk, .. } in &volumes {
        left_out += &format!(" --exclude=./disk.{disk} --exclude=./disk.{disk}.volume");
    }
    for base in &bases {
        // The other host fetches what it lacks, as for a new machine; what it can't fetch is sent with the rest.
        if bring(context, &settings, base, &part).is_ok() {
            left_out += &format!(" --exclude=./{}", base.name);
        }
    }
    let sent = send(&settings, (&from, &part), &left_out).and_then(|()| {
        for volume in &volumes {
            volumes::send(&settings, volume, (&from, &to, &part), machine.rests())?;
        }
        if machine.rests() { Ok(()) } else { find_images(&settings, &machine, &part) }
    });
    if let Err(failure) = sent {
        // A host that can't be reached any more keeps the part, which the next try replaces.
        let remove = format!("drop_volumes {0}/disk.*\nrm -rf {0}", part.path);
        let _ = host::run(&settings, &to.host, &remove, b"");
        return Err(failure);
    }
    let name = format!("rm -rf {1}\nmv {0} {1}\nrm -f {1}/.*{MOVING}\nsync -f {1}", part.path, to.path);
    host::run(&settings, &to.host, &name, b"")?;
    let remove = format!("rm -rf {gone}\nmv {} {gone}\n{drop_gone}", from.path);
    host::run(&settings, &from.host, &remove, b"").map(drop)
}

/// Whether `from` and `to` are one folder, on a host that has two names: what was put into the part under one name is
/// seen under the other one.
fn is_one_place(settings: &Settings, from: &Place, to: &Place, part: &Place) -> Result<bool> {
    if from.path != to.path {
        return Ok(false);
    }
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|_| Failure::new(Exit::Failed, "there are no random numbers"))?;
    let mark = format!("{}/.diskcast-mark-{}", part.path, base::hex::encode(&random));
    host::run(settings, &to.host, &format!(": >{mark}"), b"")?;
    let told = host::run(settings, &from.host, &format!("[ ! -e {mark} ] || echo here"), b"")?;
    host::run(settings, &to.host, &format!("rm {mark}"), b"")?;
    Ok(told.trim() == "here")
}

/// An image that disks of a machine lie over, by its name beside them.
struct Base {
    /// `.diskcast-KEY`.
    name: String,
    /// The version by which the host got it.
    reference: String,
    repository: String,
}

/// The images beside the disks at `from` that the host still knows; `None` if there is no such folder.
fn bases(settings: &Settings, machine: &Machine, from: &Place) -> Result<Option<Vec<Base>>> {
    let sources = machine.disks().iter().filter_map(|disk| Source::parse(disk.source.as_deref()?).ok());
    let repository = sources.map(|source| source.repository).next();
    let script = format!(
        "[ -d {0} ] || exit 0\ncd {0}\nls -A | grep '^[.]diskcast-' || true\necho\n{1} agent --list --json || true",
        from.path,
        settings.program()
    );
    let text = host::run(settings, &from.host, &script, b"")?;
    if text.is_empty() {
        return Ok(None);
    }
    let Some(repository) = repository else { return Ok(Some(Vec::new())) };
    let (names, kept) = text.split_once("\n\n").unwrap_or((text.trim(), ""));
    let kept: Vec<serde_json::Value> =
        kept.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let known = names.lines().filter_map(|name| {
        let key = name.trim().strip_prefix(".diskcast-")?;
        let image = kept.iter().find(|image| image["key"] == key)?;
        let reference = image["image"].as_str()?.to_owned();
        Some(Base { name: name.trim().to_owned(), reference, repository: repository.clone() })
    });
    Ok(Some(known.collect()))
}

/// Makes an overlay over the image in the folder `to`, so that the image is beside it, and stays there until the disks
/// have come that need it.
fn bring(context: &Context, settings: &Settings, base: &Base, to: &Place) -> Result<()> {
    let source = Source { repository: base.repository.clone(), name: base.reference.clone() };
    let target = Place { host: to.host.clone(), path: format!("{}/{}{MOVING}", to.path, base.name) };
    let order = Order { source: &source, target: &target, form: Form::Overlay, size_mb: None };
    copies::place(context, settings, &order)?;
    host::run(settings, &to.host, &format!("test -e {}/{}", to.path, base.name), b"").map(drop)
}

/// Looks whether the disks in the folder `at` find what they lie over.
fn find_images(settings: &Settings, machine: &Machine, at: &Place) -> Result<()> {
    for disk in machine.disks().iter().filter(|disk| disk.file_format().is_ok_and(|format| format == "qcow2"))
    {
        let path = format!("{}/disk.{}", at.path, disk.number);
        let look = format!("[ ! -e {path} ] || qemu-img info -U -f qcow2 --backing-chain {path} >/dev/null");
        host::run(settings, &at.host, &look, b"").map_err(|failure| {
            failure.hint(format!(
                "a disk with DISKCAST_COPY=demand needs a mount of the repository at {} on that host",
                settings.mount
            ))
        })?;
    }
    Ok(())
}

/// Sends the folder from one host to the other, through this machine.
fn send(settings: &Settings, (from, to): (&Place, &Place), left_out: &str) -> Result<()> {
    let pack = format!("tar -C {} -cSf - {left_out} .", from.path);
    let unpack = format!("tar -C {} --unlink-first -xSf -\nsync -f {0}", to.path);
    volumes::pipe(settings, (from, &pack), (to, &unpack))
}

/// Saves a disk that a machine keeps as the next version of its image.
pub(super) fn to_image(from: &str, source: &str, machine: &str) -> Result<()> {
    let (from, source) = (Place::parse(from)?, Source::parse(source)?);
    if source.is_pinned() {
        return Err(Failure::new(Exit::Refused, format!("{source} is one version for ever"))
            .hint(format!("the disk stays at {from}")));
    }
    let settings = Settings::load()?;
    let (_, format) = Machine::with_disk(&from, machine)?;
    let repository = settings.repository(&source.repository)?;
    host::capture(&settings, repository, (&from, format), &source.name, &What::File)?;
    Ok(())
}

/// Saves a disk as a new image: as it is, or as it was at a snapshot. The machine may run.
pub(super) fn to_new_image(from: &str, source: &str, snapshot: &str, machine: &str) -> Result<()> {
    let (from, source) = (Place::parse(from)?, Source::parse(source)?);
    let settings = Settings::load()?;
    let (machine, format) = Machine::with_disk(&from, machine)?;
    let repository = settings.repository(&source.repository)?;
    let path = &from.path;
    let copy = match snapshot.parse::<u32>() {
        Err(_) => host::still_copy(&settings, path, machine.running()),
        Ok(snapshot) => {
            let take = if format == "qcow2" {
                let name = name_inside(snapshot);
                format!("qemu-img convert -U -l snapshot.name={name} -f qcow2 -O qcow2 {path} {path}.save")
            } else {
                let volume = format!("ln -sfn {} {path}.save", name_of_volume(snapshot));
                let file = format!("cp --reflink=auto --sparse=always {path}.snap/{snapshot} {path}.save");
                either(path, &volume, &file)
            };
            format!("trap 'rm -f {path}.save' EXIT\n{take}")
        }
    };
    host::capture(&settings, repository, (&from, format), &source.name, &What::Copy(&copy))?;
    Ok(())
}
