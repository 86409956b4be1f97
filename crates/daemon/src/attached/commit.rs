//! Commits of an attached disk while it runs: where they go, and what is done around their moment.

use std::time::Duration;

use base::{Error, ErrorKind, Result};
use mirror::images::if_found;
use mirror::{CommitOptions, Images, Mirror, Onto};
use net::clock::Clock;
use store::{ImageName, Reference, Stamp};

use super::protocol::{Answer, CommitRequest, Committed};
use super::settings::of_disk;

/// Does what it is given, once, and something around it.
pub(super) type WithGuard<'a> = &'a dyn Fn(&mut dyn FnMut() -> Result<()>) -> Result<()>;

/// A disk and where its commits go.
pub(super) struct Committer<'a> {
    /// What the disk is called.
    pub name: &'a str,
    /// The disk.
    pub mirror: &'a Mirror,
    /// Where to.
    pub to: &'a dyn Images,
    /// Whose, and of when.
    pub stamp: &'a Stamp,
    /// Does what it is given if the disk is not about to end; it ends behind that then.
    pub unless_ending: WithGuard<'a>,
}

impl Committer<'_> {
    /// Commits. `tell` hears of the moment when it is over.
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

    /// Takes the moment, inside of what was asked for.
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
