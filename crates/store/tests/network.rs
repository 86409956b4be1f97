//! S3 through a bad network, at the level of connections: what `object_store` retries, what it does not retry, and
//! how the repository copes. To repeat one test: `cargo test --workspace --test store network::<name>`.

use base::{Chance, ErrorKind};
use bytes::Bytes;
use image::{NoProgress, ObjectKind, ObjectRef, ObjectSink as _, ObjectSource as _};
use lab::{Engine, Gateway};
use store::{Replaces, Repository, Scope, Setting};

use crate::common::proxy::{Fate, Plan, Proxy};
use crate::common::{self, bucket, image, publish, put_image, reference, s3_setting, s3_setting_with, stamp};

/// A repository in an S3 store, and the bad network to it.
struct Far {
    repository: Repository,
    proxy: Proxy,
    setting: Setting,
    gateway: Gateway,
}

fn far() -> Option<Far> {
    far_with(&[])
}

/// A repository that gives requests up after `RETRY_SECONDS`.
fn far_in_haste() -> Option<Far> {
    far_with(&[("DISKCAST_S3_RETRY_SECONDS", RETRY_SECONDS.to_string())])
}

const RETRY_SECONDS: u64 = 5;

fn far_with(variables: &[(&'static str, String)]) -> Option<Far> {
    let gateway = Gateway::start_or_skip(Engine::VersityGw)?;
    let proxy = Proxy::before(gateway.address());
    let setting = s3_setting_with(proxy.address(), variables);
    let repository = Repository::create_with(&bucket(), &setting).unwrap();
    Some(Far { repository, proxy, setting, gateway })
}

/// A plan with `fate` for every n-th of the requests that `of` selects.
fn every(n: u64, fate: Fate, of: fn(&common::proxy::Asked<'_>) -> bool) -> Plan {
    let mut seen = 0;
    Box::new(move |asked, _| {
        seen += u64::from(of(asked));
        (of(asked) && seen % n == 0).then_some(fate)
    })
}

#[test]
fn whatever_the_network_does_what_was_published_is_there_and_once() {
    let Some(far) = far() else { return };
    for (turn, fate) in
        [Fate::Throttled, Fate::Dropped, Fate::ReplyLost, Fate::CutShort, Fate::Slow].into_iter().enumerate()
    {
        let number = turn as u64 + 1;
        far.proxy.set(every(3, fate, |_| true));
        assert_eq!(publish(&far.repository, "debian", number).number, number, "{fate:?}");
        far.repository.tag(&image("debian"), &"stable".parse().unwrap(), number, &stamp()).unwrap();
        assert_eq!(far.repository.resolve(&reference("debian:stable")).unwrap().number, number, "{fate:?}");
        let report = far.repository.verify(&Scope::All, &NoProgress).unwrap();
        assert_eq!((report.versions, report.damaged), (number, vec![]), "{fate:?}");
    }
    // Another client, with a good connection to the store, sees the same.
    let near = Repository::open_with(&bucket(), &s3_setting(far.gateway.address())).unwrap();
    assert_eq!(near.versions(&image("debian")).unwrap(), [1, 2, 3, 4, 5]);
}

#[test]
fn a_create_whose_every_reply_is_lost_is_found_to_be_done() {
    let Some(far) = far_in_haste() else { return };
    let (draft, _) = put_image(&far.repository, 1, 7);
    far.repository.flush().unwrap();
    far.proxy.set(every(1, Fate::ReplyLost, |asked| asked.method == "PUT"));
    let published = far.repository.publish(&image("debian"), draft).unwrap();
    far.proxy.set(Box::new(|_, _| None));
    assert_eq!(published.number, 1);
    assert_eq!(far.repository.versions(&image("debian")).unwrap(), [1]);
    assert_eq!(far.repository.resolve(&reference("debian")).unwrap(), published);
}

#[test]
fn a_store_that_throttles_for_good_is_an_error_that_says_so_and_loses_nothing() {
    let Some(far) = far_in_haste() else { return };
    let (draft, _) = put_image(&far.repository, 1, 7);
    far.proxy.set(every(1, Fate::Throttled, |_| true));
    let failed = far.repository.publish(&image("debian"), draft.clone()).unwrap_err();
    let requests = far.proxy.count();
    assert_eq!(failed.kind(), ErrorKind::Io);
    assert!(base::chain(&failed).contains("try again later"), "{failed}");
    // Waits grow: the three chunks and the node are sent again for five seconds, each in two rounds at most. Waits that
    // stayed at the shortest, 50 ms, would be 800 requests.
    assert!(requests <= 2 * 4 * 6 * RETRY_SECONDS, "{requests} requests");
    far.proxy.set(Box::new(|_, _| None));
    assert_eq!(far.repository.publish(&image("debian"), draft).unwrap().number, 1);
    assert_eq!(far.repository.verify(&Scope::All, &NoProgress).unwrap().damaged, []);
}

#[test]
fn wrong_bytes_are_never_taken_for_right() {
    let Some(far) = far() else { return };
    let (draft, chunks) = put_image(&far.repository, 1, 7);
    let published = far.repository.publish(&image("debian"), draft).unwrap();
    far.proxy.set(every(1, Fate::WrongByte, |asked| asked.method == "GET"));
    // A record with one wrong bit is repaired by means of its digest.
    let opened = Repository::open_with(&bucket(), &far.setting).unwrap();
    assert_eq!(opened.resolve(&reference("debian@1")).unwrap(), published);
    let fetched = far.repository.fetch(&chunks[0]).and_then(|bytes| chunks[0].verified(bytes).map(drop));
    assert_eq!(fetched.unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn a_large_object_comes_in_parts_and_is_whole() {
    let Some(far) = far() else { return };
    let mut bytes = vec![0; 9_000_001];
    Chance::from_seed(1).fill(&mut bytes);
    let object = ObjectRef::of(ObjectKind::Chunk, &bytes);
    far.repository.put(&object, Bytes::from(bytes)).unwrap();
    far.repository.flush().unwrap();
    far.proxy.set(every(4, Fate::CutShort, |asked| asked.method == "GET"));
    object.verified(far.repository.fetch(&object).unwrap()).unwrap();
    assert!(far.proxy.count() >= 5, "five parts of 2 MiB, and what was cut short again");
    // An object that is shorter or longer than expected is damaged, even if all parts arrive.
    for len in [object.len - 1, object.len + 1] {
        let wrong = ObjectRef { len, ..object };
        let fetched = far.repository.fetch(&wrong).and_then(|bytes| wrong.verified(bytes).map(drop));
        assert_eq!(fetched.unwrap_err().kind(), ErrorKind::Corrupt, "{len}");
    }
}

#[test]
fn listings_of_many_pages_are_whole_though_answers_are_cut() {
    let Some(far) = far() else { return };
    let objects: Vec<ObjectRef> = (0..2500u32)
        .map(|at| {
            let bytes = Bytes::from(at.to_le_bytes().to_vec());
            let object = ObjectRef::of(ObjectKind::Chunk, &bytes);
            far.repository.put(&object, bytes).unwrap();
            object
        })
        .collect();
    far.repository.flush().unwrap();
    far.proxy.set(every(2, Fate::CutShort, |asked| asked.is_list()));
    let report = far.repository.verify(&Scope::All, &NoProgress).unwrap();
    assert_eq!((report.unreferenced, report.damaged.len()), (objects.len() as u64, 0));
}

#[test]
fn listings_that_lag_are_refused_by_the_probe() {
    let Some(far) = far() else { return };
    let probe = far.repository.known_capabilities().unwrap().unwrap();
    assert_eq!((probe.replaces, probe.creator.as_str()), (Replaces::OnCondition, "test"));
    far.proxy.set(every(1, Fate::Lagging, |asked| asked.is_list()));
    let refused = far.repository.capabilities().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.to_string().contains("not listed"), "{refused}");
}

#[test]
fn errors_of_the_store_say_what_to_do() {
    let Some(far) = far() else { return };
    let elsewhere = "s3://nothing-here/x".parse().unwrap();
    let missing = Repository::open_or_create_with(&elsewhere, &far.setting).unwrap_err();
    assert!(base::chain(&missing).contains("there is no such bucket"), "{missing}");
    let open = |name: &str, value: &str| {
        let variables = Gateway::variables(far.gateway.address());
        let access = store::S3Access::from_variables(&|asked| {
            let changed = (asked == name).then(|| value.to_owned());
            changed.or_else(|| {
                variables.iter().find(|(known, _)| *known == asked).map(|(_, value)| value.clone())
            })
        });
        let setting = Setting { s3: Some(access.unwrap()), ..common::setting() };
        base::chain(&Repository::open_with(&bucket(), &setting).unwrap_err())
    };
    for (name, value, advice) in [
        ("AWS_ACCESS_KEY_ID", "nobody", "correct AWS_ACCESS_KEY_ID"),
        ("AWS_SECRET_ACCESS_KEY", "wrong", "correct AWS_SECRET_ACCESS_KEY"),
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:1", "is the store running"),
    ] {
        let said = open(name, value);
        assert!(said.contains(advice), "{said}");
        assert!(!said.contains("no-secret-at-all"), "{said}");
    }
}

#[test]
fn a_store_is_tried_once_and_again_where_it_was_copied_to() {
    let Some(far) = far() else { return };
    far.proxy.set(Box::new(|_, _| None));
    Repository::open_or_create_with(&bucket(), &far.setting).unwrap();
    assert!(far.proxy.count() <= 4, "format, a list of probes and the newest of them");
    // The same bucket at another endpoint counts as another store.
    let near = Repository::open_or_create_with(&bucket(), &s3_setting(far.gateway.address())).unwrap();
    let probe = near.known_capabilities().unwrap().unwrap();
    assert_eq!(probe.place, format!("s3://images/lab/first at http://{}", far.gateway.address()));
}
