//! Boot profiles, and what machines tell each other while they start, as they travel. `formats/api.md`, "Boot
//! profiles".

use serde::{Deserialize, Serialize};

/// Chunks behind each other that are read one after the other: index of the first, and how many.
pub type Run = (u64, u32);

/// Most chunks that one exchange brings; more go with the next.
pub const EXCHANGE_CHUNKS_MAX: usize = 512;
/// Most chunks that the answer to one exchange brings; more come with the next.
pub const ANSWER_CHUNKS_MAX: usize = 4096;

/// The body of `GET …/images/{name}/profile`: what a machine that starts is likely to read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfileAnswer {
    /// The image that it is kept with.
    pub image: String,
    /// Its number there.
    pub number: u64,
    /// Size of the chunks, in bytes.
    pub chunk_bytes: u32,
    /// How many boots it is made of.
    pub boots: u32,
    /// The chunks, in the order in which they are read.
    pub runs: Vec<Run>,
}

/// The body of `POST …/images/{name}/profile`: what a machine read when it started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootRequest {
    /// The version that it ran.
    pub version: u64,
    /// The chunks, in the order of their first reads.
    pub runs: Vec<Run>,
}

/// The answer to that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootAnswer {
    /// Whether it is kept. Of machines that start at the same time one is enough.
    pub kept: bool,
}

/// Where a machine is in what others tell. The default is the beginning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// Of which telling: a server that forgot begins another.
    pub telling: u64,
    /// How many of its chunks the machine has heard of.
    pub at: u32,
}

/// The body of `POST …/images/{name}/reads`: what a machine has just read for the first time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExchangeRequest {
    /// The version that it runs.
    pub version: u64,
    /// A random number that tells it from others.
    pub machine: u64,
    /// What it has heard of.
    #[serde(default)]
    pub cursor: Cursor,
    /// At most [`EXCHANGE_CHUNKS_MAX`] chunks, in the order of their first reads.
    #[serde(default)]
    pub runs: Vec<Run>,
}

/// The answer to that: what others have read since.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExchangeAnswer {
    /// For the next exchange.
    pub cursor: Cursor,
    /// At most [`ANSWER_CHUNKS_MAX`] chunks, in the order in which they were first read.
    pub runs: Vec<Run>,
    /// The next exchange should not begin earlier than so many milliseconds from now: machines share what a server can
    /// bear.
    pub pause_ms: u32,
}

/// `chunks` as runs.
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
            // Nothing begins at the last number there is.
            let readable = !chunks.contains(&u64::MAX);
            assert!(!readable || chunks_of(&runs, 10) == chunks, "{runs:?}");
        }
        assert_eq!(runs_of(&[5, 6, 7, 6]), [(5, 3), (6, 1)]);
        assert_eq!(chunks_of(&[(0, u32::MAX), (0, u32::MAX)], 3), [0, 1, 2]);
        assert_eq!(chunks_of(&[(u64::MAX, u32::MAX), (4, 0), (2, 1)], 3), [2]);
    }
}
