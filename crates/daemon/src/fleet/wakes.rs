//! Machines that agents wake: the server may be on another network than they are.

use std::collections::BTreeMap;
use std::time::Duration;

use base::Instant;
use net::mac::Mac;

/// How long an agent may take to ask.
const TIME: Duration = Duration::from_secs(60);
/// How often agents of one network are told: an answer may be lost, and so may a packet.
const TIMES: u32 = 2;

/// What agents are still to be told.
#[derive(Debug, Clone, Default)]
pub(super) struct Wakes(BTreeMap<Mac, Wake>);

#[derive(Debug, Clone)]
struct Wake {
    since: Instant,
    /// How often agents of a network were told.
    told: BTreeMap<String, u32>,
}

impl Wakes {
    /// The machine `mac` is to be woken by agents of each network: nobody knows on which one it is.
    pub(super) fn add(&mut self, mac: Mac, now: Instant) {
        self.forget_old(now);
        self.0.insert(mac, Wake { since: now, told: BTreeMap::new() });
    }

    /// It is not to be woken any more.
    pub(super) fn drop(&mut self, mac: Mac) {
        self.0.remove(&mac);
    }

    /// What an agent on `network` is to wake, if not enough were told there.
    pub(super) fn take(&mut self, network: &str, now: Instant) -> Vec<Mac> {
        self.forget_old(now);
        let mut new = Vec::new();
        for (mac, wake) in &mut self.0 {
            let told = wake.told.entry(network.to_owned()).or_default();
            if *told < TIMES {
                *told += 1;
                new.push(*mac);
            }
        }
        new
    }

    fn forget_old(&mut self, now: Instant) {
        self.0.retain(|_, wake| now.since(wake.since) < TIME);
    }
}
