//! Commits of an attached disk while it runs: where they go, and what is done around their moment.

use std::sync::Arc;
use std::time::Duration;

use mirror::{CommitOptions, Depot, Mirror, Onto};
use net::client::{Client, ClientOptions};
use net::clock::{Clock, Stop};
use store::{ImageName, Reference, Repository, Stamp};

use super::protocol::{Answer, CommitRequest, Committed};
use crate::error::{Error, ErrorKind, Result, of_disk};

/// Where commits of a disk go.
#[derive(Clone)]
pub enum CommitTo {
    /// A repository here.
    Repository(Arc<Repository>),
    /// The repository of a server, through a client that is patient.
    Server(Arc<Client>),
}

impl CommitTo {
    /// The same for one commit: `tell` hears in words what it waits for, and `stop` calls it off, where that is far
    /// away.
    pub fn for_one(&self, tell: impl Fn(&str) + Send + Sync + 'static, stop: &Stop) -> Self {
        match self {
            Self::Repository(repository) => Self::Repository(Arc::clone(repository)),
            Self::Server(client) => {
                let (tell, stop) = (Arc::new(tell), stop.clone());
                let options = ClientOptions { tell, stop, ..client.options().clone() };
                Self::Server(Arc::new(client.with_options(options)))
            }
        }
    }

    fn depot(&self) -> &dyn Depot {
        match self {
            Self::Repository(repository) => &**repository,
            Self::Server(client) => &**client,
        }
    }

    /// Makes `image` a clone of a version. Its number.
    fn clone_image(&self, from: &Reference, image: &ImageName, stamp: &Stamp) -> Result<u64> {
        let text = || format!("clone `{from}` as `{image}`");
        match self {
            Self::Repository(repository) => {
                let made = repository.blob(image).clone_from(from, stamp);
                made.map(|made| made.number).map_err(|error| {
                    let kind = match error.kind() {
                        store::ErrorKind::NotFound => ErrorKind::NotFound,
                        store::ErrorKind::Exists | store::ErrorKind::Refused => ErrorKind::Refused,
                        _ => ErrorKind::Io,
                    };
                    Error::from_source(kind, text(), error)
                })
            }
            Self::Server(client) => {
                let made = client.clone_image(image.as_str(), &from.to_string());
                made.map(|made| made.number).map_err(|error| {
                    let kind = match error.kind() {
                        net::ErrorKind::NotFound => ErrorKind::NotFound,
                        net::ErrorKind::Exists | net::ErrorKind::Refused => ErrorKind::Refused,
                        net::ErrorKind::Unreachable => ErrorKind::Unreachable,
                        _ => ErrorKind::Io,
                    };
                    Error::from_source(kind, text(), error)
                })
            }
        }
    }
}

/// Does what it is given, once, and something around it.
pub type Around<'a> = &'a dyn Fn(&mut dyn FnMut() -> Result<()>) -> Result<()>;

/// A disk and where its commits go.
pub struct Committer<'a> {
    /// What the disk is called.
    pub name: &'a str,
    /// The disk.
    pub mirror: &'a Mirror,
    /// Where to.
    pub to: &'a CommitTo,
    /// Whose, and of when.
    pub stamp: &'a Stamp,
    /// Does what it is given if the disk is not about to end; it ends behind that then.
    pub unless_ending: Around<'a>,
}

impl Committer<'_> {
    /// Commits. `tell` hears of the moment when it is over.
    pub fn commit(&self, request: &CommitRequest, tell: &dyn Fn(&Answer)) -> Result<Committed> {
        let base = self.mirror.base();
        let invalid = |error| Error::from_source(ErrorKind::Invalid, format!("disk `{}`", self.name), error);
        let image: ImageName = request.image.as_deref().unwrap_or(&base.image).parse().map_err(invalid)?;
        if request.new {
            self.refuse_old(&image)?;
        }
        let moment = |freeze: &mut dyn FnMut() -> mirror::Result<()>| self.moment(request, freeze, tell);
        let onto = if request.merge { Onto::Newest } else { Onto::Base };
        let options = CommitOptions { stamp: self.stamp, onto, moment: Some(&moment) };
        let done = self.mirror.commit(self.to.depot(), &image, &options).map_err(of_disk(self.name))?;
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
        let number = self.to.clone_image(&Reference::Version(name, base.number), &image, self.stamp)?;
        Ok(nothing(image.to_string(), number, true))
    }

    fn refuse_old(&self, image: &ImageName) -> Result<()> {
        let found = self.to.depot().version(&Reference::Newest(image.clone())).map_err(of_disk(self.name))?;
        match found {
            None => Ok(()),
            Some(_) => Err(Error::new(ErrorKind::Refused, format!("there is an image `{image}` already"))),
        }
    }

    /// Takes the moment, inside of what was asked for.
    fn moment(
        &self,
        request: &CommitRequest,
        freeze: &mut dyn FnMut() -> mirror::Result<()>,
        tell: &dyn Fn(&Answer),
    ) -> mirror::Result<()> {
        let clock = Clock::start();
        let mut take = || freeze().map_err(of_disk(self.name));
        let limit = Duration::from_secs(request.limit_seconds);
        let done = (self.unless_ending)(&mut || match &request.quiesce {
            None => take(),
            Some(quiesce) => quiesce.around(limit, &mut take),
        });
        done.map_err(|error| {
            let kind = match error.kind() {
                ErrorKind::Refused => mirror::ErrorKind::Refused,
                ErrorKind::Unreachable => mirror::ErrorKind::Unreachable,
                _ => mirror::ErrorKind::Io,
            };
            mirror::Error::from_source(kind, "take the moment of a commit", error)
        })?;
        let quiesced = request.quiesce.is_some();
        tell(&Answer::Moment { quiesced, seconds: clock.elapsed().as_secs_f64() });
        Ok(())
    }
}
