//! Where commits go: a repository, or the one behind a server. What is changed is composed and sent from here, object
//! by object; then one version appears.

use std::sync::Arc;

use bytes::Bytes;
use image::{Cipher, Manifest, ObjectRef, ObjectSink, ObjectSource, Sealed, Verified};
use net::client::Client;
use store::{ImageName, Reference, Repository, Stamp, Writer};

use crate::error::from_store;
use crate::{Error, ErrorKind, Result};

/// Chunks that are on their way to a server at once: so many fill 1 Gbit/s at 10 ms.
const AT_ONCE_FAR: usize = 16;
/// How often an addition is begun that prunes take for dead.
const STARTS_MAX: u32 = 3;

/// Where commits go. Calls block.
pub trait Depot: Send + Sync {
    /// The version that `reference` names; none if there is no such version or image.
    fn version(&self, reference: &Reference) -> Result<Option<Sealed>>;

    /// Does `work`, which adds one version, and does it again if what it sent may be lost. `stamp` tells people whose
    /// it is.
    fn add(&self, stamp: &Stamp, work: &mut dyn FnMut(&dyn Addition) -> Result<Manifest>)
    -> Result<Manifest>;
}

/// A version on its way: objects are put, then it is published.
pub trait Addition: ObjectSource + ObjectSink {
    /// Objects that are best on their way at once.
    fn at_once(&self) -> usize;

    /// Publishes `draft` as the version of `image` that follows version `expected`, 0 if there is no such image.
    /// `Refused` with the newest one's number if that is another by then, or if an object was never put.
    fn publish(&self, image: &ImageName, draft: Manifest, expected: u64) -> Result<Manifest>;
}

impl Depot for Repository {
    fn version(&self, reference: &Reference) -> Result<Option<Sealed>> {
        match self.sealed(reference) {
            Ok((sealed, _)) => Ok(Some(sealed)),
            Err(error) if error.kind() == store::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(from_store(error, format!("look for `{reference}`"))),
        }
    }

    fn add(
        &self,
        stamp: &Stamp,
        work: &mut dyn FnMut(&dyn Addition) -> Result<Manifest>,
    ) -> Result<Manifest> {
        let begin = || Writer::begin(self, stamp).map_err(|error| from_store(error, "begin a commit"));
        for _ in 1..STARTS_MAX {
            let here = Here { repository: self, writer: begin()? };
            let done = work(&here);
            if done.is_ok() || !here.writer.is_revoked() {
                return done;
            }
        }
        work(&Here { repository: self, writer: begin()? })
    }
}

impl<D: Depot + ?Sized> Depot for Arc<D> {
    fn version(&self, reference: &Reference) -> Result<Option<Sealed>> {
        (**self).version(reference)
    }

    fn add(
        &self,
        stamp: &Stamp,
        work: &mut dyn FnMut(&dyn Addition) -> Result<Manifest>,
    ) -> Result<Manifest> {
        (**self).add(stamp, work)
    }
}

/// An addition to a repository.
struct Here<'a> {
    repository: &'a Repository,
    writer: Writer,
}

impl ObjectSource for Here<'_> {
    fn fetch(&self, object: &ObjectRef) -> image::Result<Bytes> {
        self.repository.fetch(object)
    }

    fn verified(&self, object: &ObjectRef) -> image::Result<Verified> {
        self.repository.verified(object)
    }

    fn cipher(&self) -> Cipher {
        self.repository.cipher().clone()
    }
}

impl ObjectSink for Here<'_> {
    fn contains(&self, object: &ObjectRef) -> image::Result<bool> {
        self.writer.contains(object)
    }

    fn put(&self, object: &ObjectRef, bytes: Bytes) -> image::Result<()> {
        self.writer.put(object, bytes)
    }

    fn cipher(&self) -> Cipher {
        self.repository.cipher().clone()
    }
}

impl Addition for Here<'_> {
    fn at_once(&self) -> usize {
        std::thread::available_parallelism().map_or(1, usize::from)
    }

    fn publish(&self, image: &ImageName, draft: Manifest, expected: u64) -> Result<Manifest> {
        let published = self.writer.publish_onto(image, draft, expected);
        published.map_err(|error| from_store(error, format!("publish `{image}`")))
    }
}

/// The client should be patient (as [`net::client::ClientOptions::default`] is): what it can't send the disk keeps.
impl Depot for Client {
    fn version(&self, reference: &Reference) -> Result<Option<Sealed>> {
        let bytes = match self.manifest(&reference.to_string()) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == net::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(from_net(error, format!("look for `{reference}`"))),
        };
        let sealed = Sealed::open(&bytes);
        sealed.map(Some).map_err(|error| from_image(error, format!("read the manifest of `{reference}`")))
    }

    /// The server keeps what was sent for ten minutes, and takes care of prunes.
    fn add(&self, _: &Stamp, work: &mut dyn FnMut(&dyn Addition) -> Result<Manifest>) -> Result<Manifest> {
        work(&There(self.another()))
    }
}

/// An addition through a server: an upload of its own.
struct There(Client);

impl ObjectSource for There {
    fn fetch(&self, object: &ObjectRef) -> image::Result<Bytes> {
        self.0.fetch(object)
    }

    fn cipher(&self) -> Cipher {
        ObjectSource::cipher(&self.0)
    }
}

impl ObjectSink for There {
    fn contains(&self, object: &ObjectRef) -> image::Result<bool> {
        self.0.contains(object)
    }

    fn put(&self, object: &ObjectRef, bytes: Bytes) -> image::Result<()> {
        self.0.put(object, bytes)
    }

    fn cipher(&self) -> Cipher {
        ObjectSink::cipher(&self.0)
    }
}

impl Addition for There {
    fn at_once(&self) -> usize {
        AT_ONCE_FAR
    }

    fn publish(&self, image: &ImageName, draft: Manifest, expected: u64) -> Result<Manifest> {
        let context = || format!("publish `{image}`");
        // The name is the server's to say.
        let draft = Manifest { image: image.to_string(), ..draft };
        let draft = draft.encode(None).map_err(|error| from_image(error, context()))?;
        let published = self.0.publish_onto(image.as_str(), draft, expected);
        let published = published.map_err(|error| from_net(error, context()))?;
        Manifest::decode(&published).map_err(|error| from_image(error, context()))
    }
}

fn from_net(error: net::Error, context: impl Into<String>) -> Error {
    let kind = match error.kind() {
        net::ErrorKind::NotFound => ErrorKind::NotFound,
        net::ErrorKind::Exists
        | net::ErrorKind::Refused
        | net::ErrorKind::Denied
        | net::ErrorKind::Untrusted => ErrorKind::Refused,
        net::ErrorKind::Corrupt | net::ErrorKind::Verification => ErrorKind::Corrupt,
        net::ErrorKind::Full => ErrorKind::Full,
        net::ErrorKind::Invalid => ErrorKind::Invalid,
        net::ErrorKind::Unsupported => ErrorKind::Unsupported,
        net::ErrorKind::Unreachable => ErrorKind::Unreachable,
        net::ErrorKind::Io | net::ErrorKind::Stopped => ErrorKind::Io,
    };
    Error::from_source(kind, context, error)
}

fn from_image(error: image::Error, context: impl Into<String>) -> Error {
    let kind = match error.kind() {
        image::ErrorKind::NotFound => ErrorKind::NotFound,
        image::ErrorKind::Refused => ErrorKind::Refused,
        image::ErrorKind::Full => ErrorKind::Full,
        image::ErrorKind::Unsupported => ErrorKind::Unsupported,
        image::ErrorKind::Io => ErrorKind::Io,
        image::ErrorKind::Corrupt | image::ErrorKind::Incomplete | image::ErrorKind::Verification => {
            ErrorKind::Corrupt
        }
    };
    Error::from_source(kind, context, error)
}
