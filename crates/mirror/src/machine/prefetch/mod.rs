//! Fetching before anybody asks: along streams of reads, beside what was touched, and as other machines read.

mod bets;
mod expectations;
pub(in crate::machine) mod expected;
pub(in crate::machine) mod spatial;
pub(in crate::machine) mod streams;
pub(in crate::machine) mod window;
