//! The sources of chunks and nodes: repositories and servers, in the order in which they are asked.

use std::sync::Arc;
use std::time::Duration;

use base::Result;
use bytes::Bytes;
use image::{Cipher, ObjectRef, ObjectSource, Verified};
use net::client::{Client, ClientOptions};
use net::clock::Stop;
use store::{Cache, Repository};

use crate::swarm::Swarm;

/// Requests in flight to a repository on this machine, whose disk and processors are the limit.
const AT_ONCE_HERE: usize = 4;
/// Requests in flight to a server: 16 chunks of 85 KB fill 1 Gbit/s at a round trip of 10 ms, and do not overflow a
/// switch.
const AT_ONCE_FAR: usize = 16;

/// One source. Its objects are verified; an object that it cannot deliver is requested from the next source.
#[derive(Clone)]
pub struct Source {
    /// Its name in messages.
    pub name: String,
    /// The objects of the source. Calls block, and several threads make them at once.
    pub objects: Arc<dyn ObjectSource>,
    /// How they are encrypted.
    pub cipher: Cipher,
    /// Maximum number of requests in flight.
    pub at_once: usize,
}

impl Source {
    /// A source for a repository.
    #[must_use]
    pub fn repository(repository: Arc<Repository>) -> Self {
        let name = format!("repository `{}`", repository.name());
        Self { name, cipher: repository.cipher().clone(), objects: repository, at_once: AT_ONCE_HERE }
    }

    /// A source for the server of `client`. The client should have [`Self::client_options`], so that a dead server
    /// does not delay requests to other sources.
    #[must_use]
    pub fn server(name: &str, client: Arc<Client>) -> Self {
        let cipher = client.cipher().clone();
        Self { name: format!("server `{name}`"), objects: client, cipher, at_once: AT_ONCE_FAR }
    }

    /// The same source behind `cache`, which keeps all objects that the source delivers. Useful for several disks on
    /// one machine that begin as the same image.
    #[must_use]
    pub fn cached(self, cache: Arc<Cache>) -> Self {
        Self { objects: Arc::new(Cached { cache, behind: self.objects }), ..self }
    }

    /// The same source, whose objects also come from the machines of `swarm`, behind `cache` if there is one. Whatever
    /// it delivers is kept for those machines, and what the cache holds is served to them, too.
    #[must_use]
    pub fn with_peers(self, swarm: &Arc<Swarm>, cache: Option<Arc<Cache>>) -> Self {
        let asks = Self { objects: Arc::clone(swarm) as Arc<dyn ObjectSource>, ..self };
        let asks = match cache {
            Some(cache) => {
                swarm.serve_from(&cache);
                asks.cached(cache)
            }
            None => asks,
        };
        Self { objects: Arc::new(Kept { swarm: Arc::clone(swarm), behind: asks.objects }), ..asks }
    }

    /// The client options for [`Self::server`]: the client tries once, since the mirror retries itself.
    #[must_use]
    pub fn client_options(cipher: Cipher, stop: Stop) -> ClientOptions {
        ClientOptions {
            connect_timeout: Duration::from_secs(2),
            request_timeout: Duration::from_secs(10),
            first_patience: Duration::from_secs(5),
            patience: Duration::ZERO,
            cipher,
            stop,
            ..ClientOptions::default()
        }
    }
}

/// A cache in front of a source.
struct Cached {
    cache: Arc<Cache>,
    behind: Arc<dyn ObjectSource>,
}

impl ObjectSource for Cached {
    fn fetch(&self, object: &ObjectRef) -> Result<Bytes> {
        Ok(self.verified(object)?.bytes().clone())
    }

    fn verified(&self, object: &ObjectRef) -> Result<Verified> {
        self.cache.get_or(object, || self.behind.verified(object))
    }
}

/// A source whose objects are kept for other machines.
struct Kept {
    swarm: Arc<Swarm>,
    behind: Arc<dyn ObjectSource>,
}

impl ObjectSource for Kept {
    fn fetch(&self, object: &ObjectRef) -> Result<Bytes> {
        Ok(self.verified(object)?.bytes().clone())
    }

    fn verified(&self, object: &ObjectRef) -> Result<Verified> {
        let verified = self.behind.verified(object)?;
        self.swarm.keep(object, verified.bytes());
        Ok(verified)
    }
}
