//! Texts that people and programs hand in: names of images, join tokens, records of tags, keys; and bodies of commits.

use bytes::Bytes;
use image::{Cipher, EncryptionKey, PublicKey, SigningKey, Trust};
use net::pieces::Pieces;
use store::{ImageName, Judge, Keys, Location, Repository, Stamp};

use crate::Target;
use crate::images;

pub(crate) const REFERENCE: Target = Target {
    name: "reference",
    seeds: || texts(&["web", "lab/pc:stable", "debian-12@17"]),
    take: |input| {
        if let Ok(text) = std::str::from_utf8(input) {
            let _ = text.parse::<store::Reference>();
            let _ = text.parse::<store::Location>();
            let _ = base::units::parse_bytes(text);
            let _ = base::units::parse_bits_per_second(text);
        }
    },
};

pub(crate) const TOKEN: Target = Target {
    name: "token",
    seeds: || {
        let fingerprint = Some(net::token::Fingerprint::of(b"certificate"));
        let secret = "abc.DEF-123_~".parse().expect("a valid secret");
        texts(&[&net::token::JoinToken { fingerprint, secret }.to_string(), "diskcast1.-.x"])
    },
    take: |input| {
        if let Ok(text) = std::str::from_utf8(input) {
            let _ = text.parse::<net::token::JoinToken>();
        }
    },
};

/// Records of tags as a server sends them, signed, sealed, and neither. Their digest is made right again, as a forger
/// would.
pub(crate) const TAG: Target = Target {
    name: "tag",
    seeds: || {
        let (sign, seal) = (Some(SigningKey::from_bytes(&[7; 32])), Some(EncryptionKey::from_bytes([7; 32])));
        [Keys::default(), Keys { sign, ..Keys::default() }, Keys { encryption: seal, ..Keys::default() }]
            .map(tag_record)
            .into()
    },
    take: |input| {
        take_tag(input);
        let text = String::from_utf8_lossy(input);
        if let Some((covered, _)) = text.trim_end().rsplit_once('\n') {
            take_tag(format!("{covered}\nblake3 {}\n", base::Digest::of(covered.as_bytes())).as_bytes());
        }
    },
};

/// Bodies of commits.
pub(crate) const PIECES: Target = Target {
    name: "pieces",
    seeds: || {
        let mut body = Vec::new();
        for offset in [5, 1 << 40] {
            Pieces::begin_written(&mut body, offset, 100);
            body.extend([7; 100]);
            Pieces::push_freed(&mut body, &(offset + 100..offset + 5000));
        }
        vec![body]
    },
    take: |input| {
        if let Ok(pieces) = Pieces::parse(Bytes::copy_from_slice(input)) {
            let written = pieces.written.iter().map(|(range, _)| range);
            let mut ranges: Vec<_> = written.chain(&pieces.freed).collect();
            ranges.sort_unstable_by_key(|range| range.start);
            assert!(ranges.windows(2).all(|two| two[0].end <= two[1].start), "none lies over another");
        }
    },
};

fn take_tag(record: &[u8]) {
    let (image, tag) = ("web".parse().expect("a name"), "stable".parse().expect("a name"));
    for cipher in [Cipher::None, Cipher::Key(EncryptionKey::from_bytes([7; 32]))] {
        let record = Bytes::copy_from_slice(record);
        let none = |_: &ImageName| Err(base::Error::new(base::ErrorKind::NotFound, "there is none"));
        let judge = Judge { trust: &Trust::default(), repository: "", cipher: &cipher, cut_over: &none };
        let _ = judge.tag(&image, &tag, record);
    }
}

fn tag_record(keys: Keys) -> Vec<u8> {
    let repository = match &keys.encryption {
        Some(key) => Repository::create_sealed(&Location::Memory, key),
        None => Repository::create(&Location::Memory),
    };
    let repository = repository.and_then(|repository| repository.with_keys(keys)).expect("memory takes it");
    let (image, tag) = ("web".parse().expect("a name"), "stable".parse().expect("a name"));
    repository.publish(&image, images::draft(&repository, repository.cipher())).expect("all of it is there");
    let stamp = Stamp { created: "2026-11-20T14:00:00Z".to_owned(), creator: "fuzz".to_owned() };
    repository.tag(&image, &tag, 1, &stamp).expect("there is a version 1");
    repository.tag_record(&image, &tag).expect("just made").to_vec()
}

/// Cut-over records, which are read where an older program signed something.
pub(crate) const CUT_OVER: Target = Target {
    name: "cut_over",
    seeds: || {
        let keys = Keys { sign: Some(SigningKey::from_bytes(&[7; 32])), ..Keys::default() };
        let repository = Repository::create(&Location::Memory).and_then(|made| made.with_keys(keys));
        let repository = repository.expect("memory takes it");
        let image = "debian".parse().expect("a name");
        repository.publish(&image, images::draft(&repository, repository.cipher())).expect("all is there");
        let stamp = Stamp { created: "2026-11-20T14:00:00Z".to_owned(), creator: "fuzz".to_owned() };
        repository.cut_over(&image, &stamp).expect("there is a key");
        vec![repository.cut_over_record(&image).expect("just made").to_vec(), ACCEPTING.to_vec()]
    },
    take: |input| {
        // The key of the golden repositories.
        let mut trust = Trust::default();
        trust.add((&SigningKey::from_bytes(&[1; 32])).into(), "golden");
        let record = |_: &ImageName| Ok(Bytes::copy_from_slice(input));
        let repository = "476ace1d8a2f593f6fac4c30f15b5d09";
        let judge = Judge { trust: &trust, repository, cipher: &Cipher::None, cut_over: &record };
        let (image, tag) = ("debian".parse().expect("a name"), "stable".parse().expect("a name"));
        let _ = judge.tag(&image, &tag, Bytes::from_static(OLDER));
    },
};

/// A move of a tag that an older program signed, and the record that accepts it.
const OLDER: &[u8] =
    include_bytes!("../../golden/repository/v1/named/tags/debian/stable/00000000000000000001");
const ACCEPTING: &[u8] =
    include_bytes!("../../golden/repository/v1/named/cut-overs/debian/00000000000000000001");

/// Files of keys.
pub(crate) const KEYS: Target = Target {
    name: "keys",
    seeds: || {
        let key = SigningKey::from_bytes(&[7; 32]);
        let public = PublicKey::from(&key);
        texts(&[
            &image::signature::signing_key_to_text(&key),
            &format!("# who\n{public} lab\n{public} repository=0123456789abcdef0123456789abcdef lab"),
        ])
    },
    take: |input| {
        if let Ok(text) = std::str::from_utf8(input) {
            let _ = text.parse::<Trust>();
            let _ = image::signature::signing_key_from_text(text);
        }
    },
};

fn texts(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}
