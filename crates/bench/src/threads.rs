//! Work that several threads share.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Does `work` on all items by `threads` threads, each taking the next item when it is done with one. The first error
/// of a thread ends that thread; one of them is returned when all have ended.
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
