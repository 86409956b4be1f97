//! Transfers of one image to many hosts: repositories to serve, and the cost of a transfer compared with the link's
//! own limit.

use std::path::{Path, PathBuf};

use lab::StarOptions;
use proto::multicast::{BLOCK_HEADER_BYTES, TAG_BYTES};
use serde_json::{Value, json};

use crate::Result;
use crate::context::{Context, timed};
use crate::load;
use crate::room::{Fetched, Room, Served, last};

/// Bytes of a block's packet besides its payload: header and tag, UDP, IPv4, and Ethernet without preamble (as the
/// lab's shaper counts).
pub(crate) const PACKET_OVERHEAD: u64 = BLOCK_HEADER_BYTES as u64 + TAG_BYTES as u64 + 8 + 20 + 14;

/// An image in a repository.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    pub name: String,
    pub words: String,
}

/// A new repository with an incompressible disk of each of these sizes, and a Debian disk if `debian`.
pub(crate) fn library(
    context: &Context,
    random_mebibytes: &[u64],
    debian: bool,
) -> Result<(PathBuf, Vec<Load>)> {
    let repo = context.folder()?;
    let mut loads = Vec::new();
    for mebibytes in random_mebibytes {
        loads.push(add_random(context, &repo, *mebibytes, &format!("random-{mebibytes}"))?);
    }
    if debian {
        loads.push(add_debian(context, &repo, "debian")?);
    }
    Ok((repo, loads))
}

/// Adds an incompressible disk to a repository.
pub(crate) fn add_random(context: &Context, repo: &Path, mebibytes: u64, name: &str) -> Result<Load> {
    let disk = load::random_disk(context, mebibytes << 20)?;
    timed(context.diskcast(repo).args(["capture", "--raw"]).arg(disk).arg(name))?;
    Ok(Load { name: name.to_owned(), words: format!("{mebibytes} MiB of incompressible data") })
}

/// Adds a Debian disk to a repository.
pub(crate) fn add_debian(context: &Context, repo: &Path, name: &str) -> Result<Load> {
    let disk = load::debian_disk(context)?;
    timed(context.diskcast(repo).arg("capture").arg(disk).arg(name))?;
    Ok(Load { name: name.to_owned(), words: "a Debian image".to_owned() })
}

/// A finished transfer.
pub(crate) struct Transfer {
    pub fetched: Vec<Fetched>,
    pub served: Served,
    pub image_bytes: u64,
    /// Bytes that left the server, with Ethernet headers.
    pub wire_bytes: u64,
    /// Seconds that the image's bytes take on the link, each once, with all headers.
    pub link_seconds: f64,
}

/// All hosts of a new lab fetch `name` at the same time, and drop the data.
pub(crate) fn transfer(
    context: &Context,
    repo: &Path,
    name: &str,
    options: &StarOptions,
) -> Result<Transfer> {
    transfer_serving(context, repo, name, options, &[])
}

/// The same, with further options of `serve`.
pub(crate) fn transfer_serving(
    context: &Context,
    repo: &Path,
    name: &str,
    options: &StarOptions,
    serve: &[&str],
) -> Result<Transfer> {
    let room = Room::open_serving(context, &[repo], options, serve)?;
    let fetched = room.fetch_at_once(name)?;
    Transfer::of(room, fetched, options)
}

impl Transfer {
    /// The cost of the only session of a room, after its end.
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    pub(crate) fn of(mut room: Room, fetched: Vec<Fetched>, options: &StarOptions) -> Result<Self> {
        let served = room.ended_session(0)?;
        let wire_bytes = match options.rate_bits_per_second {
            Some(_) => room.star.sent_on_wire(0)?,
            None => room.star.traffic()?[0].sent.bytes,
        };
        let image_bytes = served.number("image_bytes")?;
        let on_wire = image_bytes + served.number("blocks_in_image")? * PACKET_OVERHEAD;
        let rate = options.rate_bits_per_second.map_or(f64::INFINITY, |rate| rate as f64);
        Ok(Self { fetched, served, image_bytes, wire_bytes, link_seconds: on_wire as f64 * 8.0 / rate })
    }

    /// When the last host had received everything, in seconds.
    pub(crate) fn last(&self) -> f64 {
        last(&self.fetched)
    }

    /// [`Self::last`] divided by the link time.
    pub(crate) fn ratio(&self) -> f64 {
        self.last() / self.link_seconds
    }

    /// Payload that the server sent, by multicast and unicast, divided by the image's encoded bytes.
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    pub(crate) fn images_sent(&self) -> Result<f64> {
        let payload = self.served.number("payload_bytes")? + self.unicast_bytes();
        Ok(payload as f64 / self.image_bytes as f64)
    }

    /// Bytes that left the server, with all headers and control packets, divided by the payload.
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    pub(crate) fn overhead(&self) -> Result<f64> {
        Ok(self.wire_bytes as f64 / self.image_bytes as f64 / self.images_sent()?)
    }

    fn unicast_bytes(&self) -> u64 {
        self.fetched.iter().map(Fetched::unicast_bytes).sum()
    }

    /// The transfer as a row of a table.
    pub(crate) fn row(&self, load: &Load) -> Result<Value> {
        let of = |name: &str| self.served.statistics[name].clone();
        Ok(json!({
            "workload": load.words, "hosts": self.fetched.len(), "last host s": self.last(),
            "link time s": self.link_seconds, "ratio": self.ratio(), "images sent": self.images_sent()?,
            "wire over payload": self.overhead()?, "control packets": of("control_packets"), "reports": of("reports"),
            "resent late": of("resent_late"), "resent buffer full": of("resent_buffer_full"),
            "resent lost": of("resent_lost"), "unicast bytes": self.unicast_bytes(),
            "frames lost by full buffers": self.served.overflowed, "server CPU s": self.served.cpu_seconds,
        }))
    }
}
