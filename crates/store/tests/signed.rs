//! Signatures and trust: versions and tags resolve only if a trusted key signed them.
#![allow(clippy::unwrap_used, reason = "tests fail by it")]

mod common;

use base::ErrorKind;
use bytes::Bytes;
use common::{Records, image, kind, publish, reference, stamp, version};
use image::{Cipher, NoProgress, PublicKey, SigningKey, Trust};
use store::{Keys, Repository, Scope, Why, read_tag};

fn key(seed: u8) -> SigningKey {
    SigningKey::from_bytes(&[seed; 32])
}

fn trust(seed: u8) -> Trust {
    let mut trust = Trust::default();
    trust.add((&key(seed)).into(), "the lab");
    trust
}

fn signing(records: &Records, seed: u8) -> Repository {
    records.open(Keys { sign: Some(key(seed)), ..Keys::default() })
}

fn trusting(records: &Records, seed: u8) -> Repository {
    records.open(Keys { trust: Some(trust(seed)), ..Keys::default() })
}

#[test]
fn a_signature_covers_the_number() {
    let records = Records::default();
    publish(&records.open(Keys::default()), "debian", 1);
    let published = publish(&signing(&records, 3), "debian", 1);
    let anybody = records.open(Keys::default());
    let (sealed, _) = anybody.signed_manifest(&reference("debian@2")).unwrap();
    assert_eq!(sealed.manifest, published);
    assert_eq!(sealed.signed().signers().unwrap(), [PublicKey::from(&key(3))]);
    let (unsigned, _) = anybody.signed_manifest(&reference("debian@1")).unwrap();
    assert_eq!(unsigned.signed().signers().unwrap(), []);
}

#[test]
fn who_trusts_a_key_gets_what_it_signed_and_nothing_else() {
    let records = Records::default();
    publish(&records.open(Keys::default()), "debian", 1);
    publish(&signing(&records, 1), "debian", 2);
    publish(&signing(&records, 2), "debian", 3);
    let trusting = trusting(&records, 1);
    assert_eq!(kind(trusting.resolve(&reference("debian@1"))), Err(ErrorKind::Refused));
    assert_eq!(kind(trusting.resolve(&reference("debian@2"))), Ok(()));
    assert_eq!(kind(trusting.resolve(&reference("debian@3"))), Err(ErrorKind::Refused));
    assert_eq!(kind(trusting.resolve(&reference("debian"))), Err(ErrorKind::Refused));
    // Lists show all versions, signed or not.
    assert_eq!(trusting.versions(&image("debian")).unwrap(), [1, 2, 3]);
    assert_eq!(trusting.look(&reference("debian@1")).unwrap().0.manifest.number, 1);
    // A client that signs trusts its own key too.
    let both = records.open(Keys { sign: Some(key(2)), trust: Some(trust(1)), ..Keys::default() });
    assert_eq!(
        (kind(both.resolve(&reference("debian@2"))), kind(both.resolve(&reference("debian")))),
        (Ok(()), Ok(()))
    );
}

#[test]
fn a_tag_counts_if_a_trusted_key_moved_it() {
    let records = Records::default();
    for seed in 1..=2 {
        publish(&signing(&records, 1), "debian", seed);
    }
    let (web, stable) = (image("debian"), "stable".parse().unwrap());
    let resolve = || kind(trusting(&records, 1).resolve(&reference("debian:stable")));
    signing(&records, 1).tag(&web, &stable, 1, &stamp()).unwrap();
    assert_eq!(resolve(), Ok(()));
    let record = records.open(Keys::default()).tag_record(&web, &stable).unwrap();
    let read = |image, seed| read_tag(image, &stable, record.clone(), &Cipher::None, &trust(seed));
    assert_eq!(read(&web, 1).unwrap().0, 1);
    assert_eq!(kind(read(&web, 2)), Err(ErrorKind::Refused));
    assert_eq!(kind(read(&image("web"), 1)), Err(ErrorKind::Corrupt));
    // An unknown key moves the tag to a version with a trusted signature.
    records.open(Keys::default()).tag(&web, &stable, 2, &stamp()).unwrap();
    assert_eq!(resolve(), Err(ErrorKind::Refused));
    signing(&records, 1).tag(&web, &stable, 2, &stamp()).unwrap();
    assert_eq!(resolve(), Ok(()));
    signing(&records, 2).untag(&web, &stable, &stamp()).unwrap();
    assert_eq!(resolve(), Err(ErrorKind::Refused));
    signing(&records, 1).tag(&web, &stable, 2, &stamp()).unwrap();
    signing(&records, 1).untag(&web, &stable, &stamp()).unwrap();
    assert_eq!(resolve(), Err(ErrorKind::NotFound));
}

#[test]
fn a_move_that_is_replayed_under_another_number_is_damage() {
    let records = Records::default();
    for seed in 1..=2 {
        publish(&signing(&records, 1), "debian", seed);
        signing(&records, 1).tag(&image("debian"), &"stable".parse().unwrap(), seed, &stamp()).unwrap();
    }
    let of = |number: u64| format!("tags/debian/stable/{number:020}");
    records.write(&of(3), records.read(&of(1)));
    assert_eq!(kind(trusting(&records, 1).resolve(&reference("debian:stable"))), Err(ErrorKind::Corrupt));
}

#[test]
fn a_version_under_another_number_or_image_is_damage() {
    let records = Records::default();
    for seed in 1..=2 {
        publish(&signing(&records, 1), "debian", seed);
    }
    publish(&signing(&records, 1), "web", 1);
    records.write(&version("debian", 2), records.read(&version("debian", 1)));
    records.write(&version("web", 1), records.read(&version("debian", 1)));
    for name in ["debian@2", "web@1"] {
        assert_eq!(kind(trusting(&records, 1).resolve(&reference(name))), Err(ErrorKind::Corrupt), "{name}");
    }
}

#[test]
fn verify_says_who_signed_and_names_what_nobody_trusted_did() {
    let records = Records::default();
    publish(&records.open(Keys::default()), "debian", 1);
    publish(&signing(&records, 1), "debian", 2);
    publish(&signing(&records, 1), "debian", 3);
    publish(&signing(&records, 2), "web", 3);
    signing(&records, 2).tag(&image("web"), &"stable".parse().unwrap(), 1, &stamp()).unwrap();
    let report = records.open(Keys::default()).verify(&Scope::All, &NoProgress).unwrap();
    let mut counts: Vec<_> = report.signers.iter().map(|signer| (signer.key, signer.versions)).collect();
    counts.sort_by_key(|(_, versions)| *versions);
    assert_eq!(counts, [(PublicKey::from(&key(2)), 1), (PublicKey::from(&key(1)), 2)]);
    assert_eq!((report.unsigned, report.damaged), (1, Vec::new()));

    let report = trusting(&records, 1).verify(&Scope::All, &NoProgress).unwrap();
    let damage: Vec<_> = report.damaged.iter().map(|damage| (damage.path.as_str(), damage.why)).collect();
    let (first, web) = (version("debian", 1), version("web", 1));
    let expected = [
        ("tags/web/stable/00000000000000000001", Why::Untrusted),
        (&first, Why::Untrusted),
        (&web, Why::Untrusted),
    ];
    assert_eq!(damage, expected);
    let names: Vec<_> = report.signers.iter().map(|signer| signer.name.as_deref()).collect();
    assert!(names.contains(&Some("the lab")) && names.contains(&None), "{names:?}");
    let one = trusting(&records, 1).verify(&Scope::Version(reference("debian@2")), &NoProgress).unwrap();
    assert_eq!((one.damaged, one.signers.len()), (Vec::new(), 1));
}

#[test]
fn a_forged_signature_is_damage_for_everybody() {
    let records = Records::default();
    publish(&signing(&records, 1), "debian", 1);
    publish(&signing(&records, 1), "debian", 2);
    let signature = |bytes: &Bytes| bytes.slice(bytes.len() - 132..bytes.len() - 32);
    let (first, second) = (records.read(&version("debian", 1)), records.read(&version("debian", 2)));
    let forged = [&second[..second.len() - 132], &signature(&first)].concat();
    let forged = [&forged[..], &base::Digest::of(&forged).0].concat();
    records.write(&version("debian", 2), forged.into());
    assert_eq!(kind(trusting(&records, 1).resolve(&reference("debian@2"))), Err(ErrorKind::Corrupt));
    for repository in [records.open(Keys::default()), trusting(&records, 1)] {
        let report = repository.verify(&Scope::All, &NoProgress).unwrap();
        let damage: Vec<_> = report.damaged.iter().map(|damage| (damage.path.clone(), damage.why)).collect();
        assert_eq!(damage, [(version("debian", 2), Why::Corrupt)]);
    }
}
