//! How the versions of a mount share what they read with other machines that read the same ones.

use std::sync::Arc;

use base::Result;
use store::Stamp;

use crate::{BootProfiles, Mirror, MulticastOptions, Source, Swarm};

/// Makes the swarm of one disk; its server is one of the sources of the mount.
pub type MakeSwarm = dyn Fn() -> Arc<Swarm> + Send + Sync;

/// See the module. All of it is done with one server.
pub struct Sharing {
    /// Index of the server among the sources of the mount.
    pub source: usize,
    /// Makes a swarm.
    pub swarm: Box<MakeSwarm>,
    /// How disks take part in the multicast of the server, if they do.
    pub multicast: Option<MulticastOptions>,
    /// Where it is kept what machines read when they start.
    pub boots: Arc<dyn BootProfiles>,
    /// Says who adds to that, and when.
    pub stamp: fn() -> Stamp,
}

/// What one disk shares.
pub(super) struct Shared<'a> {
    sharing: &'a Sharing,
    swarm: Arc<Swarm>,
}

impl Sharing {
    /// The sources of one disk, of which the server has a swarm behind it.
    pub(super) fn begin(&self, sources: &[Source]) -> (Vec<Source>, Shared<'_>) {
        let swarm = (self.swarm)();
        let with = |(index, source): (usize, &Source)| match index == self.source {
            true => source.clone().with_peers(&swarm, None),
            false => source.clone(),
        };
        let sources = sources.iter().enumerate().map(with).collect();
        (sources, Shared { sharing: self, swarm })
    }
}

impl Shared<'_> {
    /// Lets `mirror` take part until it is closed. A disk that has arrived needs nobody.
    pub(super) fn join(&self, mirror: &Mirror) -> Result<()> {
        if mirror.is_complete() {
            return Ok(());
        }
        let Sharing { multicast, boots, stamp, .. } = self.sharing;
        mirror.join_swarm(&self.swarm)?;
        mirror.follow_boots(Arc::clone(boots), &stamp())?;
        multicast.clone().map_or(Ok(()), |multicast| mirror.join_multicast(multicast))
    }
}
