//! A meter for all links of a star: reads their byte counters at regular intervals, to show rates over time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use base::{Error, ErrorKind, Result};

use crate::host::run_in;
use crate::link::{port, shaped_bytes_of_ports};

/// The counters of all links at one moment. The vectors are indexed by host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// Time since the start of the meter.
    pub at: Duration,
    /// Bytes from each host to the switch, as the switch port counts them: a super-frame has one header.
    pub sent: Vec<u64>,
    /// Bytes from the switch to each host. On a shaped link, each frame counts with its own header.
    pub received: Vec<u64>,
}

/// A running meter. Dropping it stops it.
#[derive(Debug)]
pub struct Meter {
    stop: Arc<AtomicBool>,
    started: Instant,
    thread: Option<JoinHandle<Result<Vec<Sample>>>>,
}

#[expect(clippy::disallowed_methods, reason = "counters are read in real time")]
fn now() -> Instant {
    Instant::now()
}

impl Meter {
    /// Starts to read the counters of hosts `0..hosts` every `interval`. `Io` if the namespace does not exist.
    pub(crate) fn start(switch: &str, hosts: u32, interval: Duration) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, name, started) = (Arc::clone(&stop), switch.to_owned(), now());
        let thread = run_in(switch, move || {
            let mut samples = Vec::new();
            while !stopped.load(Ordering::Acquire) {
                samples.push(sample(&name, hosts, started)?);
                let due = started + interval * u32::try_from(samples.len()).unwrap_or(u32::MAX);
                // `end` wakes this thread. A spurious wake-up only causes one early sample.
                std::thread::park_timeout(due.saturating_duration_since(now()));
            }
            samples.push(sample(&name, hosts, started)?);
            Ok(samples)
        })?;
        Ok(Self { stop, started, thread: Some(thread) })
    }

    /// Time since the start of the meter, comparable with [`Sample::at`].
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        now() - self.started
    }

    /// Stops the meter and returns its samples, oldest first. The last one is taken during this call.
    ///
    /// # Errors
    /// `Io` if the counters could not be read.
    pub fn stop(mut self) -> Result<Vec<Sample>> {
        self.end().unwrap_or_else(|| Err(Error::new(ErrorKind::Io, "a meter's thread failed")))
    }

    fn end(&mut self) -> Option<Result<Vec<Sample>>> {
        self.stop.store(true, Ordering::Release);
        let thread = self.thread.take()?;
        thread.thread().unpark();
        thread.join().ok()
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// Reads the counters once. Must run on a thread inside the switch, so that `/proc/thread-self/net` is the switch's.
fn sample(switch: &str, hosts: u32, started: Instant) -> Result<Sample> {
    const DEVICES: &str = "/proc/thread-self/net/dev";
    let before = now();
    let shaped = shaped_bytes_of_ports(switch, hosts)?;
    let text = std::fs::read_to_string(DEVICES)
        .map_err(|e| Error::from_source(ErrorKind::Io, format!("read `{DEVICES}` in the switch"), e))?;
    // `tc` takes a few milliseconds to read the shapers, so the sample gets the middle of that time.
    let at = before.saturating_duration_since(started) + (now() - before) / 2;
    let counted: Vec<(u64, u64)> =
        (0..hosts).map(|index| device_bytes(&text, &port(index)).unwrap_or_default()).collect();
    Ok(Sample {
        at,
        sent: counted.iter().map(|(from_host, _)| *from_host).collect(),
        received: shaped.iter().zip(&counted).map(|(shaped, (_, plain))| shaped.unwrap_or(*plain)).collect(),
    })
}

/// Bytes received and sent by `device`: fields 1 and 9 of its line (`man 5 proc_pid_net`).
fn device_bytes(text: &str, device: &str) -> Option<(u64, u64)> {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(device)?.strip_prefix(':'))?;
    let mut fields = line.split_whitespace().map(str::parse);
    Some((fields.next()?.ok()?, fields.nth(7)?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_devices_are_read() {
        let text = "Inter-|   Receive\n face |bytes\n port1: 11 2 0 0 0 0 0 0 99 4 0 0 0 0 0 0\n\
            port11:5 1 0 0 0 0 0 0 7 1 0 0 0 0 0 0\n";
        assert_eq!(device_bytes(text, "port1"), Some((11, 99)));
        assert_eq!(device_bytes(text, "port11"), Some((5, 7)));
        assert_eq!(device_bytes(text, "port2"), None);
    }
}
