//! Events of a server, for its log. The program that starts the server decides where the log goes.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use base::units::{show_bytes, show_seconds};
use net::api::{HostStage, HostStatus, SessionStatistics, Switch};
use serde::Serialize;

use crate::sessions::statistics::show_rate;

/// Something that happened.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Event {
    /// A multicast session began with its first client.
    SessionStarted {
        /// `image@version`.
        reference: String,
        /// Multicast group of its blocks.
        group: SocketAddr,
    },
    /// A client joined a session.
    ReceiverJoined {
        /// `image@version`.
        reference: String,
        /// Name that the client gave.
        receiver: String,
        /// Address of the client.
        peer: SocketAddr,
    },
    /// Progress of a session that sends, logged regularly.
    SessionRuns {
        /// `image@version`.
        reference: String,
        /// Clients in the session now.
        receivers: u64,
        /// What it sent over the last seconds, in bits per second on the wire; `None` if it is idle by now.
        rate_bits_per_second: Option<u64>,
        /// Payload bytes sent so far.
        payload_bytes: u64,
        /// Bytes of the image.
        image_bytes: u64,
    },
    /// A session ended after its last client.
    SessionEnded {
        /// Its statistics.
        statistics: Box<SessionStatistics>,
    },
    /// A machine that fetched an image ended, or has not reported for some seconds.
    HostEnded {
        /// Which machine, and how it ended.
        host: Box<HostStatus>,
    },
    /// A client published a version.
    Published {
        /// `image@version`.
        reference: String,
        /// Address of the client.
        peer: SocketAddr,
    },
    /// A token that a client uses expires within a day. Logged once for each token.
    TokenEnds {
        /// Patterns of the images that the token covers.
        images: String,
        /// When it expires, as in RFC 3339.
        expires: String,
        /// Address of the client that used it.
        peer: Option<SocketAddr>,
    },
    /// The server wrote a new join token to its file, because the old one is about to expire.
    TokenWritten {
        /// The file.
        path: PathBuf,
        /// When the new token expires, as in RFC 3339.
        expires: String,
    },
    /// Writing a new join token failed; the server will retry.
    TokenNotWritten {
        /// The whole chain of causes.
        error: String,
    },
    /// A machine that boots from the network was seen.
    MachineBoots {
        /// The address of its network card, or that of the machine itself.
        machine: String,
        /// What it does.
        what: String,
    },
    /// A machine has ended its job.
    MachineDone {
        /// The address of its network card.
        machine: String,
        /// Where it called from.
        peer: SocketAddr,
        /// What it did.
        work: String,
        /// Why it failed.
        failure: Option<String>,
    },
    /// Somebody calls as an admitted machine with a key that is new, or gets nothing.
    MachineKey {
        /// The address of its network card.
        machine: String,
        /// Where it called from.
        peer: SocketAddr,
        /// The fingerprint of the key.
        fingerprint: String,
        /// What becomes of it.
        what: String,
    },
    /// A machine was woken or switched, or the power program failed to.
    MachinePower {
        /// The address of its network card.
        machine: String,
        /// What was to be done.
        switch: Switch,
        /// Why that failed.
        failure: Option<String>,
    },
    /// Nothing is heard of a machine any more.
    MachineLost {
        /// The address of its network card.
        machine: String,
        /// Since when, and what to do.
        why: String,
    },
    /// Another DHCP server gives addresses beside this one, as was wanted.
    OtherDhcp {
        /// The network interface.
        interface: String,
        /// The other server.
        address: Ipv4Addr,
    },
    /// Machines can't boot from the network any more.
    NetbootFailed {
        /// The whole chain of causes.
        error: String,
    },
    /// Nothing keeps a prune from deleting what machines fetch now, if it is removed. Logged once.
    ReadersNotProtected {
        /// The whole chain of causes.
        error: String,
    },
    /// A request failed, and not because of its client.
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
                let (rate, sent) = (show_rate(*rate_bits_per_second), show_bytes(*payload_bytes));
                let image = show_bytes(*image_bytes);
                write!(
                    f,
                    "session of {reference}: {receivers} receivers, {rate}, {sent} sent of an image of {image}"
                )
            }
            Self::SessionEnded { statistics } => {
                let (of, text) = (&statistics.reference, crate::sessions::statistics::text(statistics));
                write!(f, "session of {of} ended\n{text}")
            }
            Self::HostEnded { host } => {
                let HostStatus { host: name, address, reference, stage, .. } = &**host;
                let after = show_seconds(host.runtime_seconds);
                let why = host.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
                let end = match stage {
                    HostStage::Gone => "gone, no report for some seconds",
                    stage => stage.name(),
                };
                write!(f, "{name} ({address}) {reference} after {after}: {end}{why}")
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
            Self::MachineBoots { machine, what } => write!(f, "machine {machine} {what}"),
            Self::MachineDone { machine, work, failure: None, .. } => {
                write!(f, "machine {machine} has done its job: {work}")
            }
            Self::MachineDone { machine, work, failure: Some(why), .. } => {
                write!(f, "machine {machine} failed at its job, {work}: {why}")
            }
            Self::MachineKey { machine, peer, fingerprint, what } => {
                write!(f, "machine {machine}: the key {fingerprint} from {} {what}", peer.ip())
            }
            Self::MachinePower { machine, switch, failure } => {
                let what = if *switch == Switch::Off { "switched off" } else { "told to boot" };
                match failure {
                    None => write!(f, "machine {machine} is {what}"),
                    Some(why) => write!(f, "machine {machine} could not be {what}: {why}"),
                }
            }
            Self::MachineLost { machine, why } => write!(f, "machine {machine} is missed: {why}"),
            Self::OtherDhcp { interface, address } => {
                write!(f, "another DHCP server, {address}, gives addresses on `{interface}`, too")
            }
            Self::NetbootFailed { error } => write!(f, "machines can't boot from here any more: {error}"),
            Self::ReadersNotProtected { error } => write!(
                f,
                "a version that is removed and pruned while machines fetch it is lost to them, since the server can't \
                 write to the repository: {error}"
            ),
            Self::RequestFailed { request, error } => write!(f, "{request} failed: {error}"),
        }
    }
}

/// Receives the events. Called from many threads; must not block for long.
pub type Log = std::sync::Arc<dyn Fn(&Event) + Send + Sync>;
