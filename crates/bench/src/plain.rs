//! The allocated bytes of a disk in memory, and the rates of bare compression and hashing of them on the same cores.

use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use crate::Result;

/// The allocated bytes of a disk, cut at the chunk borders of the disk.
pub(crate) struct Plain {
    pieces: Vec<Vec<u8>>,
}

impl Plain {
    /// Reads what a survey of `disk` finds allocated, in chunks of `chunk_bytes`.
    pub(crate) fn read(disk: &Path, chunk_bytes: u32) -> Result<Self> {
        let source = disk::open_source(disk)?;
        let map = disk::survey(&source, &disk::SurveyOptions::default())?;
        let sectors = u64::from(chunk_bytes) / base::limits::SECTOR_BYTES;
        let mut pieces = Vec::new();
        for start in (0..map.window.end()).step_by(usize::try_from(sectors)?) {
            let mut piece = Vec::new();
            for extent in map.allocated.within(base::Extent::new(start, sectors)) {
                let at = piece.len();
                piece.resize(at + usize::try_from(extent.len_bytes())?, 0);
                disk::ReadAt::read_exact_at(&source, &mut piece[at..], extent.offset_bytes())?;
            }
            if !piece.is_empty() {
                pieces.push(piece);
            }
        }
        Ok(Self { pieces })
    }

    /// How many bytes there are.
    pub(crate) fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.len() as u64).sum()
    }

    /// The first `bytes` of them, one piece after the other.
    pub(crate) fn front(&self, bytes: u64) -> Result<Vec<u8>> {
        let wanted = usize::try_from(bytes)?;
        let mut front: Vec<u8> = Vec::with_capacity(wanted);
        for piece in &self.pieces {
            front.extend_from_slice(&piece[..piece.len().min(wanted - front.len())]);
        }
        if front.len() < wanted {
            return Err(format!("the disk holds less than {bytes} bytes").into());
        }
        Ok(front)
    }

    /// The rate of zstd at `level` and two BLAKE3 digests (of the plain and of the encoded bytes) on all cores, with
    /// everything in memory: plain bytes per second, and the encoded chunks.
    pub(crate) fn encode_limit(&self, level: i32) -> Result<(f64, Encoded)> {
        let encoded = parking_lot::Mutex::new(Vec::with_capacity(self.pieces.len()));
        let next = AtomicUsize::new(0);
        let start = Instant::now();
        on_all_cores(|| {
            let mut compressor = zstd::bulk::Compressor::new(level)?;
            while let Some(piece) = self.pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
                std::hint::black_box(is_zero(piece));
                std::hint::black_box(blake3::hash(piece));
                let frame = compressor.compress(piece)?;
                std::hint::black_box(blake3::hash(&frame));
                encoded.lock().push((frame, piece.len()));
            }
            Ok(())
        })?;
        let rate = rate(self.bytes(), start);
        Ok((rate, Encoded { frames: encoded.into_inner() }))
    }

    /// The rate of zlib at level 4 on one core in pieces of 1 MiB, like Frisbee's imagezip: plain bytes per second,
    /// and the encoded pieces.
    pub(crate) fn deflate(&self) -> (f64, Vec<Vec<u8>>) {
        let all = self.pieces.concat();
        let start = Instant::now();
        let mut pieces = Vec::new();
        let mut out = vec![0; 2 * DEFLATED_BYTES];
        for piece in all.chunks(DEFLATED_BYTES) {
            let mut codec = flate2::Compress::new(flate2::Compression::new(4), true);
            codec.compress(piece, &mut out, flate2::FlushCompress::Finish).expect("the output has room");
            pieces.push(out[..usize::try_from(codec.total_out()).expect("it fits in `out`")].to_vec());
        }
        (rate(self.bytes(), start), pieces)
    }
}

/// What zlib encodes at once, in bytes.
const DEFLATED_BYTES: usize = 1 << 20;

/// The rate of zlib's decoder on one core for such pieces, like Frisbee's imageunzip: plain bytes per second.
pub(crate) fn inflate_rate(pieces: &[Vec<u8>]) -> f64 {
    let start = Instant::now();
    let mut total = 0;
    let mut out = vec![0; DEFLATED_BYTES];
    for piece in pieces {
        let mut codec = flate2::Decompress::new(true);
        codec.decompress(piece, &mut out, flate2::FlushDecompress::Finish).expect("zlib encoded it");
        std::hint::black_box(&out);
        total += codec.total_out();
    }
    rate(total, start)
}

/// Encoded chunks in memory, each with its plain length.
pub(crate) struct Encoded {
    frames: Vec<(Vec<u8>, usize)>,
}

impl Encoded {
    /// The rate of two BLAKE3 digests and zstd's decoder on all cores: plain bytes per second.
    pub(crate) fn decode_limit(&self) -> Result<f64> {
        let next = AtomicUsize::new(0);
        let total = AtomicU64::new(0);
        let start = Instant::now();
        on_all_cores(|| {
            let mut decompressor = zstd::bulk::Decompressor::new()?;
            let mut out = Vec::new();
            while let Some((frame, length)) = self.frames.get(next.fetch_add(1, Ordering::Relaxed)) {
                std::hint::black_box(blake3::hash(frame));
                out.resize(*length, 0);
                decompressor.decompress_to_buffer(frame, &mut out[..])?;
                std::hint::black_box(blake3::hash(&out));
                total.fetch_add(*length as u64, Ordering::Relaxed);
            }
            Ok(())
        })?;
        Ok(rate(total.into_inner(), start))
    }
}

fn on_all_cores(work: impl Fn() -> std::io::Result<()> + Sync) -> Result<()> {
    let cores = std::thread::available_parallelism()?.get();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(&work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no thread panics"))
    })?;
    Ok(())
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn rate(bytes: u64, start: Instant) -> f64 {
    bytes as f64 / start.elapsed().as_secs_f64()
}
