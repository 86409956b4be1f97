//! Computes tags by HighwayHash-64, of four packets at a time if the processor has wide registers (`tag_simd.rs`).
//! Source: Alakuijala, Cox and Wassenberg, arXiv 1612.06257; `formats/multicast.md`, section 2.

use highway::{HighwayHash, HighwayHasher};

use super::key::{AT_ONCE, Key, TAG_BYTES, Tag};
#[cfg(target_arch = "x86_64")]
use super::tag_simd;

/// The tag of `bytes` under `key`: HighwayHash-64 under the key, repeated to 256 bits. It takes 0.19 µs for 1464
/// bytes; SipHash-2-4 takes 0.43, SipHash-1-3 0.24, and AEGISMAC-128L (RFC 10032) 0.11 with AES and AVX, but 6.3
/// without (thin clients). Four at once take 0.06 µs each in registers of 512 bits, 0.07 in those of 256.
#[must_use]
pub fn tag(key: &Key, bytes: &[u8]) -> Tag {
    let word = |at: usize| u64::from_le_bytes(key.0[at..at + 8].try_into().expect("eight bytes"));
    let (first, second) = (word(0), word(8));
    HighwayHasher::new(highway::Key([first, second, first, second])).hash64(bytes).to_le_bytes()
}

/// Appends its tag to a packet.
pub fn seal(key: &Key, packet: &mut Vec<u8>) {
    let tag = tag(key, packet);
    packet.extend_from_slice(&tag);
}

/// Writes the tags into a train: packets directly one after the other, each of `packet_bytes` bytes, whose last eight
/// are for the tag; the last packet may be shorter.
///
/// # Panics
/// If `packet_bytes` is 0, or a packet has no room for a tag.
pub fn seal_train(key: &Key, train: &mut [u8], packet_bytes: usize) {
    for packets in train.chunks_mut(AT_ONCE * packet_bytes) {
        let mut tags = tags(key, packets, packet_bytes).into_iter();
        for packet in packets.chunks_mut(packet_bytes) {
            *packet.last_chunk_mut().expect("a packet has a tag") =
                tags.next().expect("a tag for each packet");
        }
    }
}

/// The right tags of up to four packets of a train; entries without a packet are zeros.
pub(in crate::multicast) fn tags(key: &Key, packets: &[u8], packet_bytes: usize) -> [Tag; AT_ONCE] {
    let bodies = packets.chunks(packet_bytes).map(|packet| &packet[..packet.len().saturating_sub(TAG_BYTES)]);
    #[cfg(target_arch = "x86_64")]
    if packets.len() == AT_ONCE * packet_bytes {
        let mut each = bodies.clone();
        let four = std::array::from_fn(|_| each.next().expect("four packets"));
        if let Some(tags) = tag_simd::tags(key, four) {
            return tags;
        }
    }
    let mut tags = [Tag::default(); AT_ONCE];
    tags.iter_mut().zip(bodies).for_each(|(right, body)| *right = tag(key, body));
    tags
}

#[cfg(test)]
mod tests {
    use base::Chance;

    use super::*;

    #[test]
    fn four_at_once_have_the_tags_that_each_has_by_itself() {
        let mut chance = Chance::from_seed(1);
        let mut key = Key([0; 16]);
        for len in (0..200).chain([1440, 1464, 1472, 8999]) {
            chance.fill(&mut key.0);
            let packet_bytes = len + TAG_BYTES;
            let mut train = vec![0; 6 * packet_bytes + len / 2 + TAG_BYTES];
            chance.fill(&mut train);
            seal_train(&key, &mut train, packet_bytes);
            for (index, packet) in train.chunks(packet_bytes).enumerate() {
                let (body, found) = packet.split_last_chunk().unwrap();
                assert_eq!(tag(&key, body), *found, "packet {index} of {len} bytes");
            }
        }
    }
}
