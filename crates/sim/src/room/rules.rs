//! What must hold at the end of a room's run, told from what was on the wire.

use super::RoomOutcome;

/// What may go into the server whatever the image, in bytes on the wire: in all, and of each receiver to join and to
/// leave.
const CONTROL_BYTES_MIN: u64 = 16 << 10;
const CONTROL_BYTES_EACH: u64 = 400;
/// So many blocks may go out for nothing, whatever the losses.
const USELESS_MIN: u64 = 16;

/// Rules that are broken, and how.
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
