//! stub
use base::Instant;
#[derive(Debug, Default)]
pub(super) struct DelayMeter;
impl DelayMeter {
    pub(super) fn packet(&mut self, _now: Instant, _ts: u32) {}
    pub(super) fn take(&mut self, _now: Instant) -> u32 {
        0
    }
}
