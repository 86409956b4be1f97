//! A meter for the links of all hosts: reads their byte counters at regular intervals, to show rates over time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use base::{Error, ErrorKind, Result};

use crate::host::Namespace;
use crate::link::{Link, queues, shaped};

/// The counters of the links of all hosts at one moment. The vectors are indexed by host.
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
    /// Starts to read the counters of these links every `interval`, at their ports on `switches`. `Io` if the namespace
    /// of a switch does not exist.
    pub(crate) fn start(switches: &[String], links: &[Link], interval: Duration) -> Result<Self> {
        let switches: Vec<Switch> =
            switches.iter().map(|name| Switch::new(name, links)).collect::<Result<_>>()?;
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, started, hosts) = (Arc::clone(&stop), now(), links.len());
        let thread = std::thread::spawn(move || {
            let mut samples = Vec::new();
            while !stopped.load(Ordering::Acquire) {
                samples.push(sample(&switches, hosts, started)?);
                let due = started + interval * u32::try_from(samples.len()).unwrap_or(u32::MAX);
                // `end` wakes this thread. A spurious wake-up only causes one early sample.
                std::thread::park_timeout(due.saturating_duration_since(now()));
            }
            samples.push(sample(&switches, hosts, started)?);
            Ok(samples)
        });
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

/// A switch and its ports to hosts.
struct Switch {
    name: String,
    namespace: Namespace,
    /// Index of a host and the name of its port.
    ports: Vec<(usize, String)>,
}

impl Switch {
    fn new(name: &str, links: &[Link]) -> Result<Self> {
        let ports = links.iter().enumerate().filter(|(_, link)| link.port.namespace == name);
        let ports = ports.map(|(host, link)| (host, link.port.device.clone())).collect();
        Ok(Self { name: name.to_owned(), namespace: Namespace::open(name)?, ports })
    }
}

/// Reads the counters once. Moves the calling thread from switch to switch, because `/proc/thread-self/net` is that of
/// the thread's own network.
fn sample(switches: &[Switch], hosts: usize, started: Instant) -> Result<Sample> {
    const DEVICES: &str = "/proc/thread-self/net/dev";
    let before = now();
    let (mut sent, mut received) = (vec![0; hosts], vec![0; hosts]);
    for switch in switches {
        let queues = queues(&switch.name)?;
        switch.namespace.enter();
        let text = std::fs::read_to_string(DEVICES).map_err(|e| {
            Error::from_source(ErrorKind::Io, format!("read `{DEVICES}` in `{}`", switch.name), e)
        })?;
        for (host, port) in &switch.ports {
            let (from_host, to_host) = device_bytes(&text, port).unwrap_or_default();
            sent[*host] = from_host;
            received[*host] = shaped(&queues, port).map_or(to_host, |count| count.bytes);
        }
    }
    // `tc` takes a few milliseconds to read the shapers, so the sample gets the middle of that time.
    let at = before.saturating_duration_since(started) + (now() - before) / 2;
    Ok(Sample { at, sent, received })
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
