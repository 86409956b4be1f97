//! Where chunks and nodes come from: repositories and servers, in the order in which they are asked.

use std::sync::Arc;
use std::time::Duration;

use base::Result;
use bytes::Bytes;
use image::{Cipher, ObjectRef, ObjectSource, Verified};
use net::client::{Client, ClientOptions};
use net::clock::Stop;
use store::{Cache, Repository};

/// Requests that are in flight to a repository on this machine: its disk and processors are the bound.
const AT_ONCE_HERE: usize = 4;
/// Requests that are in flight to a server: 16 chunks of 85 KB fill 1 Gbit/s at 10 ms, and overflow no switch.
const AT_ONCE_FAR: usize = 16;

/// One source. What it gives is verified; what it can't give is asked of the next.
#[derive(Clone)]
pub struct Source {
    /// For people.
    pub name: String,
    /// How it is asked. Calls block, and are made by several threads at once.
    pub objects: Arc<dyn ObjectSource>,
    /// Most requests in flight.
    pub at_once: usize,
}

impl Source {
    /// The repository.
    #[must_use]
    pub fn repository(repository: Arc<Repository>) -> Self {
        let name = format!("repository `{}`", repository.name());
        Self { name, objects: repository, at_once: AT_ONCE_HERE }
    }

    /// The server of `client`, which should have [`Self::client_options`]: who else could be asked is not to wait for
    /// one that is gone.
    #[must_use]
    pub fn server(name: &str, client: Arc<Client>) -> Self {
        Self { name: format!("server `{name}`"), objects: client, at_once: AT_ONCE_FAR }
    }

    /// The same source, asked only for what is not in `cache`, which keeps what it gives: for several disks of one
    /// machine that begin as the same image.
    #[must_use]
    pub fn cached(self, cache: Arc<Cache>) -> Self {
        Self { objects: Arc::new(Cached { cache, behind: self.objects }), ..self }
    }

    /// Options of a client for [`Self::server`]: it tries once, the mirror tries again.
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

/// Objects that come from a cache, or from what is behind it.
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

    fn cipher(&self) -> Cipher {
        self.behind.cipher()
    }
}
