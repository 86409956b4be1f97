//! What came of a run.

use base::Duration;

/// What was sent and received, in chunks and messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Chunks that the server sent; a multicast counts once.
    pub server_chunks: u64,
    /// Chunks that receivers sent.
    pub peer_chunks: u64,
    /// Chunks that arrived at receivers, however often.
    pub arrived_chunks: u64,
    /// Chunks that arrived and were lacking.
    pub fresh_chunks: u64,
    /// Chunks of a multicast that arrived and were lost in the receiver: by chance, or for want of memory.
    pub missed_chunks: u64,
    /// Requests for chunks.
    pub requests: u64,
    /// All messages, requests among them.
    pub messages: u64,
    /// The longest time that a message waited for the processor of a switch or of the server.
    pub handling_waited: Duration,
}

/// The times of one receiver, from its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Took {
    /// Time of its start, from the beginning of the run.
    pub started: Duration,
    /// Until it had received all chunks.
    pub network: Duration,
    /// Until it had written all chunks.
    pub total: Duration,
}

/// The result of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Chunks of the image.
    pub chunks: u32,
    /// The times of each receiver; `None` if it did not end.
    pub took: Vec<Option<Took>>,
    /// What was sent and received.
    pub tally: Tally,
    /// Bytes on the wire that the server's port sent.
    pub server_bytes: u64,
    /// Bytes on the wire that links between switches carried, both directions together.
    pub trunk_bytes: u64,
    /// The most bytes on the wire that a link between switches carried in one direction.
    pub trunk_bytes_max: u64,
    /// Number of events.
    pub steps: u64,
}

impl Outcome {
    /// Chunks that the server sent, as a multiple of the image.
    #[must_use]
    pub fn images(&self) -> f64 {
        self.tally.server_chunks as f64 / f64::from(self.chunks)
    }

    /// Seconds of the run time at this share of the receivers, from 0 for the fastest to 1 for the slowest; NaN if one
    /// did not end.
    #[must_use]
    pub fn seconds(&self, share: f64) -> f64 {
        quantile(self.took.iter().map(|took| took.map_or(f64::NAN, |took| took.total.as_secs_f64())), share)
    }

    /// As [`Self::seconds`], for the time of the network alone.
    #[must_use]
    pub fn network_seconds(&self, share: f64) -> f64 {
        quantile(self.took.iter().map(|took| took.map_or(f64::NAN, |took| took.network.as_secs_f64())), share)
    }
}

/// The value at this share of the sorted values; NaN if there is one among them.
fn quantile(values: impl Iterator<Item = f64>, share: f64) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    if values.last().is_none_or(|last| last.is_nan()) {
        return f64::NAN;
    }
    let index = (share.clamp(0.0, 1.0) * (values.len() - 1) as f64).round();
    #[expect(clippy::cast_sign_loss, reason = "it is at least zero")]
    values[index as usize]
}
