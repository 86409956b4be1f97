//! What one device's TCP sends over time, as in figure 3 of seed 002: taken by tcpdump at the device, as there.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::Duration;

use lab::Host;

use crate::Result;
use crate::context::said;

/// Longest wait for tcpdump to begin or end.
const PATIENCE: Duration = Duration::from_secs(10);

/// A segment that a device sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Sent {
    /// Seconds since the first one.
    pub(super) at: f64,
    /// Its first byte, counted from the first one.
    pub(super) byte: u64,
    /// It was sent before.
    pub(super) again: bool,
}

/// Runs `work`, and returns what TCP at `port` of `host` sent meanwhile.
pub(super) fn watch<T>(host: &Host, port: u16, work: impl FnOnce() -> Result<T>) -> Result<(T, Vec<Sent>)> {
    let (text, notes) = (tempfile::NamedTempFile::new()?, tempfile::NamedTempFile::new()?);
    let mut command = host.command("tcpdump");
    // `-S` for numbers that go on through the whole connection; `greater`: no bare acknowledgements.
    command.args([
        "-i",
        "eth0",
        "-n",
        "-S",
        "-tt",
        "-l",
        "-B",
        "8192",
        "tcp",
        "src",
        "port",
        &port.to_string(),
    ]);
    command.args(["and", "greater", "100"]);
    let (output, errors) = (text.reopen()?, notes.reopen()?);
    let mut running = command.stdin(Stdio::null()).stdout(output).stderr(errors).spawn()?;
    let end = std::time::Instant::now() + PATIENCE;
    while !std::fs::read_to_string(notes.path())?.contains("listening on") {
        if std::time::Instant::now() > end {
            running.kill()?;
            return Err("tcpdump does not begin".into());
        }
        std::thread::park_timeout(Duration::from_millis(10));
    }
    let done = work();
    said(std::process::Command::new("kill").args(["-INT", &running.id().to_string()]))?;
    running.wait()?;
    Ok((done?, read(&std::fs::read_to_string(text.path())?)))
}

/// The segments in tcpdump's words.
fn read(text: &str) -> Vec<Sent> {
    let segments = text.lines().filter_map(|line| {
        let at: f64 = line.split(' ').next()?.parse().ok()?;
        let range = line.split(", seq ").nth(1)?.split(',').next()?;
        let byte: u32 = range.split_once(':')?.0.parse().ok()?;
        Some((at, byte))
    });
    let (mut sent, mut seen, mut first) = (vec![], BTreeSet::new(), None);
    for (at, number) in segments {
        let (begin, zero) = *first.get_or_insert((at, number));
        // Numbers wrap around.
        let byte = u64::from(number.wrapping_sub(zero));
        sent.push(Sent { at: at - begin, byte, again: !seen.insert(byte) });
    }
    sent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_that_are_sent_again_are_told_apart() {
        let line = |at: &str, range: &str| {
            format!(
                "{at} IP 10.77.0.2.7420 > 10.77.0.33.40: Flags [.], seq {range}, ack 1, win 5, length 100\n"
            )
        };
        let text = line("10.5", "4294967200:4294967300")
            + "10.6 IP 10.77.0.2.7420 > 10.77.0.33.40: Flags [.], ack 7, win 5, length 0\n"
            + &line("10.75", "4:104")
            + &line("11.0", "4294967200:4294967300");
        let expected = [(0.0, 0, false), (0.25, 100, false), (0.5, 0, true)];
        assert_eq!(read(&text), expected.map(|(at, byte, again)| Sent { at, byte, again }));
    }
}
