//! Runs many single-threaded simulations on all cores.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Runs `work` on every item, on all cores. The results are in the order of the items.
///
/// # Panics
/// If `work` panics.
pub fn on_all_cores<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let next = AtomicUsize::new(0);
    let take = || next.fetch_add(1, Ordering::Relaxed);
    let one_thread = || {
        let mine = std::iter::from_fn(|| {
            let index = take();
            Some((index, items.get(index)?))
        });
        mine.map(|(index, item)| (index, work(item))).collect::<Vec<_>>()
    };
    let mut all: Vec<(usize, R)> = thread::scope(|scope| {
        let running: Vec<_> =
            (0..threads.min(items.len())).map(|_| scope.spawn(one_thread)).collect();
        running
            .into_iter()
            .flat_map(|thread| thread.join().expect("`work` does not panic"))
            .collect()
    });
    all.sort_unstable_by_key(|(index, _)| *index);
    all.into_iter().map(|(_, result)| result).collect()
}
