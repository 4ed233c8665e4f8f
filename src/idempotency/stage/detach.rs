//! Work that its caller may leave, but not take with it.
//!
//! It is polled where it was begun for as long as somebody waits there, which costs no task of its own;
//! whoever stops waiting drops this, and then the work goes on in a task, tracked so that a drain can wait
//! for it. Only a runtime that goes down ends it before its end.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

/// Work that outlives whoever waits for it.
pub(super) struct Detached<T: 'static> {
    work: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    tasks: TaskTracker,
}

impl<T> Detached<T> {
    /// `work`, to go on in a task of `tasks` if nobody waits for it any more.
    pub(super) fn new(work: impl Future<Output = T> + Send + 'static, tasks: TaskTracker) -> Self {
        Self {
            work: Some(Box::pin(work)),
            tasks,
        }
    }
}

impl<T> Future for Detached<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let work = self.work.as_mut().expect("polled once to its end");
        let done = work.as_mut().poll(cx);
        if done.is_ready() {
            self.work = None;
        }
        done
    }
}

impl<T> Drop for Detached<T> {
    fn drop(&mut self) {
        // Outside a runtime there is nobody to go on; the permit the work holds says what that means.
        if let Some(work) = self.work.take()
            && Handle::try_current().is_ok()
            && !std::thread::panicking()
        {
            self.tasks.spawn(async move {
                work.await;
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
    async fn work_goes_on_when_nobody_waits_for_it_and_is_tracked() {
        let (go_on, done) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
        let tasks = TaskTracker::new();
        let work = {
            let (go_on, done) = (Arc::clone(&go_on), Arc::clone(&done));
            async move {
                go_on.notified().await;
                done.store(true, Ordering::Relaxed);
            }
        };
        let waiting = tokio::spawn(Detached::new(work, tasks.clone()));
        tokio::task::yield_now().await;
        assert!(tasks.is_empty());
        waiting.abort();
        assert!(waiting.await.unwrap_err().is_cancelled());
        assert_eq!(tasks.len(), 1);
        go_on.notify_one();
        tasks.close();
        tasks.wait().await;
        assert!(done.load(Ordering::Relaxed));
    }

    #[tokio::test]
    async fn work_that_is_waited_for_needs_no_task() {
        let tasks = TaskTracker::new();
        assert_eq!(Detached::new(async { 7 }, tasks.clone()).await, 7);
        assert!(tasks.is_empty());
    }
}
