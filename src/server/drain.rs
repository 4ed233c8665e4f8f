//! Signal from a worker to its connections that a drain has started.
//!
//! A connection checks the signal on every poll, so the check loads one flag that only this worker's thread reads. With
//! a cancellation token, each request would take a lock that all workers share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use slab::Slab;

#[derive(Clone, Debug, Default)]
pub(super) struct DrainSignal(Arc<SignalState>);

#[derive(Debug, Default)]
struct SignalState {
    is_sent: AtomicBool,
    waiting: Mutex<Slab<Waker>>,
}

/// Must not be polled by more than one task, because it registers only the waker of its first poll.
#[derive(Debug)]
pub(super) struct DrainWatch {
    signal: Arc<SignalState>,
    /// Index of the waker in `waiting`. `None` before the first poll.
    slot: Option<usize>,
}

impl DrainSignal {
    pub(super) fn send(&self) {
        self.0.is_sent.store(true, Ordering::SeqCst);
        for waker in self.0.waiting.lock().drain() {
            waker.wake();
        }
    }

    pub(super) fn watch(&self) -> DrainWatch {
        DrainWatch {
            signal: Arc::clone(&self.0),
            slot: None,
        }
    }
}

impl Future for DrainWatch {
    type Output = ();

    fn poll(mut self: std::pin::Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.signal.is_sent.load(Ordering::Relaxed) {
            return Poll::Ready(());
        }
        if self.slot.is_none() {
            let slot = self.signal.waiting.lock().insert(cx.waker().clone());
            self.slot = Some(slot);
            // A signal between the first check and the registration does not wake this task.
            if self.signal.is_sent.load(Ordering::SeqCst) {
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }
}

impl Drop for DrainWatch {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            self.signal.waiting.lock().try_remove(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_watch_is_ready_after_the_signal_whether_created_before_or_after_it() {
        let drain = DrainSignal::default();
        let waiting = tokio::spawn(drain.watch());
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drain.send();
        waiting.await.unwrap();
        drain.watch().await;
    }

    #[tokio::test]
    async fn a_dropped_watch_removes_its_waker() {
        let drain = DrainSignal::default();
        let waiting = tokio::spawn(drain.watch());
        tokio::task::yield_now().await;
        assert_eq!(drain.0.waiting.lock().len(), 1);
        waiting.abort();
        assert!(waiting.await.is_err_and(|error| error.is_cancelled()));
        assert!(drain.0.waiting.lock().is_empty());
    }
}
