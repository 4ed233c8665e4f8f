//! Future that is completed even if its caller drops it.
//!
//! While the caller awaits the future, the caller's task polls it, so that no extra task is needed. If the caller drops
//! the future, it continues in a new task. A `TaskTracker` tracks these tasks, so that a drain can wait for them. Only
//! the shutdown of the runtime ends such a task early.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

/// Future that continues in a new task if it is dropped before it is completed.
pub(super) struct Detached<T: 'static> {
    future: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    tasks: TaskTracker,
}

impl<T> Detached<T> {
    /// Wraps `future`. If the wrapper is dropped early, `future` continues in a task that `tasks` tracks.
    pub(super) fn new(
        future: impl Future<Output = T> + Send + 'static,
        tasks: TaskTracker,
    ) -> Self {
        Self {
            future: Some(Box::pin(future)),
            tasks,
        }
    }
}

impl<T> Future for Detached<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let future = self
            .future
            .as_mut()
            .expect("a completed future is not polled again");
        let polled = future.as_mut().poll(cx);
        if polled.is_ready() {
            self.future = None;
        }
        polled
    }
}

impl<T> Drop for Detached<T> {
    fn drop(&mut self) {
        // If there is no runtime, or during a panic, the future cannot continue. Then the future is dropped together
        // with its permit. The drop of the permit ends the claim on the idempotency key.
        if let Some(future) = self.future.take()
            && Handle::try_current().is_ok()
            && !std::thread::panicking()
        {
            self.tasks.spawn(async move {
                future.await;
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::sync::Notify;

    use super::*;

    #[tokio::test]
    async fn a_dropped_future_continues_in_a_tracked_task() {
        let (gate, done) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
        let tasks = TaskTracker::new();
        let future = {
            let (gate, done) = (Arc::clone(&gate), Arc::clone(&done));
            async move {
                gate.notified().await;
                done.store(true, Ordering::Relaxed);
            }
        };
        let waiting = tokio::spawn(Detached::new(future, tasks.clone()));
        tokio::task::yield_now().await;
        assert!(tasks.is_empty());
        waiting.abort();
        assert!(waiting.await.unwrap_err().is_cancelled());
        assert_eq!(tasks.len(), 1);
        gate.notify_one();
        tasks.close();
        tasks.wait().await;
        assert!(done.load(Ordering::Relaxed));
    }

    #[tokio::test]
    async fn an_awaited_future_needs_no_task() {
        let tasks = TaskTracker::new();
        assert_eq!(Detached::new(async { 7 }, tasks.clone()).await, 7);
        assert!(tasks.is_empty());
    }
}
