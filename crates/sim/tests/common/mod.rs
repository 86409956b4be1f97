//! What tests of many seeds share.

use std::sync::atomic::{AtomicU64, Ordering};

/// Runs `what` for all seeds below `seeds`, on all cores.
pub(crate) fn for_seeds(seeds: u64, what: impl Fn(u64) + Sync) {
    let next = AtomicU64::new(0);
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds {
                        return;
                    }
                    what(seed);
                }
            });
        }
    });
}
