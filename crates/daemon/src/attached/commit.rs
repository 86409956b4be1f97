//! Commits an attached disk while it runs: chooses the image of the new version, and freezes the guest or file system
//! around the moment whose content the commit stores.

use std::time::Duration;

use base::{Error, ErrorKind, Result};
use mirror::images::if_found;
use mirror::{CommitOptions, Images, Mirror, Onto};
use net::clock::Clock;
use store::{ImageName, Reference, Stamp};

use super::protocol::{Answer, CommitRequest, Committed};
use super::settings::of_disk;

/// Calls the given closure at most once, with some work before and after it.
pub(super) type WithGuard<'a> = &'a dyn Fn(&mut dyn FnMut() -> Result<()>) -> Result<()>;

/// A disk and where its commits go.
pub(super) struct Committer<'a> {
    /// Name of the disk.
    pub name: &'a str,
    /// The disk.
    pub mirror: &'a Mirror,
    /// Repository or server that gets the version.
    pub to: &'a dyn Images,
    /// Creator and time of the version.
    pub stamp: &'a Stamp,
    /// Calls the given closure unless the process is about to end; the process then waits for its return.
    pub unless_ending: WithGuard<'a>,
}

impl Committer<'_> {
    /// Commits, and calls `tell` with `Answer::Moment` when the moment is over.
    pub(super) fn commit(&self, request: &CommitRequest, tell: &dyn Fn(&Answer)) -> Result<Committed> {
        let base = self.mirror.base();
        let invalid = |error| Error::from_source(ErrorKind::Invalid, format!("disk `{}`", self.name), error);
        let image: ImageName = request.image.as_deref().unwrap_or(&base.image).parse().map_err(invalid)?;
        if request.new {
            self.refuse_old(&image)?;
        }
        let moment = |freeze: &mut dyn FnMut() -> Result<()>| self.moment(request, freeze, tell);
        let onto = if request.merge { Onto::Newest } else { Onto::Base };
        let options = CommitOptions { stamp: self.stamp, onto, quiesce: Some(&moment) };
        let done = self.mirror.commit(self.to, &image, &options).map_err(of_disk(self.name))?;
        if let Some(done) = done {
            return Ok(Committed {
                image: done.manifest.image,
                number: done.manifest.number,
                changed: true,
                dirty_bytes: done.dirty_bytes,
                stored_bytes: done.stored_bytes,
                is_base: done.is_base,
            });
        }
        let nothing = |image: String, number, changed| Committed {
            image,
            number,
            changed,
            dirty_bytes: 0,
            stored_bytes: 0,
            is_base: !changed,
        };
        if !request.new {
            return Ok(nothing(base.image, base.number, false));
        }
        let name = base.image.parse().map_err(invalid)?;
        let number = self.clone_base(&Reference::Version(name, base.number), &image)?;
        Ok(nothing(image.to_string(), number, true))
    }

    fn clone_base(&self, base: &Reference, image: &ImageName) -> Result<u64> {
        let made = self.to.clone_version(base, image, self.stamp);
        made.map_err(|error| error.within(format!("clone `{base}` as `{image}`")))
    }

    fn refuse_old(&self, image: &ImageName) -> Result<()> {
        let newest = Reference::Newest(image.clone());
        let found = if_found(self.to.find(&newest)).map_err(of_disk(self.name))?;
        match found {
            None => Ok(()),
            Some(_) => Err(Error::new(ErrorKind::Refused, format!("there is an image `{image}` already"))),
        }
    }

    /// Runs `freeze`, which fixes the disk's content for this commit, while the requested guest or file system is
    /// quiesced.
    fn moment(
        &self,
        request: &CommitRequest,
        freeze: &mut dyn FnMut() -> Result<()>,
        tell: &dyn Fn(&Answer),
    ) -> Result<()> {
        let clock = Clock::start();
        let mut take = || freeze().map_err(of_disk(self.name));
        let limit = Duration::from_secs(request.limit_seconds);
        let done = (self.unless_ending)(&mut || match &request.quiesce {
            None => take(),
            Some(quiesce) => quiesce.around(limit, &mut take),
        });
        done.map_err(|error| error.within("take the moment of a commit"))?;
        let quiesced = request.quiesce.is_some();
        tell(&Answer::Moment { quiesced, seconds: clock.elapsed().as_secs_f64() });
        Ok(())
    }
}
