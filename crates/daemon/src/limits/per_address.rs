//! Counts what each address holds or did, so that one of them cannot take it from the others.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// Most joins of one address within [`JOIN_TIME`]. A machine joins once, or once for each of its disks.
const JOINS_MAX: u32 = 512;
const JOIN_TIME: Duration = Duration::from_secs(60);
/// Most addresses whose joins are remembered.
const ADDRESSES_MAX: usize = 4096;

/// All addresses of one IPv6 network together may have this many times as much as one address. A machine can use all
/// addresses of its /64, but the other machines of a room have theirs there too.
const NETWORK_TIMES: u32 = 3;

/// What a limit is counted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    Address(IpAddr),
    /// The first 64 bits of an IPv6 address.
    Network(u64),
}

impl Place {
    /// The limit of this place, if one address may have `most`.
    pub(crate) fn most(self, most: u32) -> u32 {
        match self {
            Self::Address(_) => most,
            Self::Network(_) => most.saturating_mul(NETWORK_TIMES),
        }
    }
}

/// The places of an address: itself, and its network for IPv6.
pub(crate) fn places_of(address: IpAddr) -> impl Iterator<Item = Place> {
    let address = address.to_canonical();
    let network = match address {
        IpAddr::V6(v6) => Some(Place::Network((v6.to_bits() >> 64) as u64)),
        IpAddr::V4(_) => None,
    };
    std::iter::once(Place::Address(address)).chain(network)
}

/// Things that are counted for each place, as long as they exist.
#[derive(Clone, Default)]
pub(crate) struct PerAddress(Arc<Mutex<HashMap<Place, u32>>>);

/// One thing of an address, such as a connection; dropping it ends the count.
#[derive(Debug)]
pub(crate) struct Seat {
    counts: PerAddress,
    address: IpAddr,
}

impl PerAddress {
    /// Counts one more; `None` if the address has `most` already, or its network has its limit.
    pub(crate) fn enter(&self, address: IpAddr, most: u32) -> Option<Seat> {
        let mut counts = self.0.lock();
        let is_full = |place: Place| counts.get(&place).is_some_and(|&count| count >= place.most(most));
        if places_of(address).any(is_full) {
            return None;
        }
        places_of(address).for_each(|place| *counts.entry(place).or_default() += 1);
        Some(Seat { counts: self.clone(), address })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut counts = self.counts.0.lock();
        for place in places_of(self.address) {
            if let Some(count) = counts.get_mut(&place) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(&place);
                }
            }
        }
    }
}

impl std::fmt::Debug for PerAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PerAddress").finish_non_exhaustive()
    }
}

/// Permits of each place, for as long as one is held or waited for.
#[derive(Default)]
pub(crate) struct Shares(Mutex<HashMap<Place, Weak<Semaphore>>>);

/// Permits of an address and of its network.
#[derive(Default)]
pub(crate) struct Part(Vec<OwnedSemaphorePermit>);

impl Shares {
    /// Waits for `permits` of those of `address`, which has `most`.
    pub(crate) async fn take(&self, address: IpAddr, most: u32, permits: u32) -> Part {
        let mut part = Part::default();
        for place in places_of(address) {
            let held = self.of(place, most).acquire_many_owned(permits).await;
            part.0.push(held.expect("the semaphore is never closed"));
        }
        part
    }

    fn of(&self, place: Place, most: u32) -> Arc<Semaphore> {
        let mut shares = self.0.lock();
        if shares.len() >= ADDRESSES_MAX {
            shares.retain(|_, share| share.strong_count() > 0);
        }
        if let Some(share) = shares.get(&place).and_then(Weak::upgrade) {
            return share;
        }
        let share = Arc::new(Semaphore::new(place.most(most) as usize));
        shares.insert(place, Arc::downgrade(&share));
        share
    }
}

impl Part {
    /// Adds `more` of the same address.
    pub(crate) fn add(&mut self, more: Self) {
        self.0.extend(more.0);
    }
}

/// The joins of each place in the present minute.
#[derive(Default)]
pub(crate) struct Joins(Mutex<HashMap<Place, (Instant, u32)>>);

impl Joins {
    /// Counts one more join; false if there were too many.
    pub(crate) fn allow(&self, address: IpAddr, now: Instant) -> bool {
        let mut joins = self.0.lock();
        if joins.len() >= ADDRESSES_MAX {
            joins.retain(|_, (from, _)| now - *from < JOIN_TIME);
        }
        // All are counted, also if the first is too many.
        places_of(address).fold(true, |allowed, place| {
            let (from, count) = joins.entry(place).or_insert((now, 0));
            if now - *from >= JOIN_TIME {
                (*from, *count) = (now, 0);
            }
            *count += 1;
            allowed && *count <= place.most(JOINS_MAX)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const THERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

    #[test]
    fn an_address_gets_its_seats_back_and_takes_none_of_another() {
        let counts = PerAddress::default();
        let seats: Vec<_> = (0..3).map(|_| counts.enter(HERE, 3).unwrap()).collect();
        assert!(counts.enter(HERE, 3).is_none() && counts.enter(THERE, 3).is_some());
        drop(seats);
        assert!(counts.enter(HERE, 3).is_some() && counts.0.lock().is_empty());
    }

    #[test]
    fn neighbours_in_an_ipv6_network_have_places_of_their_own_and_one_machine_cannot_take_all() {
        let counts = PerAddress::default();
        let at = |text: &str| text.parse::<IpAddr>().unwrap();
        let first: Vec<_> = (0..2).map(|_| counts.enter(at("fd77::1"), 2).unwrap()).collect();
        assert!(counts.enter(at("fd77::1"), 2).is_none());
        let others: Vec<_> = ["fd77::2", "fd77::3", "fd77::4", "fd77::5"].map(at).into();
        let mut seats: Vec<_> = others.iter().filter_map(|&address| counts.enter(address, 2)).collect();
        assert_eq!(seats.len(), 4, "a neighbour has its own");
        assert!(counts.enter(at("fd77::6"), 2).is_none(), "the network has its limit");
        seats.push(counts.enter(at("fd77:0:0:1::1"), 2).unwrap());
        drop((first, seats));
        assert!(counts.0.lock().is_empty());
    }

    #[tokio::test]
    async fn permits_of_a_network_are_more_than_those_of_an_address() {
        use std::future::Future as _;
        let shares = Shares::default();
        let at = |text: &str| text.parse::<IpAddr>().unwrap();
        let first = shares.take(at("fd77::1"), 2, 2).await;
        let held = (shares.take(at("fd77::2"), 2, 2).await, shares.take(at("fd77::3"), 2, 2).await);
        let mut waits = std::pin::pin!(shares.take(at("fd77::4"), 2, 1));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(waits.as_mut().poll(&mut context).is_pending());
        drop(first);
        waits.await;
        drop(held);
    }

    #[test]
    fn joins_are_limited_for_each_address_and_minute() {
        let (joins, now) = (Joins::default(), Instant::now());
        assert!((0..JOINS_MAX).all(|_| joins.allow(HERE, now)));
        assert!(!joins.allow(HERE, now) && joins.allow(THERE, now));
        assert!(joins.allow(HERE, now + JOIN_TIME));
    }
}
