//! Lists what a store holds: records below a folder, folders in a folder, and pages of a long list.

use base::Result;
use futures::StreamExt as _;
use futures::TryStreamExt as _;
use object_store::path::Path;
use object_store::{ListResult, ObjectMeta};

use super::{Backend, LIST_BATCH, Objects, was_cut_short};
use crate::backend::files;
use crate::backend::folder::Unfinished;
use crate::error::from_store;

impl Backend {
    /// In a folder: the temporary files of writers, running or dead. Elsewhere: none.
    pub(crate) fn unfinished(&self) -> Result<Vec<Unfinished>> {
        match &self.objects {
            Objects::Folder(folder) => folder.unfinished(),
            Objects::Direct | Objects::Uploads(_) => Ok(Vec::new()),
        }
    }

    /// Deletes those of `files` that have not changed since they were listed.
    pub(crate) fn delete_unfinished(&self, files: Vec<Unfinished>) -> Result<()> {
        match &self.objects {
            Objects::Folder(folder) => folder.delete_unfinished(files),
            Objects::Direct | Objects::Uploads(_) => Ok(()),
        }
    }

    /// Calls `each` for every record below `folder`, in no particular order, without keeping all of them in memory.
    pub(crate) fn for_each(&self, folder: &Path, each: &mut dyn FnMut(ObjectMeta)) -> Result<()> {
        let mut last: Option<Path> = None;
        let mut pauses = self.pauses();
        loop {
            let before = last.clone();
            let Err(error) = self.for_each_after(folder, &mut last, each) else { return Ok(()) };
            if last != before {
                pauses = self.pauses();
            }
            match pauses.next() {
                // S3 lists paths in ascending order, so the missing ones come after the last path seen.
                Some(pause) if was_cut_short(&error) => self.executor.pause(pause)?,
                _ => return Err(from_store(format!("list `{folder}`"), error)),
            }
        }
    }

    /// Calls `each` for the path of every record below `folder`, also if the path holds something that is not a file.
    pub(crate) fn each_path(&self, folder: &Path, each: &mut dyn FnMut(Path)) -> Result<()> {
        match &self.objects {
            Objects::Folder(here) => files::each(here.root(), folder.as_ref(), each),
            _ => self.for_each(folder, &mut |found| each(found.location)),
        }
    }

    pub(super) fn for_each_after(
        &self,
        folder: &Path,
        last: &mut Option<Path>,
        each: &mut dyn FnMut(ObjectMeta),
    ) -> object_store::Result<()> {
        // `object_store` looks for a runtime on the thread that makes this call, so it must run inside `wait`.
        let mut records = self.wait(async {
            match &*last {
                None => self.store.list(Some(folder)),
                Some(last) => self.store.list_with_offset(Some(folder), last),
            }
            .fuse()
        });
        loop {
            let batch: Vec<_> = self.wait(records.by_ref().take(LIST_BATCH).collect());
            if batch.is_empty() {
                return Ok(());
            }
            for found in batch {
                let found = found?;
                *last = Some(found.location.clone());
                each(found);
            }
        }
    }

    /// The names of the folders directly in `folder`, ascending.
    pub(crate) fn folders(&self, folder: &Path) -> Result<Vec<String>> {
        let mut names: Vec<String> = self
            .look_into(folder)?
            .common_prefixes
            .iter()
            .filter_map(|path| path.filename().map(str::to_owned))
            .collect();
        names.sort();
        Ok(names)
    }

    /// Calls `each` for the name of every record directly in `folder`, not in its subfolders, in no particular order.
    pub(crate) fn each_name(&self, folder: &Path, each: &mut dyn FnMut(&str)) -> Result<()> {
        if let Objects::Folder(here) = &self.objects {
            // `object_store` would also read the size of each file: ten thousand of them to find one version number.
            return here.each_name(folder.as_ref(), each);
        }
        let records = self.look_into(folder)?.objects;
        records.iter().filter_map(|found| found.location.filename()).for_each(each);
        Ok(())
    }

    /// Whether a list can start after any name and continues in the order of names, as [`Self::page`] needs.
    pub(crate) fn lists_pages(&self) -> bool {
        self.is_far()
    }

    /// Up to [`LIST_BATCH`] records in `folder` with paths greater than `after`, and whether the list ends there.
    /// `None` if the store does not list in the order of names.
    pub(crate) fn page(&self, folder: &Path, after: &Path) -> Result<Option<(Vec<Path>, bool)>> {
        if !self.lists_pages() {
            return Ok(None);
        }
        // Inside `wait` for the same reason as in `for_each_after`.
        let list = || {
            self.wait(async {
                let records = self.store.list_with_offset(Some(folder), after).take(LIST_BATCH);
                records.map_ok(|found| found.location).try_collect::<Vec<_>>().await
            })
        };
        let mut records = self.asked(|| format!("list `{folder}`"), list)?;
        let whole = records.len() < LIST_BATCH;
        if !std::iter::once(after).chain(&records).is_sorted_by(|before, behind| before < behind) {
            return Ok(None);
        }
        records.retain(|path| path.prefix_match(folder).is_some_and(|parts| parts.count() == 1));
        Ok(Some((records, whole)))
    }

    pub(super) fn look_into(&self, folder: &Path) -> Result<ListResult> {
        let list = || self.wait(self.store.list_with_delimiter(Some(folder)));
        self.asked(|| format!("list `{folder}`"), list)
    }
}
