//! Machines that agents wake: the server may be on another network than they are.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base::Instant;
use net::mac::Mac;

/// How long an agent may take to ask.
const TIME: Duration = Duration::from_secs(60);

/// What agents are still to be told.
#[derive(Debug, Clone, Default)]
pub(super) struct Wakes(BTreeMap<Mac, Wake>);

#[derive(Debug, Clone)]
struct Wake {
    since: Instant,
    /// The networks of agents that were told.
    told: BTreeSet<String>,
}

impl Wakes {
    /// The machine `mac` is to be woken by an agent of each network: nobody knows on which one it is.
    pub(super) fn add(&mut self, mac: Mac, now: Instant) {
        self.0.insert(mac, Wake { since: now, told: BTreeSet::new() });
    }

    /// What an agent on `network` is to wake, if no other one there was told.
    pub(super) fn take(&mut self, network: &str, now: Instant) -> Vec<Mac> {
        self.0.retain(|_, wake| now.since(wake.since) < TIME);
        let mut new = Vec::new();
        for (mac, wake) in &mut self.0 {
            if wake.told.insert(network.to_owned()) {
                new.push(*mac);
            }
        }
        new
    }
}
