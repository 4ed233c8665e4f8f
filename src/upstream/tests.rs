//! Test support: servers without sockets, and calls at the same time.

pub(crate) mod in_memory;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Calls `call` for both inputs at the same time, each in its own thread. Returns the results that are not `None`.
pub(super) fn at_once<I: Send, T: Send>(
    inputs: [I; 2],
    call: impl Fn(I) -> Option<T> + Sync,
) -> Vec<T> {
    let (call, ready) = (&call, &AtomicUsize::new(0));
    thread::scope(|scope| {
        let threads = inputs.map(|input| {
            scope.spawn(move || {
                // A barrier would wake the threads one after the other.
                ready.fetch_add(1, Ordering::Relaxed);
                while ready.load(Ordering::Relaxed) < 2 {
                    thread::yield_now();
                }
                call(input)
            })
        });
        let results = threads.map(|thread| thread.join().unwrap());
        results.into_iter().flatten().collect()
    })
}
