//! Future that is completed even if its caller drops it.
//!
//! While the caller awaits the future, no extra task is needed. If the caller drops it, it continues in a new task,
//! which only the shutdown of the runtime ends early. A `TaskTracker` counts it in both cases.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

pub(super) struct Detached<T: 'static> {
    /// `None` if the future is completed or has panicked.
    future: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    token: TaskTrackerToken,
}

impl<T> Detached<T> {
    pub(super) fn new(
        future: impl Future<Output = T> + Send + 'static,
        tasks: &TaskTracker,
    ) -> Self {
        Self {
            future: Some(Box::pin(future)),
            token: tasks.token(),
        }
    }
}

impl<T> Future for Detached<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        // Taken out, so that a panic drops it: it must not be polled again.
        let mut future = self
            .future
            .take()
            .expect("a completed future is not polled again");
        let polled = future.as_mut().poll(cx);
        if polled.is_pending() {
            self.future = Some(future);
        }
        polled
    }
}

impl<T> Drop for Detached<T> {
    fn drop(&mut self) {
        // Otherwise the future cannot continue and is dropped with its permit, which ends the claim.
        if let Some(future) = self.future.take()
            && Handle::try_current().is_ok()
            && !std::thread::panicking()
        {
            let token = self.token.clone();
            tokio::spawn(async move {
                future.await;
                drop(token);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::task::Waker;

    use tokio::sync::Notify;

    use super::*;

    #[tokio::test]
    async fn a_future_is_tracked_until_it_ends_also_if_it_is_dropped() {
        let (gate, done) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
        let tasks = TaskTracker::new();
        let future = {
            let (gate, done) = (Arc::clone(&gate), Arc::clone(&done));
            async move {
                gate.notified().await;
                done.store(true, Ordering::Relaxed);
            }
        };
        let waiting = tokio::spawn(Detached::new(future, &tasks));
        tokio::task::yield_now().await;
        assert_eq!(tasks.len(), 1);
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
        assert_eq!(Detached::new(async { 7 }, &tasks).await, 7);
        assert!(tasks.is_empty());
    }

    /// An outer layer can catch the panic of a handler and then drop the future.
    #[tokio::test]
    async fn a_future_that_panicked_is_not_polled_again() {
        let (tasks, polls) = (TaskTracker::new(), Arc::new(AtomicU32::new(0)));
        let counted = Arc::clone(&polls);
        let future = poll_fn(move |_| -> Poll<()> {
            counted.fetch_add(1, Ordering::Relaxed);
            panic!("expected in this test");
        });
        let mut detached = Box::pin(Detached::new(future, &tasks));
        let mut cx = Context::from_waker(Waker::noop());
        let polled = catch_unwind(AssertUnwindSafe(|| detached.as_mut().poll(&mut cx)));
        assert!(polled.is_err());
        drop(detached);
        tasks.close();
        tasks.wait().await;
        assert_eq!(polls.load(Ordering::Relaxed), 1);
    }
}
