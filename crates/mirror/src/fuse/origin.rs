//! What a mount shows: the images of a repository, of servers, or of several in the order in which they are asked; and
//! where commits go.

use std::sync::Arc;

use base::{Error, ErrorKind, Result};
use image::Manifest;
use store::{ImageName, Reference, Stamp, TagName};

use crate::images::Images;
use crate::{Commit, CommitOptions, Mirror};

/// See the module. `NotFound` if there is no such thing.
pub struct Origin {
    places: Vec<Arc<dyn Images>>,
    stamp: Box<dyn Fn() -> Stamp + Send + Sync>,
}

impl Origin {
    /// The first of `places` that has something counts, and commits go to the first of all. `stamp` says who commits,
    /// and when.
    pub fn new(places: Vec<Arc<dyn Images>>, stamp: impl Fn() -> Stamp + Send + Sync + 'static) -> Self {
        Self { places, stamp: Box::new(stamp) }
    }

    fn first<T>(&self, ask: impl Fn(&dyn Images) -> Result<T>) -> Result<T> {
        let mut first = None;
        for place in &self.places {
            match ask(place.as_ref()) {
                Ok(found) => return Ok(found),
                Err(error) => match error.kind() {
                    ErrorKind::NotFound
                    | ErrorKind::Io
                    | ErrorKind::Unreachable
                    | ErrorKind::Denied
                    | ErrorKind::Untrusted => {
                        first.get_or_insert(error);
                    }
                    // What no trusted key has signed, or is damaged, is not asked for elsewhere.
                    _ => return Err(error),
                },
            }
        }
        Err(first.unwrap_or_else(|| Error::new(ErrorKind::NotFound, "nobody is asked")))
    }

    /// Names of all images.
    pub fn images(&self) -> Result<Vec<ImageName>> {
        self.first(|place| place.image_names()).map_err(|error| error.within("list images"))
    }

    /// Numbers of the versions of `image`, ascending.
    pub fn versions(&self, image: &ImageName) -> Result<Vec<u64>> {
        let found = self.first(|place| place.version_numbers(image));
        found.map_err(|error| error.within(format!("list versions of `{image}`")))
    }

    /// Tags of `image`.
    pub fn tags(&self, image: &ImageName) -> Result<Vec<TagName>> {
        let found = self.first(|place| place.tag_names(image));
        found.map_err(|error| error.within(format!("list tags of `{image}`")))
    }

    /// The manifest of a version, signed by a trusted key if only some are trusted.
    pub fn resolve(&self, reference: &Reference) -> Result<Manifest> {
        let found = self.first(|place| place.find(reference));
        found.map(|found| found.manifest).map_err(|error| error.within(format!("look up `{reference}`")))
    }

    /// Makes what was written to `disk` a version of `image`. `None` if nothing was written.
    pub fn commit(&self, disk: &Mirror, image: &ImageName) -> Result<Option<Commit>> {
        // Where a commit went is not to depend on who answers.
        let Some(place) = self.places.first() else {
            return Err(Error::new(ErrorKind::Refused, "there is no place that commits go to"));
        };
        disk.commit(place.as_ref(), image, &CommitOptions::new(&(self.stamp)()))
    }
}
