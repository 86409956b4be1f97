//! Texts that people and programs hand in: names of images, join tokens.

use crate::Target;

pub const REFERENCE: Target = Target {
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

pub const TOKEN: Target = Target {
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

fn texts(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}
