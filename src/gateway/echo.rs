//! Wakes that a connection gives itself for nothing.
//!
//! hyper hands a request's body over through a channel, and whoever takes a part out of it wakes the
//! connection's task, so that it puts in the next. After the last part there is no next, and where the
//! taker is that same task, as it is when a request is read whole, all it would come to is being polled
//! once more: a twenty-fifth of what a replay costs. hyper has no setting for it, so the connection is
//! polled with a waker of its own, which only notes a wake that comes from within the poll; whoever
//! takes the last part has that one note struck out again.
//!
//! A wake from anywhere else is passed on as it comes: of another task, or from another thread.

use std::cell::Cell;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

thread_local! {
    /// The poll this thread is in, if it is one of a connection.
    static POLLED: Cell<Option<Polled>> = const { Cell::new(None) };
}

/// A poll of a connection that is underway.
#[derive(Clone, Copy)]
struct Polled {
    /// Where its [`Task`] is, by which it is known.
    task: usize,
    /// Whether it has woken itself.
    woken: bool,
}

/// What a connection is polled through.
#[derive(Debug, Default)]
pub(super) struct Echoes {
    /// Made at the first poll, and kept for as long as it is the same task that polls.
    task: Option<(Arc<Task>, Waker)>,
}

/// The task that a connection is polled by.
#[derive(Debug)]
struct Task(Waker);

impl Echoes {
    /// Polls `connection`, whose wakes from within do not count if they are echoes.
    pub(super) fn poll<F: Future>(
        &mut self,
        connection: Pin<&mut F>,
        cx: &mut Context<'_>,
    ) -> Poll<F::Output> {
        let (task, waker) = match self.task.take() {
            Some((task, waker)) if task.0.will_wake(cx.waker()) => (task, waker),
            _ => {
                let task = Arc::new(Task(cx.waker().clone()));
                let waker = Waker::from(Arc::clone(&task));
                (task, waker)
            }
        };
        let underway = Underway::begin(&task);
        let polled = connection.poll(&mut Context::from_waker(&waker));
        if underway.end() {
            task.0.wake_by_ref();
        }
        self.task = Some((task, waker));
        polled
    }
}

impl Task {
    fn place(self: &Arc<Self>) -> usize {
        Arc::as_ptr(self).addr()
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        match POLLED.get() {
            Some(polled) if polled.task == self.place() => {
                let woken = true;
                POLLED.set(Some(Polled { woken, ..polled }));
            }
            _ => self.0.wake_by_ref(),
        }
    }
}

/// A poll that has begun. Should it panic, what it was within is found again as it was.
struct Underway {
    task: usize,
    within: Option<Polled>,
}

impl Underway {
    fn begin(task: &Arc<Task>) -> Self {
        let (task, woken) = (task.place(), false);
        let within = POLLED.replace(Some(Polled { task, woken }));
        Self { task, within }
    }

    /// Whether the connection has woken itself meanwhile.
    fn end(self) -> bool {
        POLLED
            .get()
            .is_some_and(|polled| polled.task == self.task && polled.woken)
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        POLLED.set(self.within);
    }
}

/// What is noted of the poll this thread is in, for whoever takes a part out of a body's channel.
pub(crate) struct Noted(Option<Polled>);

/// To be called before a part is taken.
pub(crate) fn noted() -> Noted {
    Noted(POLLED.get())
}

impl Noted {
    /// To be called after the last part was taken, and nothing else was done since: whatever was noted
    /// meanwhile was its echo.
    pub(crate) fn and_no_more(self) {
        if self.0.is_some() {
            POLLED.set(self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// Counts how often it is woken.
    #[derive(Default)]
    struct Counted(AtomicU32);

    impl Wake for Counted {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How often a connection's task is woken by one poll that does `work`.
    fn wakes(work: impl FnOnce(&Waker)) -> u32 {
        let counted = Arc::new(Counted::default());
        let waker = Waker::from(Arc::clone(&counted));
        let mut work = Some(work);
        let mut connection = poll_fn(|cx| {
            if let Some(work) = work.take() {
                work(cx.waker());
            }
            Poll::<()>::Pending
        });
        let mut echoes = Echoes::default();
        let pending = echoes.poll(Pin::new(&mut connection), &mut Context::from_waker(&waker));
        assert!(pending.is_pending());
        counted.0.load(Ordering::Relaxed)
    }

    #[test]
    fn only_the_last_part_of_a_body_wakes_nobody() {
        assert_eq!(wakes(|_| {}), 0);
        assert_eq!(wakes(Waker::wake_by_ref), 1);
        let last = |waker: &Waker| {
            let noted = noted();
            waker.wake_by_ref();
            noted.and_no_more();
        };
        assert_eq!(wakes(last), 0);
    }

    #[test]
    fn a_wake_before_the_last_part_counts() {
        let woken = wakes(|waker| {
            waker.wake_by_ref();
            let noted = noted();
            waker.wake_by_ref();
            noted.and_no_more();
        });
        assert_eq!(woken, 1);
    }

    #[test]
    fn a_wake_from_elsewhere_is_passed_on_at_once() {
        let woken = wakes(|waker| {
            let noted = noted();
            let wake = || waker.wake_by_ref();
            std::thread::scope(|scope| scope.spawn(wake).join().unwrap());
            noted.and_no_more();
        });
        assert_eq!(woken, 1);
        let mut kept = None;
        let counted = Arc::new(Counted::default());
        let waker = Waker::from(Arc::clone(&counted));
        let mut connection = poll_fn(|cx| {
            kept = Some(cx.waker().clone());
            Poll::<()>::Pending
        });
        let mut echoes = Echoes::default();
        let _pending = echoes.poll(Pin::new(&mut connection), &mut Context::from_waker(&waker));
        kept.unwrap().wake();
        assert_eq!(counted.0.load(Ordering::Relaxed), 1);
    }
}
