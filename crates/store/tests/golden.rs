//! Repositories of every released format version, kept for ever: the intact one can still be read, and verify still
//! reports the same damage in the damaged one. To repeat one test: `cargo test --workspace --test store golden::
//! <name>`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use base::ErrorKind;
use image::{
    EncryptionKey, NoProgress, ObjectKind, ObjectRef, ObjectSink as _, PublicKey, SignedManifest, SigningKey,
    Trust,
};
use store::{Keys, Location, Overseer, PruneEvent, PruneOptions, Repository, Scope, Writer};

use crate::common::{self, chunk_size, copy_all, image, reference, stamp};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/repository/v1").join(name)
}

fn open(name: &str) -> Repository {
    Repository::open(&Location::Folder(golden(name))).unwrap()
}

fn key() -> SigningKey {
    SigningKey::from_bytes(&[1; 32])
}

/// The result of a verification, one line for each damage.
fn report(name: &str) -> String {
    report_of(&open(name))
}

fn report_of(repository: &Repository) -> String {
    let report = repository.verify(&Scope::All, &NoProgress).unwrap();
    let mut lines = vec![format!(
        "{} versions, {} objects, {} unreferenced, {} strangers",
        report.versions, report.objects, report.unreferenced, report.strangers
    )];
    for damage in report.damaged {
        let versions: Vec<String> = damage.versions.iter().map(ToString::to_string).collect();
        lines.push(format!("{} {:?} [{}]", damage.path, damage.why, versions.join(" ")));
    }
    lines.join("\n") + "\n"
}

#[test]
fn the_good_repository_reads_as_it_did() {
    let repository = open("good");
    assert_eq!(repository.id().len(), 32);
    let images: Vec<String> = repository.images().unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(images, ["alpine", "debian"]);
    assert_eq!(repository.versions(&image("debian")).unwrap(), [1, 3]);
    assert_eq!(repository.resolve(&reference("debian@2")).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(repository.resolve(&reference("debian:stable")).unwrap().number, 1);
    assert_eq!(repository.resolve(&reference("debian:gone")).unwrap_err().kind(), ErrorKind::NotFound);
    let tags = repository.tags(&image("debian")).unwrap();
    assert_eq!(tags.iter().map(|tag| (tag.name.as_str(), tag.version)).collect::<Vec<_>>(), [("stable", 1)]);
    assert_eq!(report("good"), std::fs::read_to_string(golden("good.txt")).unwrap());
}

#[test]
fn what_is_below_a_floor_is_removed() {
    let repository = open("floored");
    assert_eq!(repository.images().unwrap(), []);
    assert_eq!(repository.resolve(&reference("debian")).unwrap_err().kind(), ErrorKind::NotFound);
    let folder = tempfile::tempdir().unwrap();
    copy_all(&golden("floored"), folder.path());
    let copy = Repository::open(&Location::Folder(folder.path().to_owned())).unwrap();
    assert_eq!(common::publish(&copy, "debian", 1).number, 3);
}

#[test]
fn manifests_are_still_written_as_they_were() {
    let repository = open("good");
    for (name, key) in [("debian@1", None), ("debian@3", Some(key())), ("alpine@1", None)] {
        let (sealed, bytes) = repository.signed_manifest(&reference(name)).unwrap();
        assert_eq!(sealed.manifest.encode(key.as_ref()).unwrap(), bytes, "{name}");
        let signers: Vec<_> = key.iter().map(PublicKey::from).collect();
        assert_eq!(sealed.signed().signers().unwrap(), signers, "{name}");
        assert_eq!(SignedManifest::open(&bytes).unwrap().digest(), sealed.digest());
    }
}

#[test]
fn the_damaged_repository_is_reported_as_it_was() {
    assert_eq!(report("damaged"), std::fs::read_to_string(golden("damaged.txt")).unwrap());
    let repository = open("damaged");
    assert_eq!(repository.resolve(&reference("debian@6")).unwrap_err().kind(), ErrorKind::Corrupt);
    // Records with one flipped bit can still be read.
    for (name, number) in [("debian@5", 5), ("debian:stable", 7)] {
        assert_eq!(repository.resolve(&reference(name)).unwrap().number, number, "{name}");
    }
    // The damage does not affect the intact versions.
    let good = repository.verify(&Scope::Version(reference("good@1")), &NoProgress).unwrap();
    assert_eq!(good.damaged, []);
}

#[test]
fn a_newer_format_is_called_newer() {
    for name in ["newer", "critical"] {
        let refused = Repository::open(&Location::Folder(golden(name))).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{name}: {refused}");
    }
}

/// Creates the files of this format version. Was run once; needed again only for a new format version.
#[test]
#[ignore = "makes golden files anew"]
fn make() {
    make_good();
    std::fs::write(golden("good.txt"), report("good")).unwrap();
    make_damaged();
    std::fs::write(golden("damaged.txt"), report("damaged")).unwrap();
    for (name, body) in [
        ("newer", r#"{"record":"diskcast-repository","version":2,"id":"00000000000000000000000000000000"}"#),
        (
            "critical",
            concat!(
                r#"{"record":"diskcast-repository","version":1,"critical":["sealed"],"#,
                r#""id":"00000000000000000000000000000000"}"#
            ),
        ),
    ] {
        std::fs::create_dir_all(golden(name)).unwrap();
        let text = format!("{body}\nblake3 {}\n", base::Digest::of(body.as_bytes()));
        std::fs::write(golden(name).join("format"), text).unwrap();
    }
}

fn make_good() {
    let mut repository = Repository::create(&Location::Folder(golden("good"))).unwrap();
    for (name, seed, sign) in
        [("debian", 1, None), ("debian", 2, None), ("debian", 3, Some(key())), ("alpine", 1, None)]
    {
        repository = repository.with_keys(Keys { sign, ..Keys::default() }).unwrap();
        let (draft, _) = common::put_little(&repository, repository.cipher(), seed, 300);
        repository.publish(&image(name), draft).unwrap();
    }
    for (tag, version) in [("stable", 3), ("stable", 1), ("gone", 3)] {
        repository.tag(&image("debian"), &tag.parse().unwrap(), version, &stamp()).unwrap();
    }
    repository.remove(&reference("debian:gone"), &stamp()).unwrap();
    repository.remove(&reference("debian@2"), &stamp()).unwrap();
}

#[test]
fn signed_records_are_read_and_written_as_they_were() {
    let folder = golden("signed");
    let mut trust = Trust::default();
    trust.add((&key()).into(), "golden");
    let stable = reference("debian:stable");
    let (sealed, bytes) = open("signed").signed_manifest(&stable).unwrap();
    assert_eq!(sealed.manifest.encode(Some(&key())).unwrap(), bytes);
    // They name no repository, so who trusts the key uses them after a cut-over only.
    let trusting = Keys { trust: Some(trust.clone()), ..Keys::default() };
    let refused = open("signed").with_keys(trusting.clone()).unwrap().resolve(&stable).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Refused);
    let copy = tempfile::tempdir().unwrap();
    copy_all(&folder, copy.path());
    let at = Location::Folder(copy.path().to_owned());
    let signing = Keys { sign: Some(key()), ..Keys::default() };
    let done =
        Repository::open(&at).unwrap().with_keys(signing).unwrap().cut_over(&image("debian"), &stamp());
    assert_eq!(done.unwrap().last, 1);
    let repository = Repository::open(&at).unwrap().with_keys(trusting).unwrap();
    assert_eq!(repository.signed_manifest(&stable).unwrap().1, bytes);
    let record = std::fs::read(folder.join("tags/debian/stable/00000000000000000001")).unwrap();
    let tag = "stable".parse().unwrap();
    let read =
        repository.judged_by(&trust, |judge| judge.tag(&image("debian"), &tag, record.into())).unwrap();
    assert_eq!((read.version, read.manifest), (1, sealed.digest()));
    for name in ["debian:forged", "debian:unsigned"] {
        let expected = if name == "debian:forged" { ErrorKind::Corrupt } else { ErrorKind::Refused };
        assert_eq!(repository.resolve(&reference(name)).unwrap_err().kind(), expected, "{name}");
    }
    assert_eq!(report("signed"), std::fs::read_to_string(golden("signed.txt")).unwrap());
}

/// Creates the signed records of this format version. Was run once.
#[test]
#[ignore = "makes golden files anew"]
fn make_signed() {
    let location = Location::Folder(golden("signed"));
    let signing = Keys { sign: Some(key()), ..Keys::default() };
    let repository = Repository::create(&location).unwrap().with_keys(signing).unwrap();
    let (draft, _) = common::put_little(&repository, repository.cipher(), 20, 7);
    repository.publish(&image("debian"), draft).unwrap();
    for tag in ["stable", "forged"] {
        repository.tag(&image("debian"), &tag.parse().unwrap(), 1, &stamp()).unwrap();
    }
    open("signed").tag(&image("debian"), &"unsigned".parse().unwrap(), 1, &stamp()).unwrap();
    // The signature of one move under another, with the digest corrected.
    let path = |tag: &str| golden("signed").join("tags/debian").join(tag).join("00000000000000000001");
    let lines =
        |tag| std::fs::read_to_string(path(tag)).unwrap().lines().map(str::to_owned).collect::<Vec<_>>();
    let covered = format!("{}\n{}", lines("forged")[0], lines("stable")[1]);
    let text = format!("{covered}\nblake3 {}\n", base::Digest::of(covered.as_bytes()));
    std::fs::write(path("forged"), text).unwrap();
    std::fs::write(golden("signed.txt"), report("signed")).unwrap();
}

#[test]
fn signed_records_that_name_their_repository_are_read_and_written_as_they_were() {
    let mut trust = Trust::default();
    trust.add((&key()).into(), "golden");
    let trusting = Keys { trust: Some(trust), ..Keys::default() };
    let repository = open("named").with_keys(trusting).unwrap();
    for (name, number) in [("debian@1", 1), ("debian@2", 2), ("debian:stable", 1), ("debian:next", 2)] {
        let (sealed, bytes) = repository.signed_manifest(&reference(name)).unwrap();
        assert_eq!(sealed.manifest.number, number, "{name}");
        assert_eq!(sealed.manifest.encode(Some(&key())).unwrap(), bytes, "{name}");
        // The cut-over record accepts version 1 and `stable`, which are of an older program.
        let named = (number == 2).then(|| repository.id().to_owned());
        assert_eq!(sealed.manifest.repository, named, "{name}");
    }
    // Version 3 was signed for another repository, `foreign` and `late` were moved for another one and for none.
    for name in ["debian@3", "debian:foreign", "debian:late"] {
        assert_eq!(repository.resolve(&reference(name)).unwrap_err().kind(), ErrorKind::Refused, "{name}");
        assert_eq!(open("named").resolve(&reference(name)).map(|_| ()).map_err(|error| error.kind()), Ok(()));
    }
    let report = report_of(&repository);
    assert_eq!(report, std::fs::read_to_string(golden("named.txt")).unwrap());
}

/// Creates the signed records that name their repository, beside those of an older program. Was run once.
#[test]
#[ignore = "makes golden files anew"]
fn make_named() {
    copy_all(&golden("signed"), &golden("named"));
    let tags = golden("named/tags/debian");
    std::fs::remove_dir_all(tags.join("forged")).unwrap();
    std::fs::remove_dir_all(tags.join("unsigned")).unwrap();
    let signing = Keys { sign: Some(key()), ..Keys::default() };
    let repository = open("named").with_keys(signing.clone()).unwrap();
    repository.cut_over(&image("debian"), &stamp()).unwrap();
    let tag = |repository: &Repository, name: &str, version| {
        repository.tag(&image("debian"), &name.parse().unwrap(), version, &stamp()).unwrap();
    };
    let publish = |repository: &Repository| {
        let (draft, _) = common::put_little(repository, repository.cipher(), 21, 7);
        repository.publish(&image("debian"), draft).unwrap();
    };
    publish(&repository);
    tag(&repository, "next", 2);
    let folder = tempfile::tempdir().unwrap();
    let other = Repository::create(&Location::Folder(folder.path().to_owned())).unwrap();
    let other = other.with_keys(signing).unwrap();
    (1..=3).for_each(|_| publish(&other));
    tag(&other, "foreign", 3);
    let third = format!("versions/debian/{:020}", 3);
    std::fs::copy(folder.path().join(&third), golden("named").join(&third)).unwrap();
    copy_all(&folder.path().join("tags/debian/foreign"), &tags.join("foreign"));
    // A move of an older program that the cut-over record does not list.
    let (line, _) = {
        let text = std::fs::read_to_string(tags.join("stable").join(format!("{:020}", 1))).unwrap();
        let (line, rest) = text.split_once('\n').unwrap();
        (line.replace("\"stable\"", "\"late\""), rest.to_owned())
    };
    let digest = base::Digest(blake3::derive_key("diskcast repository v1: signed record", line.as_bytes()));
    let signature = image::Signature::make(&key(), &digest);
    let hex: String = signature.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let covered = format!("{line}\n{} {hex}", signature.key());
    std::fs::create_dir_all(tags.join("late")).unwrap();
    let text = format!("{covered}\nblake3 {}\n", base::Digest::of(covered.as_bytes()));
    std::fs::write(tags.join("late").join(format!("{:020}", 1)), text).unwrap();
    let mut trust = Trust::default();
    trust.add((&key()).into(), "golden");
    let trusting = open("named").with_keys(Keys { trust: Some(trust), ..Keys::default() }).unwrap();
    std::fs::write(golden("named.txt"), report_of(&trusting)).unwrap();
}

fn seal_key() -> EncryptionKey {
    EncryptionKey::from_bytes([2; 32])
}

#[test]
fn the_encrypted_repository_opens_with_its_key_as_it_did() {
    let keys = Keys { encryption: Some(seal_key()), ..Keys::default() };
    let repository = open("sealed").with_keys(keys).unwrap();
    for name in ["debian@1", "debian:stable"] {
        let manifest = repository.resolve(&reference(name)).unwrap();
        assert_eq!((manifest.number, manifest.cipher.as_str()), (1, "aes-256-gcm-siv"));
    }
    let (sealed, bytes) = repository.look(&reference("debian@1")).unwrap();
    let again = repository.cipher().encrypt_manifest(sealed.manifest.encode(None).unwrap()).unwrap();
    assert_eq!(again, bytes, "manifests are sealed otherwise than in version 1");
    let other = Keys { encryption: Some(EncryptionKey::from_bytes([3; 32])), ..Keys::default() };
    assert_eq!(open("sealed").with_keys(other).unwrap_err().kind(), ErrorKind::Refused);
    let words = |repository: Repository| {
        let report = repository.verify(&Scope::All, &NoProgress).unwrap();
        assert_eq!(report.damaged, []);
        format!("{} versions, {} objects, {} unsigned\n", report.versions, report.objects, report.unsigned)
    };
    let text = format!("with the key: {}without: {}", words(repository), words(open("sealed")));
    assert_eq!(
        text,
        "with the key: 1 versions, 16 objects, 1 unsigned\nwithout: 1 versions, 16 objects, 0 unsigned\n"
    );
}

/// Creates the encrypted repository of this format version. Was run once.
#[test]
#[ignore = "makes golden files anew"]
fn make_sealed() {
    let repository = Repository::create_sealed(&Location::Folder(golden("sealed")), &seal_key()).unwrap();
    for seed in [30, 31] {
        let (draft, _) = common::put_little(&repository, repository.cipher(), seed, 300);
        repository.publish(&image("debian"), draft).unwrap();
    }
    repository.tag(&image("debian"), &"stable".parse().unwrap(), 1, &stamp()).unwrap();
    repository.remove(&reference("debian@2"), &stamp()).unwrap();
}

/// Never waits. Copies the folder when the first objects have been deleted, as if the prune were killed then.
struct Killed<'a> {
    from: &'a Path,
    to: Option<&'a Path>,
}

impl Overseer for Killed<'_> {
    fn event(&self, event: &PruneEvent) {
        if let (PruneEvent::Deleted(_), Some(to)) = (event, self.to.filter(|to| !to.exists())) {
            copy_all(self.from, to);
        }
    }

    fn pause(&self, _: Duration) {}
}

fn hasty() -> PruneOptions {
    PruneOptions { looks: 1, pause: Duration::ZERO, ..PruneOptions::default() }
}

#[test]
fn a_prune_that_was_killed_is_ended_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    copy_all(&golden("pruned"), folder.path());
    let repository = Repository::open(&Location::Folder(folder.path().to_owned())).unwrap();
    assert_eq!(repository.versions(&image("debian")).unwrap(), [1, 4]);
    // A copy that the killed prune may still delete is stored again, in another slot.
    let writer = Writer::begin_without_heartbeat(&repository, &stamp()).unwrap();
    let (draft, chunks) = common::put_little(&writer, writer.cipher(), 3, 300);
    assert_eq!(writer.publish(&image("debian"), draft).unwrap().number, 5);
    let in_slot_1 = |chunk: &&ObjectRef| {
        let hex = chunk.digest.to_hex();
        folder.path().join("chunks").join(&hex[..2]).join(format!("{hex}.1")).exists()
    };
    assert_eq!(chunks.iter().filter(in_slot_1).count(), chunks.len());
    drop(writer);
    let killed = Killed { from: folder.path(), to: None };
    let report = repository.prune(&hasty(), &stamp(), &killed).unwrap();
    assert_eq!((report.versions, report.revoked), (3, 1), "the prune that was killed");
    let verified = repository.verify(&Scope::All, &NoProgress).unwrap();
    assert_eq!((verified.damaged.len(), verified.unreferenced), (0, 0));
}

/// Creates the repository of this format version in which a prune was killed. Was run once.
#[test]
#[ignore = "makes golden files anew"]
fn make_pruned() {
    let folder = tempfile::tempdir().unwrap();
    let repository = Repository::create(&Location::Folder(folder.path().to_owned())).unwrap();
    let publish = |seed| {
        let (draft, _) = common::put_little(&repository, repository.cipher(), seed, 300);
        repository.publish(&image("debian"), draft).unwrap();
    };
    let killed = |to| Killed { from: folder.path(), to };
    (1..=3).for_each(publish);
    repository.remove(&reference("debian@2"), &stamp()).unwrap();
    repository.prune(&hasty(), &stamp(), &killed(None)).unwrap();
    publish(4);
    let idle = Writer::begin_without_heartbeat(&repository, &stamp()).unwrap();
    idle.beat().unwrap();
    repository.remove(&reference("debian@3"), &stamp()).unwrap();
    repository.prune(&hasty(), &stamp(), &killed(Some(&golden("pruned")))).unwrap();
}

#[test]
fn profiles_are_read_as_they_were() {
    let repository = open("profiles");
    let found = repository.profile(&image("debian"), 1).unwrap().unwrap();
    assert_eq!((found.number, found.boots, found.chunk_bytes), (2, 2, 65_536));
    assert_eq!(found.order(), [0, 1, 2, 30, 31, 40, 200]);
    // A clone has the profile of its original.
    let inherited = repository.profile(&image("clone"), 1).unwrap().unwrap();
    assert_eq!((inherited.image.as_str(), inherited.order()), ("debian", found.order()));
    assert_eq!(repository.profile(&image("none"), 1).unwrap(), None);
    // One bit of it was flipped.
    assert_eq!(repository.profile(&image("damaged"), 1).unwrap().unwrap().order(), [0, 1, 2, 30, 31]);
}

/// Creates the repository of this format version with profiles. Was run once.
#[test]
#[ignore = "makes golden files anew"]
fn make_profiles() {
    let repository = Repository::create(&Location::Folder(golden("profiles"))).unwrap();
    let (draft, _) = common::put_little(&repository, repository.cipher(), 1, 300);
    repository.publish(&image("debian"), draft).unwrap();
    for boot in [[0, 1, 2, 30, 31, 200], [0, 1, 2, 30, 31, 40]] {
        repository.add_profile(&image("debian"), 1, &boot, &stamp()).unwrap();
    }
    for name in ["clone", "none", "damaged"] {
        repository.blob(&image(name)).clone_from(&reference("debian@1"), &stamp()).unwrap();
    }
    repository.remove_profile(&image("none"), 1, &stamp()).unwrap();
    repository.add_profile(&image("damaged"), 1, &[7], &stamp()).unwrap();
    flip(&golden("profiles/profiles/damaged").join(format!("{:020}", 1)));
}

/// One version for each kind of damage.
fn make_damaged() {
    let folder = golden("damaged");
    let repository = Repository::create(&Location::Folder(folder.clone())).unwrap();
    let mut chunks = Vec::new();
    for seed in 10..17 {
        let (draft, objects) = common::put_little(&repository, repository.cipher(), seed, 7);
        repository.publish(&image("debian"), draft).unwrap();
        chunks.push(objects);
    }
    let (draft, _) = common::put_little(&repository, repository.cipher(), 17, 7);
    repository.publish(&image("good"), draft).unwrap();
    repository.tag(&image("debian"), &"stable".parse().unwrap(), 7, &stamp()).unwrap();
    let unreferenced = ObjectRef::of(ObjectKind::Chunk, b"no version names this");
    repository.put(&unreferenced, b"no version names this".as_slice().into()).unwrap();
    repository.flush().unwrap();

    let path = |object: &ObjectRef| {
        let hex = object.digest.to_hex();
        folder.join("chunks").join(&hex[..2]).join(&hex)
    };
    let version = |number: u64| folder.join("versions/debian").join(format!("{number:020}"));
    flip(&path(&chunks[0][0])); // debian@1: a flipped bit in a chunk
    std::fs::remove_file(path(&chunks[1][0])).unwrap(); // debian@2: a missing chunk
    cut(&path(&chunks[2][0])); // debian@3: a chunk without its end
    std::fs::copy(path(&chunks[3][1]), path(&chunks[3][0])).unwrap(); // debian@4: another chunk under its name
    flip(&version(5)); // debian@5: a flipped bit in the manifest
    std::fs::copy(version(1), version(6)).unwrap(); // debian@6: another version's manifest
    let root = repository.resolve(&reference("debian@7")).unwrap().root.child.object().unwrap();
    let hex = root.digest.to_hex();
    flip(&folder.join("nodes").join(&hex[..2]).join(&hex)); // debian@7: a flipped bit in a node
    flip(&folder.join("tags/debian/stable").join(format!("{:020}", 1)));
    flip(&path(&unreferenced));
    std::fs::write(folder.join("chunks/00-stranger"), "what is this?").unwrap();
    assert_eq!(chunk_size().bytes(), 65_536);
}

fn flip(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

fn cut(path: &Path) {
    let bytes = std::fs::read(path).unwrap();
    std::fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
}
