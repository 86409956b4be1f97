//! A commit of a running disk: the sectors that are dirty at one moment become a version, while writes go on.
//!
//! Changed chunks are composed here, from the local file if it has all their sectors, and are sent in parallel.
//! Objects that the depot already has are not sent again, so a commit that was interrupted continues where it
//! stopped. The version becomes visible at the end, by one atomic create.

use std::ops::Range;

use base::limits::SECTOR_BYTES;
use base::{Error, ErrorKind, Result, RunSet};
use image::manifest::Parent;
use image::{Manifest, SignedManifest};
use store::{Changes, Content, Drafter, ImageName, Reference, Stamp};

use super::Mirror;
use super::local::bytes_of;
use crate::images::{Addition, Images, if_found};
use crate::machine::{Done, Ending, Failure, Io, Request};
use crate::state::{InDoubt, TOKEN_BYTES};

/// Maximum number of merges in one commit; a merge is repeated if another writer published a version meanwhile.
const MERGES_MAX: u32 = 16;
/// Maximum number of versions, from the newest down, that are searched for one that is in doubt.
const LOOKS_MAX: usize = 1000;

/// The version on top of which a commit is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Onto {
    /// The disk's base, or the version that the disk's own last merge made. It must be the newest version of the
    /// image, unless the image is new.
    #[default]
    Base,
    /// The image's newest version, whatever it is. Refused if other writers changed sectors that this disk changed
    /// too.
    Newest,
    /// The image's newest version, whatever it is. The new version has the content of this disk and nothing of that
    /// one.
    Instead,
}

/// A hook around the freeze, the moment whose content is committed. The hook must call its argument exactly once,
/// and must prevent unwanted changes of the disk around that call. For example, it freezes a guest's file systems
/// before the call and thaws them after it.
pub type QuiesceHook<'a> = &'a dyn Fn(&mut dyn FnMut() -> Result<()>) -> Result<()>;

/// How a commit is made.
#[derive(Clone, Copy)]
pub struct CommitOptions<'a> {
    /// Who commits, and when.
    pub stamp: &'a Stamp,
    /// On top of which version.
    pub onto: Onto,
    /// The hook around the freeze, if any.
    pub quiesce: Option<QuiesceHook<'a>>,
}

impl<'a> CommitOptions<'a> {
    /// A commit on top of the base, without a hook.
    #[must_use]
    pub fn new(stamp: &'a Stamp) -> Self {
        Self { stamp, onto: Onto::Base, quiesce: None }
    }
}

/// The result of a commit.
#[derive(Debug, Clone)]
pub struct Commit {
    /// The version.
    pub manifest: Manifest,
    /// Bytes of the disk that were dirty and were committed.
    pub dirty_bytes: u64,
    /// Bytes that were sent.
    pub stored_bytes: u64,
    /// Whether the version is the disk's base now. A version that was merged with changes of other writers is not:
    /// the disk under a running guest must not change.
    pub is_base: bool,
}

impl Mirror {
    /// Makes the changes since the base a version of `image`, as of one moment: it has every write that returned
    /// before this call, and no write that begins after it returned. Writes go on meanwhile. `None` if nothing was
    /// written. If the image does not exist, the version is its first.
    ///
    /// `Refused` if another writer has published a newer version of `image` ([`Onto::Base`]), or one that changed
    /// the same sectors ([`Onto::Newest`]), or if another commit is running; `NotFound` if the base is not in `to`;
    /// the errors of `to` and of the hook. After an error the disk is as before and keeps running.
    pub fn commit(
        &self,
        to: &dyn Images,
        image: &ImageName,
        options: &CommitOptions<'_>,
    ) -> Result<Option<Commit>> {
        let _alone = Alone::new(self)?;
        let was_known = self.resolve_in_doubt(to, image)?;
        // Before the freeze, whose record contains the token.
        self.in_doubt(image)?;
        self.freeze(options.quiesce)?;
        let published = self.publish_frozen(to, image, options, was_known);
        let ending = match &published {
            Ok(Some(commit)) => {
                self.shared.lock().next = Some(commit.manifest.clone());
                if commit.is_base { Ending::Committed } else { Ending::Landed }
            }
            Ok(None) | Err(_) => Ending::Abandoned,
        };
        let thawed = self.ask(Request::Thaw(ending));
        self.shared.local.drop_side();
        let commit = published?;
        thawed.map(|()| commit)
    }

    fn publish_frozen(
        &self,
        to: &dyn Images,
        image: &ImageName,
        options: &CommitOptions<'_>,
        was_known: bool,
    ) -> Result<Option<Commit>> {
        let bytes = |set: RunSet| -> Vec<Range<u64>> {
            set.iter().map(|run| run.start * SECTOR_BYTES..run.end * SECTOR_BYTES).collect()
        };
        let (written, freed) = {
            let state = self.shared.lock();
            let (freed, mut written) =
                (state.core.held().frozen_freed.clone(), state.core.held().frozen.clone());
            freed.iter().for_each(|run| written.remove(run));
            (bytes(written), bytes(freed))
        };
        if written.is_empty() && freed.is_empty() {
            return Ok(None);
        }
        // A power cut must not lose locally what a published version has: this process may never learn that the
        // version was published.
        self.ask(Request::Flush)?;
        let changes = Changes { written: &written, content: &Frozen(self), freed: &freed };
        self.publish(to, image, &changes, options, was_known).map(Some)
    }

    /// Draws the token of the next commit to `image`, unless a commit to it is in doubt: then the token stays the
    /// same.
    fn in_doubt(&self, image: &ImageName) -> Result<()> {
        let mut state = self.shared.lock();
        if state.in_doubt.as_ref().is_none_or(|in_doubt| in_doubt.image != image.as_str()) {
            let mut token = [0; TOKEN_BYTES];
            let drawn = rustix::rand::getrandom(&mut token, rustix::rand::GetRandomFlags::empty());
            drawn.map_err(|error| Error::from_source(ErrorKind::Io, "draw random bytes", error))?;
            state.in_doubt = Some(InDoubt { token, image: image.to_string() });
        }
        Ok(())
    }

    /// If a commit to `image` is in doubt, finds out whether it was published. If it was, and was made from the
    /// base, that version becomes the base and the dirty sectors stay dirty. Returns whether that happened.
    fn resolve_in_doubt(&self, to: &dyn Images, image: &ImageName) -> Result<bool> {
        let (in_doubt, base, landed) = {
            let state = self.shared.lock();
            (state.in_doubt.clone(), state.manifest.clone(), state.landed.clone())
        };
        let Some(in_doubt) = in_doubt.filter(|in_doubt| in_doubt.image == image.as_str()) else {
            return Ok(false);
        };
        let last = landed.as_ref().unwrap_or(&base);
        let above = if last.image == image.as_str() { last.number } else { 0 };
        let Some(found) = find(to, image, above, &token_text(&in_doubt))? else { return Ok(false) };
        let named = |parent: &Parent| (parent.image == base.image) && parent.number == base.number;
        let is_child = found.parent.as_ref().is_some_and(named);
        self.shared.lock().next = Some(found);
        // The sectors that were frozen then are dirty now, so an empty generation is ended in the way of that
        // commit.
        let request = if is_child { Request::Rebase } else { Request::Thaw(Ending::Landed) };
        self.ask(request)?;
        Ok(is_child)
    }

    /// Makes a request that needs no I/O of its own.
    fn ask(&self, request: Request) -> Result<()> {
        self.shared.request(request, &mut |_| Done::Failed(Failure::Local))
    }

    /// Begins a generation, inside the hook `moment`. After an error there is no generation.
    fn freeze(&self, moment: Option<QuiesceHook<'_>>) -> Result<()> {
        let Some(moment) = moment else { return self.ask(Request::Freeze) };
        let mut frozen = None;
        let around = moment(&mut || {
            let result = self.ask(Request::Freeze);
            frozen = Some(result.is_ok());
            result
        });
        match (around, frozen) {
            (Ok(()), Some(true)) => Ok(()),
            (Ok(()), _) => Err(Error::new(ErrorKind::Invalid, "the hook of a commit did not run the freeze")),
            (Err(error), Some(true)) => self.ask(Request::Thaw(Ending::Abandoned)).and(Err(error)),
            (Err(error), _) => Err(error),
        }
    }

    fn publish(
        &self,
        to: &dyn Images,
        image: &ImageName,
        changes: &Changes<'_>,
        options: &CommitOptions<'_>,
        was_known: bool,
    ) -> Result<Commit> {
        let (in_doubt, landed) = {
            let state = self.shared.lock();
            (state.in_doubt.clone(), state.landed.clone())
        };
        let token = in_doubt.as_ref().map(token_text);
        let base = as_known(to, &self.base())?;
        let ranges = changes.written.iter().chain(changes.freed);
        let dirty_bytes = ranges.map(|range| range.end - range.start).sum();
        let merging = options.onto == Onto::Newest;
        for _ in 0..if merging { MERGES_MAX } else { 1 } {
            let newest = if_found(to.find(&Reference::Newest(image.clone())))?;
            // If this disk has merged before, changes of other writers count from that merged version on: it already
            // has this disk's own changes, which must not conflict with themselves.
            let seen = landed.as_ref().filter(|landed| landed.image == image.as_str());
            let over = goes_onto(&base, seen, newest, image, options.onto)?;
            let since = match (&over, seen) {
                (Over::Other(_), Some(landed)) => &as_known(to, landed)?,
                _ => &base,
            };
            let expected = match &over {
                Over::Nothing => 0,
                Over::Base => base.manifest.number,
                Over::Other(newest) | Over::Unrelated(newest) => newest.manifest.number,
            };
            let is_base = !matches!(over, Over::Other(_));
            let mut stored_bytes = 0;
            let published = to.add_version(options.stamp, &mut |addition| {
                let draft = draft(addition, since, &over, changes, options.stamp)?;
                stored_bytes = draft.stored_bytes;
                let is_there = match &over {
                    Over::Nothing | Over::Unrelated(_) => None,
                    Over::Base => Some(&base.manifest).filter(|_| was_known),
                    Over::Other(newest) => Some(&newest.manifest).filter(|_| seen.is_some()),
                };
                // Nothing was written since that version: it is the answer, so a commit can be repeated until it
                // succeeds.
                if let Some(there) = is_there.filter(|there| there.root == draft.manifest.root) {
                    return Ok(there.clone());
                }
                let named = Manifest { commit: token.clone(), ..draft.manifest };
                addition.publish(image, named, expected)
            });
            match published {
                Ok(manifest) => return Ok(Commit { manifest, dirty_bytes, stored_bytes, is_base }),
                Err(error) if merging && error.kind() == ErrorKind::Refused => {
                    let newest = if_found(to.find(&Reference::Newest(image.clone())))?;
                    if newest.map_or(0, |newest| newest.manifest.number) == expected {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        let text =
            format!("commit the disk to `{image}`: too many other writers are committing; try again later");
        Err(Error::new(ErrorKind::Io, text))
    }

    fn read_frozen(&self, offset: u64, into: &mut [u8]) -> Result<bool> {
        let range = offset / SECTOR_BYTES..(offset + into.len() as u64) / SECTOR_BYTES;
        let start = range.start;
        let mut is_here = false;
        self.shared.request(Request::ReadFrozen(range), &mut |task| {
            let Io::ReadFrozen { copied, here } = task else { return Done::Failed(Failure::Local) };
            is_here = true;
            let place = |part: &Range<u64>| {
                let (offset, bytes) = bytes_of(&(part.start - start..part.end - start));
                let at = |byte: u64| usize::try_from(byte).expect("inside the buffer");
                at(offset)..at(offset + bytes)
            };
            let copied =
                copied.iter().all(|part| self.shared.local.read_side(part, &mut into[place(part)]).is_ok());
            let read = here.iter().all(|part| self.read_data(part, &mut into[place(part)]).is_ok());
            if copied && read { Done::Well } else { Done::Failed(Failure::Local) }
        })?;
        Ok(is_here)
    }
}

/// Prevents a second commit of the same disk at the same time.
struct Alone<'a>(&'a Mirror);

impl<'a> Alone<'a> {
    fn new(mirror: &'a Mirror) -> Result<Self> {
        match std::mem::replace(&mut mirror.shared.lock().committing, true) {
            true => Err(Error::new(ErrorKind::Refused, "a commit of the disk is under way")),
            false => Ok(Self(mirror)),
        }
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.shared.lock().committing = false;
    }
}

fn token_text(in_doubt: &InDoubt) -> String {
    in_doubt.token.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The version of `image` above number `above` that has `token`, if there is one.
fn find(to: &dyn Images, image: &ImageName, above: u64, token: &str) -> Result<Option<Manifest>> {
    let Some(newest) = if_found(to.find(&Reference::Newest(image.clone())))? else { return Ok(None) };
    let is_it = |found: &SignedManifest| found.manifest.commit.as_deref() == Some(token);
    let last = newest.manifest.number;
    if is_it(&newest) {
        return Ok(Some(newest.manifest));
    }
    for number in (above + 1..last).rev().take(LOOKS_MAX) {
        let found = if_found(to.find(&Reference::Version(image.clone(), number)))?;
        if let Some(found) = found.filter(is_it) {
            return Ok(Some(found.manifest));
        }
    }
    Ok(None)
}

/// Looks up `version`, on which the disk is based, in `to`. Fails if it does not exist there or has another content.
fn as_known(to: &dyn Images, version: &Manifest) -> Result<SignedManifest> {
    let name = version.image.parse::<ImageName>();
    let name = name.map_err(|error| error.within("commit the disk"))?;
    let reference = Reference::Version(name, version.number);
    match if_found(to.find(&reference))? {
        None => {
            let text = format!("commit the disk: it is based on `{reference}`, which does not exist there");
            Err(Error::new(ErrorKind::NotFound, text))
        }
        Some(found) if found.manifest.root != version.root => {
            let text = format!(
                "commit the disk: `{reference}` there differs from the version that the disk is based on"
            );
            Err(Error::new(ErrorKind::Refused, text))
        }
        Some(found) => Ok(found),
    }
}

/// The version on top of which a commit is made, as found in the image.
enum Over {
    /// The image does not exist yet.
    Nothing,
    /// The base is the image's newest version.
    Base,
    /// Another version is the newest.
    Other(Box<SignedManifest>),
    /// The same, and nothing of it stays.
    Unrelated(Box<SignedManifest>),
}

/// Finds the version to commit onto. `seen` is the version of the image that this disk's own last merge made.
fn goes_onto(
    base: &SignedManifest,
    seen: Option<&Manifest>,
    newest: Option<SignedManifest>,
    image: &ImageName,
    onto: Onto,
) -> Result<Over> {
    let Some(newest) = newest else { return Ok(Over::Nothing) };
    if newest.digest() == base.digest() {
        return Ok(Over::Base);
    }
    if onto == Onto::Instead {
        return Ok(Over::Unrelated(Box::new(newest)));
    }
    let found = newest.manifest.number;
    // No other writer has published since this disk's own merge, so it may go on without a new request to merge.
    let is_own = seen.is_some_and(|seen| seen.number == found && seen.root == newest.manifest.root);
    if is_own || onto == Onto::Newest {
        return Ok(Over::Other(Box::new(newest)));
    }
    let from = &base.manifest;
    let text = match (seen, from.image == image.as_str()) {
        (Some(seen), _) => {
            format!(
                "`{image}` is at version {found} by now, the disk's last commit made version {}",
                seen.number
            )
        }
        (None, true) => {
            format!("`{image}` is at version {found} by now, the disk began as version {}", from.number)
        }
        (None, false) => format!("there is an image `{image}` already, the disk began as `{}`", from.image),
    };
    Err(Error::new(ErrorKind::Refused, format!("commit the disk to `{image}`: {text}")))
}

fn draft(
    addition: &dyn Addition,
    base: &SignedManifest,
    over: &Over,
    changes: &Changes<'_>,
    stamp: &Stamp,
) -> Result<store::Draft> {
    let drafter =
        Drafter { source: addition, sink: addition, cipher: addition.cipher(), threads: addition.at_once() };
    let draft = match over {
        Over::Nothing | Over::Base | Over::Unrelated(_) => drafter.draft(base, changes, stamp),
        Over::Other(newest) => drafter.draft_onto(base, newest, changes, stamp),
    };
    draft.map_err(|error| error.within("commit the disk"))
}

/// The frozen sectors, as the content of a commit.
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
