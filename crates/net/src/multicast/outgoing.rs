//! A run of packets that is being sent: header, payload and tag of each packet, directly one after the other.

use proto::code;
use proto::multicast::{
    BLOCK_HEADER_BYTES, Key, PayloadCipher, Run, SIGNATURE_BYTES, Shape, TAG_BYTES, seal, seal_train,
    sign_control,
};
use ring::signature::Ed25519KeyPair;

/// How the packets of a session are protected.
pub(super) struct Protection {
    /// Of tags.
    pub(super) key: Key,
    /// Of payloads; `None`: they are not encrypted.
    pub(super) cipher: Option<PayloadCipher>,
    /// Of control packets.
    pub(super) signer: Ed25519KeyPair,
}

/// Packets of equal size (the last may be shorter), and how much of them was sent. Its memory is used again for each
/// run.
#[derive(Default)]
pub(super) struct Outgoing {
    bytes: Vec<u8>,
    packet_bytes: usize,
    sent: usize,
    symbols: Vec<u8>,
}

impl Outgoing {
    /// What has not been sent yet, and the size of a packet.
    pub(super) fn rest(&self) -> (&[u8], usize) {
        (&self.bytes[self.sent..], self.packet_bytes)
    }

    /// Notes that this many further bytes were sent.
    pub(super) fn sent(&mut self, bytes: usize) {
        self.sent += bytes;
    }

    /// Whether everything was sent.
    pub(super) fn is_done(&self) -> bool {
        self.sent >= self.bytes.len()
    }

    /// Sets a single packet, which is complete except for its signature and tag.
    pub(super) fn set_control(&mut self, protection: &Protection, mut packet: Vec<u8>) {
        sign_control(&mut packet, |message| {
            let signature = protection.signer.sign(message);
            <[u8; SIGNATURE_BYTES]>::try_from(signature.as_ref()).expect("ed25519 has signatures of 64 bytes")
        });
        seal(&protection.key, &mut packet);
        (self.packet_bytes, self.sent, self.bytes) = (packet.len(), 0, packet);
    }

    /// Sets the packets of `run`: blocks or symbols of `object`.
    pub(super) fn set_run(&mut self, shape: &Shape, protection: &Protection, object: &[u8], run: &Run) {
        let block_bytes = usize::from(shape.block_bytes);
        let coded = run.first.symbol(shape);
        if let Some(row) = coded {
            // All symbols of a run are computed at once, so that each block of the object is read only once.
            self.symbols.resize(usize::from(run.count) * block_bytes, 0);
            code::encode(object, block_bytes, row..row + run.count, &mut self.symbols);
        }
        self.sent = 0;
        self.bytes.clear();
        for index in 0..run.count {
            let header = run.header(index);
            let payload = if coded.is_some() {
                &self.symbols[usize::from(index) * block_bytes..][..block_bytes]
            } else {
                let (offset, len) = shape.place(header.object_bytes, header.block);
                &object[offset as usize..][..usize::from(len)]
            };
            self.bytes.extend_from_slice(&header.encode(shape));
            let start = self.bytes.len();
            self.bytes.extend_from_slice(payload);
            if let Some(cipher) = &protection.cipher {
                cipher.apply(header.sequence, &mut self.bytes[start..]);
            }
            self.bytes.extend_from_slice(&[0; TAG_BYTES]);
        }
        // If the run is a single short block, its packet is shorter.
        self.packet_bytes = (block_bytes + BLOCK_HEADER_BYTES + TAG_BYTES).min(self.bytes.len());
        seal_train(&protection.key, &mut self.bytes, self.packet_bytes);
    }
}

#[cfg(test)]
mod tests {
    use proto::multicast::{BlockHeader, Downstream, open_downstream};

    use super::*;

    fn header(block: u16) -> BlockHeader {
        BlockHeader {
            sequence: 100 + u64::from(block),
            timestamp_us: 5,
            object: 3,
            block,
            object_bytes: 3500,
            repair: block >= 7,
            coming: 0,
        }
    }

    #[test]
    fn what_goes_out_can_be_opened_and_put_together() {
        let shape = Shape { session: 7, epoch: 1, objects: 4, heads: 1, block_bytes: 512 };
        let cipher = PayloadCipher::new(&Key([8; 16]));
        let signer = Ed25519KeyPair::from_seed_unchecked(&[3; 32]).unwrap();
        let protection = Protection { key: Key([9; 16]), cipher: Some(cipher.clone()), signer };
        let object: Vec<_> = (0..3500u32).map(|byte| byte.to_le_bytes()[0]).collect();
        let mut outgoing = Outgoing::default();
        let mut place = |first: u16, count: u16| {
            outgoing.set_run(&shape, &protection, &object, &Run { first: header(first), count });
            let (bytes, packet_bytes) = outgoing.rest();
            let open = |packet| match open_downstream(&protection.key, &shape, packet) {
                Ok(Downstream::Block(header, payload)) => {
                    let mut payload = payload.to_vec();
                    cipher.apply(header.sequence, &mut payload);
                    (header.block, payload)
                }
                other => panic!("{other:?}"),
            };
            bytes.chunks(packet_bytes).map(open).collect::<Vec<_>>()
        };
        let blocks = [place(0, 6), place(6, 1)].concat();
        assert_eq!(blocks.iter().flat_map(|(_, payload)| payload).copied().collect::<Vec<_>>(), object);
        let symbols = place(7, 2);
        let mut buffer = object.clone();
        buffer.resize(7 * 512, 0);
        for (at, (block, symbol)) in [1, 6].into_iter().zip(&symbols) {
            assert_eq!((usize::from(*block), symbol.len()), (7 + usize::from(at == 6), 512));
            buffer[at * 512..][..512].copy_from_slice(symbol);
        }
        let held = [code::Held { row: 0, block: 1 }, code::Held { row: 1, block: 6 }];
        code::recover(&mut buffer, 512, &held).unwrap();
        assert_eq!(buffer[..3500], object);
    }
}
