//! Gets many objects by unicast at a time.

use std::ops::Range;
use std::time::Duration;

use base::Result;
use bytes::Bytes;
use image::{Catalogue, Installer, ObjectRef, ObjectSource, Offer};
use parking_lot::Mutex;

use crate::clock::{Clock, Stop};

/// Fetches the chunks that `installer` misses from `source`, `most` at a time, until `limit` has passed, a fetch fails,
/// or `stop` is set.
pub(super) fn pull_chunks(
    catalogue: &Catalogue,
    installer: &Installer,
    (source, most): (&dyn ObjectSource, usize),
    stop: &Stop,
    limit: Option<Duration>,
) -> Result<()> {
    let clock = Clock::start();
    let is_over = || stop.is_stopped() || limit.is_some_and(|limit| clock.elapsed() >= limit);
    let failed = Mutex::new(None);
    let get = |id: u64| {
        let object = catalogue.objects()[usize::try_from(id).expect("chunks of the catalogue are missing")];
        match installer.offer(id, source.fetch(&object)?)? {
            Offer::Taken | Offer::Known | Offer::Full => Ok(()),
            Offer::Wrong(error) => Err(error),
        }
    };
    at_once(most, installer.missing().into_iter().flatten(), |id| {
        if is_over() {
            return false;
        }
        let got = get(id);
        let goes_on = got.is_ok();
        if let Err(error) = got {
            failed.lock().get_or_insert(error);
        }
        goes_on
    });
    failed.into_inner().map_or(Ok(()), Err)
}

/// Fetches `objects`, `most` at a time, until one fails or `stop` is set.
pub(super) fn fetch_all(
    source: &dyn ObjectSource,
    objects: &[(u64, ObjectRef)],
    most: usize,
    stop: &Stop,
) -> Vec<(u64, Result<Bytes>)> {
    let fetched = Mutex::new(Vec::with_capacity(objects.len()));
    at_once(most.min(objects.len()), objects.iter(), |(id, object)| {
        let bytes = source.fetch(object);
        let goes_on = bytes.is_ok() && !stop.is_stopped();
        fetched.lock().push((*id, bytes));
        goes_on
    });
    fetched.into_inner()
}

/// Calls `work` for each of `items` from `threads` threads, until a call returns false.
fn at_once<T>(threads: usize, items: impl Iterator<Item = T> + Send, work: impl Fn(T) -> bool + Sync) {
    let items = Mutex::new(Some(items));
    let next = || items.lock().as_mut()?.next();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(item) = next() {
                    if !work(item) {
                        *items.lock() = None;
                    }
                }
            });
        }
    });
}

/// Groups ascending numbers into runs of consecutive ones.
pub(super) fn runs(numbers: &[u64]) -> impl Iterator<Item = Range<u64>> + '_ {
    numbers.chunk_by(|a, b| a + 1 == *b).map(|run| run[0]..run[run.len() - 1] + 1)
}
