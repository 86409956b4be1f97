//! Signatures and trust: versions and tags resolve only if a trusted key signed them.

use base::ErrorKind;
use bytes::Bytes;
use image::{NoProgress, PublicKey, SigningKey, Trust};
use store::{Keys, Repository, Scope, Why};

use crate::common::{self, Records, image, kind, publish, reference, stamp, version};

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
    let other = records.open(Keys::default());
    let read = |image, seed| other.judged_by(&trust(seed), |judge| judge.tag(image, &stable, record.clone()));
    assert_eq!(read(&web, 1).map(|moved| (moved.number, moved.version)).unwrap(), (1, 1));
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

/// Two repositories whose owners trust the same key: the records of each.
fn two() -> [Records; 2] {
    let both = [Records::default(), Records::default()];
    for (seed, records) in (10..).zip(&both) {
        publish(&signing(records, 1), "debian", seed);
        signing(records, 1).tag(&image("debian"), &"stable".parse().unwrap(), 1, &stamp()).unwrap();
    }
    both
}

/// Writes version `number` of `debian` as an older program did: it names no repository. `key` signs it.
fn publish_older(records: &Records, number: u64, key: Option<&SigningKey>) {
    let repository = records.open(Keys::default());
    let (draft, _) = common::put_encrypted(&repository, repository.cipher(), number, 7);
    let manifest =
        image::Manifest { image: "debian".to_owned(), number, nonce: format!("{number:032}"), ..draft };
    records.write(&version("debian", number), manifest.encode(key).unwrap());
}

/// Writes move `number` of `debian:stable` onto version `target` as an older program did, signed by `key`.
fn move_older(records: &Records, number: u64, target: u64, key: &SigningKey) {
    let manifest = records.open(Keys::default()).look(&reference(&format!("debian@{target}"))).unwrap().0;
    let (name, manifest) = (r#""image":"debian","tag":"stable""#, manifest.digest());
    let target = format!(r#"{{"version":{target},"manifest":"{manifest}"}}"#);
    let made = format!(r#""created":"2026-11-20T14:00:00Z","creator":"test","nonce":"{number:032}""#);
    let line = format!(r#"{{"record":"tag","version":1,{name},"number":{number},"target":{target},{made}}}"#);
    let digest = base::Digest(blake3::derive_key("diskcast repository v1: signed record", line.as_bytes()));
    let signature = image::Signature::make(key, &digest);
    let hex: String = signature.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let covered = format!("{line}\n{} {hex}", signature.key());
    let text = format!("{covered}\nblake3 {}\n", base::Digest::of(covered.as_bytes()));
    records.write(&format!("tags/debian/stable/{number:020}"), text.into());
}

#[test]
fn what_was_signed_for_one_repository_is_refused_in_another() {
    let [from, into] = two();
    let (first, moved) = (version("debian", 1), "tags/debian/stable/00000000000000000001");
    for name in ["debian@1", "debian:stable"] {
        assert_eq!(kind(trusting(&into, 1).resolve(&reference(name))), Ok(()), "{name}");
    }
    // A signed move of a tag, same name and number: the version that it names is there, too.
    records_of(&from, &into, &["chunks", "nodes"]);
    let (own_version, own_move) = (into.read(&first), into.read(moved));
    into.write(moved, from.read(moved));
    let refused = |name: &str| trusting(&into, 1).resolve(&reference(name)).unwrap_err();
    assert_eq!(refused("debian:stable").kind(), ErrorKind::Refused);
    // A signed version, same name and number.
    into.write(&first, from.read(&first));
    for name in ["debian@1", "debian", "debian:stable"] {
        assert_eq!(refused(name).kind(), ErrorKind::Refused, "{name}");
    }
    let text = base::chain(&refused("debian@1"));
    assert!(
        text.contains("is signed for the repository") && text.contains(from_id(&from).as_str()),
        "{text}"
    );
    // Nothing but the signed field differs: who trusts no key reads it as before.
    assert_eq!(kind(into.open(Keys::default()).resolve(&reference("debian:stable"))), Ok(()));
    let report = trusting(&into, 1).verify(&Scope::All, &NoProgress).unwrap();
    let damage: Vec<_> = report.damaged.iter().map(|damage| (damage.path.as_str(), damage.why)).collect();
    assert_eq!(damage, [(moved, Why::Untrusted), (&first, Why::Untrusted)]);
    // A copy for which the attacker has no key: the field can't be changed.
    into.write(&first, own_version);
    into.write(moved, own_move);
    assert_eq!(kind(trusting(&into, 1).resolve(&reference("debian:stable"))), Ok(()));
}

fn from_id(records: &Records) -> String {
    records.open(Keys::default()).id().to_owned()
}

/// Copies the records below `folders` from one repository into another.
fn records_of(from: &Records, into: &Records, folders: &[&str]) {
    let wanted = |path: &String| folders.iter().any(|folder| path.starts_with(&format!("{folder}/")));
    from.paths().iter().filter(|path| wanted(path)).for_each(|path| into.write(path, from.read(path)));
}

#[test]
fn encrypted_repositories_with_one_key_refuse_what_was_signed_for_the_other() {
    let encryption = image::EncryptionKey::from_bytes([7; 32]);
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let open = |index: usize, sign: Option<SigningKey>| {
        let location = store::Location::Folder(folders[index].path().join("repository"));
        let opened =
            Repository::open(&location).or_else(|_| Repository::create_sealed(&location, &encryption));
        let keys = Keys { sign, encryption: Some(encryption.clone()), trust: Some(trust(1)) };
        opened.unwrap().with_keys(keys).unwrap()
    };
    for index in 0..2 {
        publish(&open(index, Some(key(1))), "debian", 3);
        open(index, Some(key(1))).tag(&image("debian"), &"stable".parse().unwrap(), 1, &stamp()).unwrap();
        assert_eq!(kind(open(index, None).resolve(&reference("debian:stable"))), Ok(()));
    }
    for (path, name) in [("tags/debian/stable", "debian:stable"), ("versions/debian", "debian")] {
        let file =
            |index: usize| folders[index].path().join("repository").join(path).join(format!("{:020}", 1));
        std::fs::copy(file(0), file(1)).unwrap();
        assert_eq!(kind(open(1, None).resolve(&reference(name))), Err(ErrorKind::Refused), "{name}");
    }
}

#[test]
fn a_cut_over_of_an_encrypted_repository_is_encrypted_too() {
    let folder = tempfile::tempdir().unwrap();
    let location = store::Location::Folder(folder.path().join("repository"));
    let encryption = image::EncryptionKey::from_bytes([7; 32]);
    Repository::create_sealed(&location, &encryption).unwrap();
    let open = |sign: Option<SigningKey>| {
        let keys = Keys { sign, encryption: Some(encryption.clone()), trust: Some(trust(1)) };
        Repository::open(&location).unwrap().with_keys(keys).unwrap()
    };
    let signing = open(Some(key(1)));
    let manifest = image::Manifest { repository: None, ..publish(&signing, "debian", 3) };
    let older = signing.cipher().encrypt_manifest(manifest.encode(Some(&key(1))).unwrap()).unwrap();
    std::fs::write(folder.path().join("repository").join(version("debian", 1)), older).unwrap();
    let resolve = || kind(open(None).resolve(&reference("debian")));
    assert_eq!(resolve(), Err(ErrorKind::Refused));
    assert_eq!(signing.cut_over(&image("debian"), &stamp()).unwrap().last, 1);
    assert_eq!(resolve(), Ok(()));
    let record = open(None).cut_over_record(&image("debian")).unwrap();
    let text = String::from_utf8(record.to_vec()).unwrap();
    assert!(text.contains("\"record\":\"sealed\"") && !text.contains("versions"), "{text}");
    assert_eq!(open(None).verify(&Scope::All, &NoProgress).unwrap().damaged, []);
    // Without the key it is checked as far as possible.
    assert_eq!(Repository::open(&location).unwrap().verify(&Scope::All, &NoProgress).unwrap().damaged, []);
}

#[test]
fn what_names_no_repository_counts_only_up_to_a_signed_cut_over() {
    let records = Records::default();
    let resolve = |name: &str| kind(trusting(&records, 1).resolve(&reference(name)));
    records.open(Keys::default());
    for number in 1..=2 {
        publish_older(&records, number, Some(&key(1)));
    }
    publish_older(&records, 3, None);
    move_older(&records, 1, 2, &key(1));
    // Who trusts no key reads it as before; who trusts the key does not.
    for name in ["debian@1", "debian@3", "debian:stable"] {
        assert_eq!(kind(records.open(Keys::default()).resolve(&reference(name))), Ok(()), "{name}");
        assert_eq!(resolve(name), Err(ErrorKind::Refused), "{name}");
    }
    let unsigned = records.open(Keys::default()).cut_over(&image("debian"), &stamp());
    assert_eq!(kind(unsigned), Err(ErrorKind::Invalid));
    let report = signing(&records, 1).cut_over(&image("debian"), &stamp()).unwrap();
    assert_eq!((report.number, report.last, report.versions), (1, 2, 2));
    assert_eq!((report.tags, report.untrusted), (1, 1));
    for name in ["debian@1", "debian@2", "debian:stable"] {
        assert_eq!(resolve(name), Ok(()), "{name}");
    }
    assert_eq!(resolve("debian@3"), Err(ErrorKind::Refused));
    assert_eq!(trusting(&records, 1).verify(&Scope::All, &NoProgress).unwrap().damaged.len(), 1);
    // A version and a move beyond it, and another version and move under numbers that it accepts.
    publish_older(&records, 4, Some(&key(1)));
    assert_eq!(resolve("debian@4"), Err(ErrorKind::Refused));
    let kept = records.read(&version("debian", 2));
    let [_, other] = two();
    publish_older(&other, 2, Some(&key(1)));
    let manifest = other.open(Keys::default()).look(&reference("debian@2")).unwrap().0.manifest;
    let manifest = image::Manifest { creator: "elsewhere".to_owned(), ..manifest };
    records.write(&version("debian", 2), manifest.encode(Some(&key(1))).unwrap());
    assert_eq!(resolve("debian@2"), Err(ErrorKind::Refused));
    records.write(&version("debian", 2), kept);
    move_older(&records, 1, 1, &key(1));
    assert_eq!(resolve("debian:stable"), Err(ErrorKind::Refused));
    move_older(&records, 2, 2, &key(1));
    assert_eq!(resolve("debian:stable"), Err(ErrorKind::Refused));
    // The next move names the repository.
    signing(&records, 1).tag(&image("debian"), &"stable".parse().unwrap(), 2, &stamp()).unwrap();
    assert_eq!(resolve("debian:stable"), Ok(()));
}

#[test]
fn a_cut_over_of_another_repository_or_key_accepts_nothing() {
    let [from, into] = [Records::default(), Records::default()];
    for records in [&from, &into] {
        records.open(Keys::default());
        publish_older(records, 1, Some(&key(1)));
    }
    let path = format!("cut-overs/debian/{:020}", 1);
    signing(&from, 1).cut_over(&image("debian"), &stamp()).unwrap();
    assert_eq!(kind(trusting(&from, 1).resolve(&reference("debian"))), Ok(()));
    into.write(&path, from.read(&path));
    assert_eq!(kind(trusting(&into, 1).resolve(&reference("debian"))), Err(ErrorKind::Refused));
    // Another key accepts what the trusted key signed.
    let both = Keys { sign: Some(key(2)), trust: Some(trust(1)), ..Keys::default() };
    assert_eq!(into.open(both).cut_over(&image("debian"), &stamp()).unwrap().number, 2);
    assert_eq!(kind(trusting(&into, 1).resolve(&reference("debian"))), Err(ErrorKind::Refused));
    // A record whose text was changed, with the digest corrected.
    let text =
        String::from_utf8(from.read(&path).to_vec()).unwrap().replace(&from_id(&from), &from_id(&into));
    let covered = text.trim_end().rsplit_once('\n').unwrap().0;
    let forged = format!("{covered}\nblake3 {}\n", base::Digest::of(covered.as_bytes()));
    into.write(&format!("cut-overs/debian/{:020}", 3), forged.into());
    assert_eq!(kind(trusting(&into, 1).resolve(&reference("debian"))), Err(ErrorKind::Corrupt));
    signing(&into, 1).cut_over(&image("debian"), &stamp()).unwrap();
    assert_eq!(kind(trusting(&into, 1).resolve(&reference("debian"))), Ok(()));
}
