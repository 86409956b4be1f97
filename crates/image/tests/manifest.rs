//! Tests manifests: round trip, signatures, damaged bytes, and contradictions that encoding refuses.

use base::ErrorKind;
use image::manifest::DiskRecord;
use image::{Child, Manifest, PublicKey, Root, SignedManifest, SigningKey, UnreadableRange};

use crate::common::{manifest, small};

fn sample() -> Manifest {
    let digest = base::Digest::of(b"root");
    manifest(Root { child: Child::Node { len: 500, digest }, height: 2, chunk_count: 400 }, small(), 51_200)
}

#[test]
fn comes_back_and_knows_who_signed_it() {
    let (key, other) = (SigningKey::from_bytes(&[7; 32]), SigningKey::from_bytes(&[8; 32]));
    let bytes = sample().encode(Some(&key)).unwrap();
    let sealed = SignedManifest::open(&bytes).unwrap();
    assert_eq!(sealed.manifest, sample());
    assert_eq!(sealed.signed().signers().unwrap(), [PublicKey::from(&key)]);
    assert_ne!(PublicKey::from(&key), PublicKey::from(&other));
    let unsigned = SignedManifest::open(&sample().encode(None).unwrap()).unwrap();
    assert_eq!(unsigned.digest(), sealed.digest());
    assert_eq!(unsigned.signed().signers().unwrap(), []);
    for child in [Child::Free, Child::Zero] {
        let root = Root { child, height: 2, chunk_count: 400 };
        let other = manifest(root, small(), 51_200);
        assert_eq!(Manifest::decode(&other.encode(None).unwrap()).unwrap(), other);
    }
}

#[test]
fn a_signature_of_something_else_is_none() {
    let key = SigningKey::from_bytes(&[7; 32]);
    let mut other = sample();
    other.number = 8;
    let (bytes, donor) = (sample().encode(Some(&key)).unwrap(), other.encode(Some(&key)).unwrap());
    // The last 132 bytes are one signature of 100 bytes and the checksum of 32.
    let at = |bytes: &[u8]| bytes.len() - 32 - 100;
    let mut forged = bytes[..at(&bytes)].to_vec();
    forged.extend(&donor[at(&donor)..donor.len() - 32]);
    forged.extend(base::Digest::of(&forged.clone()).0);
    let sealed = SignedManifest::open(&forged).unwrap();
    assert_eq!(sealed.signed().claims().next(), Some(PublicKey::from(&key)));
    assert_eq!(sealed.signed().signers().unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn every_flipped_bit_and_every_cut_is_noticed() {
    let bytes = sample().encode(Some(&SigningKey::from_bytes(&[7; 32]))).unwrap();
    for bit in 0..bytes.len() * 8 {
        let mut bad = bytes.to_vec();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(Manifest::decode(&bad).is_err(), "bit {bit}");
    }
    for len in 0..bytes.len() {
        assert!(Manifest::decode(&bytes[..len]).is_err(), "cut to {len}");
    }
}

#[test]
fn what_contradicts_itself_is_not_written() {
    let unreadable = vec![UnreadableRange { start_sector: 7, sectors: 1 }; 4096];
    let most = Manifest { disk: DiskRecord { unreadable, ..sample().disk }, ..sample() };
    assert_eq!(Manifest::decode(&most.encode(None).unwrap()).unwrap(), most);
    let spoil: [fn(&mut Manifest); 12] = [
        |m| m.chunk_bytes = 3 << 15,
        |m| m.chunk_bytes = 1 << 25,
        |m| m.size_sectors = 0,
        |m| m.size_sectors += 128,
        |m| m.logical_sector_bytes = 0,
        |m| m.root.height = 3,
        |m| m.origin.start_sector = u64::MAX,
        |m| m.image = "x".repeat(1000),
        |m| m.cipher = "rot13".to_owned(),
        |m| m.disk.unreadable = vec![UnreadableRange { start_sector: 51_200, sectors: 1 }],
        |m| m.disk.unreadable = vec![UnreadableRange { start_sector: 1, sectors: u64::MAX }],
        |m| m.disk.unreadable = vec![UnreadableRange { start_sector: 7, sectors: 1 }; 4097],
    ];
    for (case, spoil) in spoil.iter().enumerate() {
        let mut bad = sample();
        spoil(&mut bad);
        assert_eq!(bad.encode(None).unwrap_err().kind(), ErrorKind::Refused, "case {case}");
    }
}
