//! `diskcast grow`: makes the last partition of a disk, and the filesystem in it, as large as the disk permits.

use std::path::{Path, PathBuf};

use base::limits::SECTOR_BYTES;
use base::units::show_bytes;
use disk::grow::{self, Choice, Grown, GrownVolume, Wish};
use image::{Catalogue, Manifest, VersionReader};
use serde_json::json;

use super::Context;
use crate::args::Writing;
use crate::exit::{Exit, Failure, Result};
use crate::interrupt::Leaves;
use crate::library::Objects;
use crate::ui::output::Output;
use crate::{interrupt, target};

/// Grow the last partition of a disk to its end
///
/// The partition grows in the table, and its filesystem with it: ext2, ext3, ext4, XFS, btrfs, NTFS, swap, and the
/// physical volume of LVM, by their own tools. In LVM one logical volume grows, too: the one that is named, or the
/// only one that can grow. The disk must not be in use. A second call does no harm.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast grow /dev/sdb
  diskcast grow disk.img --partition 3
  diskcast grow /dev/sdb --volume root                  in LVM
  diskcast grow /dev/sdb --to-gpt -n                    show the plan for a disk of data above 2 TiB
  diskcast install web disk.img --size 20G --grow       in one go")]
pub(crate) struct Args {
    /// Block device or raw file
    pub disk: PathBuf,
    /// Partition that grows, if it is not simply the last one: swap space and recovery systems are not taken for it
    #[arg(long, value_name = "NUMBER")]
    pub partition: Option<u32>,
    /// Logical volume in it that grows, too, if it is not the only one that can
    #[arg(long, value_name = "NAME")]
    pub volume: Option<String>,
    /// Turn an MBR into a GPT first, to grow beyond 2 TiB: only where no machine starts from the disk by its MBR.
    /// Partitions keep their numbers; their PARTUUIDs change
    #[arg(long)]
    pub to_gpt: bool,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    if context.global.dry_run {
        let map = disk::survey(&disk::open_source(&args.disk)?, &disk::SurveyOptions::default())?;
        let choice = grow::choose(&grow::slots(&map), args.partition)?;
        choice.check()?;
        if args.to_gpt {
            grow::check_gpt(&args.disk)?;
        }
        let record = json!({
            "type": "plan", "disk": args.disk.display().to_string(), "partition": choice.number,
            "kind": choice.kind, "to_gpt": args.to_gpt,
        });
        return context.output.result(&record, || {
            let what = place(choice.number, choice.kind);
            let first = if args.to_gpt {
                "turn the MBR into a GPT (partitions keep their numbers, their PARTUUIDs change), and "
            } else {
                ""
            };
            format!("would do: {first}grow {what} of {} to the end of the disk\n", args.disk.display())
        });
    }
    let wish = Wish { number: args.partition, volume: args.volume.clone(), to_gpt: args.to_gpt };
    grow(&args.disk, &wish, context.output)
}

/// Grows, and prints what came of it.
fn grow(disk: &Path, wish: &Wish, output: Output) -> Result<()> {
    interrupt::leaves(Leaves::NotGrown);
    // The first Ctrl-C waits: a filesystem that is mounted or half changed must not be left.
    interrupt::hold();
    let grown = grow::grow(disk, wish)?;
    interrupt::leaves(Leaves::Nothing);
    let beyond = grow::out_of_reach(disk)?;
    if beyond > 0 {
        let (beyond, disk) = (show_bytes(beyond), disk.display());
        output.note(&format!(
            "{disk} has an MBR, which can't reach its last {beyond}: they stay unused; if no machine starts from \
             the disk, `diskcast grow {disk} --to-gpt` takes them, too"
        ));
    }
    let record = json!({
        "type": "grown", "disk": disk.display().to_string(), "partition": grown.as_ref().map(|grown| grown.number),
        "bytes_before": grown.as_ref().map(|grown| grown.bytes.0),
        "bytes": grown.as_ref().map(|grown| grown.bytes.1), "out_of_reach_bytes": beyond,
        "volume": grown.as_ref().and_then(|grown| grown.volume.as_ref()).map(|volume| json!({
            "name": volume.name, "bytes_before": volume.bytes.0, "bytes": volume.bytes.1,
        })),
    });
    output.result(&record, || match grown {
        None => format!("{}: nothing to grow, the last partition ends where it can\n", disk.display()),
        Some(Grown { number, kind, bytes: (before, now), volume }) => {
            let mut parts = Vec::new();
            if now > before {
                let (before, now) = (show_bytes(before), show_bytes(now));
                parts.push(format!("{} of {} from {before} to {now}", place(number, kind), disk.display()));
            }
            parts.extend(volume.map(|GrownVolume { name, kind, bytes: (before, now) }| {
                let (before, now) = (show_bytes(before), show_bytes(now));
                format!("logical volume {name} ({kind}) from {before} to {now}")
            }));
            format!("grew {}\n", parts.join(", "))
        }
    })
}

fn place(number: u32, kind: &str) -> String {
    if number == 0 { format!("the {kind}") } else { format!("partition {number} ({kind})") }
}

/// Checks, before anything is written, that what `writing` wants grown can grow in an installed `version`, whose
/// objects come from `objects`.
pub(crate) fn check(
    target: &Path,
    version: &Manifest,
    objects: Objects<'_>,
    writing: &Writing,
) -> Result<()> {
    if writing.grow.is_none() {
        return Ok(());
    }
    if !target::is_plain(target, writing) {
        let text = "only a disk or a raw file can grow: convert a file afterwards";
        return Err(Failure::new(Exit::Usage, text));
    }
    let explain = |error: base::Error| Failure::from(error).hint("nothing was written; without --grow it is");
    let refused = |text: &str| Err(base::Error::new(base::ErrorKind::Refused, text));
    let check = || {
        let choice = choose(version, wanted(writing))?;
        if wanted(writing).is_some() && target::is_of_one_volume(version) && version.origin.start_sector > 0 {
            return refused("the image is of one partition: --grow without a number is for it");
        }
        let names_volume = writing.grow.as_ref().is_some_and(|wish| wish.volume.is_some());
        if names_volume && choice.kind != "LVM2_member" {
            return refused("the partition that would grow holds no logical volumes");
        }
        choice.check()?;
        check_volume(version, &choice, objects, writing)
    };
    check().map_err(explain)
}

/// Checks that the logical volume that is to grow is in the `version`, and can.
fn check_volume(
    version: &Manifest,
    choice: &Choice,
    (source, cipher): Objects<'_>,
    writing: &Writing,
) -> base::Result<()> {
    if choice.kind != "LVM2_member" {
        return Ok(());
    }
    let catalogue = Catalogue::load(version, source, cipher)?;
    let name = format!("{}@{}", version.image, version.number);
    let disk = VersionReader::new(&catalogue, source, name)?;
    let volume = writing.grow.as_ref().and_then(|wish| wish.volume.as_deref());
    grow::check_volume(&disk, version.extent_of(choice.number)?, volume)
}

/// Grows an installed disk if `writing` wants that; else says that it could grow, if it could.
pub(crate) fn after_install(
    target: &Path,
    version: &Manifest,
    writing: &Writing,
    output: Output,
) -> Result<()> {
    if writing.grow.is_some() {
        let told = |failure: Failure| failure.hint("the image is installed; `diskcast grow` tries again");
        return grow(target, &writing.grow.clone().unwrap_or_default(), output).map_err(told);
    }
    if !target::is_plain(target, writing) || writing.into.is_some() {
        return Ok(());
    }
    let size = std::fs::File::open(target)
        .and_then(|mut file| std::io::Seek::seek(&mut file, std::io::SeekFrom::End(0)));
    let room = size.unwrap_or(0).saturating_sub(version.size_sectors * SECTOR_BYTES);
    if room >= WORTH_BYTES && choose(version, None).is_ok() {
        let (room, target) = (show_bytes(room), target.display());
        output.note(&format!(
            "{room} lie behind the image: `diskcast grow {target}` adds them to its last partition"
        ));
    }
    Ok(())
}

/// Less room behind an image is not worth a word.
const WORTH_BYTES: u64 = 16 << 20;

/// The partition that `--grow` names; `None` for the last one.
fn wanted(writing: &Writing) -> Option<u32> {
    writing.grow.as_ref().and_then(|wish| wish.number)
}

fn choose(version: &Manifest, wanted: Option<u32>) -> base::Result<Choice> {
    grow::choose(&version.slots(), wanted)
}
