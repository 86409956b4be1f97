//! What every engine of the metadata service does.

#![allow(dead_code, reason = "every test program uses its own part")]
#![allow(clippy::unwrap_used, reason = "tests fail by it")]

use base::ErrorKind;
use cluster::metadata::engine::{CHANGES_MAX, Condition, Engine, Write};

/// What every engine does. Keys are below `base`, so that engines that keep more than this test can be tried.
pub(crate) fn conforms(engine: &dyn Engine, base: &str) {
    let key = |name: &str| format!("{base}{name}");
    let put = |name: &str, value: &str| Write::Put(key(name), value.as_bytes().to_vec());
    let value = |name: &str| engine.get(&key(name)).unwrap().map(|found| found.value);

    assert_eq!(engine.get(&key("a")).unwrap(), None);
    assert!(engine.commit(&[Condition::Absent(key("a"))], &[put("a", "1"), put("b", "")]).unwrap());
    let first = engine.get(&key("a")).unwrap().unwrap();
    assert_eq!((first.value.as_slice(), value("b")), (&b"1"[..], Some(Vec::new())));

    // A condition that does not hold changes nothing at all.
    assert!(!engine.commit(&[Condition::Absent(key("a"))], &[put("a", "3"), put("c", "3")]).unwrap());
    let stale = Condition::Revision(key("a"), first.revision + 1000);
    assert!(!engine.commit(&[stale], &[put("a", "3")]).unwrap());
    let both = [Condition::Revision(key("a"), first.revision), Condition::Absent(key("b"))];
    assert!(!engine.commit(&both, &[put("a", "3"), Write::Remove(key("b"))]).unwrap());
    assert_eq!((value("a"), value("b"), value("c")), (Some(b"1".to_vec()), Some(Vec::new()), None));

    // The same value written again has another revision: what was read before is stale.
    let now = Condition::Revision(key("a"), first.revision);
    assert!(engine.commit(std::slice::from_ref(&now), &[put("a", "1")]).unwrap());
    assert!(!engine.commit(&[now], &[put("a", "4")]).unwrap());

    // So has a key that was removed and made again.
    let mut revisions = Vec::new();
    for _ in 0..3 {
        assert!(engine.commit(&[], &[put("again", "1")]).unwrap());
        revisions.push(engine.get(&key("again")).unwrap().unwrap().revision);
        assert!(engine.commit(&[], &[Write::Remove(key("again")), Write::Remove(key("never"))]).unwrap());
        assert_eq!(value("again"), None);
    }
    assert!(revisions.is_sorted_by(|one, next| one < next), "{revisions:?}");

    // As many changes at once as may be, and no more.
    let many: Vec<_> = (0..CHANGES_MAX).map(|at| put(&format!("many/{at:03}"), "x")).collect();
    assert!(engine.commit(&[], &many).unwrap());
    let refused = engine.commit(&[Condition::Absent(key("many"))], &many).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
}

/// Values in order of their keys, page by page.
fn lists(engine: &dyn Engine, base: &str) {
    let key = |name: &str| format!("{base}{name}");
    let names = ["list/1", "list/2", "list/3", "list/é", "lisu", "list"];
    let put = |name: &str| Write::Put(key(name), name.as_bytes().to_vec());
    assert!(engine.commit(&[], &names.map(put)).unwrap());
    let listed = |prefix: &str, after: &str, limit| {
        let found = engine.list(&key(prefix), after, limit).unwrap();
        assert!(found.iter().all(|(name, stored)| key(std::str::from_utf8(&stored.value).unwrap()) == *name));
        found.into_iter().map(|(key, _)| key[base.len()..].to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(listed("list/", "", 10), ["list/1", "list/2", "list/3", "list/é"]);
    assert_eq!(listed("list/", "", 2), ["list/1", "list/2"]);
    assert_eq!(listed("list/", &key("list/2"), 10), ["list/3", "list/é"]);
    assert_eq!(listed("list/", &key("list/2"), 1), ["list/3"]);
    assert_eq!(listed("list/", &key("list/é"), 1), [""; 0]);
    assert_eq!(listed("list", "", 10), ["list", "list/1", "list/2", "list/3", "list/é"]);
    assert_eq!(listed("nothing/", "", 10), [""; 0]);
    // A page of the longest records.
    for page in 0..12 {
        let put =
            |at| Write::Put(key(&format!("long/{page:02}/{at:02}/{}", "n".repeat(1000))), vec![b'v'; 1500]);
        assert!(engine.commit(&[], &(0..90).map(put).collect::<Vec<_>>()).unwrap());
    }
    let long = engine.list(&key("long/"), "", 1001).unwrap();
    assert_eq!(long.len(), 1001);
    assert!(long.is_sorted_by(|(one, _), (next, _)| one < next));
}

/// Of many that create the same key at the same time, one succeeds; of many that count, none loses a step; a reader
/// never sees less than was acknowledged before.
fn has_one_winner(engine: &dyn Engine, base: &str) {
    for round in 0..10 {
        let key = format!("{base}race-{round}");
        let winners: usize = std::thread::scope(|scope| {
            let tries: Vec<_> = (0..8u8)
                .map(|who| {
                    let key = key.clone();
                    scope.spawn(move || {
                        let put = [Write::Put(key.clone(), vec![who])];
                        usize::from(engine.commit(&[Condition::Absent(key)], &put).unwrap())
                    })
                })
                .collect();
            tries.into_iter().map(|one| one.join().unwrap()).sum()
        });
        assert_eq!(winners, 1);
    }
    let key = format!("{base}counter");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut last = 0;
                for _ in 0..10 {
                    let now = count(engine, &key);
                    assert!(now > last);
                    last = now;
                }
            });
        }
    });
    assert_eq!(engine.get(&key).unwrap().unwrap().value, b"80");
}

fn counter(engine: &dyn Engine, key: &str) -> (u32, Condition) {
    match engine.get(key).unwrap() {
        None => (0, Condition::Absent(key.to_owned())),
        Some(found) => {
            let number = std::str::from_utf8(&found.value).unwrap().parse().unwrap();
            (number, Condition::Revision(key.to_owned(), found.revision))
        }
    }
}

/// Raises a counter; returns what it is then.
pub(crate) fn count(engine: &dyn Engine, key: &str) -> u32 {
    loop {
        let (number, condition) = counter(engine, key);
        let next = (number + 1).to_string().into_bytes();
        if engine.commit(&[condition], &[Write::Put(key.to_owned(), next)]).unwrap() {
            return number + 1;
        }
    }
}

/// All of it.
pub(crate) fn conforms_in_all(engine: &dyn Engine, base: &str) {
    conforms(engine, base);
    lists(engine, base);
    has_one_winner(engine, base);
}
