//! Prefetching: along streams of reads, next to chunks that were read, and in the order in which other machines
//! read.

mod bets;
mod expectations;
pub(in crate::machine) mod expected;
pub(in crate::machine) mod spatial;
pub(in crate::machine) mod streams;
pub(in crate::machine) mod window;
