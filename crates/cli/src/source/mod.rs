//! Opens and checks the source of a capture or commit: no other program may write to it, and it must not change while
//! it is read.

mod contents;
mod foreign;

use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) use contents::{Contents, export, is_local, open, open_export, scratch_folder};
use disk::{Container, Freezer, Source, SurveyOptions, Watch, Writer};

use crate::args::Taking;
use crate::commands::Context;
use crate::exit::{Exit, Failure, Result};
use crate::{interrupt, repository};

/// Maximum number of remarks stored with a version of a live disk.
const LIVE_MAX: usize = 16;
/// Hint for a source that other programs write to.
const HINT: &str = "unmount it, remount it read-only or end what writes to it; \
                    --freeze keeps its filesystems still meanwhile; --live takes it as it is, and marks the version";
/// The same hint for a commit, which has neither --freeze nor --live.
const HINT_OF_COMMIT: &str = "unmount it, remount it read-only or end what writes to it";

/// The refusal of a `source` in another format than raw. `instead` begins the hint: what to do instead of a conversion.
fn not_raw(source: &Source, found: Container, instead: &str) -> Failure {
    let path = source.path();
    let text = format!("`{}` is not a raw disk, but {}", path.display(), found.name);
    let conversion = found.conversion(path);
    let hint =
        format!("{instead}make a raw one of it: {conversion}; --format raw takes the bytes as they are");
    Failure::new(Exit::Refused, text).hint(hint)
}

/// Refuses the `source` of a commit if it is mounted read-write or in use by the kernel. A process that has it open
/// for writing is allowed: the commit watches for changes.
pub(crate) fn check_unused(source: &Source) -> Result<()> {
    let writers = disk::writers(source, &SurveyOptions::default())?;
    match writers.iter().find(|writer| !writer.is_process) {
        Some(writer) => Err(in_use(source, writer).hint(HINT_OF_COMMIT)),
        None => Ok(()),
    }
}

fn in_use(source: &Source, writer: &Writer) -> Failure {
    Failure::new(Exit::Refused, format!("`{}` {}", source.path().display(), writer.how))
}

/// The failure for a `source` that changed while it was read.
pub(crate) fn changed(source: &Source, changes: &[String]) -> Failure {
    let text = format!(
        "`{}` {} while it was read: no version was made",
        source.path().display(),
        changes.join(", ")
    );
    Failure::new(Exit::Failed, text)
}

/// Frozen filesystems, thawed when this is dropped, also by an error or a panic. The signal handler shares the
/// freezer, so it can thaw them too.
struct Frozen(Arc<Freezer>);

impl Drop for Frozen {
    fn drop(&mut self) {
        // A caller that wants to see errors has called `release`.
        let _ = self.0.thaw();
    }
}

/// A source that must not change until this is dropped.
pub(crate) struct StableSource<'a> {
    source: &'a Source,
    watch: Watch<'a>,
    frozen: Frozen,
    takes_live: bool,
    /// Descriptions of the programs that may write to it nevertheless.
    live: Vec<String>,
    /// Whether it is the source of a commit, which has neither --freeze nor --live.
    is_commit: bool,
    /// Whether a process has it open for writing, which a commit allows.
    is_open: bool,
}

impl<'a> StableSource<'a> {
    /// Finds the writers of the parts of `source` that `options` select, freezes filesystems if requested, and starts
    /// to watch for changes. `Refused` if a program may write to it and `--live` was not given.
    pub(crate) fn begin(
        context: &Context,
        source: &'a Source,
        options: &'a SurveyOptions,
        taking: &Taking,
        needed: &[PathBuf],
    ) -> Result<Self> {
        let writers = disk::writers(source, options)?;
        let freezes = |writer: &&Writer| taking.freeze && writer.mount.is_some();
        let places = writers.iter().filter(freezes).filter_map(|writer| writer.mount.as_deref());
        let live: Vec<&Writer> = writers.iter().filter(|writer| !freezes(writer)).collect();
        if let Some(writer) = live.first().filter(|_| !taking.live) {
            return Err(in_use(source, writer).hint(HINT));
        }
        let frozen = Frozen(Arc::new(Freezer::default()));
        let last = Arc::clone(&frozen.0);
        interrupt::at_last(move || drop(last.thaw()));
        for place in places.filter(|_| !context.global.dry_run) {
            frozen.0.freeze(place, needed)?;
            context.output.detail(&format!("froze the filesystem at {}", place.display()));
        }
        let live = live.into_iter().map(|writer| writer.how.clone()).collect();
        let watch = Watch::begin(source, options, writers)?;
        if !watch.sees_writes() {
            let text = "does not count writes: diskcast can't see whether it changes while it is read";
            context.output.warning(&format!("{} {text}", source.path().display()));
        }
        Ok(Self { source, watch, frozen, takes_live: taking.live, live, is_commit: false, is_open: false })
    }

    /// Starts to watch the `source` of a commit for changes. `Refused` if it is mounted read-write or in use by the
    /// kernel; a process that has it open for writing is allowed.
    pub(crate) fn of_commit(source: &'a Source, options: &'a SurveyOptions) -> Result<Self> {
        check_unused(source)?;
        let writers = disk::writers(source, options)?;
        let is_open = !writers.is_empty();
        let watch = Watch::begin(source, options, writers)?;
        let frozen = Frozen(Arc::new(Freezer::default()));
        Ok(Self { source, watch, frozen, takes_live: false, live: Vec::new(), is_commit: true, is_open })
    }

    /// Whether a process has it open for writing although it is the source of a commit.
    pub(crate) fn is_open_for_writing(&self) -> bool {
        self.is_open
    }

    /// Whether something that is not frozen may write to it.
    pub(crate) fn is_live(&self) -> bool {
        !self.live.is_empty()
    }

    /// Returns how other programs used or changed the source while it was read; empty if its content is of one
    /// moment. `Failed` if it changed and `--live` was not given. Call it after the last read and before publishing.
    pub(crate) fn end(&self) -> Result<Vec<String>> {
        let changes = self.watch.changes()?;
        if !changes.is_empty() && !self.takes_live {
            let hint = if self.is_commit { HINT_OF_COMMIT } else { HINT };
            return Err(changed(self.source, &changes).hint(hint));
        }
        Ok(self.live.iter().cloned().chain(changes).take(LIVE_MAX).collect())
    }

    /// Thaws the filesystems, and reports a failure.
    pub(crate) fn release(self) -> Result<()> {
        Ok(self.frozen.0.thaw()?)
    }
}

/// Opens the disk that `source` holds, and the files that it names, which are watched as `stable` watches the source.
/// Hands the disk and all that is watched to `then`.
pub(crate) fn read(
    context: &Context,
    (source, stable): (&Source, &StableSource<'_>),
    taking: &Taking,
    then: impl FnOnce(&Contents<'_>, &[&StableSource<'_>]) -> Result<()>,
) -> Result<()> {
    let mut contents = Contents::of(context, source, taking)?;
    let linked = contents.linked().iter().map(|path| disk::open_source(path));
    let linked = linked.collect::<base::Result<Vec<_>>>()?;
    let all = SurveyOptions::default();
    let others = linked.iter().map(|source| match stable.is_commit {
        true => StableSource::of_commit(source, &all),
        false => StableSource::begin(context, source, &all, taking, &[]),
    });
    let others = others.collect::<Result<Vec<_>>>()?;
    if !linked.is_empty() {
        // Again, now that a change to its other files is noticed.
        contents = Contents::of(context, source, taking)?;
    }
    let stable: Vec<_> = std::iter::once(stable).chain(&others).collect();
    then(&contents, &stable)
}

/// Paths that this process writes to while a source is frozen: the repository or the cache, and its own output. A
/// filesystem with one of them cannot be frozen.
pub(crate) fn written_meanwhile(context: &Context, to_server: bool) -> Result<Vec<PathBuf>> {
    let mut paths = if to_server { Vec::new() } else { repository::written_folders(&context.global)? };
    let outputs =
        ["/proc/self/fd/1", "/proc/self/fd/2"].into_iter().filter_map(|fd| Path::new(fd).read_link().ok());
    paths.extend(outputs.filter(|path| path.is_file()));
    Ok(paths)
}
