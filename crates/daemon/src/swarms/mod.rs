//! Swarms: the machines that serve each other. The redirector, which names one to another, is `net`'s.

pub(crate) mod boot_exchange;
pub(crate) mod torrents;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::time::Duration;

use base::{Digest, Error, ErrorKind, Result, chain};
use image::{Catalogue, SignedManifest};
use net::api::{Name, SwarmGrant, SwarmStatus};
use net::peer::{RedirectorCounters, RedirectorServer, SwarmView};
use parking_lot::Mutex;
use store::Repository;
use tokio::time::Instant;

const CONTEXT: &str = "diskcast 2026 swarm v1";
/// Who joined within this time may not have reported yet.
const JUST_NOW: Duration = Duration::from_secs(1);
/// Most swarms whose names and ranks are kept.
const NAMES_MAX: usize = 1024;

/// The swarms of a server.
pub(crate) struct Swarms {
    redirector: std::result::Result<RedirectorServer, String>,
    names: Mutex<HashMap<Name, Of>>,
    places: Places,
    /// Machines are known to come one soon after the other.
    together: bool,
}

/// What is known of a swarm beside its members.
struct Of {
    reference: String,
    objects: u32,
    joined: u32,
    /// When the last one joined.
    joined_at: Option<Instant>,
}

impl Swarms {
    /// The swarms of a server with `secret`, whose redirector takes packets at `listen`. Without it the server works as
    /// before. `together`: as in [`crate::MulticastOptions`].
    pub(crate) fn start(secret: &[u8; 32], listen: SocketAddr, places: Places, together: bool) -> Self {
        let started = RedirectorServer::start(&blake3::derive_key(CONTEXT, secret), listen);
        let redirector = started.map_err(|error| chain(&error));
        Self { redirector, names: Mutex::default(), places, together }
    }

    /// Admits a member at `address` to the swarm of `version`. Blocks: the first one of a version reads its tree.
    ///
    /// # Errors
    /// `Refused` if this server has no redirector, or too many swarms; those of the repository.
    pub(crate) fn join(
        &self,
        repository: &Repository,
        version: &SignedManifest,
        address: IpAddr,
    ) -> Result<SwarmGrant> {
        let refused = |why: &str| Error::new(ErrorKind::Refused, why);
        let redirector = self.redirector.as_ref().map_err(|why| refused(why))?;
        let swarm = redirector.swarm_of(&version.digest());
        if !self.names.lock().contains_key(&swarm) {
            let catalogue = Catalogue::load(&version.manifest, repository, repository.cipher())?;
            let objects = u32::try_from(catalogue.objects().len());
            let objects = objects.map_err(|_| refused("the version has too many objects for a swarm"))?;
            let reference = format!("{}@{}", version.manifest.image, version.manifest.number);
            if !self.name(redirector, swarm, Of { reference, objects, joined: 0, joined_at: None }) {
                return Err(refused("there are too many swarms"));
            }
        }
        let (objects, rank, just_now) = {
            let mut names = self.names.lock();
            let of = names.get_mut(&swarm).ok_or_else(|| refused("there are too many swarms"))?;
            let before = of.joined_at.replace(Instant::now());
            of.joined = of.joined.wrapping_add(1);
            (of.objects, of.joined - 1, before.is_some_and(|before| before.elapsed() < JUST_NOW))
        };
        let grant = redirector.admit(swarm, objects, rank, self.places.of(address))?;
        Ok(SwarmGrant { others: grant.others || just_now || self.together, ..grant })
    }

    /// Whether somebody joined after the member of this rank.
    pub(crate) fn has_others(&self, swarm: Name, rank: u32) -> bool {
        self.names.lock().get(&swarm).is_some_and(|of| of.joined.wrapping_sub(rank) > 1)
    }

    /// What the members of a version's swarm hold together; `None` if there are fewer than two of them.
    pub(crate) fn held(&self, manifest: &Digest) -> Option<Vec<Range<u32>>> {
        let redirector = self.redirector.as_ref().ok()?;
        let swarm = redirector.swarm_of(manifest);
        (redirector.view(swarm).members > 1).then(|| redirector.held(swarm))
    }

    /// The swarms that have members.
    pub(crate) fn status(&self) -> Vec<SwarmStatus> {
        let Ok(redirector) = &self.redirector else { return Vec::new() };
        let names = self.names.lock();
        let status = names.iter().map(|(&swarm, of)| {
            let SwarmView { members, whole, objects } = redirector.view(swarm);
            SwarmStatus { reference: of.reference.clone(), members, whole, objects }
        });
        status.filter(|status| status.members > 0).collect()
    }

    /// What the redirector did so far, and how many members it knows.
    pub(crate) fn counters(&self) -> (RedirectorCounters, usize) {
        self.redirector.as_ref().map(RedirectorServer::counters).unwrap_or_default()
    }

    /// Remembers a swarm. False if there are too many.
    fn name(&self, redirector: &RedirectorServer, swarm: Name, of: Of) -> bool {
        let mut names = self.names.lock();
        if names.len() >= NAMES_MAX {
            names.retain(|&swarm, _| redirector.view(swarm).members > 0);
        }
        let fits = names.len() < NAMES_MAX;
        if fits {
            names.entry(swarm).or_insert(of);
        }
        fits
    }
}

/// Networks and what is there: machines in one of them are near each other.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Places(Vec<(IpAddr, u8, u32)>);

impl Places {
    /// Reads lines of `NETWORK/BITS NAME`; empty ones and those that begin with `#` are skipped.
    ///
    /// # Errors
    /// `Invalid` for a line that is none.
    pub fn parse(text: &str) -> Result<Self> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let place = |line: &str| {
            let invalid = || Error::new(ErrorKind::Invalid, format!("`{line}` is not `NETWORK/BITS NAME`"));
            let (network, name) = line.split_once(char::is_whitespace).ok_or_else(invalid)?;
            let (address, bits) = network.split_once('/').ok_or_else(invalid)?;
            let address: IpAddr = address.parse().map_err(|_| invalid())?;
            let bits: u8 = bits.parse().map_err(|_| invalid())?;
            let most = if address.is_ipv4() { 32 } else { 128 };
            if bits > most {
                return Err(invalid());
            }
            Ok((address, bits, number_of(name.trim())))
        };
        lines.map(place).collect::<Result<_>>().map(Self)
    }

    /// Where `address` is, by its longest network; 0 if none of them has it.
    #[must_use]
    pub fn of(&self, address: IpAddr) -> u32 {
        let address = address.to_canonical();
        let has = |network: IpAddr, bits: u8| match (network, address) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                bits == 0 || (network.to_bits() ^ address.to_bits()) >> (32 - bits) == 0
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                bits == 0 || (network.to_bits() ^ address.to_bits()) >> (128 - bits) == 0
            }
            _ => false,
        };
        let fitting = self.0.iter().filter(|&&(network, bits, _)| has(network, bits));
        fitting.max_by_key(|(_, bits, _)| *bits).map_or(0, |&(_, _, place)| place)
    }
}

/// The number of a place: equal names have equal numbers.
#[must_use]
pub fn number_of(name: &str) -> u32 {
    let digest = blake3::hash(name.as_bytes());
    let [a, b, c, d, ..] = *digest.as_bytes();
    u32::from_le_bytes([a, b, c, d]).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_found_by_the_longest_network() {
        let places = Places::parse("# racks\n10.1.0.0/16 hall\n10.1.2.0/24 rack 2\n\nfd00::/8 v6\n").unwrap();
        let of = |text: &str| places.of(text.parse().unwrap());
        assert_eq!(of("10.1.2.3"), number_of("rack 2"));
        assert_eq!(of("::ffff:10.1.3.3"), number_of("hall"));
        assert_eq!((of("fd12::1"), of("192.168.0.1")), (number_of("v6"), 0));
        for wrong in ["10.0.0.0 a", "10.0.0.0/33 a", "10.0.0.0/8", "x/8 a"] {
            assert!(Places::parse(wrong).is_err(), "{wrong}");
        }
    }
}
