//! The addresses that we give on a network without another DHCP server: to some machines always the same, to all others
//! those of a range.

use std::collections::{HashMap, HashSet};
use std::net::Ipv4Addr;
use std::time::Duration;

use base::{Error, ErrorKind, Instant, Result};
use dhcproto::v4::{DhcpOption, Message, MessageType, OptionCode};

use super::reply::reply_to;
use crate::mac::Mac;

/// How long a machine keeps its address.
const LEASE: Duration = Duration::from_secs(3600);
/// A lease that is renewed is written down anew after this time.
const KEEP: Duration = Duration::from_secs(900);
/// How long an offer is kept for the machine that asked.
const OFFER: Duration = Duration::from_secs(60);
/// Most addresses in a range.
const RANGE_MAX: u32 = 1 << 16;

/// What outlives the server: who has which address, and who is to have one always.
pub trait LeaseBook: Send {
    /// The machines that are always given the same address, which nobody else gets.
    fn fixed(&self) -> HashMap<Mac, Ipv4Addr>;

    /// All that were kept and not removed, and how long ago.
    fn load(&self) -> Result<Vec<(Mac, Ipv4Addr, Duration)>>;

    /// Keeps that `mac` has this address, or none any more; durable when this returns.
    fn keep(&self, mac: Mac, address: Option<Ipv4Addr>) -> Result<()>;
}

/// Addresses, and who has them.
pub struct Leases {
    first: Ipv4Addr,
    count: u32,
    own: Ipv4Addr,
    prefix: u8,
    by_mac: HashMap<Mac, Lease>,
    by_address: HashMap<Ipv4Addr, Mac>,
    /// Addresses that somebody has who did not get it from us, and until when nobody gets them.
    declined: HashMap<Ipv4Addr, Instant>,
    book: Box<dyn LeaseBook>,
}

#[derive(Debug, Clone, Copy)]
struct Lease {
    address: Ipv4Addr,
    until: Instant,
    /// When the book was told of it last: an offer is not kept.
    kept: Option<Instant>,
}

impl Leases {
    /// The addresses from `first` to `last` in the network of our address `own` with a prefix of `prefix` bits.
    /// What the book has of them is held until it ends. `Invalid` if they do not lie in the network, or hold `own`;
    /// what the book fails with.
    pub fn of(
        (first, last): (Ipv4Addr, Ipv4Addr),
        own: Ipv4Addr,
        prefix: u8,
        book: Box<dyn LeaseBook>,
        now: Instant,
    ) -> Result<Self> {
        let invalid =
            |why: String| Err(Error::new(ErrorKind::Invalid, format!("addresses {first}-{last}: {why}")));
        let bits = |address: Ipv4Addr| address.to_bits();
        if [first, last].iter().any(|address| network(*address, prefix) != network(own, prefix)) {
            return invalid(format!("they do not lie in the network {own}/{prefix}"));
        }
        let count = bits(last).checked_sub(bits(first)).map_or(0, |more| more.saturating_add(1));
        if count == 0 || count > RANGE_MAX {
            return invalid(format!("a range has 1 to {RANGE_MAX}"));
        }
        if (first..=last).contains(&own) {
            return invalid(format!("{own} is this server's own"));
        }
        let known = book.load()?;
        let mut leases = Self {
            first,
            count,
            own,
            prefix,
            by_mac: HashMap::new(),
            by_address: HashMap::new(),
            declined: HashMap::new(),
            book,
        };
        for (mac, address, age) in known {
            // It may have been renewed since it was written down.
            let Some(left) = (LEASE + KEEP).checked_sub(age).filter(|left| !left.is_zero()) else { continue };
            if (first..=last).contains(&address) && !leases.by_address.contains_key(&address) {
                leases.by_address.insert(address, mac);
                leases.by_mac.insert(mac, Lease { address, until: now + left, kept: None });
            }
        }
        Ok(leases)
    }

    /// The answer to a client's message; `None` if there is none.
    pub(super) fn reply(
        &mut self,
        message: &Message,
        mac: Mac,
        kind: MessageType,
        own: Ipv4Addr,
        now: Instant,
    ) -> Option<Message> {
        match kind {
            MessageType::Discover => {
                let address = self.address_for(mac, requested(message), now)?;
                self.hold(mac, address, now + OFFER);
                Some(self.giving(message, own, MessageType::Offer, address))
            }
            MessageType::Request => self.request(message, mac, own, now),
            MessageType::Release => {
                self.forget(mac);
                None
            }
            MessageType::Decline => {
                // Somebody has it already: the next one asks for another.
                if let Some(lease) = self.by_mac.get(&mac) {
                    self.declined.insert(lease.address, now + LEASE);
                }
                self.forget(mac);
                None
            }
            MessageType::Inform => Some(reply_to(message, own, MessageType::Ack)),
            _ => None,
        }
    }

    fn request(&mut self, message: &Message, mac: Mac, own: Ipv4Addr, now: Instant) -> Option<Message> {
        let server = match message.opts().get(OptionCode::ServerIdentifier) {
            Some(DhcpOption::ServerIdentifier(server)) => Some(*server),
            _ => None,
        };
        if server.is_some_and(|server| server != own) {
            self.forget(mac);
            return None;
        }
        let wanted = requested(message).unwrap_or(message.ciaddr());
        match self.address_for(mac, Some(wanted), now).filter(|address| *address == wanted) {
            Some(address) => {
                self.hold(mac, address, now + LEASE);
                self.keep(mac, now);
                Some(self.giving(message, own, MessageType::Ack, address))
            }
            None => {
                // It may have had this one, which is somebody else's now.
                if self.by_mac.get(&mac).is_some_and(|lease| lease.address == wanted) {
                    self.forget(mac);
                }
                Some(reply_to(message, own, MessageType::Nak))
            }
        }
    }

    /// The address that is always that of `mac`, unless somebody still has it; else the one that it has, else `wanted`
    /// if it is free, else one that nobody ever had, else one whose time has passed.
    fn address_for(&self, mac: Mac, wanted: Option<Ipv4Addr>, now: Instant) -> Option<Ipv4Addr> {
        let mut fixed = self.book.fixed();
        let is_declined = |address: &Ipv4Addr| self.declined.get(address).is_some_and(|until| now < *until);
        let is_others = |address: &Ipv4Addr| {
            let holder = self.by_address.get(address).filter(|holder| **holder != mac);
            holder.and_then(|holder| self.by_mac.get(holder)).is_some_and(|lease| now < lease.until)
        };
        if let Some(address) = fixed.remove(&mac).filter(|address| is_host(*address, self.own, self.prefix))
            && !is_declined(&address)
            && !is_others(&address)
        {
            return Some(address);
        }
        let fixed: HashSet<Ipv4Addr> = fixed.into_values().collect();
        if let Some(lease) = self.by_mac.get(&mac).filter(|lease| !fixed.contains(&lease.address)) {
            return Some(lease.address);
        }
        let all = || (0..self.count).map(|index| Ipv4Addr::from_bits(self.first.to_bits() + index));
        let is_free = |address: &Ipv4Addr| {
            !self.by_address.contains_key(address) && !is_declined(address) && !fixed.contains(address)
        };
        let inside = |address: &Ipv4Addr| {
            address.to_bits().checked_sub(self.first.to_bits()).is_some_and(|index| index < self.count)
        };
        wanted.filter(|address| inside(address) && is_free(address)).or_else(|| all().find(is_free)).or_else(
            || {
                let can_go = self.by_mac.values().filter(|lease| !fixed.contains(&lease.address));
                let oldest = can_go.min_by_key(|lease| lease.until)?;
                (oldest.until < now).then_some(oldest.address)
            },
        )
    }

    /// Holds `address` for `mac`, at least until then.
    fn hold(&mut self, mac: Mac, address: Ipv4Addr, until: Instant) {
        if self.by_mac.get(&mac).is_some_and(|lease| lease.address != address) {
            self.forget(mac);
        }
        if let Some(former) = self.by_address.insert(address, mac).filter(|former| *former != mac) {
            self.forget(former);
            self.by_address.insert(address, mac);
        }
        let lease = self.by_mac.entry(mac).or_insert(Lease { address, until, kept: None });
        lease.until = lease.until.max(until);
    }

    /// Writes a lease down, now and then. Where that fails the machine boots all the same, and the next request tries
    /// again.
    fn keep(&mut self, mac: Mac, now: Instant) {
        let is_due = |lease: &&mut Lease| lease.kept.is_none_or(|kept| now.since(kept) >= KEEP);
        if let Some(lease) = self.by_mac.get_mut(&mac).filter(is_due)
            && self.book.keep(mac, Some(lease.address)).is_ok()
        {
            lease.kept = Some(now);
        }
    }

    fn forget(&mut self, mac: Mac) {
        if let Some(lease) = self.by_mac.remove(&mac) {
            self.by_address.remove(&lease.address);
            // What stays in the book holds an address for an hour, and no longer.
            let _ = self.book.keep(mac, None);
        }
    }

    fn giving(&self, message: &Message, own: Ipv4Addr, kind: MessageType, address: Ipv4Addr) -> Message {
        let mut reply = reply_to(message, own, kind);
        let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0);
        let seconds = u32::try_from(LEASE.as_secs()).expect("an hour");
        reply.set_yiaddr(address);
        reply.opts_mut().insert(DhcpOption::SubnetMask(Ipv4Addr::from_bits(mask)));
        reply.opts_mut().insert(DhcpOption::AddressLeaseTime(seconds));
        reply
    }
}

/// Whether `address` can be that of a machine in the network of our address `own` with a prefix of `prefix` bits.
#[must_use]
pub fn is_host(address: Ipv4Addr, own: Ipv4Addr, prefix: u8) -> bool {
    let hosts = u32::MAX.checked_shr(prefix.into()).unwrap_or(0);
    let number = address.to_bits() & hosts;
    network(address, prefix) == network(own, prefix) && address != own && number != 0 && number != hosts
}

/// The bits of `address` that all addresses of its network have.
fn network(address: Ipv4Addr, prefix: u8) -> u32 {
    address.to_bits().checked_shr(32 - u32::from(prefix.min(32))).unwrap_or(0)
}

fn requested(message: &Message) -> Option<Ipv4Addr> {
    match message.opts().get(OptionCode::RequestedIpAddress) {
        Some(DhcpOption::RequestedIpAddress(address)) => Some(*address),
        _ => None,
    }
}
