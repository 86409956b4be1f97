//! Commits an attached disk while it runs: chooses the image of the new version, and freezes the guest or file system
//! around the moment whose content the commit stores.

use std::cell::RefCell;
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use mirror::images::if_found;
use mirror::{CommitOptions, Images, Mirror, Onto, WriteHold};
use net::api::{ORDER_SILENCE_SECONDS, SetOrder};
use net::clock::Clock;
use parking_lot::MutexGuard;
use store::{ImageName, Reference, Stamp};

use super::control::Asker;
use super::protocol::{Afterwards, Answer, CommitRequest, Committed};
use super::quiesce::Frozen;
use super::settings::of_disk;

/// What stands still around a moment. All of it goes on when this is dropped.
pub(super) struct Held<'a> {
    writes: WriteHold<'a>,
    quiesced: Option<Frozen<'a>>,
    /// The process does not end meanwhile.
    _moment: MutexGuard<'a, ()>,
}

impl Held<'_> {
    fn release(self) -> Result<()> {
        drop(self.writes);
        self.quiesced.map_or(Ok(()), |mut quiesced| quiesced.thaw())
    }

    /// Ends the machine, and calls `close` while no write of it is answered any more.
    pub(super) fn end(self, close: impl FnOnce() -> Result<()>) -> Result<()> {
        let ended = self.quiesced.map_or(Ok(()), Frozen::end);
        let closed = close();
        drop(self.writes);
        ended.and(closed)
    }
}

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
    /// Who requested the commit.
    pub asker: &'a Asker,
    /// Keeps the process from ending for as long as the guard exists; an error if it is about to end.
    pub begin_moment: &'a dyn Fn() -> Result<MutexGuard<'a, ()>>,
    /// What stays frozen until the end of the disk.
    pub stays: RefCell<Option<Held<'a>>>,
}

impl<'a> Committer<'a> {
    /// Commits, and says when the moment is over.
    pub(super) fn commit(&self, request: &'a CommitRequest) -> Result<Committed> {
        let base = self.mirror.base();
        let invalid = |error| Error::from_source(ErrorKind::Invalid, format!("disk `{}`", self.name), error);
        let image: ImageName = request.image.as_deref().unwrap_or(&base.image).parse().map_err(invalid)?;
        if request.new {
            self.refuse_old(&image)?;
        }
        let moment = |freeze: &mut dyn FnMut() -> Result<()>| match request.orders {
            None => self.moment(request, freeze),
            Some(afterwards) => self.ordered_moment(request, afterwards, freeze),
        };
        let onto = match request.merge {
            _ if request.orders.is_some() => Onto::Instead,
            true => Onto::Newest,
            false => Onto::Base,
        };
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
    fn moment(&self, request: &CommitRequest, freeze: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let clock = Clock::start();
        let mut take = || freeze().map_err(of_disk(self.name));
        let limit = Duration::from_secs(request.limit_seconds);
        let done = (self.begin_moment)().and_then(|_moment| match &request.quiesce {
            None => take(),
            Some(quiesce) => quiesce.around(limit, &mut take),
        });
        done.map_err(|error| error.within("take the moment of a commit"))?;
        self.tell_moment(request.quiesce.is_some(), &clock);
        Ok(())
    }

    fn tell_moment(&self, quiesced: bool, clock: &Clock) {
        self.asker.tell(&Answer::Moment { quiesced, seconds: clock.elapsed().as_secs_f64() });
    }

    /// The moment of a set of disks: everything stands still from one order to the next. If that one does not come in
    /// time, everything goes on, and there is no version.
    fn ordered_moment(
        &self,
        request: &'a CommitRequest,
        afterwards: Afterwards,
        freeze: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        self.asker.tell(&Answer::Prepared);
        self.wait_for(SetOrder::Freeze, || None)?;
        let (clock, limit) = (Clock::start(), Duration::from_secs(request.limit_seconds));
        let left = |clock: &Clock| limit.saturating_sub(clock.elapsed());
        let moment = (self.begin_moment)()?;
        let quiesced = request.quiesce.as_ref().map(|quiesce| quiesce.freeze(limit)).transpose()?;
        let writes = self.mirror.hold_writes(left(&clock)).map_err(of_disk(self.name))?;
        let held = Held { writes, quiesced, _moment: moment };
        freeze().map_err(of_disk(self.name))?;
        self.asker.tell(&Answer::Frozen);
        self.wait_for(SetOrder::GoOn, || Some(left(&clock)))?;
        match afterwards {
            Afterwards::Runs => held.release()?,
            Afterwards::Ends => drop(self.stays.borrow_mut().insert(held)),
        }
        self.tell_moment(true, &clock);
        Ok(())
    }

    /// Waits until the order comes to end the disk, which stays frozen.
    pub(super) fn wait_for_the_end(&self, runs: impl Fn() -> Result<()>) -> Result<()> {
        let silence = Duration::from_secs(ORDER_SILENCE_SECONDS);
        loop {
            let order = self.asker.order(Some(silence))?;
            runs()?;
            match order {
                SetOrder::Alive => {}
                SetOrder::Finish => return Ok(()),
                other => return Err(wrong(other)),
            }
        }
    }

    /// Waits for an order, for as long as `left` says.
    fn wait_for(&self, wanted: SetOrder, left: impl Fn() -> Option<Duration>) -> Result<()> {
        loop {
            match self.asker.order(left())? {
                SetOrder::Alive => {}
                order if order == wanted => return Ok(()),
                other => return Err(wrong(other)),
            }
        }
    }
}

fn wrong(order: SetOrder) -> Error {
    Error::new(ErrorKind::Invalid, format!("the order {order:?} is out of turn"))
}
