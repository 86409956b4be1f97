//! Tells the server's packets from those that members of the session forge: every member has the group's key.
//!
//! STATUS and BYE are signed. BLOCKs are not, since a signature of each would cost more than the rest of their
//! handling. But once a signed packet came from the address that the grant names, packets from other addresses are
//! dropped; and a BLOCK whose object has another length than the verified tree says. A member that sends with the
//! server's address can still damage objects: their digests tell, and what is damaged is mended by unicast.
//! Source: `formats/multicast.md`, section 4.

use std::fmt;
use std::net::IpAddr;

use proto::multicast::{Downstream, control_signature};
use ring::signature::{ED25519, UnparsedPublicKey};

use crate::api::SessionGrant;

/// Most addresses of forgers that are remembered.
const FORGERS_MAX: usize = 8;

/// What was forged in a session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Forged {
    /// Number of packets that had the group's key, but were not from the server.
    pub packets: u64,
    /// The addresses that they came from, at most 8: machines that have joined the session. Empty if the forger sends
    /// with the server's address.
    pub from: Vec<IpAddr>,
}

impl fmt::Display for Forged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = match self.from.is_empty() {
            true => "a member of the session, which pretends to have the server's address,".to_owned(),
            false => self.from.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", "),
        };
        write!(f, "{who} forged {} packets of the server; they were dropped", self.packets)
    }
}

/// Checks the packets of one session.
pub(super) struct Authentic {
    server: IpAddr,
    key: UnparsedPublicKey<[u8; 32]>,
    /// Whether a signed packet came from the server's address.
    heard: bool,
    /// Sequence and timestamp of the last STATUS.
    last: Option<(u64, u32)>,
    forged: Forged,
}

impl Authentic {
    pub(super) fn new(grant: &SessionGrant) -> Self {
        let key = UnparsedPublicKey::new(&ED25519, grant.server_key.0);
        Self { server: grant.source, key, heard: false, last: None, forged: Forged::default() }
    }

    /// Whether `packet`, which was opened from `datagram` and came from `from`, may be the server's.
    pub(super) fn accepts(&mut self, from: IpAddr, datagram: &[u8], packet: &Downstream<'_>) -> bool {
        let is_server = from == self.server;
        let is_right = match packet {
            Downstream::Block(..) => is_server || !self.heard,
            _ if self.heard && !is_server => false,
            Downstream::Status(_) | Downstream::Bye => control_signature(datagram)
                .is_some_and(|(message, signature)| self.key.verify(message, signature).is_ok()),
        };
        if !is_right {
            self.note(from);
            return false;
        }
        let Downstream::Status(status) = packet else { return true };
        let is_newer = |&(sequence, timestamp_us): &(u64, u32)| {
            let later = status.timestamp_us.wrapping_sub(timestamp_us).cast_signed() > 0;
            status.sequence > sequence || (status.sequence == sequence && later)
        };
        if !self.last.as_ref().is_none_or(is_newer) {
            // Overtaken by another, or replayed by a member: it says nothing new.
            return false;
        }
        self.last = Some((status.sequence, status.timestamp_us));
        self.heard |= is_server;
        true
    }

    /// Notes that a packet from `from` was forged.
    pub(super) fn note(&mut self, from: IpAddr) {
        self.forged.packets += 1;
        if from != self.server && self.forged.from.len() < FORGERS_MAX && !self.forged.from.contains(&from) {
            self.forged.from.push(from);
        }
    }

    /// What was forged so far.
    pub(super) fn forged(&self) -> &Forged {
        &self.forged
    }
}

#[cfg(test)]
mod tests {
    use proto::multicast::{Key, Shape, Status, open_downstream, seal, sign_control};
    use ring::signature::{Ed25519KeyPair, KeyPair};

    use super::*;

    const SHAPE: Shape = Shape { session: 7, epoch: 1, objects: 4, heads: 1, block_bytes: 512 };
    const KEY: Key = Key([9; 16]);

    /// A STATUS as the server sends it, or as a member with another signing key does; unsigned without one.
    fn status(signer: Option<&Ed25519KeyPair>, sequence: u64, timestamp_us: u32) -> Vec<u8> {
        let status = Status {
            sequence,
            timestamp_us,
            cursor: 1,
            idle: false,
            queue: None,
            receivers: 2,
            report_interval: base::Duration::ZERO,
            echo: None,
            pending: Vec::new(),
            repairs: vec![(3, 1)],
        };
        let mut packet = status.encode(&SHAPE);
        if let Some(signer) = signer {
            sign_control(&mut packet, |message| signer.sign(message).as_ref().try_into().unwrap());
        }
        seal(&KEY, &mut packet);
        packet
    }

    fn block() -> Vec<u8> {
        let header = proto::multicast::BlockHeader {
            sequence: 5,
            timestamp_us: 0,
            object: 3,
            block: 0,
            object_bytes: 100,
            repair: false,
            coming: 0,
        };
        let mut packet = [&header.encode(&SHAPE)[..], &[1; 100]].concat();
        seal(&KEY, &mut packet);
        packet
    }

    #[test]
    fn only_what_the_server_signed_counts_and_only_once() {
        let [signer, other] = [3, 4].map(|seed| Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap());
        let [server, liar] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
        let key = UnparsedPublicKey::new(&ED25519, signer.public_key().as_ref().try_into().unwrap());
        let mut authentic = Authentic { server, key, heard: false, last: None, forged: Forged::default() };
        let mut accepts = |from, packet: &[u8]| {
            authentic.accepts(from, packet, &open_downstream(&KEY, &SHAPE, packet).unwrap())
        };
        assert!(accepts(liar, &block()), "it is not known yet where the server sends from");
        assert!(!accepts(server, &status(None, 10, 5)) && !accepts(server, &status(Some(&other), 10, 5)));
        assert!(accepts(liar, &status(Some(&signer), 9, 5)), "behind a translation of addresses");
        assert!(!accepts(liar, &status(Some(&signer), 9, 4)), "a replay");
        assert!(accepts(server, &status(Some(&signer), 10, 5)) && accepts(server, &block()));
        assert!(!accepts(liar, &block()) && !accepts(liar, &status(Some(&signer), 11, 5)));
        let mut bye = [&[3, 3][..], &status(None, 1, 1)[2..28]].concat();
        seal(&KEY, &mut bye);
        assert!(!accepts(server, &bye));
        let later =
            [status(Some(&signer), 10, 6), status(Some(&signer), 11, u32::MAX), status(Some(&signer), 11, 3)];
        assert!(later.iter().all(|status| accepts(server, status)), "timestamps wrap");
        assert!(later.iter().all(|status| !accepts(server, status)));
        assert_eq!((authentic.forged().packets, &authentic.forged().from[..]), (5, &[liar][..]));
    }
}
