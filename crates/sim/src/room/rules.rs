//! The rules that must hold at the end of a room's run, checked with what was on the wire.

use super::RoomOutcome;

/// Bytes on the wire that receivers may send to the server for any image: in total, and for each receiver to join and
/// to leave.
const CONTROL_BYTES_MIN: u64 = 16 << 10;
const CONTROL_BYTES_EACH: u64 = 400;
/// Number of useless blocks that are allowed in any case.
const USELESS_MIN: u64 = 16;

/// Returns the broken rules, and how each was broken.
pub(super) fn breaches(outcome: &RoomOutcome) -> Vec<(&'static str, String)> {
    let mut breaches = Vec::new();
    let mut check = |rule, holds: bool, what: String| {
        if !holds {
            breaches.push((rule, what));
        }
    };
    let undone = outcome.took.iter().filter(|took| took.is_none()).count();
    check("everybody ends", undone == 0, format!("{undone} receivers are not done"));

    let most = outcome.data_bytes / 100 + CONTROL_BYTES_MIN + CONTROL_BYTES_EACH * outcome.took.len() as u64;
    let what = format!("{} bytes, at most {most}", outcome.control_bytes);
    check("control traffic is bounded", outcome.control_bytes <= most, what);

    let statistics = &outcome.statistics;
    let booked = outcome.blocks_first + statistics.resent.total() + statistics.symbols_ahead;
    let what = format!("{} blocks sent, {booked} of them booked", statistics.blocks_sent);
    check("every resend is booked with its cause", statistics.blocks_sent == booked, what);

    let most = statistics.symbols_sent / 4 + USELESS_MIN;
    let what = format!("{} of {} blocks, at most {most}", outcome.blocks_useless, statistics.blocks_sent);
    check("nothing is sent that nobody lacks", outcome.blocks_useless <= most, what);
    breaches
}
