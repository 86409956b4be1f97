//! Counts what each address holds or did, so that one of them cannot take it from the others.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Most joins of one address within [`JOIN_TIME`]. A machine joins once, or once for each of its disks.
const JOINS_MAX: u32 = 512;
const JOIN_TIME: Duration = Duration::from_secs(60);
/// Most addresses whose joins are remembered.
const ADDRESSES_MAX: usize = 4096;

/// What counts as one address: a machine with IPv6 can use all addresses of its /64.
pub(crate) fn place_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64)),
        v4 @ IpAddr::V4(_) => v4,
    }
}

/// The connections of each address.
#[derive(Clone, Default)]
pub(crate) struct Crowd(Arc<Mutex<HashMap<IpAddr, u32>>>);

/// One connection of an address; dropping it ends the count.
pub(crate) struct Seat {
    crowd: Crowd,
    address: IpAddr,
}

impl Crowd {
    /// Counts one more connection; `None` if the address has `most` already.
    pub(crate) fn enter(&self, address: IpAddr, most: u32) -> Option<Seat> {
        let (address, mut counts) = (place_of(address), self.0.lock());
        let count = counts.entry(address).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(Seat { crowd: self.clone(), address })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut counts = self.crowd.0.lock();
        if let Some(count) = counts.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.address);
            }
        }
    }
}

/// Permits of each address, for as long as one is held or waited for.
#[derive(Default)]
pub(crate) struct Shares(Mutex<HashMap<IpAddr, Weak<Semaphore>>>);

impl Shares {
    /// The permits of `address`, which has `most`.
    pub(crate) fn of(&self, address: IpAddr, most: usize) -> Arc<Semaphore> {
        let mut shares = self.0.lock();
        if shares.len() >= ADDRESSES_MAX {
            shares.retain(|_, share| share.strong_count() > 0);
        }
        let place = place_of(address);
        if let Some(share) = shares.get(&place).and_then(Weak::upgrade) {
            return share;
        }
        let share = Arc::new(Semaphore::new(most));
        shares.insert(place, Arc::downgrade(&share));
        share
    }
}

/// The joins of each address in the present minute.
#[derive(Default)]
pub(crate) struct Joins(Mutex<HashMap<IpAddr, (Instant, u32)>>);

impl Joins {
    /// Counts one more join; false if there were too many.
    pub(crate) fn allow(&self, address: IpAddr, now: Instant) -> bool {
        let (address, mut joins) = (place_of(address), self.0.lock());
        if joins.len() >= ADDRESSES_MAX && !joins.contains_key(&address) {
            joins.retain(|_, (from, _)| now - *from < JOIN_TIME);
        }
        let (from, count) = joins.entry(address).or_insert((now, 0));
        if now - *from >= JOIN_TIME {
            (*from, *count) = (now, 0);
        }
        *count += 1;
        *count <= JOINS_MAX
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
        let crowd = Crowd::default();
        let seats: Vec<_> = (0..3).map(|_| crowd.enter(HERE, 3).unwrap()).collect();
        assert!(crowd.enter(HERE, 3).is_none() && crowd.enter(THERE, 3).is_some());
        let neighbours = ["fd77::1", "fd77::2", "fd77:0:0:1::1"].map(|text| text.parse().unwrap());
        let seats_of_two: Vec<_> = neighbours.iter().filter_map(|&address| crowd.enter(address, 1)).collect();
        assert_eq!(seats_of_two.len(), 2, "a /64 is one address");
        drop((seats, seats_of_two));
        assert!(crowd.enter(HERE, 3).is_some() && crowd.0.lock().is_empty());
    }

    #[test]
    fn joins_are_limited_for_each_address_and_minute() {
        let (joins, now) = (Joins::default(), Instant::now());
        assert!((0..JOINS_MAX).all(|_| joins.allow(HERE, now)));
        assert!(!joins.allow(HERE, now) && joins.allow(THERE, now));
        assert!(joins.allow(HERE, now + JOIN_TIME));
    }
}
