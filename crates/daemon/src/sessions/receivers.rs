//! Which addresses take part in which session, and what they got by unicast. Only to these is an answer a part of a
//! session, whatever a request says of itself.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use net::api::SessionId;
use parking_lot::Mutex;

/// Of the running sessions, and of those that ended lately.
#[derive(Default)]
pub(crate) struct Receivers(Mutex<HashMap<SessionId, OfSession>>);

#[derive(Default)]
struct OfSession {
    /// Present and past receivers. At most as many as the session admits.
    addresses: HashSet<IpAddr>,
    unicast_bytes: u64,
}

impl Receivers {
    /// A session begins.
    pub(crate) fn begin(&self, session: SessionId) {
        self.0.lock().entry(session).or_default();
    }

    /// A session admitted a receiver at `address`.
    pub(crate) fn admit(&self, session: SessionId, address: IpAddr) {
        if let Some(of_session) = self.0.lock().get_mut(&session) {
            of_session.addresses.insert(address.to_canonical());
        }
    }

    /// Whether a receiver at `address` takes or took part in `session`.
    pub(crate) fn has(&self, session: &SessionId, address: IpAddr) -> bool {
        let sessions = self.0.lock();
        sessions.get(session).is_some_and(|session| session.addresses.contains(&address.to_canonical()))
    }

    /// Counts `bytes` that a receiver of `session` got by unicast.
    pub(crate) fn count(&self, session: &SessionId, bytes: u64) {
        if let Some(of_session) = self.0.lock().get_mut(session) {
            of_session.unicast_bytes += bytes;
        }
    }

    /// Bytes that the receivers of `session` got by unicast. They still grow after it has ended: its receivers fetch
    /// the rest by unicast.
    pub(crate) fn unicast_bytes(&self, session: &SessionId) -> u64 {
        self.0.lock().get(session).map_or(0, |session| session.unicast_bytes)
    }

    /// Forgets a session that ended.
    pub(crate) fn forget(&self, session: &SessionId) {
        self.0.lock().remove(session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_was_admitted_takes_part() {
        let (receivers, session) = (Receivers::default(), SessionId(1));
        let [here, there] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
        receivers.admit(session, here);
        assert!(!receivers.has(&session, here), "there is no such session");
        receivers.begin(session);
        receivers.admit(session, here);
        assert!(receivers.has(&session, here) && !receivers.has(&session, there));
        assert!(
            receivers.has(&session, "::ffff:10.0.0.1".parse().unwrap()),
            "the same address in another form"
        );
        receivers.count(&session, 7);
        receivers.count(&SessionId(2), 7);
        assert_eq!((receivers.unicast_bytes(&session), receivers.unicast_bytes(&SessionId(2))), (7, 0));
        receivers.forget(&session);
        assert!(!receivers.has(&session, here));
    }
}
