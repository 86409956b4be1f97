//! A commit of a running disk: what was dirty at one moment becomes a version, while the disk is written on.
//!
//! Changed chunks are composed here, from the local file where it has all of them, and sent in parallel; what the depot has
//! already is not sent again, so that a commit that broke off goes on where it was. The version appears last, by one create.

use std::ops::Range;

use base::limits::SECTOR_BYTES;
use image::{Manifest, Sealed};
use store::{Changes, Content, Drafter, ImageName, Reference, Stamp};

use super::Mirror;
use super::local::bytes_of;
use crate::core::{Done, Failure, Io, Request};
use crate::depot::{Addition, Depot, from_store};
use crate::{Error, ErrorKind, Result};

/// How often a merge is made anew, since somebody else published meanwhile.
const MERGES_MAX: u32 = 16;

/// What a version goes onto.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Onto {
    /// The disk's base, which has to be the newest version of the image; or the image is new.
    #[default]
    Base,
    /// The image's newest version, whatever that is, if nobody else changed the sectors that this disk changed.
    Newest,
}

/// What is done around the one moment of a commit: it calls what it is given, once, and nothing must change the disk in between
/// that the version should not have. A guest's file systems are frozen before and thawed behind.
pub type Moment<'a> = &'a dyn Fn(&mut dyn FnMut() -> Result<()>) -> Result<()>;

/// How a commit is made.
#[derive(Clone, Copy)]
pub struct CommitOptions<'a> {
    /// Whose it is, and of when.
    pub stamp: &'a Stamp,
    /// What it goes onto.
    pub onto: Onto,
    /// What is done around its moment; nothing if there is none.
    pub moment: Option<Moment<'a>>,
}

impl<'a> CommitOptions<'a> {
    /// A child of the base, with nothing around it.
    #[must_use]
    pub fn new(stamp: &'a Stamp) -> Self {
        Self { stamp, onto: Onto::Base, moment: None }
    }
}

/// What came of a commit.
#[derive(Debug, Clone)]
pub struct Commit {
    /// The version.
    pub manifest: Manifest,
    /// Bytes of the disk that it took.
    pub dirty_bytes: u64,
    /// Bytes that were sent.
    pub stored_bytes: u64,
    /// Whether it is the disk's base now. If it went onto what others wrote it is not: what a running guest sees never changes
    /// under it.
    pub is_base: bool,
}

impl Mirror {
    /// Makes what was written since the base a version of `image`, from one moment: every write that was over when this began
    /// is in it, and none that begins after it returned. Writes go on meanwhile. `None` if nothing was written. If there is
    /// no such image the version is its first.
    ///
    /// # Errors
    /// `Refused` if `image` has a newer version than the base ([`Onto::Base`]), or one that changed the same sectors
    /// ([`Onto::Newest`]), or another commit is under way; `NotFound` if the base is not in `depot`; those of the depot and of
    /// what is done around the moment. The disk is as before then, and runs on.
    pub fn commit(
        &self,
        depot: &dyn Depot,
        image: &ImageName,
        options: &CommitOptions<'_>,
    ) -> Result<Option<Commit>> {
        self.freeze(options.moment)?;
        let ranges: Vec<Range<u64>> = {
            let state = self.shared.lock();
            let frozen = state.core.held().frozen.iter();
            frozen.map(|run| run.start * SECTOR_BYTES..run.end * SECTOR_BYTES).collect()
        };
        let changes = Changes { written: &ranges, content: &Frozen(self), freed: &[] };
        let published = match ranges.is_empty() {
            true => Ok(None),
            false => self.publish(depot, image, &changes, options).map(Some),
        };
        let is_base = matches!(&published, Ok(Some(commit)) if commit.is_base);
        if let Ok(Some(commit)) = &published {
            self.shared.lock().next = Some(commit.manifest.clone());
        }
        let thawed = self.ask(Request::Thaw { published: is_base });
        self.shared.local.drop_side();
        let commit = published?;
        thawed.map(|()| commit)
    }

    /// A request that needs nothing of its own.
    fn ask(&self, request: Request) -> Result<()> {
        self.shared.request(request, &mut |_| Done::Failed(Failure::Local))
    }

    /// Begins a generation inside of `moment`. If that fails there is none.
    fn freeze(&self, moment: Option<Moment<'_>>) -> Result<()> {
        let Some(moment) = moment else { return self.ask(Request::Freeze) };
        let mut frozen = None;
        let around = moment(&mut || {
            let result = self.ask(Request::Freeze);
            frozen = Some(result.is_ok());
            result
        });
        match (around, frozen) {
            (Ok(()), Some(true)) => Ok(()),
            (Ok(()), _) => Err(Error::new(ErrorKind::Invalid, "the moment of a commit never came")),
            (Err(error), Some(true)) => self.ask(Request::Thaw { published: false }).and(Err(error)),
            (Err(error), _) => Err(error),
        }
    }

    fn publish(
        &self,
        depot: &dyn Depot,
        image: &ImageName,
        changes: &Changes<'_>,
        options: &CommitOptions<'_>,
    ) -> Result<Commit> {
        let base = self.base_in(depot)?;
        let merging = options.onto == Onto::Newest;
        for _ in 0..if merging { MERGES_MAX } else { 1 } {
            let newest = depot.version(&Reference::Newest(image.clone()))?;
            let over = goes_onto(&base, newest, image, options.onto)?;
            let expected = match &over {
                Over::Nothing => 0,
                Over::Base => base.manifest.number,
                Over::Other(newest) => newest.manifest.number,
            };
            let mut stored_bytes = 0;
            let published = depot.add(options.stamp, &mut |addition| {
                let draft = draft(addition, &base, &over, changes, options.stamp)?;
                stored_bytes = draft.stored_bytes;
                addition.publish(image, draft.manifest, expected)
            });
            match published {
                Ok(manifest) => {
                    let dirty_bytes = changes.written.iter().map(|range| range.end - range.start).sum();
                    let is_base = !matches!(over, Over::Other(_));
                    return Ok(Commit { manifest, dirty_bytes, stored_bytes, is_base });
                }
                Err(error) if merging && error.kind() == ErrorKind::Refused => {
                    let newest = depot.version(&Reference::Newest(image.clone()))?;
                    if newest.map_or(0, |newest| newest.manifest.number) == expected {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        let text = format!("commit the disk to `{image}`: too many others do at this moment");
        Err(Error::new(ErrorKind::Io, text))
    }

    /// The base as the depot has it.
    fn base_in(&self, depot: &dyn Depot) -> Result<Sealed> {
        let base = self.base();
        let name = base.image.parse::<ImageName>();
        let name = name.map_err(|error| from_store(error, "commit the disk"))?;
        let reference = Reference::Version(name, base.number);
        match depot.version(&reference)? {
            None => {
                let text = format!("commit the disk: it began as `{reference}`, which is not there");
                Err(Error::new(ErrorKind::NotFound, text))
            }
            Some(found) if found.manifest.root != base.root => {
                let text = format!("commit the disk: `{reference}` there is not what it began as");
                Err(Error::new(ErrorKind::Refused, text))
            }
            Some(found) => Ok(found),
        }
    }

    fn read_frozen(&self, offset: u64, into: &mut [u8]) -> Result<bool> {
        let range = offset / SECTOR_BYTES..(offset + into.len() as u64) / SECTOR_BYTES;
        let start = range.start;
        let mut is_here = false;
        self.shared.request(Request::ReadFrozen(range), &mut |task| {
            let Io::ReadFrozen { aside, here } = task else { return Done::Failed(Failure::Local) };
            is_here = true;
            let place = |part: &Range<u64>| {
                let (offset, bytes) = bytes_of(&(part.start - start..part.end - start));
                let at = |byte: u64| usize::try_from(byte).expect("inside the buffer");
                at(offset)..at(offset + bytes)
            };
            let copied =
                aside.iter().all(|part| self.shared.local.read_side(part, &mut into[place(part)]).is_ok());
            let read = here.iter().all(|part| self.read_data(part, &mut into[place(part)]).is_ok());
            if copied && read { Done::Well } else { Done::Failed(Failure::Local) }
        })?;
        Ok(is_here)
    }
}

/// What a version goes onto, as it was found.
enum Over {
    /// The image is new.
    Nothing,
    /// The base is the image's newest version.
    Base,
    /// What others wrote.
    Other(Box<Sealed>),
}

fn goes_onto(base: &Sealed, newest: Option<Sealed>, image: &ImageName, onto: Onto) -> Result<Over> {
    let Some(newest) = newest else { return Ok(Over::Nothing) };
    if newest.digest() == base.digest() {
        return Ok(Over::Base);
    }
    if onto == Onto::Newest {
        return Ok(Over::Other(Box::new(newest)));
    }
    let (from, found) = (&base.manifest, newest.manifest.number);
    let text = match from.image == image.as_str() {
        true => format!("`{image}` is at version {found} by now, the disk began as version {}", from.number),
        false => format!("there is an image `{image}` already, the disk began as `{}`", from.image),
    };
    Err(Error::new(ErrorKind::Refused, format!("commit the disk to `{image}`: {text}")))
}

fn draft(
    addition: &dyn Addition,
    base: &Sealed,
    over: &Over,
    changes: &Changes<'_>,
    stamp: &Stamp,
) -> Result<store::Draft> {
    let drafter = Drafter { source: addition, sink: addition, threads: addition.at_once() };
    let draft = match over {
        Over::Nothing | Over::Base => drafter.draft(base, changes, stamp),
        Over::Other(newest) => drafter.draft_onto(base, newest, changes, stamp),
    };
    draft.map_err(|error| from_store(error, "commit the disk"))
}

/// What is frozen, as it is composed.
struct Frozen<'a>(&'a Mirror);

impl Content for Frozen<'_> {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> std::io::Result<()> {
        match self.0.read_frozen(offset, into).map_err(std::io::Error::other)? {
            true => Ok(()),
            false => Err(std::io::ErrorKind::NotFound.into()),
        }
    }

    fn whole_at(&self, offset: u64, into: &mut [u8]) -> std::io::Result<bool> {
        self.0.read_frozen(offset, into).map_err(std::io::Error::other)
    }
}
