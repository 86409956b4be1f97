//! Measures the rates of capture and install for a raw disk image. Compares them with zstd and BLAKE3 alone, on the
//! same bytes and cores in the same run, and the image's size with zlib level 4 in pieces of 1 MiB, as Frisbee's
//! imagezip uses.
//!
//! `cargo run --release -p diskcast-image --example rates -- DISK.img [ROUNDS]`
//! `cargo run --release -p diskcast-image --example rates -- DISK.img levels`
//! `cargo run --release -p diskcast-image --example rates -- DISK.img memory`
#![expect(clippy::print_stdout, reason = "this is a program")]
#![expect(clippy::disallowed_methods, reason = "this program measures")]
#![expect(clippy::cast_precision_loss, reason = "rates are shown with three digits")]

use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use base::{ExtentSet, Result};
use bytes::Bytes;
use disk::device::{MemoryDisk, NullTarget};
use disk::{DiskMap, ReadAt, SurveyOptions};
use image::{
    CaptureOptions, Catalogue, Cipher, Decoder, InstallOptions, Installer, Manifest, MemoryObjects,
    NoProgress, ObjectRef, ObjectSink, capture,
};

const CHUNK: usize = 256 << 10;

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let path = arguments.get(1).ok_or("usage: rates DISK.img [ROUNDS | levels | memory]")?;
    let disk = disk::open_source(Path::new(path))?;
    let map = disk::survey(&disk, &SurveyOptions::default())?;
    map.warnings.iter().for_each(|warning| println!("warning: {warning}"));
    if arguments.get(2).is_some_and(|word| word == "memory") {
        return memory(&disk, &map);
    }
    let plain = allocated(&disk, &map)?;
    println!("{} MiB allocated of {} MiB", plain.len() >> 20, map.geometry.size_bytes >> 20);
    if arguments.get(2).is_some_and(|word| word == "levels") {
        return levels(&plain);
    }
    let rounds: usize = arguments.get(2).map_or(Ok(3), |text| text.parse())?;
    let memory = MemoryDisk::new(whole(&disk)?);
    let objects = MemoryObjects::new();
    let captured = capture(&memory, &map, &objects, &CaptureOptions::default(), &NoProgress)?;
    println!("{:?}", captured.statistics);
    let mut manifest = Manifest::draft("rates", &map, &captured, "2026-01-01T00:00:00Z");
    manifest.number = 1;
    let catalogue = Arc::new(Catalogue::load(&manifest, &objects, &Cipher::None)?);
    for _ in 0..rounds {
        let limit = encode_limit(&plain, CaptureOptions::default().level);
        let rate = timed(plain.len(), || {
            capture(&memory, &map, &Nowhere::default(), &CaptureOptions::default(), &NoProgress).map(drop)
        })?;
        println!("capture  {rate}, {}", share(rate, limit));
        let rate = timed(plain.len(), || {
            capture(&disk, &map, &Nowhere::default(), &CaptureOptions::default(), &NoProgress).map(drop)
        })?;
        println!("  file   {rate}, {}", share(rate, limit));
        let data = usize::try_from(captured.statistics.data_bytes)?;
        let limit = decode_limit(&catalogue, &objects, data)?;
        let rate = timed(data, || pull(&catalogue, &objects, map.geometry))?;
        let push = timed(data, || push(&catalogue, &objects, map.geometry))?;
        println!("install  {rate}, {}", share(rate, limit));
        println!("  pushed {push}, {}", share(push, limit));
    }
    let zlib = in_parallel(&pieces(&plain, 1 << 20), |_| (), |(), piece| zlib4(piece));
    let image = catalogue.bytes();
    println!("image {image} bytes, zlib-4 in 1 MiB pieces {zlib}, ratio {:.4}", image as f64 / zlib as f64);
    Ok(())
}

/// Prints the peak memory of a capture whose sink drops all objects, and of an install whose source is in memory.
fn memory(disk: &dyn ReadAt, map: &DiskMap) -> std::result::Result<(), Box<dyn std::error::Error>> {
    capture(disk, map, &Nowhere::default(), &CaptureOptions::default(), &NoProgress)?;
    println!("capture: peak memory {} MiB", peak_mib());
    let objects = MemoryObjects::new();
    let captured = capture(disk, map, &objects, &CaptureOptions::default(), &NoProgress)?;
    let mut manifest = Manifest::draft("rates", map, &captured, "2026-01-01T00:00:00Z");
    manifest.number = 1;
    let catalogue = Arc::new(Catalogue::load(&manifest, &objects, &Cipher::None)?);
    push(&catalogue, &objects, map.geometry)?;
    println!(
        "install: peak memory {} MiB with {} MiB of objects in memory",
        peak_mib(),
        objects.bytes() >> 20
    );
    Ok(())
}

/// Prints size and rate of several zstd levels, in chunks, and of zlib level 4 for comparison.
fn levels(plain: &[u8]) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let start = Start::now();
    let zlib = in_parallel(&pieces(plain, 1 << 20), |_| (), |(), piece| zlib4(piece));
    println!("zlib 4 in 1 MiB: {zlib} bytes, {}", rate(plain.len(), &start));
    for level in [-5, -3, -1, 1, 2, 3, 4] {
        let start = Start::now();
        let bytes = encode_all(plain, level);
        let share = bytes as f64 / zlib as f64;
        println!("zstd {level:2} + BLAKE3: {bytes} bytes, {share:.4} of zlib, {}", rate(plain.len(), &start));
    }
    Ok(())
}

/// The content of all allocated sectors, without gaps.
fn allocated(disk: &dyn ReadAt, map: &DiskMap) -> Result<Vec<u8>> {
    let runs: &ExtentSet = &map.allocated;
    let mut plain = Vec::new();
    for run in runs.within(map.window) {
        let from = plain.len();
        plain.resize(from + usize::try_from(run.len_bytes()).unwrap_or(usize::MAX), 0);
        disk.read_exact_at(&mut plain[from..], run.offset_bytes())?;
    }
    Ok(plain)
}

/// The content of the whole disk.
fn whole(disk: &dyn ReadAt) -> Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(disk.geometry().size_bytes).unwrap_or(usize::MAX)];
    disk.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

fn pieces(plain: &[u8], bytes: usize) -> Vec<&[u8]> {
    plain.chunks(bytes).collect()
}

/// Bytes that zlib level 4 makes of `piece`.
fn zlib4(piece: &[u8]) -> u64 {
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::new(4));
    let written = encoder.write_all(piece).and_then(|()| encoder.finish());
    written.map_or(0, |bytes| bytes.len() as u64)
}

/// The sum of `each` over all pieces, on all cores. `new` makes the state of one thread.
fn in_parallel<T>(
    pieces: &[&[u8]],
    new: impl Fn(()) -> T + Sync,
    each: impl Fn(&mut T, &[u8]) -> u64 + Sync,
) -> u64 {
    let (next, sum) = (AtomicUsize::new(0), AtomicU64::new(0));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                let mut state = new(());
                while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
                    sum.fetch_add(each(&mut state, piece), Ordering::Relaxed);
                }
            });
        }
    });
    sum.into_inner()
}

/// Bytes that zstd makes of `plain` in chunks. Also hashes plain and encoded bytes with BLAKE3, as a capture does.
fn encode_all(plain: &[u8], level: i32) -> u64 {
    let new = |()| {
        let compressor = zstd::bulk::Compressor::new(level).expect("a level of zstd");
        (compressor, Vec::with_capacity(zstd::zstd_safe::compress_bound(CHUNK)))
    };
    in_parallel(&pieces(plain, CHUNK), new, |(compressor, frame), piece| {
        std::hint::black_box(blake3::hash(piece));
        frame.clear();
        compressor.compress_to_buffer(piece, frame).expect("room for any frame");
        std::hint::black_box(blake3::hash(frame));
        frame.len() as u64
    })
}

/// The rate of zstd and BLAKE3 alone on the chunks of `plain`: the upper limit for a capture.
fn encode_limit(plain: &[u8], level: i32) -> Rate {
    let start = Start::now();
    std::hint::black_box(encode_all(plain, level));
    rate(plain.len(), &start)
}

/// The rate of BLAKE3 and zstd alone on the chunks of `catalogue`: the upper limit for an install. `data` is the number
/// of plain bytes.
fn decode_limit(catalogue: &Catalogue, objects: &MemoryObjects, data: usize) -> Result<Rate> {
    // Frames that decode to the same bytes but have no object headers, so that zstd alone can read them.
    let mut frames: Vec<Bytes> = Vec::new();
    let mut encoder = zstd::bulk::Compressor::new(CaptureOptions::default().level).expect("a level of zstd");
    let mut plain = vec![0; CHUNK];
    let mut decoder = Decoder::new()?;
    for run in catalogue.leaves() {
        if let image::Leaf::Data(extents, chunk) = run?.leaf {
            let object = chunk.object().verified(image::ObjectSource::fetch(objects, &chunk.object())?)?;
            let len = extents.len_bytes() as usize;
            decoder.decode(&object, &extents, chunk.plain, &mut plain[..len])?;
            frames.push(encoder.compress(&plain[..len]).expect("room for any frame").into());
        }
    }
    let start = Start::now();
    let slices: Vec<&[u8]> = frames.iter().map(|frame| &frame[..]).collect();
    let new = |()| (zstd::bulk::Decompressor::new().expect("memory"), vec![0; CHUNK]);
    in_parallel(&slices, new, |(decompressor, plain), frame| {
        std::hint::black_box(blake3::hash(frame));
        let len = decompressor.decompress_to_buffer(frame, &mut plain[..]).expect("a good frame");
        std::hint::black_box(blake3::hash(&plain[..len]));
        len as u64
    });
    Ok(rate(data, &start))
}

/// Without verification, because the target keeps nothing.
fn options() -> InstallOptions {
    InstallOptions { verify: false, ..InstallOptions::default() }
}

/// Installs to a target that drops all writes; the installer fetches the objects.
fn pull(catalogue: &Arc<Catalogue>, objects: &MemoryObjects, geometry: disk::Geometry) -> Result<()> {
    let target = Arc::new(NullTarget::new(geometry));
    let installer = Installer::begin(Arc::clone(catalogue), target, options(), Arc::new(NoProgress))?;
    installer.pull(objects)?;
    installer.finish().map(drop)
}

/// The same, but offers the objects one by one, as a receiver does.
fn push(catalogue: &Arc<Catalogue>, objects: &MemoryObjects, geometry: disk::Geometry) -> Result<()> {
    let target = Arc::new(NullTarget::new(geometry));
    let installer = Installer::begin(Arc::clone(catalogue), target, options(), Arc::new(NoProgress))?;
    for id in installer.missing().into_iter().flatten() {
        let object = &catalogue.objects()[usize::try_from(id).expect("an index")];
        installer.offer(id, image::ObjectSource::fetch(objects, object)?)?;
    }
    installer.finish().map(drop)
}

/// A sink that drops all objects.
#[derive(Default)]
struct Nowhere(Mutex<u64>);

impl ObjectSink for Nowhere {
    fn contains(&self, _: &ObjectRef) -> Result<bool> {
        Ok(false)
    }

    fn put(&self, _: &ObjectRef, bytes: Bytes) -> Result<()> {
        if let Ok(mut sum) = self.0.lock() {
            *sum += bytes.len() as u64;
        }
        Ok(())
    }
}

fn timed(bytes: usize, run: impl FnOnce() -> Result<()>) -> Result<Rate> {
    let start = Start::now();
    run()?;
    Ok(rate(bytes, &start))
}

/// Processor time of this process in seconds. A rate by processor time does not depend on the load of the machine.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Fields 14 and 15 are user and system time, in ticks of 10 ms. The name in parentheses may contain spaces.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// The start of a measurement: wall-clock time, and processor time in seconds.
struct Start(Instant, f64);

impl Start {
    fn now() -> Self {
        Self(Instant::now(), cpu_seconds())
    }
}

/// A rate in MB/s: by wall-clock time, and by processor time, which is the rate if all cores were free.
#[derive(Clone, Copy)]
struct Rate(f64, f64);

impl std::fmt::Display for Rate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:5.0} MB/s ({:5.0} by processor time)", self.0, self.1)
    }
}

fn rate(bytes: usize, start: &Start) -> Rate {
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    let used = (cpu_seconds() - start.1) / cores;
    Rate(bytes as f64 / 1e6 / start.0.elapsed().as_secs_f64(), bytes as f64 / 1e6 / used)
}

/// The share of the limit that `rate` reaches, by both clocks.
fn share(rate: Rate, limit: Rate) -> String {
    format!("{:.3} ({:.3}) of the limit, {limit}", rate.0 / limit.0, rate.1 / limit.1)
}

/// The peak resident memory of this process in MiB.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("0");
    line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) >> 10
}
