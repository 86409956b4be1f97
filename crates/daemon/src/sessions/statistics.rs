//! Formats the statistics of a session as text, like Frisbee's server log (as in the sample of SWP2P) with some more
//! lines.

use std::fmt::Write;
use std::time::Duration;

use base::units::{show_bits_per_second, show_bytes, show_duration};
use net::api::{ReceiverStatistics, SessionStatistics};

/// A session has a loss once its receivers have counted this many blocks.
const LOSS_BLOCKS_MIN: u64 = 1000;

/// The statistics of one session as text, one line per number.
#[must_use]
pub fn text(session: &SessionStatistics) -> String {
    let resent = session.resent_late + session.resent_buffer_full + session.resent_lost;
    let delivered: u64 = session.receivers.iter().map(|receiver| receiver.blocks_received).sum();
    let mut log = Log::default();
    log.line("Session", format_args!("{} (epoch {})", session.session, session.epoch));
    log.line("Serving image", &session.reference);
    log.line("Multicast group", session.group);
    log.line("State", if session.running { "running" } else { "ended" });
    log.line("Runtime", show(session.runtime_ms));
    log.line("Total clients served", session.receivers.len());
    log.line("Image read time", show(session.read_ms));
    log.line(
        "Image size",
        format_args!(
            "{} in {} objects, bundled to {}",
            show_bytes(session.image_bytes),
            session.stored_objects,
            session.objects
        ),
    );
    log.line("Image reads", format_args!("{} bytes", session.read_bytes));
    log.line("Image read failures", session.read_failures);
    log.line("Image repeated reads", format_args!("{} bytes", session.reread_bytes));
    log.line("Total blocks on image", session.blocks_in_image);
    log.line("Total blocks on multicast", session.blocks_sent);
    log.line("  sent again", resent);
    log.line("    joined late", session.resent_late);
    log.line("    buffer full", session.resent_buffer_full);
    log.line("    lost", session.resent_lost);
    log.line(
        "  repair symbols",
        format_args!("{}, {} of them ahead", session.symbols_sent, session.symbols_ahead),
    );
    log.line("Sending time", show(session.sending_ms));
    log.line("Rate", show_rate(rate(session)));
    log.line("Got by unicast", format_args!("{} bytes", session.unicast_bytes));
    log.line("Saving using multicast", delivered.saturating_sub(session.blocks_sent));
    log.line("Efficiency", efficiency(session));
    log.line("Payload sent", format_args!("{} bytes", session.payload_bytes));
    log.line("Packets sent", format_args!("{} bytes", session.packet_bytes));
    log.line("Control sent", format_args!("{} packets", session.control_packets));
    log.line("Reports received", format_args!("{} packets, {} rejected", session.reports, session.rejected));
    session.trouble.iter().for_each(|trouble| log.line("Trouble", trouble));
    session.receivers.iter().for_each(|receiver| log.receiver(receiver));
    log.0
}

/// The rate of a session while it was sending, in bits per second; `None` if that was too short to tell.
fn rate(session: &SessionStatistics) -> Option<u64> {
    Some(session.rate_bits_per_second).filter(|&rate| rate > 0)
}

/// A rate as text, `-` if there is none.
pub(crate) fn show_rate(rate: Option<u64>) -> String {
    rate.map_or_else(|| "-".to_owned(), show_bits_per_second)
}

/// The part of the blocks that was lost on the way to the receivers, 0 to 1. The counts come from the receivers.
pub(crate) fn loss(receivers: &[ReceiverStatistics]) -> Option<f64> {
    let sum = |count: fn(&ReceiverStatistics) -> u64| {
        receivers.iter().fold(0u64, |sum, receiver| sum.saturating_add(count(receiver)))
    };
    let lost = sum(|receiver| receiver.blocks_lost);
    let arrived = sum(|receiver| receiver.blocks_received.saturating_add(receiver.blocks_duplicate));
    let blocks = arrived.saturating_add(lost);
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let part = lost as f64 / blocks.max(1) as f64;
    (blocks >= LOSS_BLOCKS_MIN).then_some(part)
}

/// Blocks of the image divided by blocks sent, the measure of SWP2P: 1 means that one copy served all receivers. There
/// is none before a whole copy was sent: its receivers had most of the image, or got it by unicast.
fn efficiency(session: &SessionStatistics) -> String {
    if session.blocks_sent == 0 || session.blocks_sent < session.blocks_in_image {
        return "-".to_owned();
    }
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let ratio = session.blocks_in_image as f64 / session.blocks_sent as f64;
    format!("{ratio:.3}")
}

fn show(milliseconds: u64) -> String {
    show_duration(Duration::from_millis(milliseconds))
}

#[derive(Default)]
struct Log(String);

impl Log {
    fn line(&mut self, name: &str, value: impl std::fmt::Display) {
        writeln!(self.0, "{name:<26}: {value}").expect("a string takes everything");
    }

    fn receiver(&mut self, receiver: &ReceiverStatistics) {
        self.line("  Client", format_args!("{} (number {})", receiver.name, receiver.receiver));
        self.line("    Joined after", show(receiver.joined_ms));
        let end = if receiver.left { "" } else { " (has not left)" };
        self.line("    Runtime", format_args!("{}{end}", show(receiver.runtime_ms)));
        self.line("    Concurrency", format_args!("{:.2}%", receiver.concurrency * 100.0));
        let (received, twice) = (receiver.blocks_received, receiver.blocks_duplicate);
        let (lost, refused) = (receiver.blocks_lost, receiver.blocks_refused);
        self.line(
            "    Blocks",
            format_args!("{received} received, {twice} twice, {lost} lost, {refused} without room"),
        );
        if receiver.overdrawn > 0 {
            let text = "requests for more repairs than its share were ignored";
            self.line("    Asked too much", format_args!("{} {text}", receiver.overdrawn));
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use net::api::SessionId;

    /// The session of SWP2P's sample log, as we would see it.
    pub(crate) fn sample() -> SessionStatistics {
        let receiver = |receiver, runtime_ms, concurrency| ReceiverStatistics {
            receiver,
            name: format!("pc{receiver}"),
            joined_ms: 0,
            runtime_ms,
            left: true,
            concurrency,
            blocks_received: 726_016,
            blocks_duplicate: 0,
            blocks_lost: 3,
            blocks_refused: 0,
            overdrawn: 0,
        };
        SessionStatistics {
            session: SessionId(55_626),
            epoch: 7,
            reference: "ubuntu16-64-x86@20".into(),
            group: "239.192.1.2:7717".parse().unwrap(),
            running: false,
            runtime_ms: 93_720,
            read_ms: 480,
            read_bytes: 1_519_386_624,
            reread_bytes: 775_946_240,
            read_failures: 0,
            objects: 709,
            stored_objects: 2836,
            image_bytes: 743_440_384,
            blocks_in_image: 726_016,
            blocks_sent: 1_483_776,
            resent_late: 700_000,
            resent_buffer_full: 57_000,
            resent_lost: 760,
            symbols_sent: 800,
            symbols_ahead: 40,
            rate_bits_per_second: 136_600_000,
            sending_ms: 93_700,
            recent_bits_per_second: None,
            unicast_bytes: 5_000_000,
            payload_bytes: 1_519_386_624,
            packet_bytes: 1_600_000_000,
            control_packets: 900,
            reports: 3100,
            rejected: 2,
            trouble: None,
            receivers: vec![
                receiver(1, 93_720, 1.0),
                receiver(2, 93_705, 1.0),
                receiver(3, 58_478, 0.9918),
                receiver(4, 36_353, 0.9902),
            ],
        }
    }

    #[test]
    fn a_session_that_sent_almost_nothing_has_no_absurd_figures() {
        let nothing = SessionStatistics {
            rate_bits_per_second: 0,
            blocks_sent: 587,
            packet_bytes: 900_000,
            payload_bytes: 835_888,
            ..sample()
        };
        let seen = text(&nothing);
        for line in ["Rate                      : -\n", "Efficiency                : -\n"] {
            assert!(seen.contains(line), "{line} is missing in\n{seen}");
        }
        assert_eq!(loss(&[]), None);
        assert!(loss(&sample().receivers).is_some_and(|loss| loss > 0.0 && loss < 0.001));
        let mut hostile = sample();
        hostile.receivers[0].blocks_lost = u64::MAX;
        assert_eq!(loss(&hostile.receivers), Some(1.0));
    }

    #[test]
    fn the_numbers_of_the_sample_log_come_out() {
        let text = text(&sample());
        for line in [
            "Serving image             : ubuntu16-64-x86@20\n",
            "Total clients served      : 4\n",
            "Image repeated reads      : 775946240 bytes\n",
            "Total blocks on image     : 726016\n",
            "Total blocks on multicast : 1483776\n",
            "  sent again              : 757760\n",
            "    joined late           : 700000\n",
            "Saving using multicast    : 1420288\n",
            "Sending time              : 1m33s\n",
            "Rate                      : 137 Mbit/s\n",
            "Efficiency                : 0.489\n",
            "    Runtime               : 58.5 s\n",
            "    Concurrency           : 99.18%\n",
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
    }
}
