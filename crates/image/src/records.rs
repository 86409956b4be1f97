//! How digests and roots are written in the JSON of a manifest.

use base::Digest;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::node::Child;
use crate::tree::Root;

/// A digest as 64 hexadecimal digits.
pub(crate) mod digest_hex {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(digest: &Digest, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(digest)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Digest, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// A root as a JSON object: `{"state":"node","digest":"…","len":1234,"height":2,"chunks":4096}`.
pub(crate) mod root_record {
    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Record {
        #[serde(flatten)]
        state: State,
        height: u8,
        chunks: u64,
    }

    #[derive(Serialize, Deserialize)]
    #[serde(tag = "state", rename_all = "lowercase")]
    enum State {
        Free,
        Zero,
        Node {
            #[serde(with = "digest_hex")]
            digest: Digest,
            len: u32,
        },
    }

    pub(crate) fn serialize<S: Serializer>(root: &Root, to: S) -> Result<S::Ok, S::Error> {
        let state = match root.child {
            Child::Free => State::Free,
            Child::Zero => State::Zero,
            Child::Node { len, digest } => State::Node { digest, len },
        };
        Record { state, height: root.height, chunks: root.chunk_count }.serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Root, D::Error> {
        let Record { state, height, chunks } = Record::deserialize(from)?;
        let child = match state {
            State::Free => Child::Free,
            State::Zero => Child::Zero,
            State::Node { digest, len } => Child::Node { len, digest },
        };
        Ok(Root { child, height, chunk_count: chunks })
    }
}
