//! `diskcast capture`: stores a disk as a new version of an image, in the repository or on a server.

use std::path::{Path, PathBuf};
use std::time::Duration;

use base::ErrorKind;
use base::units::{show_bytes, show_duration};
use disk::logical_volume::{LogicalVolume, Snapshot};
use disk::{DiskMap, SurveyOptions, TableKind};
use image::{Catalogue, Cipher, KnownChunks, Manifest, ObjectSink, ObjectSource};
use mirror::Images;
use net::client::Client;
use serde_json::json;
use store::{ImageName, Reference, Repository, Writer};

use super::Context;
use super::surveyed::{self, Disk, Surveyed};
use crate::args::parse::{parse_chunk_bytes, parse_label};
use crate::args::{Effort, ServerAccess, SourceForm, Taking};
use crate::clock;
use crate::exit::{Exit, Failure, Result};
use crate::interrupt::Leaves;
use crate::source::{self, StableSource};
use crate::ui::progress::show_rate;
use crate::{connect, interrupt, repository, rescue_map, unreadable, version};

/// Capture a disk as a new version of an image
///
/// Reads the sectors that filesystems use, and everything that it does not understand. Refuses a disk that other
/// programs may write to: mounted read-write, used as swap, a file open for writing. Fails if the disk changes while it
/// is read. The version appears when all its data is durable, or not at all.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast capture /dev/sda classroom
  diskcast capture /dev/sdb data --freeze         freeze its mounted filesystems during the capture
  diskcast capture /dev/vg0/web web --snapshot    of a logical volume in use
  diskcast capture /dev/sdb old --rescue          a disk that fails: what can be read of it
  diskcast capture disk.img web --partition 2 --label os=debian-12
  diskcast capture cloud.qcow2 web                a disk of a virtual machine; cloud.img.xz works, too
  ssh other 'dd if=/dev/sdb bs=1M' | diskcast capture - web
  diskcast capture /dev/sda web --to https://10.0.0.1:7717 --token-file write.token")]
pub(crate) struct Args {
    /// Disk to read: a block device, a raw image file, QCOW2 or flat VMDK, each also compressed (gzip, xz, zstd,
    /// bzip2); what qemu-nbd reads, where it is installed; `-` for standard input; `nbd://HOST/EXPORT` or
    /// `nbd+unix:///EXPORT?socket=PATH`
    pub source: PathBuf,
    /// Image that gets the new version; it need not exist yet
    pub name: String,
    /// Capture only this partition
    #[arg(long, value_name = "NUMBER", conflicts_with = "skip")]
    pub partition: Option<u32>,
    /// Leave out the content of this partition; may be repeated
    #[arg(long, value_name = "NUMBER")]
    pub skip: Vec<u32>,
    /// Capture every sector, without reading filesystems
    #[arg(long)]
    pub raw: bool,
    #[command(flatten)]
    pub taking: Taking,
    /// Capture a disk with sectors that can't be read: they become zeros, the version is marked, and the exit code is
    /// 3. A partition whose filesystem can't be read is captured whole
    #[arg(long)]
    pub rescue: bool,
    /// Also write what was read, and what could not be, to a new map file of GNU ddrescue
    #[arg(long, value_name = "FILE", requires = "rescue")]
    pub rescue_map: Option<PathBuf>,
    /// Version whose chunks are not stored or sent again where the disk has them [default: the newest of NAME]
    #[arg(long, value_name = "VERSION")]
    pub base: Option<String>,
    /// Note stored with the version; may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_label)]
    pub labels: Vec<(String, String)>,
    /// Send the data to this server and store nothing locally
    #[arg(long, value_name = "SERVER")]
    pub to: Option<String>,
    #[command(flatten)]
    pub access: ServerAccess,
    /// Logical size of a chunk, a power of two
    #[arg(long, value_name = "SIZE", value_parser = parse_chunk_bytes, default_value = "256K")]
    pub chunk: u32,
    #[command(flatten)]
    pub effort: Effort,
}

/// Maximum number of data chunks of the newest version that are kept in memory, so that equal chunks are not encoded
/// again.
const KNOWN_CHUNKS_MAX: u64 = 1 << 20;

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    let image: ImageName = args.name.parse()?;
    let skip = args.skip.clone();
    let options = SurveyOptions { raw: args.raw, partition: args.partition, skip, live: false };
    interrupt::leaves(Leaves::NoVersion);
    args.rescue_map.as_deref().map_or(Ok(()), rescue_map::check_absent)?;
    let client = match &args.to {
        // A token that may not write is refused before the disk is looked at, or a filesystem frozen.
        Some(server) if !context.global.dry_run => {
            Some(connect::writer(server, &args.access, context, true)?)
        }
        _ => None,
    };
    let _keeper = client.as_ref().map(|client| connect::keep_token(context, client)).transpose()?;
    if let Some(address) = source::export(&args.source) {
        let disk = source::open_export(address, &args.taking)?;
        let is_live = !disk.is_read_only();
        let (path, rescue) = (&args.source, args.rescue);
        let disk = Disk { disk: &disk, path, live: is_live, rescue, stable: &[] };
        return capture(context, args, (image, client), disk, &options);
    }
    let snapshot = args.taking.snapshot.then(|| snapshot(context, &args.source, INSTEAD)).transpose()?;
    let path = snapshot.as_ref().map_or(args.source.clone(), |snapshot| snapshot.volume().path());
    let source = source::open(context, &path, &args.taking, args.raw)?;
    let written = source::written_meanwhile(context, args.to.is_some())?;
    let stable = StableSource::begin(context, &source, &options, &args.taking, &written)?;
    let done = read(context, args, (image, client), (&source, &options), &stable);
    let released = stable.release();
    drop(source);
    let removed = snapshot.map_or(Ok(()), |snapshot| Ok(snapshot.volume().remove()?));
    done.and(released).and(removed)
}

/// What helps where no snapshot can be taken.
const INSTEAD: &str = "--freeze keeps a mounted filesystem still while it is read";

/// Takes a snapshot of the logical volume at `path`. `instead` is what helps where none can be taken.
pub(super) fn snapshot(context: &Context, path: &Path, instead: &str) -> Result<Snapshot> {
    if context.global.dry_run {
        let text = "--snapshot takes one, and --dry-run changes nothing: leave out one of them";
        return Err(Failure::new(Exit::Usage, text));
    }
    let announced = |volume: &LogicalVolume| {
        let volume = volume.clone();
        interrupt::at_last(move || volume.remove_after_end());
    };
    Snapshot::of(path, announced).map_err(|error| {
        let failure = Failure::from(error);
        match failure.exit {
            Exit::Refused => failure.hint(instead),
            _ => failure,
        }
    })
}

/// A disk in a temporary file that was made of a version.
pub(crate) struct Made<'a> {
    pub path: &'a Path,
    pub from: &'a Manifest,
    /// The name of that version, with which it shares data.
    pub base: String,
    /// The numbers of the partitions that are left out.
    pub skip: Vec<u32>,
}

/// Captures `made` as a version of `name`.
pub(crate) fn file(context: &Context, made: Made<'_>, name: &str, effort: &Effort) -> Result<()> {
    let Made { path, from, base, skip } = made;
    let taking = Taking { format: Some(SourceForm::Raw), ..Taking::default() };
    let args = Args {
        source: path.to_owned(),
        name: name.to_owned(),
        partition: None,
        skip,
        raw: false,
        taking,
        rescue: false,
        rescue_map: None,
        base: Some(base),
        labels: from.labels.clone().into_iter().collect(),
        to: None,
        access: ServerAccess { token_file: None, wait: Duration::ZERO },
        chunk: from.chunk_bytes,
        effort: effort.clone(),
    };
    run(context, &args)
}

/// Captures the disk in `source`, which `stable` watches.
fn read(
    context: &Context,
    args: &Args,
    to: (ImageName, Option<Client>),
    (source, options): (&disk::Source, &SurveyOptions),
    stable: &StableSource<'_>,
) -> Result<()> {
    source::read(context, (source, stable), &args.taking, |contents, stable| {
        let (disk, live) = (contents.disk(), stable.iter().any(|stable| stable.is_live()));
        let (path, rescue) = (&args.source, args.rescue);
        capture(context, args, to, Disk { disk, path, live, rescue, stable }, options)
    })
}

fn capture(
    context: &Context,
    args: &Args,
    (image, client): (ImageName, Option<Client>),
    disk: Disk<'_>,
    options: &SurveyOptions,
) -> Result<()> {
    surveyed::survey(context, disk, options, (args.chunk, &args.effort), |surveyed| {
        context.output.note(&describe(surveyed.disk.disk.name(), &surveyed.map));
        let job = Job { context, args, image, surveyed };
        match client {
            _ if context.global.dry_run => job.show_plan(),
            Some(client) => job.to_server(&client),
            None => job.to_repository(),
        }
    })
}

/// A version that was made, and how long that took.
struct Done {
    version: Manifest,
    took: Duration,
}

struct Job<'a> {
    context: &'a Context,
    args: &'a Args,
    image: ImageName,
    surveyed: Surveyed<'a>,
}

impl Job<'_> {
    fn show_plan(&self) -> Result<()> {
        let bytes = self.surveyed.map.allocated.sectors() * base::limits::SECTOR_BYTES;
        let record = json!({
            "type": "plan", "source": self.surveyed.disk.disk.name(), "image": self.image.as_str(),
            "allocated_bytes": bytes,
        });
        let image = &self.image;
        self.context
            .output
            .result(&record, || format!("would do: capture {} into {image}\n", show_bytes(bytes)))
    }

    fn to_repository(&self) -> Result<()> {
        let global = &self.context.global;
        let repository = repository::with_scrubs(global, repository::open_or_create(global)?);
        self.context.output.detail(&format!("repository {}", repository.name()));
        let told = || {
            let text =
                "a prune considered this capture dead, since it was silent for too long: it starts again";
            self.context.output.warning(text);
        };
        let write = |writer: &Writer| self.write(&repository, writer);
        self.conclude(&Writer::retrying(&repository, &repository::stamp(), told, write)?)
    }

    fn write(&self, repository: &Repository, writer: &Writer) -> Result<Done> {
        let known = self.known(repository, repository.name(), repository, repository.cipher())?;
        self.capture((writer, writer.cipher()), known, |draft| Ok(writer.publish(&self.image, draft)?))
    }

    fn to_server(&self, client: &Client) -> Result<()> {
        // A request that fails now if the token or the server does, before the disk is read.
        match client.recent(self.image.as_str()) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let known = self.known(client, client.url(), client, client.cipher())?;
        let done = self.capture((client, client.cipher()), known, |draft| {
            let mut key = [0; 16];
            getrandom::fill(&mut key).map_err(std::io::Error::from)?;
            let key = format!("{:032x}", u128::from_be_bytes(key));
            let published = client.publish(self.image.as_str(), draft.encode(None)?, &key)?;
            Ok(Manifest::decode(&published)?)
        })?;
        self.conclude(&done)
    }

    /// The chunks of the base, so that unchanged content is neither encoded nor stored again. None if the newest
    /// version of the image is damaged, since a new capture repairs it, or has no trusted signature; a base that was
    /// asked for must be sound.
    fn known(
        &self,
        images: &dyn Images,
        place: &str,
        objects: &dyn ObjectSource,
        cipher: &Cipher,
    ) -> Result<KnownChunks> {
        let load = |version: &Manifest| known_of(version, objects, cipher);
        if let Some(name) = &self.args.base {
            let version =
                version::sight(self.context, images, place, &repository::reference(name)?)?.manifest;
            return load(&version);
        }
        let passes = |kind| matches!(kind, ErrorKind::NotFound | ErrorKind::Refused | ErrorKind::Corrupt);
        match images.find(&Reference::Newest(self.image.clone())) {
            Ok(newest) => Ok(load(&newest.manifest).unwrap_or_default()),
            // A token that may write need not read.
            Err(error) if passes(error.kind()) || error.kind() == ErrorKind::Denied => {
                Ok(KnownChunks::default())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn capture(
        &self,
        (sink, cipher): (&dyn ObjectSink, &Cipher),
        known: KnownChunks,
        publish: impl FnOnce(Manifest) -> Result<Manifest>,
    ) -> Result<Done> {
        interrupt::leaves(Leaves::NoVersion);
        let began = clock::now();
        let captured = self.surveyed.capture((sink, cipher), known)?;
        let mut draft = self.surveyed.draft(self.image.as_str(), &captured, image::Made::CAPTURE)?;
        draft.labels = self.args.labels.iter().cloned().collect();
        let version = publish(draft)?;
        interrupt::leaves(Leaves::Nothing);
        Ok(Done { version, took: clock::now().duration_since(began) })
    }

    /// Reports the version. It is there, but if something could not be read, it is not all that was wanted.
    fn conclude(&self, Done { version, took }: &Done) -> Result<()> {
        self.report(version, *took)?;
        if let Some(path) = &self.args.rescue_map {
            rescue_map::write(path, &self.surveyed.map, &self.surveyed.unreadable())?;
        }
        let Some(lacks) = unreadable::summary(version) else { return Ok(()) };
        let name = format!("{}@{}", version.image, version.number);
        let hint = format!("the version is marked; `diskcast inspect {name}` shows where");
        Err(Failure::new(Exit::Partly, format!("{name} is not complete: {lacks}")).hint(hint))
    }

    fn report(&self, version: &Manifest, took: Duration) -> Result<()> {
        let found = &version.statistics;
        let seconds = took.as_secs_f64();
        let record = json!({
            "type": "captured", "image": version.image, "number": version.number,
            "disk_bytes": super::images::disk_bytes(version), "allocated_bytes": found.allocated_bytes,
            "zero_bytes": found.zero_bytes, "encoded_bytes": found.encoded_bytes, "seconds": seconds,
            "server": self.args.to, "live": version.disk.live,
            "unreadable_bytes": unreadable::bytes_of(version),
        });
        self.context.output.result(&record, || {
            let rate = show_rate(found.allocated_bytes, took);
            let (allocated, encoded) = (show_bytes(found.allocated_bytes), show_bytes(found.encoded_bytes));
            let (image, number, took) = (&version.image, version.number, show_duration(took));
            format!("captured {image}@{number}: {allocated} in use, image {encoded}, {took}, {rate}\n")
        })
    }
}

/// The chunks of `version`, so that equal content is not encoded again; none if there are too many. An error if its
/// tree is damaged.
pub(super) fn known_of(
    version: &Manifest,
    objects: &dyn ObjectSource,
    cipher: &Cipher,
) -> Result<KnownChunks> {
    if version.statistics.data_chunks > KNOWN_CHUNKS_MAX {
        return Ok(KnownChunks::default());
    }
    Ok(KnownChunks::of(&Catalogue::load(version, objects, cipher)?)?)
}

fn describe(name: &str, map: &DiskMap) -> String {
    let in_use = show_bytes(map.allocated.sectors() * base::limits::SECTOR_BYTES);
    let size = show_bytes(map.window.len_bytes());
    let filesystem =
        |found: &disk::Partition| found.filesystem.as_ref().map_or("unknown", |filesystem| filesystem.kind);
    let kinds: Vec<_> = map.partitions.iter().map(filesystem).collect();
    let table = match map.table {
        TableKind::None => "no partition table",
        TableKind::Mbr => "MBR",
        TableKind::Gpt => "GPT",
    };
    let found = std::iter::once(table).chain(kinds).collect::<Vec<_>>().join(", ");
    format!("{name}: {found}; {in_use} of {size} to capture")
}
