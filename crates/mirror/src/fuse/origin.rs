//! The images that a mount shows, of one or several repositories and servers in the order in which they are asked,
//! and the place where commits go.

use std::sync::Arc;

use base::{Error, ErrorKind, Result};
use image::Manifest;
use store::{ImageName, Reference, Stamp, TagName};

use crate::images::{Images, Sighting};
use crate::{Commit, CommitOptions, Mirror};

/// See the module. Calls fail with `NotFound` if there is no such image, version or tag.
pub struct Origin {
    places: Vec<Arc<dyn Images>>,
    stamp: Box<dyn Fn() -> Stamp + Send + Sync>,
    watch: Box<Watch>,
}

/// Called with the index of the place that has a version, before the version is used. May refuse it.
pub type Watch = dyn Fn(usize, &Reference, &Sighting) -> Result<()> + Send + Sync;

impl Origin {
    /// The first of `places` that has an image or version is used. Commits always go to the first place. `stamp`
    /// says who commits and when.
    pub fn new(places: Vec<Arc<dyn Images>>, stamp: impl Fn() -> Stamp + Send + Sync + 'static) -> Self {
        Self { places, stamp: Box::new(stamp), watch: Box::new(|_, _, _| Ok(())) }
    }

    /// The same, where `watch` sees every version that is looked up.
    #[must_use]
    pub fn watched_by(self, watch: Box<Watch>) -> Self {
        Self { watch, ..self }
    }

    fn first<T>(&self, ask: impl Fn(&dyn Images) -> Result<T>) -> Result<T> {
        self.first_at(|_, place| ask(place))
    }

    fn first_at<T>(&self, ask: impl Fn(usize, &dyn Images) -> Result<T>) -> Result<T> {
        let mut first = None;
        for (index, place) in self.places.iter().enumerate() {
            match ask(index, place.as_ref()) {
                Ok(found) => return Ok(found),
                Err(error) => match error.kind() {
                    ErrorKind::NotFound
                    | ErrorKind::Io
                    | ErrorKind::Unreachable
                    | ErrorKind::Denied
                    | ErrorKind::Untrusted => {
                        first.get_or_insert(error);
                    }
                    // A damaged version, or one that no trusted key has signed, is an error: another place is not
                    // asked.
                    _ => return Err(error),
                },
            }
        }
        Err(first
            .unwrap_or_else(|| Error::new(ErrorKind::NotFound, "there is no repository or server to ask")))
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

    /// The manifest of a version. If only some keys are trusted, one of them must have signed it.
    pub fn resolve(&self, reference: &Reference) -> Result<Manifest> {
        let found = self.first_at(|index, place| {
            let found = place.sight(reference)?;
            (self.watch)(index, reference, &found)?;
            Ok(found.version)
        });
        found.map(|found| found.manifest).map_err(|error| error.within(format!("look up `{reference}`")))
    }

    /// Commits the changes of `disk` to `image`. `None` if nothing was written.
    pub fn commit(&self, disk: &Mirror, image: &ImageName) -> Result<Option<Commit>> {
        // Where a commit goes must not depend on which place answers.
        let Some(place) = self.places.first() else {
            return Err(Error::new(ErrorKind::Refused, "there is no repository or server to commit to"));
        };
        disk.commit(place.as_ref(), image, &CommitOptions::new(&(self.stamp)()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use image::ChunkSize;
    use store::{Location, Repository, Shape};

    use super::*;

    fn stamp() -> Stamp {
        Stamp { created: "2026-11-20T14:00:00Z".to_owned(), creator: "test".to_owned() }
    }

    /// Versions 1 to `count` of `web`.
    fn place(count: u64) -> Arc<dyn Images> {
        let repository = Repository::create(&Location::Memory).unwrap();
        let image: ImageName = "web".parse().unwrap();
        let chunk = ChunkSize::from_log2(16).unwrap();
        let shape = Shape { size_bytes: 1 << 20, chunk, logical_sector_bytes: 512 };
        repository.blob(&image).create(&shape, &stamp()).unwrap();
        for _ in 1..count {
            repository.blob(&image).write(0, b"x", &stamp()).unwrap();
        }
        Arc::new(repository)
    }

    #[test]
    fn a_version_that_the_watch_refuses_is_not_looked_for_elsewhere() {
        let places = vec![place(1), place(3)];
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let watch = move |index: usize, reference: &Reference, found: &Sighting| {
            count.fetch_add(1, Relaxed);
            let is_older = index == 0 && matches!(reference, Reference::Newest(_));
            let older = || Error::new(ErrorKind::Refused, format!("{}", found.version.manifest.number));
            if is_older { Err(older()) } else { Ok(()) }
        };
        let origin = Origin::new(places, stamp).watched_by(Box::new(watch));
        let resolve = |name: &str| origin.resolve(&name.parse().unwrap());
        assert_eq!(resolve("web").unwrap_err().kind(), ErrorKind::Refused);
        assert_eq!(asked.load(Relaxed), 1);
        assert_eq!(resolve("web@1").unwrap().number, 1);
        assert_eq!(resolve("web@3").unwrap().number, 3, "what the first place does not have");
    }
}
