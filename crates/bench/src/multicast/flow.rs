//! One TCP flow between two hosts of the lab that never has nothing to send, and what arrives of it over time.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lab::Star;

use crate::Result;

const PORT: u16 = 5201;
/// Bytes of a full frame with its Ethernet header, and of TCP's payload in it (timestamps on).
const FRAME_BYTES: f64 = 1514.0;
const PAYLOAD_BYTES: f64 = 1448.0;

/// A running flow.
pub(super) struct Flow {
    start: Instant,
    stream: TcpStream,
    writer: JoinHandle<()>,
    reader: JoinHandle<Vec<(Duration, u64)>>,
}

/// What arrived: seconds since the flow's start, and bytes of payload until then.
pub(super) struct Delivered(Vec<(Duration, u64)>);

impl Flow {
    /// A flow from host `from` to host `to`, with the lab's congestion control.
    pub(super) fn start(star: &Star, from: u32, to: u32) -> Result<Self> {
        let address = (star.host(to).ipv4(), PORT);
        let listener = star.host(to).run(move || TcpListener::bind(address))?.join().expect("binds")?;
        let connect = move || TcpStream::connect(address);
        let mut stream = star.host(from).run(connect)?.join().expect("connects")?;
        let (mut arriving, _) = listener.accept()?;
        let (start, kept) = (Instant::now(), stream.try_clone()?);
        let writer = std::thread::spawn(move || {
            let bytes = vec![7; 1 << 18];
            while stream.write_all(&bytes).is_ok() {}
        });
        let reader = std::thread::spawn(move || {
            let (mut bytes, mut total, mut seen) = (vec![0; 1 << 18], 0, vec![]);
            while let Ok(count) = arriving.read(&mut bytes) {
                if count == 0 {
                    break;
                }
                total += count as u64;
                seen.push((start.elapsed(), total));
            }
            seen
        });
        Ok(Self { start, stream: kept, writer, reader })
    }

    /// How long it runs.
    pub(super) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Waits until it has run so long.
    pub(super) fn wait_until(&self, at: Duration) {
        while let Some(left) = at.checked_sub(self.start.elapsed()).filter(|left| !left.is_zero()) {
            std::thread::park_timeout(left);
        }
    }

    /// Ends it.
    pub(super) fn stop(self) -> Result<Delivered> {
        self.stream.shutdown(Shutdown::Both)?;
        self.writer.join().map_err(|_| "the flow's sender failed")?;
        Ok(Delivered(self.reader.join().map_err(|_| "the flow's receiver failed")?))
    }
}

impl Delivered {
    /// Bits per second on the wire between two moments, in seconds since the flow's start.
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    pub(super) fn rate(&self, (from, until): (f64, f64)) -> Result<f64> {
        let inside: Vec<_> =
            self.0.iter().filter(|(at, _)| (from..=until).contains(&at.as_secs_f64())).collect();
        let (Some((_, first)), Some((_, last))) = (inside.first(), inside.last()) else {
            return Err("nothing of the TCP flow arrived meanwhile".into());
        };
        Ok((last - first) as f64 * 8.0 * FRAME_BYTES / PAYLOAD_BYTES / (until - from))
    }
}
