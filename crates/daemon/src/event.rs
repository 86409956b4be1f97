//! What happens in a server, for its log. Who starts the server decides where it goes.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use base::units::{show_bits_per_second, show_bytes};
use net::api::SessionStatistics;
use serde::Serialize;

/// Something that happened.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Event {
    /// A multicast session began with its first client.
    SessionStarted {
        /// `image@version`.
        reference: String,
        /// Where its blocks go.
        group: SocketAddr,
    },
    /// A client takes part in a session.
    ReceiverJoined {
        /// `image@version`.
        reference: String,
        /// What it calls itself.
        receiver: String,
        /// Where it asked from.
        peer: SocketAddr,
    },
    /// A session sends; said every now and then.
    SessionRuns {
        /// `image@version`.
        reference: String,
        /// Clients that take part.
        receivers: u64,
        /// At what rate it sends, in bits per second on the wire.
        rate_bits_per_second: u64,
        /// Payload bytes sent so far.
        payload_bytes: u64,
        /// Bytes of the image.
        image_bytes: u64,
    },
    /// A session ended after its last client.
    SessionEnded {
        /// All that it did.
        statistics: Box<SessionStatistics>,
    },
    /// A client published a version.
    Published {
        /// `image@version`.
        reference: String,
        /// Where it came from.
        peer: SocketAddr,
    },
    /// A token that somebody uses ends within a day. Said once for each.
    TokenEnds {
        /// Patterns of the images that it is good for.
        images: String,
        /// When, as RFC 3339 has it.
        expires: String,
        /// Who showed it.
        peer: Option<SocketAddr>,
    },
    /// The file of the join token was written anew, since the token in it was going to end.
    TokenWritten {
        /// The file.
        path: PathBuf,
        /// When the new one ends, as RFC 3339 has it.
        expires: String,
    },
    /// That failed; it is tried again.
    TokenNotWritten {
        /// The whole chain of causes.
        error: String,
    },
    /// A request failed through no fault of its client.
    RequestFailed {
        /// Method and path.
        request: String,
        /// The whole chain of causes.
        error: String,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SessionStarted { reference, group } => {
                write!(f, "session of {reference} started on {group}")
            }
            Self::ReceiverJoined { reference, receiver, peer } => {
                write!(f, "{receiver} ({peer}) joins the session of {reference}")
            }
            Self::SessionRuns { reference, receivers, rate_bits_per_second, payload_bytes, image_bytes } => {
                let (rate, sent) = (show_bits_per_second(*rate_bits_per_second), show_bytes(*payload_bytes));
                let image = show_bytes(*image_bytes);
                write!(
                    f,
                    "session of {reference}: {receivers} receivers, {rate}, {sent} sent of an image of {image}"
                )
            }
            Self::SessionEnded { statistics } => {
                write!(
                    f,
                    "session of {} ended\n{}",
                    statistics.reference,
                    crate::statistics::text(statistics)
                )
            }
            Self::Published { reference, peer } => write!(f, "{reference} published by {peer}"),
            Self::TokenEnds { images, expires, peer } => {
                let of = peer.map(|peer| format!(" of {peer}")).unwrap_or_default();
                write!(f, "a token{of} for {images} ends at {expires}, and is still in use")
            }
            Self::TokenWritten { path, expires } => {
                write!(f, "`{}` has a new join token, good until {expires}", path.display())
            }
            Self::TokenNotWritten { error } => write!(f, "the join token could not be renewed: {error}"),
            Self::RequestFailed { request, error } => write!(f, "{request} failed: {error}"),
        }
    }
}

/// Where events go. Called from many threads; it must not block for long.
pub type Log = std::sync::Arc<dyn Fn(&Event) + Send + Sync>;
