//! What is kept of the keys with which machines call.

use std::net::IpAddr;

use base::Instant;
use net::api::KeyStatus;
use net::machine_key::fingerprint;
use serde::{Deserialize, Serialize};

/// A key by which a machine is known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Kept")]
pub(super) struct Known {
    /// The public key, 64 hexadecimal digits.
    pub public: String,
    /// Since when, in seconds since 1970; 0 if that is not known.
    pub since: u64,
    /// Where it called from last.
    pub address: Option<IpAddr>,
    /// Whether an administrator named it.
    pub confirmed: bool,
    /// Whether it went on with a job that another key had begun.
    pub followed: bool,
}

/// What a table has of it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Kept {
    /// Tables of before have nothing else.
    Public(String),
    Known {
        public: String,
        since: u64,
        address: Option<IpAddr>,
        confirmed: bool,
        followed: bool,
    },
}

impl From<Kept> for Known {
    fn from(kept: Kept) -> Self {
        match kept {
            Kept::Public(public) => {
                Self { public, since: 0, address: None, confirmed: false, followed: false }
            }
            Kept::Known { public, since, address, confirmed, followed } => {
                Self { public, since, address, confirmed, followed }
            }
        }
    }
}

impl Known {
    /// A key that calls for the first time, from the address `from` at the time `unix`.
    pub(super) fn new(public: &str, from: IpAddr, unix: u64) -> Self {
        let (public, address) = (public.to_owned(), Some(from));
        Self { public, since: unix, address, confirmed: false, followed: false }
    }

    /// Whether this is its fingerprint.
    pub(super) fn is_called(&self, name: &str) -> bool {
        fingerprint(&self.public) == name
    }

    pub(super) fn status(&self) -> KeyStatus {
        let Self { since, address, confirmed, followed, .. } = *self;
        KeyStatus { fingerprint: fingerprint(&self.public), since, address, confirmed, followed }
    }
}

/// The job that was begun last, and with which key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Held {
    pub job: u64,
    pub key: String,
}

/// Another one that calls with the same card, and gets nothing.
#[derive(Debug, Clone)]
pub(super) struct Rival {
    pub known: Known,
    /// When it called last.
    pub at: Instant,
    /// When the log was last told of one.
    pub told: Option<Instant>,
}

/// What the log is to say of the key of an admitted machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct News {
    pub fingerprint: String,
    pub what: String,
}
