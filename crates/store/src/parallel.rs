//! Processes many items in parallel on all cores.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Calls `work` on each of `items` in parallel; returns the results in the order of the items. Every thread has its
/// own scratch value.
pub(crate) fn parallel<T: Sync, S, R: Send>(
    items: &[T],
    scratch: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, &T) -> R + Sync,
) -> Vec<R> {
    parallel_by(cores(), items, scratch, work)
}

/// Number of threads that can run in parallel on this machine.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// [`parallel`] with `threads` threads: use more than the number of cores if they wait for a store.
pub(crate) fn parallel_by<T: Sync, S, R: Send>(
    threads: usize,
    items: &[T],
    scratch: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, &T) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let run = || {
        let (mut scratch, mut done) = (scratch(), Vec::new());
        while let Some((at, item)) =
            Some(next.fetch_add(1, Relaxed)).and_then(|at| Some((at, items.get(at)?)))
        {
            done.push((at, work(&mut scratch, item)));
        }
        done
    };
    let threads = threads.min(items.len());
    let mut results: Vec<(usize, R)> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(run)).collect();
        let mut results = run();
        for other in others {
            results.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        results
    });
    results.sort_unstable_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn results_come_in_the_order_of_items() {
        let items: Vec<u64> = (0..1000).collect();
        assert_eq!(
            super::parallel(&items, || 0, |_, item| item * 2),
            (0..2000).step_by(2).collect::<Vec<_>>()
        );
        assert!(super::parallel(&[] as &[u64], || 0, |_, item| *item).is_empty());
    }
}
