//! The newest version of an image, found without a look at all of them. formats/repository.md, "Versions".
//!
//! S3 lists in the order of names, a page at a time, from any name on. So the end of a long list is found as that of a
//! book is: by opening it further and further behind. A folder tells all its names at once. Where the newest number at
//! some time is known, looking for the one behind it is quicker than any list.

use std::collections::HashMap;

use base::Result;
use object_store::path::Path;
use parking_lot::{Mutex, MutexGuard};

use crate::layout;
use crate::names::ImageName;
use crate::repository::Repository;

/// Numbers that are looked for one by one behind the newest that is known, before a list is asked for: in a folder, and
/// in a network, where each look is a request.
const STEPS_MAX: usize = 64;
const STEPS_FAR_MAX: usize = 1;
/// About as many records are on one page of a list.
const PAGE_RECORDS: u64 = 1000;

/// Where the numbers of an image end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Newest {
    /// The highest that is not removed, if there is one.
    pub(crate) live: Option<u64>,
    /// The highest that was ever used, 0 if none was.
    pub(crate) highest: u64,
}

/// Most images of which a process remembers where their numbers ended.
const SEEN_MAX: usize = 1024;

/// Where the numbers of images ended when this process last looked.
#[derive(Debug, Default)]
struct Seen(Mutex<HashMap<ImageName, Newest>>);

impl Seen {
    fn lock(&self) -> MutexGuard<'_, HashMap<ImageName, Newest>> {
        self.0.lock()
    }
}

/// The last numbers in a folder, ascending.
struct Tail {
    numbers: Vec<u64>,
    /// Whether these are all.
    whole: bool,
}

impl Repository {
    /// Where the numbers of `image` end in the store now, found from where this process last saw them end.
    pub(crate) fn newest_seen(&self, image: &ImageName) -> Result<Newest> {
        let seen = self.memory.get::<Seen>();
        let known = seen.lock().get(image).copied();
        let newest = self.newest_numbers(image, known)?;
        let mut seen = seen.lock();
        if seen.len() >= SEEN_MAX && !seen.contains_key(image) {
            seen.clear();
        }
        seen.insert(image.clone(), newest);
        Ok(newest)
    }

    /// Where the numbers of `image` end; `known` is where they ended at some time, if somebody knows.
    pub(crate) fn newest_numbers(&self, image: &ImageName, known: Option<Newest>) -> Result<Newest> {
        if let Some(Newest { live: Some(live), highest }) = known {
            if let Some(newest) = self.step(image, live, highest)? {
                return Ok(newest);
            }
            if self.backend.lists_pages() {
                let mut versions = self.numbers_behind(&layout::versions_of(image), live)?;
                versions.insert(0, live);
                if let Some(newest) = self.ends(image, &versions)? {
                    return Ok(newest);
                }
            }
        }
        let versions = self.tail(&layout::versions_of(image))?;
        match self.ends(image, &versions.numbers)? {
            Some(newest) => Ok(newest),
            None if versions.whole => {
                let highest = self.newest_number(&layout::removed_of(image))?.unwrap_or(0);
                Ok(Newest { live: None, highest: highest.max(self.floor(image)?) })
            }
            None => {
                let numbers = self.numbers(image)?;
                Ok(Newest { live: numbers.live.last().copied(), highest: numbers.highest })
            }
        }
    }

    /// The highest number of a record in `folder`.
    pub(crate) fn newest_number(&self, folder: &Path) -> Result<Option<u64>> {
        Ok(self.tail(folder)?.numbers.last().copied())
    }

    /// Where the numbers end of which `versions` are the last that have a manifest; `None` if all these are removed.
    fn ends(&self, image: &ImageName, versions: &[u64]) -> Result<Option<Newest>> {
        let (Some(first), Some(last)) = (versions.first(), versions.last()) else { return Ok(None) };
        // Tombstones after versions: a version that is removed in between is listed with its tombstone.
        let removed = self.numbers_behind(&layout::removed_of(image), first - 1)?;
        let highest = removed.last().max(Some(last)).copied().unwrap_or(0);
        // After the tombstones, since what is deleted in between is below a floor.
        let floor = self.floor(image)?;
        let is_live = |number: &&u64| **number > floor && removed.binary_search(number).is_err();
        let live = versions.iter().rev().find(is_live);
        Ok(live.map(|&live| Newest { live: Some(live), highest }))
    }

    /// The same from `live` and `highest` on, number by number; `None` if that would take long, or `live` was removed.
    fn step(&self, image: &ImageName, live: u64, highest: u64) -> Result<Option<Newest>> {
        let (mut live, mut highest) = (live, highest);
        let steps = if self.backend.lists_pages() { STEPS_FAR_MAX } else { STEPS_MAX };
        for number in (highest..u64::MAX).map(|number| number + 1).take(steps) {
            let there = self.backend.size(&layout::version(image, number))?.is_some();
            let removed = self.backend.size(&layout::removed(image, number))?.is_some();
            if !there && !removed {
                // Nothing above a version that is still there is below a floor, so that no number was passed over. Its
                // tombstone is looked for first: it goes after the manifest.
                let is_live =
                    !self.is_removed(image, live)? && self.backend.exists(&layout::version(image, live))?;
                return Ok(is_live.then_some(Newest { live: Some(live), highest }));
            }
            highest = number;
            if !removed {
                live = number;
            }
        }
        Ok(None)
    }

    /// The numbers of the records in `folder` above `after`, ascending.
    fn numbers_behind(&self, folder: &Path, after: u64) -> Result<Vec<u64>> {
        let mut numbers = Vec::new();
        let mut from = after;
        while let Some(page) = self.page(folder, from)? {
            numbers.extend_from_slice(&page.numbers);
            match page.numbers.last() {
                Some(&last) if !page.whole => from = last,
                _ if page.whole => return Ok(numbers),
                _ => break,
            }
        }
        let mut numbers = self.numbers_in(folder)?;
        numbers.retain(|&number| number > after);
        Ok(numbers)
    }

    /// The last numbers in `folder`: at most those of a page where that is known to be enough.
    fn tail(&self, folder: &Path) -> Result<Tail> {
        let all = || Ok(Tail { numbers: self.numbers_in(folder)?, whole: true });
        let Some(mut page) = self.page(folder, 0)? else { return all() };
        let whole = page.whole;
        // Nothing was behind `above` a moment ago.
        let (mut step, mut above) = (PAGE_RECORDS, None);
        while !page.whole {
            let Some(&last) = page.numbers.last() else { return all() };
            let from = match above {
                None => last.saturating_add(step),
                Some(above) if above > last.saturating_add(PAGE_RECORDS) => last + (above - last) / 2,
                // From here on page by page.
                Some(_) => last,
            };
            let Some(next) = self.page(folder, from)? else { return all() };
            if !next.numbers.is_empty() || !next.whole {
                page = next;
                step = step.saturating_mul(2);
            } else if from > last {
                above = Some(from);
            } else {
                break;
            }
        }
        Ok(Tail { numbers: page.numbers, whole })
    }

    /// The numbers behind `after` on a page of `folder`, and whether there is no page behind that; `None` from a store
    /// that has no pages in the order of names.
    fn page(&self, folder: &Path, after: u64) -> Result<Option<Tail>> {
        let from = layout::numbered(folder.clone(), after);
        let page = self.backend.page(folder, &from)?;
        Ok(page.map(|(records, whole)| Tail {
            numbers: records.iter().filter_map(layout::number_of).collect(),
            whole,
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use base::Chance;
    use bytes::Bytes;
    use object_store::memory::InMemory;

    use super::*;
    use crate::Location;
    use crate::backend::Backend;
    use crate::backend::capabilities::CapabilityCheck;

    fn put(repository: &Repository, path: &Path) {
        repository.backend.create_unproven(path, &Bytes::from_static(b"whatever")).unwrap();
    }

    /// As all the numbers tell.
    fn expected(repository: &Repository, image: &ImageName) -> Newest {
        let numbers = repository.numbers(image).unwrap();
        Newest { live: numbers.live.last().copied(), highest: numbers.highest }
    }

    fn ends_are_found(repository: &Repository, seed: u64) {
        let mut chance = Chance::from_seed(seed);
        let image: ImageName = format!("image{seed}").parse().unwrap();
        let find = |known| repository.newest_numbers(&image, known).unwrap();
        assert_eq!(find(None), Newest { live: None, highest: 0 });
        let (mut number, mut known) = (0, Vec::new());
        let step = [1, 200, 900, 1500][usize::try_from(seed % 4).unwrap()];
        for _ in 0..4 {
            for _ in 0..chance.below(step) {
                number += 1;
                // Some are removed, and of some of these the manifest was pruned.
                let removed = chance.hits(200_000);
                if !removed || chance.hits(500_000) {
                    put(repository, &layout::version(&image, number));
                }
                if removed {
                    put(repository, &layout::removed(&image, number));
                }
            }
            put(repository, &layout::versions_of(&image).join("0stranger"));
            known.push(expected(repository, &image));
            for before in &known {
                assert_eq!(find(Some(*before)), known[known.len() - 1], "seed {seed}: since {before:?}");
            }
            assert_eq!(find(None), known[known.len() - 1], "seed {seed}");
        }
        // The newest ones go, last first.
        for number in (number.saturating_sub(3)..=number).rev().filter(|number| *number > 0) {
            put(repository, &layout::removed(&image, number));
            let newest = expected(repository, &image);
            assert!(find(None) == newest && find(known.last().copied()) == newest, "seed {seed}");
        }
    }

    #[test]
    fn ends_are_those_of_all_numbers_where_lists_have_pages() {
        let check = CapabilityCheck::new("memory".to_owned(), None);
        let backend = Backend::network(Arc::new(InMemory::new()), check).unwrap();
        let repository = Repository::create_on(backend, "far".to_owned(), None).unwrap();
        (0..16).for_each(|seed| ends_are_found(&repository, seed));
    }

    #[test]
    fn ends_are_those_of_all_numbers_in_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let repository = Repository::create(&Location::Folder(folder.path().into())).unwrap();
        (0..2).for_each(|seed| ends_are_found(&repository, seed));
    }

    #[test]
    fn numbers_that_were_lost_hide_none_behind_them() {
        let check = CapabilityCheck::new("memory".to_owned(), None);
        let backend = Backend::network(Arc::new(InMemory::new()), check).unwrap();
        let repository = Repository::create_on(backend, "far".to_owned(), None).unwrap();
        let image: ImageName = "image".parse().unwrap();
        for number in [1, 2, 999, 1000, 1001, 70_000, u64::MAX - 1, u64::MAX] {
            put(&repository, &layout::version(&image, number));
            assert_eq!(repository.newest_numbers(&image, None).unwrap(), expected(&repository, &image));
        }
    }
}
