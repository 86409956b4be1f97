//! What each session takes of the server: a place among those that its first client may start, and memory for objects.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::limits::RECEIVER_BUFFER_BYTES_DEFAULT;

use crate::limits::per_address::{PerAddress, Seat};

/// Most sessions that run and were started by one address. A machine starts one for each version that it fetches.
const STARTED_MAX: u32 = 8;
/// Memory for the objects of all sessions. Each takes at most half of what is left of it.
const MEMORY_BYTES: u64 = 256 << 20;
/// Least and most memory of one session.
const SESSION_BYTES_MIN: u64 = 4 << 20;
const SESSION_BYTES_MAX: u64 = RECEIVER_BUFFER_BYTES_DEFAULT;

/// See the module.
#[derive(Default)]
pub(crate) struct SessionPlaces {
    started: PerAddress,
    used_bytes: Arc<AtomicU64>,
}

/// The place of a session; dropping it frees what the session took.
#[derive(Debug)]
pub(crate) struct SessionPlace {
    _seat: Seat,
    /// Memory for objects.
    pub(crate) bytes: u64,
    used_bytes: Arc<AtomicU64>,
}

impl SessionPlaces {
    /// A place for a session that a client at `address` starts; `None` if too many of its sessions run.
    pub(crate) fn take(&self, address: IpAddr) -> Option<SessionPlace> {
        let seat = self.started.enter(address, STARTED_MAX)?;
        let (used_bytes, order) = (Arc::clone(&self.used_bytes), Ordering::Relaxed);
        let left = MEMORY_BYTES.saturating_sub(used_bytes.load(order));
        let bytes = (left / 2).clamp(SESSION_BYTES_MIN, SESSION_BYTES_MAX);
        used_bytes.fetch_add(bytes, order);
        Some(SessionPlace { _seat: seat, bytes, used_bytes })
    }
}

impl Drop for SessionPlace {
    fn drop(&mut self) {
        self.used_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_starts_few_sessions_and_all_of_them_have_bounded_memory() {
        let places = SessionPlaces::default();
        let mut taken = Vec::new();
        for last in 0..8 {
            let address = IpAddr::from([10, 0, 0, last]);
            let of_address: Vec<_> = std::iter::from_fn(|| places.take(address)).collect();
            assert_eq!(of_address.len(), STARTED_MAX as usize);
            taken.extend(of_address);
        }
        let bytes: Vec<u64> = taken.iter().map(|place| place.bytes).collect();
        assert_eq!(bytes[..3], [SESSION_BYTES_MAX; 3], "few sessions have what they had alone");
        assert!(bytes.iter().sum::<u64>() < 500 << 20, "{bytes:?}");
        drop(taken);
        assert_eq!(
            places.take(IpAddr::from([10, 0, 0, 1])).map(|place| place.bytes),
            Some(SESSION_BYTES_MAX)
        );
    }
}
