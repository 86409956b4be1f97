//! Distributes work to several threads.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Calls `work` for all items in `threads` threads; each thread takes the next item when it has finished one. An
/// error ends its thread; one of the errors is returned when all threads have ended.
pub(crate) fn each<T: Sync, E: Send>(
    items: &[T],
    threads: usize,
    work: impl Fn(&T) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let next = AtomicUsize::new(0);
    let run = || {
        while let Some(item) = items.get(next.fetch_add(1, Relaxed)) {
            work(item)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no thread panics"))
    })
}
