//! The measurements of seed 001 (its chapter 6) once more, beside the values that it published: an image on many hosts
//! by each of its ways and by ours (tables 6.1 and 6.2), BitTorrent's pieces and switches (figures 6.6 and 6.7), disks
//! of machines (table 6.3), and its whole test system in the simulator.

mod guest;
mod pieces;
mod plots;
mod simulated;
mod switches;
mod tables;

use lab::Star;

use crate::{Group, Result};

pub(crate) use plots::write as write_plot;

pub(crate) const GROUPS: &[&Group] =
    &[&tables::LARGE, &tables::SMALL, &guest::GROUP, &pieces::GROUP, &switches::GROUP, &simulated::GROUP];

/// Hosts of the experiments with BitTorrent.
const HOSTS: u32 = 16;
/// The server's link is so many times as fast as those of the hosts: 10 and 1 Gbit/s in the seed.
const SERVER_TIMES: u64 = 10;
/// 9.77 GB, divided by 40.
const MEBIBYTES: u64 = 233;
/// 9.77 GB at 1 Gbit/s, in seconds.
const IMAGE_THERE: f64 = 78.2;

/// Gives the server its faster link, in a lab whose hosts have links of `rate` bits per second.
fn speed_up(star: &Star, rate: u64) -> Result<()> {
    Ok(star.shape_host(0, SERVER_TIMES * rate, 1 << 20)?)
}

/// Seconds that so many MiB take on a link of `rate` bits per second.
#[expect(clippy::cast_precision_loss, reason = "a size in bytes")]
fn link_seconds(mebibytes: u64, rate: u64) -> f64 {
    (mebibytes << 23) as f64 / rate as f64
}
