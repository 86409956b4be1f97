//! Which objects belong to which images, so that a token reaches objects of its images only.
//!
//! The trees of an image are read when the first object of it is asked for with a token that is not good for all
//! images. Later versions add what is new in them. An object that is not known counts as foreign only after a look at
//! the versions that there are at that time.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use base::{Error, ErrorKind, Result};
use image::{ObjectKind, ObjectRef};
use parking_lot::{Mutex, RwLock};
use store::{ImageName, Reference, Repository};
use tokio::time::Instant;

use crate::auth::authority::Claims;

/// Most objects that are remembered, of all images together: 8 bytes of each digest. That is 2 TiB of data in chunks of
/// the usual size.
const OBJECTS_MAX: usize = 8 << 20;

/// See the module.
#[derive(Default)]
pub(crate) struct Reach {
    images: RwLock<HashMap<ImageName, Arc<Image>>>,
    listed: Mutex<Listed>,
    /// Held while trees are read.
    pub(crate) turn: tokio::sync::Mutex<()>,
}

/// The images of the repository, and when they were listed.
#[derive(Default)]
struct Listed {
    at: Option<Instant>,
    names: Vec<ImageName>,
}

/// What is known of an image.
#[derive(Default)]
struct Image {
    objects: RwLock<HashSet<u64>>,
    looked: Mutex<Looked>,
}

/// Which versions were read, and when all that there were had been.
#[derive(Default)]
struct Looked {
    at: Option<Instant>,
    versions: BTreeSet<u64>,
    /// Some node could not be read: there may be unknown objects below known nodes.
    is_partial: bool,
}

impl Reach {
    /// Whether the object is known to belong to an image that the claims cover.
    pub(crate) fn knows(&self, claims: &Claims, object: &ObjectRef) -> bool {
        let front = front(object);
        let images = self.images.read();
        images
            .iter()
            .any(|(name, image)| claims.covers(name.as_str()) && image.objects.read().contains(&front))
    }

    /// Whether the object belongs to an image that the claims cover, by a look at the repository that began after
    /// `since`, or begins now. Blocks; the caller holds [`Self::turn`]. `Refused` for images with too many objects.
    pub(crate) fn finds(
        &self,
        repository: &Repository,
        claims: &Claims,
        object: &ObjectRef,
        since: Instant,
        now: Instant,
    ) -> Result<bool> {
        // Others may have looked while this question waited for its turn.
        if self.knows(claims, object) {
            return Ok(true);
        }
        let mut failed = None;
        for name in self.names(repository, since, now)? {
            if !claims.covers(name.as_str()) {
                continue;
            }
            match self.look(repository, &name, object, (since, now)) {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(false), Err)
    }

    fn names(&self, repository: &Repository, since: Instant, now: Instant) -> Result<Vec<ImageName>> {
        let mut listed = self.listed.lock();
        if listed.at.is_none_or(|at| at <= since) {
            *listed = Listed { at: Some(now), names: repository.images()? };
            self.images.write().retain(|name, _| listed.names.binary_search(name).is_ok());
        }
        Ok(listed.names.clone())
    }

    /// Reads the versions of an image that were not read yet, newest first, until the object is found.
    fn look(
        &self,
        repository: &Repository,
        name: &ImageName,
        object: &ObjectRef,
        (since, now): (Instant, Instant),
    ) -> Result<bool> {
        let image = Arc::clone(self.images.write().entry(name.clone()).or_default());
        let mut looked = image.looked.lock();
        if looked.at.is_some_and(|at| at > since) {
            return Ok(image.objects.read().contains(&front(object)));
        }
        let mut failed = None;
        for number in repository.versions(name)?.into_iter().rev() {
            if looked.versions.contains(&number) {
                continue;
            }
            match self.read(repository, &image, &Reference::Version(name.clone(), number), looked.is_partial)
            {
                Ok(true) => drop(looked.versions.insert(number)),
                Ok(false) => {
                    *looked = Looked::default();
                    *image.objects.write() = HashSet::new();
                    return Err(too_many(name));
                }
                Err(error) => (looked.is_partial, failed) = (true, Some(error)),
            }
            if image.objects.read().contains(&front(object)) {
                return Ok(true);
            }
        }
        looked.at = Some(now);
        failed.map_or(Ok(false), Err)
    }

    /// Adds the objects of a version. `reads_all`: also below nodes that are known. False if there are too many.
    fn read(
        &self,
        repository: &Repository,
        image: &Image,
        version: &Reference,
        reads_all: bool,
    ) -> Result<bool> {
        let (sealed, _) = repository.look(version)?;
        let (mut count, mut visited) = (0, HashSet::new());
        repository.objects_of(&sealed.manifest, &mut |object| {
            let is_new = count <= OBJECTS_MAX && {
                let mut objects = image.objects.write();
                let is_new = objects.insert(front(object));
                count = objects.len();
                is_new
            };
            object.kind == ObjectKind::Node
                && (is_new || reads_all && count <= OBJECTS_MAX && visited.insert(front(object)))
        })?;
        self.forget_others(version.image());
        Ok(count <= OBJECTS_MAX)
    }

    /// Forgets the largest other images while all together have too many objects.
    fn forget_others(&self, than: &ImageName) {
        let mut images = self.images.write();
        let mut sizes: Vec<_> =
            images.iter().map(|(name, image)| (image.objects.read().len(), name.clone())).collect();
        sizes.sort_unstable();
        let mut total: usize = sizes.iter().map(|(len, _)| len).sum();
        sizes.retain(|(_, name)| name != than);
        while let Some((len, name)) = sizes.pop().filter(|_| total > OBJECTS_MAX) {
            total -= len;
            images.remove(&name);
        }
    }
}

fn too_many(image: &ImageName) -> Error {
    let text = format!(
        "`{image}` has more than {OBJECTS_MAX} objects, too many for a token that is not good for all images"
    );
    Error::new(ErrorKind::Refused, text)
}

/// The first 8 bytes of an object's digest.
fn front(object: &ObjectRef) -> u64 {
    u64::from_le_bytes(*object.digest.0.first_chunk().expect("a digest has 32 bytes"))
}
