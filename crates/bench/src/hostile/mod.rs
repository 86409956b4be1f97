//! Figures of fetches beside a neighbour that attacks them: without a token, and with one for reading.

mod flood;
mod kills;
mod member;
mod token;

use crate::Group;

pub(crate) const GROUPS: &[&Group] = &[&flood::GROUP, &token::GROUP, &member::GROUP, &kills::GROUP];

const RATE: u64 = 100_000_000;
const HOSTS: u32 = 2;
/// The host that attacks.
const NEIGHBOUR: u32 = HOSTS + 1;
/// Where hosts write the image if it is compared with the original.
const SINK_FILES: &str = "files, verified";
/// Else: `null:` drops the objects after their digests are verified.
const SINK: &str = "null, verifying";
