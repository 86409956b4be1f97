//! The packets of a probe. Source: `formats/probe.md`.

use base::wire::Reader;
use proto::multicast::{Key, TAG_BYTES, seal, tag};

/// Bytes of a packet before its padding.
const FIELDS_BYTES: usize = 28;
/// Bytes of the shortest packet.
pub(super) const PACKET_BYTES_MIN: usize = FIELDS_BYTES + TAG_BYTES;

/// Who sent a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum From {
    Server,
    Machine,
    /// A packet of the machine that is as long as it says. Older servers do not know it.
    MachineSized,
}

impl From {
    const fn magic(self) -> [u8; 8] {
        match self {
            Self::Server => *b"DCPROBES",
            Self::Machine => *b"DCPROBEM",
            Self::MachineSized => *b"DCPROBEF",
        }
    }
}

/// The fields of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Packet {
    /// Low 64 bits of the probe's id.
    pub(super) probe: u64,
    /// The round that it belongs to, from 0; of a machine: the last one that it heard.
    pub(super) round: u32,
    /// Length of the IP packet, in bytes.
    pub(super) ip_bytes: u16,
    /// Of the server: how many reports arrived so far. Of a machine: how many it has sent, this one included.
    pub(super) reports: u32,
}

impl Packet {
    /// The packet with its tag, `payload_bytes` long, at least [`PACKET_BYTES_MIN`].
    pub(super) fn encode(&self, from: From, key: &Key, payload_bytes: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(payload_bytes);
        bytes.extend_from_slice(&from.magic());
        bytes.extend_from_slice(&self.probe.to_le_bytes());
        bytes.extend_from_slice(&self.round.to_le_bytes());
        bytes.extend_from_slice(&self.ip_bytes.to_le_bytes());
        bytes.extend_from_slice(&[0; 2]);
        bytes.extend_from_slice(&self.reports.to_le_bytes());
        bytes.resize(payload_bytes.max(PACKET_BYTES_MIN) - TAG_BYTES, 0);
        seal(key, &mut bytes);
        bytes
    }

    /// The packet in `datagram`; `None` if it is of another kind, probe or key.
    pub(super) fn open(from: From, key: &Key, probe: u64, datagram: &[u8]) -> Option<Self> {
        let (fields, found) = datagram.split_last_chunk::<TAG_BYTES>()?;
        let mut reader = Reader::new(fields.strip_prefix(&from.magic())?);
        let named = reader.u64().ok()?;
        let (round, ip_bytes, _, reports) =
            (reader.u32().ok()?, reader.u16().ok()?, reader.u16().ok()?, reader.u32().ok()?);
        let is_right = named == probe && tag(key, fields) == *found;
        is_right.then_some(Self { probe, round, ip_bytes, reports })
    }
}
