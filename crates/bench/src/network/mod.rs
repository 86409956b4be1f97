//! Figures of networks as they are: hosts with faults, a slow host, and TCP flows on the same links.

mod busy;
mod doctor;
mod faults;
mod half;
mod slow;
mod tcp;

use crate::Group;

pub(crate) const GROUPS: &[&Group] =
    &[&busy::GROUP, &doctor::GROUP, &faults::GROUP, &half::GROUP, &tcp::PORT, &tcp::SERVER, &slow::GROUP];

/// Where hosts write the image: `null:` drops the objects after their digests are verified.
const SINK: &str = "null, verifying";
const GIGABIT: u64 = 1_000_000_000;
