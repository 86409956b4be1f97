//! JSON bodies of boot profiles and of the exchange of reads between machines that boot. `formats/api.md`, "Boot
//! profiles".

use serde::{Deserialize, Serialize};

/// Consecutive chunks of the disk that are read in this order: index of the first, and number of chunks.
pub type Run = (u64, u32);

/// Most chunks in one exchange request; further ones are sent with the next.
pub const EXCHANGE_CHUNKS_MAX: usize = 512;
/// Most chunks in the answer to one exchange; further ones come with the next.
pub const ANSWER_CHUNKS_MAX: usize = 4096;

/// The answer to `GET …/images/{name}/profile`: what a machine that boots is likely to read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfileAnswer {
    /// The image under which the profile is stored.
    pub image: String,
    /// The version under which it is stored.
    pub number: u64,
    /// Size of a chunk, in bytes.
    pub chunk_bytes: u32,
    /// Number of boots in it.
    pub boots: u32,
    /// The expected chunks, in the order in which they are read.
    pub runs: Vec<Run>,
}

/// The body of `POST …/images/{name}/profile`: what a machine read when it booted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootRequest {
    /// The version that it booted from.
    pub version: u64,
    /// The chunks, in the order of their first reads.
    pub runs: Vec<Run>,
}

/// The answer to [`BootRequest`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootAnswer {
    /// Whether the server keeps the boot. Of machines that boot at the same time it keeps one.
    pub kept: bool,
}

/// How much of the list of reads a machine has received. The default is nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// Identifies the list: a server that has forgotten the list begins a new one.
    pub telling: u64,
    /// The number of chunks of the list that the machine has received.
    pub at: u32,
}

/// The body of `POST …/images/{name}/reads`: what a machine has just read for the first time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExchangeRequest {
    /// The version that it runs.
    pub version: u64,
    /// A random number that identifies the machine.
    pub machine: u64,
    /// The cursor of the last answer.
    #[serde(default)]
    pub cursor: Cursor,
    /// At most [`EXCHANGE_CHUNKS_MAX`] chunks, in the order of their first reads.
    #[serde(default)]
    pub runs: Vec<Run>,
}

/// The answer to [`ExchangeRequest`]: what other machines have read since.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExchangeAnswer {
    /// The cursor for the next exchange.
    pub cursor: Cursor,
    /// At most [`ANSWER_CHUNKS_MAX`] chunks, in the order in which they were first read.
    pub runs: Vec<Run>,
    /// Least time until the next exchange, in milliseconds, so that all machines together do not overload the server.
    pub pause_ms: u32,
}

/// Groups `chunks` into runs, in their order.
#[must_use]
pub fn runs_of(chunks: &[u64]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for &chunk in chunks {
        match runs.last_mut() {
            Some((first, count))
                if first.checked_add(u64::from(*count)) == Some(chunk) && *count < u32::MAX =>
            {
                *count += 1;
            }
            _ => runs.push((chunk, 1)),
        }
    }
    runs
}

/// The first `max` chunks of `runs`.
#[must_use]
pub fn chunks_of(runs: &[Run], max: usize) -> Vec<u64> {
    let chunks = runs.iter().flat_map(|&(first, count)| first..first.saturating_add(u64::from(count)));
    chunks.take(max).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_read_back_and_are_bounded() {
        for chunks in [vec![], vec![7], vec![5, 6, 7, 6, 7, 1, 0], vec![u64::MAX - 1, u64::MAX, 0]] {
            let runs = runs_of(&chunks);
            // The last number: no run can continue after it.
            let readable = !chunks.contains(&u64::MAX);
            assert!(!readable || chunks_of(&runs, 10) == chunks, "{runs:?}");
        }
        assert_eq!(runs_of(&[5, 6, 7, 6]), [(5, 3), (6, 1)]);
        assert_eq!(chunks_of(&[(0, u32::MAX), (0, u32::MAX)], 3), [0, 1, 2]);
        assert_eq!(chunks_of(&[(u64::MAX, u32::MAX), (4, 0), (2, 1)], 3), [2]);
    }
}
