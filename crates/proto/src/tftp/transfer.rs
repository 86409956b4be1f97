//! One file on its way to one client.

use std::ops::Range;
use std::time::Duration;

use base::Instant;

use super::packet::{BLOCK_BYTES, Reply, Request, data_header};

/// How long the server waits for an acknowledgement while it knows nothing of the client; later by how long those took
/// that came (RFC 6298), since GRUB loads 30,000 blocks one by one and asks for none again. Twice as long each time, up
/// to [`WAIT_MAX`].
const WAIT: Duration = Duration::from_millis(500);
const WAIT_MIN: Duration = Duration::from_millis(20);
const WAIT_MAX: Duration = Duration::from_secs(4);
/// A client that acknowledges nothing new for this long counts as gone.
const SILENCE: Duration = Duration::from_secs(30);

/// What is to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// This packet.
    Packet(Vec<u8>),
    /// A packet of this header and these bytes of the file.
    Block([u8; 4], Range<u64>),
}

/// How a transfer stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It goes on.
    Running,
    /// The client has everything.
    Done,
    /// The client does not answer any more.
    Silent,
    /// The client does not want it any more. Firmware that asks for the size alone ends so.
    Refused,
}

/// A transfer.
#[derive(Debug)]
pub struct Transfer {
    bytes: u64,
    block_bytes: u64,
    window: u64,
    /// How long to wait while nothing is known, or at most.
    wait: Duration,
    /// How long acknowledgements take, and how much this varies.
    round_trip: Option<(Duration, Duration)>,
    /// When this window was opened, and when the client last acknowledged something new.
    opened_at: Instant,
    heard_at: Instant,
    /// The answer to the options, until the client has acknowledged it by block 0.
    options: Option<Vec<u8>>,
    /// The last block that the client has acknowledged; blocks count from 1.
    acked: u64,
    /// The last block that was sent.
    sent: u64,
    /// The last block of the window that is being sent.
    window_end: u64,
    /// When the same is sent again.
    again_at: Instant,
    tries: u32,
    /// This window was sent more than once, and so was the one before: each block that came twice is acknowledged
    /// twice.
    repeated: bool,
    repeated_before: bool,
    outcome: Outcome,
}

impl Transfer {
    /// Begins to send a file of `bytes`.
    #[must_use]
    pub fn begin(request: &Request, bytes: u64, now: Instant) -> Self {
        let options = request.options(bytes);
        let wait = request.timeout_seconds.map_or(WAIT, |seconds| Duration::from_secs(u64::from(seconds)));
        let mut transfer = Self {
            bytes,
            block_bytes: u64::from(request.block_bytes.unwrap_or(BLOCK_BYTES)),
            window: u64::from(request.window.unwrap_or(1)),
            wait,
            round_trip: None,
            opened_at: now,
            heard_at: now,
            acked: 0,
            sent: 0,
            window_end: 0,
            again_at: now,
            tries: 0,
            repeated: false,
            repeated_before: false,
            outcome: Outcome::Running,
            options,
        };
        if transfer.options.is_none() {
            transfer.open_window(now);
        }
        transfer
    }

    /// How it stands.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// When [`Self::poll`] has something to send at the latest, if no packet arrives before.
    #[must_use]
    pub fn wakes_at(&self) -> Instant {
        self.again_at
    }

    /// Number of the last block, which is shorter than the others, or empty.
    fn last(&self) -> u64 {
        self.bytes / self.block_bytes + 1
    }

    /// Lets the next window be sent, from the block after the one that was acknowledged.
    fn open_window(&mut self, now: Instant) {
        self.sent = self.acked;
        self.window_end = (self.acked + self.window).min(self.last());
        (self.opened_at, self.again_at) = (now, now + self.pause());
    }

    fn pause(&self) -> Duration {
        let known = self.round_trip.map(|(mean, variation)| mean + 4 * variation);
        let wait = known.map_or(self.wait, |known| known.clamp(WAIT_MIN, self.wait));
        wait.saturating_mul(1 << self.tries.min(8)).min(WAIT_MAX.max(self.wait))
    }

    /// The client acknowledged something new. What was sent twice says nothing of the time it takes.
    fn heard(&mut self, now: Instant) {
        self.heard_at = now;
        // Until then the server goes on to wait as long as it did last.
        if !self.repeated {
            self.tries = 0;
            let took = now.since(self.opened_at);
            self.round_trip = Some(self.round_trip.map_or((took, took / 2), |(mean, variation)| {
                ((mean * 7 + took) / 8, (variation * 3 + mean.abs_diff(took)) / 4)
            }));
        }
        (self.repeated_before, self.repeated) = (self.repeated, false);
    }

    /// The client sent `packet`.
    pub fn receive(&mut self, now: Instant, packet: &[u8]) {
        match Reply::parse(packet) {
            Some(Reply::Ack(number)) => self.acknowledge(now, number),
            Some(Reply::Error) if self.outcome == Outcome::Running => self.outcome = Outcome::Refused,
            _ => {}
        }
    }

    fn acknowledge(&mut self, now: Instant, number: u16) {
        if self.options.is_some() {
            if number == 0 {
                self.options = None;
                self.heard(now);
                self.open_window(now);
            }
            return;
        }
        // Numbers have 16 bits and begin again: it is the block at or after the one that was acknowledged.
        let ahead = u64::from(number.wrapping_sub((self.acked & 0xFFFF) as u16));
        let block = self.acked + ahead;
        if block > self.sent {
            // Of an earlier window, or made up.
            return;
        }
        if ahead == 0 {
            // In a window of one block this may be an old packet: answering each would send everything twice.
            let is_first = !self.repeated && !self.repeated_before;
            let misses_first = self.window > 1 && self.sent == self.window_end && is_first;
            if misses_first && self.sent > self.acked {
                self.repeated = true;
                self.open_window(now);
            }
            return;
        }
        self.heard(now);
        self.acked = block;
        if block == self.last() {
            self.outcome = Outcome::Done;
        } else {
            self.open_window(now);
        }
    }

    /// What is to be sent now; call it until it returns nothing.
    pub fn poll(&mut self, now: Instant) -> Option<Output> {
        if self.outcome != Outcome::Running {
            return None;
        }
        if let Some(options) = &self.options {
            if now < self.again_at {
                return None;
            }
            let packet = options.clone();
            return self.try_again(now).then_some(Output::Packet(packet));
        }
        if self.sent == self.window_end && now >= self.again_at {
            if !self.try_again(now) {
                return None;
            }
            self.open_window(now);
        }
        (self.sent < self.window_end).then(|| {
            self.sent += 1;
            let start = (self.sent - 1) * self.block_bytes;
            Output::Block(data_header(self.sent), start..(start + self.block_bytes).min(self.bytes))
        })
    }

    /// Counts a repetition. False if the client counts as gone.
    fn try_again(&mut self, now: Instant) -> bool {
        if now.since(self.heard_at) > SILENCE.max(4 * self.wait) {
            self.outcome = Outcome::Silent;
            return false;
        }
        self.again_at = now + self.pause();
        self.tries = self.tries.saturating_add(1);
        self.repeated = self.tries > 1 || self.options.is_none();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tftp::{ErrorCode, error_packet};

    fn request(options: &str) -> Request {
        Request::parse(&[b"\0\x01a\0octet\0", options.replace(' ', "\0").as_bytes()].concat()).unwrap()
    }

    /// A client as RFC 7440 describes it, over a link that loses what `lost` says. Each packet takes a
    /// millisecond. Returns the file, how many packets the server sent, and when it was done.
    fn run(request: &Request, file: &[u8], mut lost: impl FnMut() -> bool) -> (Vec<u8>, usize, Instant) {
        let (mut now, mut got, mut packets) = (Instant::ZERO, Vec::new(), 0);
        let mut transfer = Transfer::begin(request, file.len() as u64, now);
        let (block, window) = (transfer.block_bytes, transfer.window);
        let (mut next, mut in_window) = (1_u64, 0);
        let ack = |number: u64| [[0, 4], ((number & 0xFFFF) as u16).to_be_bytes()].concat();
        while transfer.outcome() == Outcome::Running {
            let Some(output) = transfer.poll(now) else {
                // The client is silent for as long as the server is.
                now = transfer.wakes_at();
                continue;
            };
            packets += 1;
            now = now + Duration::from_millis(1);
            if lost() {
                continue;
            }
            let reply = match output {
                Output::Packet(_) => Some(ack(0)),
                Output::Block(header, range) => {
                    let range = usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap();
                    let number = u16::from_be_bytes([header[2], header[3]]);
                    let is_last = (range.len() as u64) < block;
                    if number == (next & 0xFFFF) as u16 {
                        got.extend_from_slice(&file[range]);
                        (next, in_window) = (next + 1, in_window + 1);
                        let is_full = in_window == window || is_last;
                        if is_full {
                            in_window = 0;
                        }
                        is_full.then(|| ack(next - 1))
                    } else {
                        in_window = 0;
                        Some(ack(next - 1))
                    }
                }
            };
            if let Some(reply) = reply.filter(|_| !lost()) {
                transfer.receive(now, &reply);
            }
        }
        assert_eq!(transfer.outcome(), Outcome::Done);
        (got, packets, now)
    }

    fn file(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|at| u8::try_from((at * 7 + at / 251) % 256).unwrap()).collect()
    }

    #[test]
    fn files_arrive_whole_whatever_their_length_and_options() {
        for bytes in [0, 1, 511, 512, 513, 1468 * 4, 100_000] {
            for options in ["", "blksize 1468 ", "blksize 1468 windowsize 4 tsize 0 ", "windowsize 16 "] {
                let (got, ..) = run(&request(options), &file(bytes), || false);
                assert!(got == file(bytes), "{bytes} bytes with {options}");
            }
        }
        // The numbers of blocks begin again.
        let long = file(8 * 70_000 + 3);
        assert!(run(&request("blksize 8 windowsize 32 "), &long, || false).0 == long);
    }

    #[test]
    fn a_lossy_link_costs_little_more_than_what_it_loses() {
        let long = file(1468 * 3000);
        for (options, most) in [("blksize 1468 ", 1.05), ("blksize 1468 windowsize 16 ", 1.25)] {
            let mut turn = 0_u64;
            // One in a hundred, at irregular distances.
            let lost = || {
                turn = turn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (turn >> 33).is_multiple_of(100)
            };
            let (got, packets, end) = run(&request(options), &long, lost);
            assert!(got == long);
            #[expect(clippy::cast_precision_loss, reason = "some thousand")]
            let share = packets as f64 / 3000.0;
            assert!(share < most, "{options}: {share} packets for each block");
            // A loss costs the time of some packets, not half a second.
            assert!(end < Instant::ZERO + Duration::from_secs(6), "{options}: {end:?}");
        }
    }

    #[test]
    fn an_early_repetition_is_not_carried_on() {
        let mut now = Instant::ZERO;
        let mut transfer = Transfer::begin(&request("windowsize 4 "), 512 * 400, now);
        let sent = |transfer: &mut Transfer, now| std::iter::from_fn(|| transfer.poll(now)).count();
        let ack = |transfer: &mut Transfer, now, number: u8| transfer.receive(now, &[0, 4, 0, number]);
        assert_eq!(sent(&mut transfer, now), 1);
        ack(&mut transfer, now, 0);
        for window in 1..=10 {
            assert_eq!(sent(&mut transfer, now), 4);
            now = now + Duration::from_millis(1);
            ack(&mut transfer, now, 4 * window);
        }
        // The client pauses for longer than ever before: it gets a window twice, and acknowledges it twice.
        assert_eq!(sent(&mut transfer, now), 4);
        now = transfer.wakes_at();
        assert_eq!(sent(&mut transfer, now), 4);
        for _ in 0..2 {
            ack(&mut transfer, now, 44);
        }
        assert_eq!(sent(&mut transfer, now), 4);
        ack(&mut transfer, now, 44);
        assert_eq!(sent(&mut transfer, now), 0, "it is no loss");
        ack(&mut transfer, now, 48);
        assert_eq!(sent(&mut transfer, now), 4);
    }

    #[test]
    fn an_old_acknowledgement_sends_nothing_twice() {
        let mut transfer = Transfer::begin(&request(""), 5000, Instant::ZERO);
        let sent = |transfer: &mut Transfer| std::iter::from_fn(|| transfer.poll(Instant::ZERO)).count();
        assert_eq!(sent(&mut transfer), 1);
        transfer.receive(Instant::ZERO, &[0, 4, 0, 1]);
        assert_eq!(sent(&mut transfer), 1);
        for _ in 0..3 {
            transfer.receive(Instant::ZERO, &[0, 4, 0, 1]);
            assert_eq!(sent(&mut transfer), 0);
        }
        // What was never sent is not acknowledged.
        transfer.receive(Instant::ZERO, &[0, 4, 0, 9]);
        assert_eq!((sent(&mut transfer), transfer.outcome()), (0, Outcome::Running));
    }

    #[test]
    fn a_client_that_is_gone_is_given_up() {
        // One that wants to wait longer is waited for.
        for (options, wanted, seconds) in [("tsize 0 ", 10, 60), ("tsize 0 timeout 60 ", 5, 400)] {
            let mut transfer = Transfer::begin(&request(options), 5000, Instant::ZERO);
            let (mut now, mut packets) = (Instant::ZERO, 0);
            while transfer.outcome() == Outcome::Running {
                while transfer.poll(now).is_some() {
                    packets += 1;
                }
                now = transfer.wakes_at();
            }
            assert_eq!((transfer.outcome(), packets), (Outcome::Silent, wanted), "{options}");
            assert!(now.since(Instant::ZERO) < Duration::from_secs(seconds), "{now:?}");
        }
        let mut transfer = Transfer::begin(&request("tsize 0 "), 5000, Instant::ZERO);
        transfer.receive(Instant::ZERO, &error_packet(ErrorCode::Other, "enough"));
        assert_eq!(transfer.outcome(), Outcome::Refused);
    }

    #[test]
    fn requests_and_their_options() {
        let parsed = request("blksize 65000 windowsize 900 timeout 3 tsize 0 unknown x ");
        assert_eq!(parsed.name, "a");
        let answer = parsed.options(77).unwrap();
        assert_eq!(answer, b"\0\x06blksize\x001468\0windowsize\x0032\0timeout\x003\0tsize\x0077\0");
        assert_eq!(request("blksize 4 timeout 0 windowsize 0 ").options(77), None);
        let refused = |packet: &[u8]| Request::parse(packet).unwrap_err().0;
        assert_eq!(refused(b"\0\x02a\0octet\0"), ErrorCode::Access);
        let broken: [&[u8]; 6] =
            [b"", b"\0", b"\0\x01", b"\0\x01a\0octet", b"\0\x01a\0", b"\0\x03a\0octet\0"];
        broken.iter().for_each(|packet| assert_eq!(refused(packet), ErrorCode::Illegal));
        assert_eq!(refused(&[b"\0\x01", &b"a".repeat(600)[..], b"\0octet\0"].concat()), ErrorCode::Illegal);
    }
}
