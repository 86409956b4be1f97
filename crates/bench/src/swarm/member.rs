//! Members of a swarm that run inside the benchmark, in the network of a host: those that lie or stall, and those that
//! tell what no program prints.

use std::path::Path;

use image::{Catalogue, ObjectRef};
use net::api::SwarmRequest;
use net::client::{Client, ClientOptions};
use net::peer::{Node, PeerOptions, SpoolLimits, VERSION};
use store::{Location, Repository};

use crate::Result;
use crate::room::Room;

/// A version that members fetch.
pub(super) struct Version {
    reference: String,
    manifest: String,
    pub(super) catalogue: Catalogue,
}

impl Version {
    /// The newest version of an image.
    pub(super) fn newest(repo: &Path, name: &str) -> Result<Self> {
        let repository = Repository::open(&Location::Folder(repo.to_owned()))?;
        let (signed, _) = repository.signed_manifest(&name.parse()?)?;
        let catalogue = Catalogue::load(&signed.manifest, &repository, repository.cipher())?;
        let reference = format!("{}@{}", signed.manifest.image, signed.manifest.number);
        Ok(Self { reference, manifest: signed.digest().to_hex(), catalogue })
    }

    /// Digest and length of an object.
    pub(super) fn object(&self, id: u64) -> Option<ObjectRef> {
        self.catalogue.objects().get(usize::try_from(id).ok()?).copied()
    }

    /// Joins its swarm on a host, and serves others there if it `serves`. The connection to the server is made there,
    /// too.
    pub(super) fn join(&self, room: &Room, host: u32, serves: bool) -> Result<(Client, Node)> {
        let address = room.star.host(0).ipv4();
        let token = std::fs::read_to_string(room.token(0))?.trim().parse()?;
        let request = SwarmRequest {
            reference: self.reference.clone(),
            manifest: self.manifest.clone(),
            peer: VERSION,
        };
        let spool = SpoolLimits { memory_bytes: 1 << 40, ..SpoolLimits::of_this_machine() };
        let options = PeerOptions { serves, spool, ..PeerOptions::of_this_machine() };
        let join = move || -> base::Result<(Client, Node)> {
            let client =
                Client::connect(&format!("https://{address}:7717"), &token, ClientOptions::default())?;
            let grant = client.join_swarm(&request)?;
            Ok((client, Node::start(grant, address.into(), options)?))
        };
        Ok(room.star.host(host).run(join)?.join().map_err(|_| "a thread panicked")??)
    }
}
