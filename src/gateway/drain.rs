//! Telling a worker's connections to finish.
//!
//! Every connection looks at the signal each time it is polled, so looking must cost next to nothing: it
//! is one load of a flag that only this worker's thread reads. A cancellation token would take a lock
//! that all workers share, once a request. Whoever is not being polled is woken, once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use slab::Slab;

/// A worker's signal to finish. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct Drain(Arc<Signal>);

#[derive(Debug, Default)]
struct Signal {
    given: AtomicBool,
    waiting: Mutex<Slab<Waker>>,
}

/// Waits for the signal, on behalf of one task.
#[derive(Debug)]
pub(super) struct Watch {
    signal: Arc<Signal>,
    /// Our place among the waiting, once we have been polled.
    place: Option<usize>,
}

impl Drain {
    /// Gives the signal.
    pub(super) fn give(&self) {
        self.0.given.store(true, Ordering::SeqCst);
        for waker in self.0.waiting.lock().drain() {
            waker.wake();
        }
    }

    /// Waits for the signal. To be polled by one and the same task throughout.
    pub(super) fn watch(&self) -> Watch {
        Watch {
            signal: Arc::clone(&self.0),
            place: None,
        }
    }
}

impl Future for Watch {
    type Output = ();

    fn poll(mut self: std::pin::Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.signal.given.load(Ordering::Relaxed) {
            return Poll::Ready(());
        }
        if self.place.is_none() {
            let place = self.signal.waiting.lock().insert(cx.waker().clone());
            self.place = Some(place);
            // Given after the first look and before our waker was in place: nobody would wake us.
            if self.signal.given.load(Ordering::SeqCst) {
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.signal.waiting.lock().try_remove(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_signal_wakes_those_who_wait_and_those_who_come_later() {
        let drain = Drain::default();
        let waiting = tokio::spawn(drain.watch());
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drain.give();
        waiting.await.unwrap();
        drain.watch().await;
    }

    #[tokio::test]
    async fn whoever_stops_waiting_leaves_nothing_behind() {
        let drain = Drain::default();
        let waiting = tokio::spawn(drain.watch());
        tokio::task::yield_now().await;
        assert_eq!(drain.0.waiting.lock().len(), 1);
        waiting.abort();
        let _ = waiting.await;
        assert!(drain.0.waiting.lock().is_empty());
    }
}
