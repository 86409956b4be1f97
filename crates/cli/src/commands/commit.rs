//! `diskcast commit`: what changed on a disk becomes a new version.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use base::units::{show_bytes, show_duration};
use disk::ReadAt as _;
use serde_json::json;
use store::{Content, ImageName, Reference, Snapshot};

use super::Context;
use crate::args::Commit;
use crate::exit::{Exit, Failure, Result};
use crate::{clock, repository};

/// Bytes that are compared at a time.
const PIECE_BYTES: u64 = 4 << 20;
/// Most ranges of one commit; where there are more the gaps between them are written as well.
const RANGES_MAX: usize = 1 << 20;

/// A file or device whose byte `by` is the image's byte 0.
struct Source {
    file: File,
    by: u64,
}

impl Content for Source {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> std::io::Result<()> {
        self.file.read_exact_at(into, offset - self.by)
    }
}

pub fn run(context: &Context, args: &Commit) -> Result<()> {
    let repository = repository::open(&context.global)?;
    let image: ImageName = args.name.parse()?;
    let size = size_of(&args.source)?;
    let source = Source { file: File::open(&args.source)?, by: args.at.unwrap_or(0) };
    let newest = repository.snapshot(&Reference::Newest(image.clone()))?;
    let blob = repository.blob(&image);
    let began = clock::now();
    let (ranges, expected) = if args.append {
        let end = newest.layout().size_bytes();
        let place = end..end + size;
        (vec![place], args.expect)
    } else if args.at.is_some() {
        let place = source.by..source.by.saturating_add(size);
        (vec![place], args.expect)
    } else if args.ranges.is_empty() {
        // What was compared with one version must not go onto another.
        (compare(&newest, &source, size)?, args.expect.or(Some(newest.manifest().number)))
    } else {
        (args.ranges.clone(), args.expect)
    };
    let bytes: u64 = ranges.iter().map(|range| range.end - range.start).sum();
    if context.global.dry_run || ranges.is_empty() {
        let record =
            json!({ "type": "plan", "image": image.as_str(), "ranges": ranges.len(), "bytes": bytes });
        return context.output.result(&record, || match bytes {
            0 => format!("nothing differs from {image}@{}\n", newest.manifest().number),
            _ => format!("{}commit {} in {} ranges\n", context.would(), show_bytes(bytes), ranges.len()),
        });
    }
    let stamp = repository::stamp();
    let done = match args.append {
        true => blob.append_from(size, &source, &stamp)?.1,
        false => blob.commit(&ranges, &source, expected, &stamp)?,
    };
    let took = clock::now().duration_since(began);
    let record = json!({
        "type": "committed", "image": done.manifest.image, "number": done.manifest.number, "bytes": bytes,
        "ranges": ranges.len(), "stored_bytes": done.stored_bytes, "retries": done.retries,
        "merged_chunks": done.merged_chunks, "seconds": took.as_secs_f64(),
    });
    context.output.result(&record, || {
        let (number, written, stored) =
            (done.manifest.number, show_bytes(bytes), show_bytes(done.stored_bytes));
        format!("committed {written} as {image}@{number}, {stored} stored, {}\n", show_duration(took))
    })
}

/// How many bytes there are to read. A device says so by its geometry.
fn size_of(path: &Path) -> Result<u64> {
    let found = path.metadata()?;
    if found.is_file() { Ok(found.len()) } else { Ok(disk::open_source(path)?.geometry().size_bytes) }
}

/// The ranges in which `source` differs from `version`: of sectors that are free there, those that do not hold zeros.
fn compare(version: &Snapshot<'_>, source: &Source, size: u64) -> Result<Vec<Range<u64>>> {
    let expected = version.layout().size_bytes();
    if size != expected {
        let text = format!("the disk has {size} bytes, the image {expected}");
        return Err(
            Failure::new(Exit::Refused, text).hint("say where it goes: --at OFFSET, --append, or --range")
        );
    }
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let (mut here, mut there) = (Vec::new(), Vec::new());
    for start in (0..size).step_by(usize::try_from(PIECE_BYTES).expect("it is small")) {
        let length = usize::try_from(PIECE_BYTES.min(size - start)).expect("it is small");
        here.resize(length, 0);
        there.resize(length, 0);
        source.read_at(start, &mut here)?;
        version.read(start, &mut there)?;
        for (sector, (here, there)) in (0..).zip(here.chunks(512).zip(there.chunks(512))) {
            if here == there {
                continue;
            }
            let first = start + sector * 512;
            let behind = first + here.len() as u64;
            let full = ranges.len() >= RANGES_MAX;
            match ranges.last_mut() {
                Some(last) if last.end == first || full => last.end = behind,
                _ => ranges.push(first..behind),
            }
        }
    }
    Ok(ranges)
}
