//! A TCP flow between two hosts of the lab that always has data to send, and the bytes that it delivers over time.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lab::Star;

use crate::Result;

const PORT: u16 = 5201;
/// Bytes of a full frame with its Ethernet header, and of the TCP payload in it (with TCP timestamps).
const FRAME_BYTES: f64 = 1514.0;
const PAYLOAD_BYTES: f64 = 1448.0;

/// A running flow.
pub(crate) struct Flow {
    start: Instant,
    /// The sender's end, to stop the flow.
    stream: TcpStream,
    writer: JoinHandle<()>,
    reader: JoinHandle<Vec<(Duration, u64)>>,
}

/// Points in time since the flow's start, each with the payload bytes that had arrived by then.
pub(crate) struct Delivered(Vec<(Duration, u64)>);

impl Flow {
    /// Starts a flow from host `from` to host `to`, with the lab's congestion control.
    pub(crate) fn start(star: &Star, from: u32, to: u32) -> Result<Self> {
        let address = (star.host(to).ipv4(), PORT);
        // A socket stays in the network namespace in which it was opened, so only opening it needs the host.
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

    /// Time since the flow's start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Waits until the flow has run for `at`.
    pub(crate) fn wait_until(&self, at: Duration) {
        while let Some(left) = at.checked_sub(self.start.elapsed()).filter(|left| !left.is_zero()) {
            std::thread::park_timeout(left);
        }
    }

    /// Ends the flow.
    pub(crate) fn stop(self) -> Result<Delivered> {
        self.stream.shutdown(Shutdown::Both)?;
        self.writer.join().map_err(|_| "the flow's sender failed")?;
        Ok(Delivered(self.reader.join().map_err(|_| "the flow's receiver failed")?))
    }
}

impl Delivered {
    /// Bits per second on the wire between two points in time, in seconds since the flow's start; an error if no data
    /// arrived between them.
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    pub(crate) fn rate(&self, (from, until): (f64, f64)) -> Result<f64> {
        let inside: Vec<_> =
            self.0.iter().filter(|(at, _)| (from..=until).contains(&at.as_secs_f64())).collect();
        let (Some((_, first)), Some((_, last))) = (inside.first(), inside.last()) else {
            return Err("no data of the TCP flow arrived in the measured time".into());
        };
        Ok((last - first) as f64 * 8.0 * FRAME_BYTES / PAYLOAD_BYTES / (until - from))
    }
}
