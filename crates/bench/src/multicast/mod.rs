//! Figures of multicast: the last host's time compared with the link's own time and with other tools, with and without
//! loss, with slow and late hosts, on shared links, and on links without a rate.

mod bare;
mod bound;
mod growth;
mod link;
mod peers;
mod sealed;
mod share;
mod skew;
mod slow;
mod unshaped;

use crate::Group;
use crate::room::star;

pub(crate) use bare::{receive as bare_receive, send as bare_send};
pub(crate) use peers::explore;

pub(crate) const GROUPS: &[&Group] = &[
    &link::SIXTEEN,
    &link::EIGHT,
    &link::SIXTEEN_LOSS_1,
    &link::SIXTEEN_LOSS_10,
    &link::ONE_LOSS_1,
    &slow::GROUP,
    &skew::GROUP,
    &share::FOUR_SESSIONS,
    &share::TCP,
    &share::TWO_SERVERS,
    &sealed::GROUP,
    &unshaped::GROUP,
    &growth::GROUP,
    &peers::GROUP,
];

/// Runs of each measurement, of which the median counts.
const RUNS: usize = 3;
const GIGABIT: u64 = 1_000_000_000;
/// Where hosts write the image: `null:` drops the objects after their digests are verified.
const SINK: &str = "null, verifying";

/// A rate as text: in whole Gbit/s from 1 Gbit/s on, else in Mbit/s.
fn rate_words(bits_per_second: u64) -> String {
    match bits_per_second {
        GIGABIT.. => format!("{} Gbit/s", bits_per_second / GIGABIT),
        _ => format!("{} Mbit/s", bits_per_second / 1_000_000),
    }
}

fn most(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}
