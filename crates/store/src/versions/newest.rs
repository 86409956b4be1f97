//! Finds the newest version of an image without listing all of them. formats/repository.md, "Versions".
//!
//! S3 lists in the order of names, one page at a time, starting at any name. So the end of a long list is found by
//! exponential and binary search. A folder returns all names at once. If an earlier newest number is known, probing
//! the numbers after it is faster than any list.

use std::collections::HashMap;

use base::Result;
use object_store::path::Path;
use parking_lot::{Mutex, MutexGuard};

use crate::layout;
use crate::names::ImageName;
use crate::repository::Repository;

/// How many numbers after the known newest one are probed one by one, before a list is requested: in a folder, and
/// over a network, where each probe is a request.
const STEPS_MAX: usize = 64;
const STEPS_FAR_MAX: usize = 1;
/// About the number of records on one page of a list.
const PAGE_RECORDS: u64 = 1000;

/// The end of the numbers of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Newest {
    /// The highest number that is not removed, if there is one.
    pub(crate) live: Option<u64>,
    /// The highest number that was ever used, 0 if none was.
    pub(crate) highest: u64,
}

/// Most images for which a process remembers the end of the numbers.
const SEEN_MAX: usize = 1024;

/// The end of the numbers of each image when this process last looked.
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
    /// Whether these are all numbers in the folder.
    whole: bool,
}

impl Repository {
    /// The end of the numbers of `image` in the store now. Starts the search from the end that this process saw last.
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

    /// The end of the numbers of `image`; `known` is an earlier result, if there is one.
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

    /// The end of the numbers, if `versions` are the last numbers with a manifest; `None` if all of these are
    /// removed.
    fn ends(&self, image: &ImageName, versions: &[u64]) -> Result<Option<Newest>> {
        let (Some(first), Some(last)) = (versions.first(), versions.last()) else { return Ok(None) };
        // List tombstones after versions, so that a version removed in between is listed with its tombstone.
        let removed = self.numbers_behind(&layout::removed_of(image), first - 1)?;
        let highest = removed.last().max(Some(last)).copied().unwrap_or(0);
        // After the tombstones, since records deleted in between are below a floor.
        let floor = self.floor(image)?;
        let is_live = |number: &&u64| **number > floor && removed.binary_search(number).is_err();
        let live = versions.iter().rev().find(is_live);
        Ok(live.map(|&live| Newest { live: Some(live), highest }))
    }

    /// The end of the numbers, searched number by number from `live` and `highest` on. `None` if that would take too
    /// long, or if `live` was removed.
    fn step(&self, image: &ImageName, live: u64, highest: u64) -> Result<Option<Newest>> {
        let (mut live, mut highest) = (live, highest);
        let steps = if self.backend.lists_pages() { STEPS_FAR_MAX } else { STEPS_MAX };
        for number in (highest..u64::MAX).map(|number| number + 1).take(steps) {
            let there = self.backend.size(&layout::version(image, number))?.is_some();
            let removed = self.backend.size(&layout::removed(image, number))?.is_some();
            if !there && !removed {
                // While version `live` exists, no floor has reached it, so no number above it was deleted and missed.
                // Check its tombstone first, because a prune deletes it after the manifest.
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

    /// The last numbers in `folder`; only one page of them if that is known to include the highest.
    fn tail(&self, folder: &Path) -> Result<Tail> {
        let all = || Ok(Tail { numbers: self.numbers_in(folder)?, whole: true });
        let Some(mut page) = self.page(folder, 0)? else { return all() };
        let whole = page.whole;
        // `above`: a number after which there were no records a moment ago. Doubling steps find it, then bisection.
        let (mut step, mut above) = (PAGE_RECORDS, None);
        while !page.whole {
            let Some(&last) = page.numbers.last() else { return all() };
            let from = match above {
                None => last.saturating_add(step),
                Some(above) if above > last.saturating_add(PAGE_RECORDS) => last + (above - last) / 2,
                // Close to the end: continue page by page.
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

    /// The numbers after `after` on one page of `folder`, and whether it is the last page. `None` if the store does
    /// not list in the order of names.
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

    /// The expected result, from all numbers.
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
                // Some are removed, and a prune has deleted some of their manifests.
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
        // Remove the newest versions, from the last downwards.
        for number in (number.saturating_sub(3)..=number).rev().filter(|number| *number > 0) {
            put(repository, &layout::removed(&image, number));
            let newest = expected(repository, &image);
            assert!(find(None) == newest && find(known.last().copied()) == newest, "seed {seed}");
        }
    }

    #[test]
    fn ends_are_those_of_all_numbers_where_lists_have_pages() {
        let check = CapabilityCheck::new("memory".to_owned(), None);
        let backend = Backend::network(Arc::new(InMemory::new()), check, 32).unwrap();
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
        let backend = Backend::network(Arc::new(InMemory::new()), check, 32).unwrap();
        let repository = Repository::create_on(backend, "far".to_owned(), None).unwrap();
        let image: ImageName = "image".parse().unwrap();
        for number in [1, 2, 999, 1000, 1001, 70_000, u64::MAX - 1, u64::MAX] {
            put(&repository, &layout::version(&image, number));
            assert_eq!(repository.newest_numbers(&image, None).unwrap(), expected(&repository, &image));
        }
    }
}
