//! Attempts made, waits waited: a policy carried out on tokio's clock.
//!
//! The loop that programs would otherwise write around a [`RetryState`]. It sleeps and it draws
//! chance, and both can be taken from it for a test: tokio's paused clock, a seed, and a wall clock of the
//! caller's own for HTTP dates give the same run every time.
//!
//! It is made anew for every request, and cannot be cloned: two that shared a seed would come back together.
//! Dropping the future ends it wherever it is; an attempt that was on its way is dropped with it. Whether the
//! request may be sent twice at all is for the caller to know.

use std::fmt;
use std::time::{Duration, SystemTime};

use fastrand::Rng;
use tokio::time::{self, Instant};

use super::environment::Settings;
use super::error::{GaveUp, Last, RetryableError};
use super::policy::{GiveUp, Next, Policy, RetryState};

/// One request, tried as often as its policy says.
///
/// ```
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
/// # runtime.expect("a runtime").block_on(async {
/// use http::StatusCode;
/// use tidegate::retry::{Failure, Preset, Retrying};
///
/// let answer = Retrying::new(Preset::Standard.policy())
///     .run(async |attempt| match attempt {
///         1 | 2 => Err(Failure::from(StatusCode::SERVICE_UNAVAILABLE)),
///         _ => Ok("well"),
///     })
///     .await?;
/// assert_eq!(answer, "well");
/// # Ok::<_, Box<dyn std::error::Error>>(()) }).expect("an answer");
/// ```
pub struct Retrying<O = ()> {
    policy: Policy,
    /// How long an attempt may take.
    timeout: Option<Duration>,
    random: Rng,
    wall: Box<dyn Fn() -> SystemTime + Send + Sync>,
    observer: O,
}

/// An attempt that failed, as an [`Observer`] sees it.
#[derive(Clone, Copy)]
pub struct FailedAttempt<'a> {
    /// Which attempt it was; the first is 1.
    pub attempt: u32,
    /// Attempts there may be in all.
    pub attempts: u32,
    /// What went wrong.
    pub error: &'a dyn RetryableError,
    /// What the answer told the caller to wait, obeyed or not.
    pub retry_after: Option<Duration>,
    /// What comes next.
    pub next: Next,
}

/// Is told of every attempt that failed, before the wait for the next one or the end of it all.
///
/// Any closure that takes a [`FailedAttempt`] is one, for an error callback; two of them in a pair are told one after
/// the other. For ready-made ones see [`events`](super::events).
pub trait Observer {
    /// An attempt failed.
    fn failed(&mut self, failed: &FailedAttempt<'_>);
}

impl Observer for () {
    fn failed(&mut self, _: &FailedAttempt<'_>) {}
}

impl<F: FnMut(&FailedAttempt<'_>)> Observer for F {
    fn failed(&mut self, failed: &FailedAttempt<'_>) {
        self(failed);
    }
}

impl<A: Observer, B: Observer> Observer for (A, B) {
    fn failed(&mut self, failed: &FailedAttempt<'_>) {
        self.0.failed(failed);
        self.1.failed(failed);
    }
}

impl Retrying {
    /// A request under this policy, with chance from the system and nobody watching.
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            timeout: None,
            random: Rng::new(),
            wall: Box::new(SystemTime::now),
            observer: (),
        }
    }
}

impl From<Settings> for Retrying {
    fn from(settings: Settings) -> Self {
        Self {
            timeout: settings.timeout,
            ..Self::new(settings.policy)
        }
    }
}

impl<O> Retrying<O> {
    /// Gives every attempt this long; one that takes longer is dropped, and counts as timed out.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self {
            timeout: Some(timeout),
            ..self
        }
    }

    /// Draws chance from this seed. Only for tests and simulations: callers with one seed act as one.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        Self {
            random: Rng::with_seed(seed),
            ..self
        }
    }

    /// Takes the date from `wall`, for a `Retry-After` that names one.
    #[must_use]
    pub fn wall(self, wall: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        Self {
            wall: Box::new(wall),
            ..self
        }
    }

    /// Has `observer` told of every attempt that failed, in the place of the one before.
    #[must_use]
    pub fn observer<P: Observer>(self, observer: P) -> Retrying<P> {
        Retrying {
            policy: self.policy,
            timeout: self.timeout,
            random: self.random,
            wall: self.wall,
            observer,
        }
    }
}

impl<O: Observer> Retrying<O> {
    /// Has attempts made until one succeeds or there is none left; each is told its number, from 1.
    // With `AsyncFnMut` an attempt could borrow from the closure, but then the compiler does not see that the
    // whole is `Send` as soon as anything is borrowed, and nobody could spawn it.
    pub async fn run<T, E, A>(mut self, mut attempt: impl FnMut(u32) -> A) -> Result<T, GaveUp<E>>
    where
        E: RetryableError,
        A: Future<Output = Result<T, E>>,
    {
        let began = Instant::now();
        let mut course = self.policy.begin();
        let mut attempts = 0;
        loop {
            attempts += 1;
            let last = match within(self.timeout, attempt(attempts)).await {
                Ok(answer) => return Ok(answer),
                Err(last) => last,
            };
            let next = self.next(&mut course, attempts, last.error(), began.elapsed());
            let delay = match next {
                Next::Retry(wait) => wait.delay,
                Next::GiveUp(why) => {
                    return Err(GaveUp {
                        why,
                        attempts,
                        last,
                    });
                }
            };
            // It may hold a connection, which somebody else could use meanwhile.
            drop(last);
            time::sleep(delay).await;
        }
    }

    /// What comes after an attempt that failed like this, once the observer knows.
    fn next(
        &mut self,
        course: &mut RetryState,
        attempt: u32,
        error: &dyn RetryableError,
        elapsed: Duration,
    ) -> Next {
        let told = error.retry_after();
        let retry_after = told.map(|told| told.wait((self.wall)()));
        let next = match error.failure() {
            Some(failure) => course.failed(failure, retry_after, elapsed, &mut self.random),
            None => Next::GiveUp(GiveUp::NotWorthIt),
        };
        self.observer.failed(&FailedAttempt {
            attempt,
            attempts: self.policy.attempts.get(),
            error,
            retry_after,
            next,
        });
        next
    }
}

/// How an attempt ends that may take this long.
async fn within<T, E>(
    timeout: Option<Duration>,
    attempt: impl Future<Output = Result<T, E>>,
) -> Result<T, Last<E>> {
    let Some(timeout) = timeout else {
        return attempt.await.map_err(Last::Failed);
    };
    match time::timeout(timeout, attempt).await {
        Ok(ended) => ended.map_err(Last::Failed),
        Err(_) => Err(Last::TimedOut(timeout)),
    }
}

impl<O: fmt::Debug> fmt::Debug for Retrying<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retrying")
            .field("policy", &self.policy)
            .field("timeout", &self.timeout)
            .field("observer", &self.observer)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for FailedAttempt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "attempt {} of {}: ", self.attempt, self.attempts)?;
        write!(f, "{}, then {:?}", self.error, self.next)
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::num::NonZeroU32;
    use std::sync::Mutex;

    use http::StatusCode;

    use super::super::{ErrorResponse, Failure, Preset, RetryAfter};
    use super::*;

    const BUSY: Failure = Failure::Status(StatusCode::SERVICE_UNAVAILABLE);

    /// 1, 2, 4 s, and `Retry-After` obeyed.
    fn plain(attempts: u32) -> Policy {
        Policy {
            backoff: Preset::Sender.policy().backoff,
            attempts: NonZeroU32::new(attempts).unwrap(),
            ..Preset::Standard.policy()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_success_ends_it() {
        let began = Instant::now();
        let answer = Retrying::new(plain(5))
            .run(async |attempt| if attempt < 3 { Err(BUSY) } else { Ok(attempt) })
            .await;
        assert_eq!(answer.unwrap(), 3);
        assert_eq!(began.elapsed(), Duration::from_secs(3));
    }

    #[tokio::test(start_paused = true)]
    async fn attempts_that_take_long_are_cut_off_and_tried_again() {
        let began = Instant::now();
        let gave_up = Retrying::new(plain(2))
            .timeout(Duration::from_millis(500))
            .run(async |_| std::future::pending::<Result<(), Failure>>().await)
            .await
            .unwrap_err();
        assert_eq!(gave_up.last, Last::TimedOut(Duration::from_millis(500)));
        assert_eq!((gave_up.why, gave_up.attempts), (GiveUp::Exhausted, 2));
        assert_eq!(began.elapsed(), Duration::from_secs(2));
    }

    #[tokio::test(start_paused = true)]
    async fn time_spent_in_attempts_counts_against_the_deadline() {
        let policy = Policy {
            deadline: Some(Duration::from_secs(5)),
            ..plain(9)
        };
        let slow = async |_| {
            time::sleep(Duration::from_millis(1_500)).await;
            Err::<(), _>(BUSY)
        };
        let gave_up = Retrying::new(policy).run(slow).await.unwrap_err();
        // 1.5 s and a wait of 1 s, 1.5 s more, and a wait of 2 s would end too late.
        assert_eq!((gave_up.why, gave_up.attempts), (GiveUp::TooLate, 2));
    }

    #[tokio::test]
    async fn an_error_that_is_not_about_the_network_ends_it_at_once() {
        let gave_up = Retrying::new(plain(5))
            .run(async |_| Err::<(), _>(io::Error::from(io::ErrorKind::InvalidData)))
            .await
            .unwrap_err();
        assert_eq!((gave_up.why, gave_up.attempts), (GiveUp::NotWorthIt, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_date_is_waited_for_by_the_wall_clock_it_is_given() {
        let began = Instant::now();
        let epoch = SystemTime::UNIX_EPOCH;
        let until = ErrorResponse {
            status: StatusCode::TOO_MANY_REQUESTS,
            retry_after: Some(RetryAfter::At(epoch + Duration::from_secs(100))),
        };
        let answer = Retrying::new(plain(5))
            .wall(move || epoch + Duration::from_secs(93) + began.elapsed())
            .run(async |attempt| if attempt == 1 { Err(until) } else { Ok(()) })
            .await;
        assert!(answer.is_ok());
        assert_eq!(began.elapsed(), Duration::from_secs(7));
    }

    #[tokio::test(start_paused = true)]
    async fn observers_are_told_of_every_retry_and_of_the_end() {
        let seen = Mutex::new(Vec::new());
        let told = |failed: &FailedAttempt<'_>| seen.lock().unwrap().push(format!("{failed:?}"));
        let mut count = 0;
        let counted = |_: &FailedAttempt<'_>| count += 1;
        let gave_up = Retrying::new(plain(2))
            .observer((told, counted))
            .run(async |_| Err::<(), _>(BUSY))
            .await;
        assert!(gave_up.is_err());
        assert_eq!(count, 2);
        let seen = seen.into_inner().unwrap();
        assert_eq!(
            seen,
            [
                "attempt 1 of 2: 503 Service Unavailable, then Retry(Wait { delay: 1s, told: false })",
                "attempt 2 of 2: 503 Service Unavailable, then GiveUp(Exhausted)",
            ]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn one_seed_gives_one_run_and_another_gives_another() {
        let took = async |seed| {
            let began = Instant::now();
            let retrying = Retrying::new(Preset::Standard.policy()).seed(seed);
            let gave_up = retrying.run(async |_| Err::<(), _>(BUSY)).await;
            assert!(gave_up.is_err());
            began.elapsed()
        };
        let (one, again, another) = (took(1).await, took(1).await, took(2).await);
        assert_eq!(one, again);
        assert_ne!(one, another);
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_can_be_spawned_though_attempts_borrow_what_they_use() {
        let spawned = tokio::spawn(async move {
            let answers = [Err(BUSY), Ok("well".to_owned())];
            let attempt = async |attempt| {
                time::sleep(Duration::from_secs(1)).await;
                answers[attempt as usize - 1].clone()
            };
            let watched = Retrying::new(plain(5)).observer(|_: &FailedAttempt<'_>| ());
            watched.run(attempt).await
        });
        assert_eq!(spawned.await.unwrap().unwrap(), "well");
    }
}
