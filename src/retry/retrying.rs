//! Retry loop: makes the attempts of a request and sleeps between them, with tokio timers.
//!
//! Each request needs its own [`Retrying`], which cannot be cloned, because two copies with the same seed would retry
//! at the same times. Dropping the future of [`Retrying::run`] drops the attempt in flight. The caller must decide
//! whether it is safe to send the request twice. For reproducible tests, the tokio clock can be paused, and seed and
//! wall clock can be set.

use std::fmt;
use std::time::{Duration, SystemTime};

use fastrand::Rng;
use tokio::time::{self, Instant};

use super::environment::Settings;
use super::error::{GaveUp, Last, RetryableError};
use super::policy::{GiveUp, Next, RetryPolicy, RetryState};

/// Retry loop of one request.
///
/// ```
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
/// # runtime.expect("a runtime").block_on(async {
/// use http::StatusCode;
/// use tidegate::retry::{Failure, Preset, Retrying};
///
/// let response = Retrying::new(Preset::Standard.policy())
///     .run(async |attempt| match attempt {
///         1 | 2 => Err(Failure::from(StatusCode::SERVICE_UNAVAILABLE)),
///         _ => Ok("healthy"),
///     })
///     .await?;
/// assert_eq!(response, "healthy");
/// # Ok::<_, Box<dyn std::error::Error>>(()) }).expect("a response");
/// ```
pub struct Retrying<O = ()> {
    policy: RetryPolicy,
    timeout: Option<Duration>,
    random: Rng,
    wall: Box<dyn Fn() -> SystemTime + Send + Sync>,
    observer: O,
}

/// A failed attempt, as reported to an [`Observer`].
#[derive(Clone, Copy)]
pub struct FailedAttempt<'a> {
    /// Number of the attempt, starting with 1.
    pub attempt: u32,
    /// Maximum number of attempts, including the first.
    pub attempts: u32,
    /// Why the attempt failed.
    pub error: &'a dyn RetryableError,
    /// Delay in the `Retry-After` of the response, even if the policy ignores it.
    pub retry_after: Option<Duration>,
    /// What the loop does next.
    pub next: Next,
}

/// Receives each failed attempt. A closure that takes a [`FailedAttempt`] is an observer, and a pair of observers calls
/// both in order.
pub trait Observer {
    /// Called once for each failed attempt, before the loop waits or gives up.
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
    /// Creates a loop with this policy and a random seed. It has no timeout and no observer.
    pub fn new(policy: RetryPolicy) -> Self {
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
    /// Sets the timeout of each attempt. An attempt that takes longer is dropped and fails with [`Last::TimedOut`].
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self {
            timeout: Some(timeout),
            ..self
        }
    }

    /// Sets the seed of the jitter, for tests and simulations: clients with the same seed retry at the same times.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        Self {
            random: Rng::with_seed(seed),
            ..self
        }
    }

    /// Sets the wall clock with which a date in `Retry-After` is compared.
    #[must_use]
    pub fn wall(self, wall: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        Self {
            wall: Box::new(wall),
            ..self
        }
    }

    /// Sets the observer of failed attempts.
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
    /// Makes attempts until one succeeds or the policy allows no further one. `attempt` receives its number, starting
    /// with 1.
    // Not an `AsyncFnMut`: the compiler could not prove that the future of `run` is `Send`, which spawning requires.
    pub async fn run<T, E, A>(mut self, mut attempt: impl FnMut(u32) -> A) -> Result<T, GaveUp<E>>
    where
        E: RetryableError,
        A: Future<Output = Result<T, E>>,
    {
        let began = Instant::now();
        let mut state = self.policy.begin();
        let mut attempts = 0;
        loop {
            attempts += 1;
            let last = match within(self.timeout, attempt(attempts)).await {
                Ok(response) => return Ok(response),
                Err(last) => last,
            };
            let next = self.next(&mut state, attempts, last.error(), began.elapsed());
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
            // The error can contain a connection that other requests can use during the delay.
            drop(last);
            time::sleep(delay).await;
        }
    }

    fn next(
        &mut self,
        state: &mut RetryState,
        attempt: u32,
        error: &dyn RetryableError,
        elapsed: Duration,
    ) -> Next {
        let retry_after = error.retry_after();
        let retry_after = retry_after.map(|value| value.wait((self.wall)()));
        let next = match error.failure() {
            Some(failure) => state.failed(failure, retry_after, elapsed, &mut self.random),
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

async fn within<T, E>(
    timeout: Option<Duration>,
    attempt: impl Future<Output = Result<T, E>>,
) -> Result<T, Last<E>> {
    let Some(timeout) = timeout else {
        return attempt.await.map_err(Last::Failed);
    };
    match time::timeout(timeout, attempt).await {
        Ok(result) => result.map_err(Last::Failed),
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

    /// Returns a policy with delays of 1, 2, 4, … s without jitter. It obeys `Retry-After`.
    fn plain(attempts: u32) -> RetryPolicy {
        RetryPolicy {
            backoff: Preset::Sender.policy().backoff,
            attempts: NonZeroU32::new(attempts).unwrap(),
            ..Preset::Standard.policy()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_success_ends_the_loop() {
        let began = Instant::now();
        let response = Retrying::new(plain(5))
            .run(async |attempt| if attempt < 3 { Err(BUSY) } else { Ok(attempt) })
            .await;
        assert_eq!(response.unwrap(), 3);
        assert_eq!(began.elapsed(), Duration::from_secs(3));
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_that_exceeds_the_timeout_is_dropped_and_retried() {
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
        let policy = RetryPolicy {
            deadline: Some(Duration::from_secs(5)),
            ..plain(9)
        };
        let slow = async |_| {
            time::sleep(Duration::from_millis(1_500)).await;
            Err::<(), _>(BUSY)
        };
        let gave_up = Retrying::new(policy).run(slow).await.unwrap_err();
        // The loop gives up 4 s after its start: two attempts took 1.5 s each, and the delay took 1 s. The next delay
        // of 2 s would end at 6 s, after the deadline of 5 s.
        assert_eq!((gave_up.why, gave_up.attempts), (GiveUp::TooLate, 2));
    }

    #[tokio::test]
    async fn an_error_that_is_no_network_failure_ends_the_loop_immediately() {
        let gave_up = Retrying::new(plain(5))
            .run(async |_| Err::<(), _>(io::Error::from(io::ErrorKind::InvalidData)))
            .await
            .unwrap_err();
        assert_eq!((gave_up.why, gave_up.attempts), (GiveUp::NotWorthIt, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_date_in_retry_after_is_compared_with_the_custom_wall_clock() {
        let began = Instant::now();
        let epoch = SystemTime::UNIX_EPOCH;
        let until = ErrorResponse {
            status: StatusCode::TOO_MANY_REQUESTS,
            retry_after: Some(RetryAfter::At(epoch + Duration::from_secs(100))),
        };
        let response = Retrying::new(plain(5))
            .wall(move || epoch + Duration::from_secs(93) + began.elapsed())
            .run(async |attempt| if attempt == 1 { Err(until) } else { Ok(()) })
            .await;
        assert!(response.is_ok());
        assert_eq!(began.elapsed(), Duration::from_secs(7));
    }

    #[tokio::test(start_paused = true)]
    async fn observers_receive_every_failed_attempt() {
        let seen = Mutex::new(Vec::new());
        let record = |failed: &FailedAttempt<'_>| seen.lock().unwrap().push(format!("{failed:?}"));
        let mut count = 0;
        let increment = |_: &FailedAttempt<'_>| count += 1;
        let gave_up = Retrying::new(plain(2))
            .observer((record, increment))
            .run(async |_| Err::<(), _>(BUSY))
            .await;
        assert!(gave_up.is_err());
        assert_eq!(count, 2);
        let seen = seen.into_inner().unwrap();
        assert_eq!(
            seen,
            [
                "attempt 1 of 2: 503 Service Unavailable, then Retry(Wait { delay: 1s, from_header: false })",
                "attempt 2 of 2: 503 Service Unavailable, then GiveUp(Exhausted)",
            ]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_seed_gives_the_same_delays_and_another_seed_others() {
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
    async fn the_future_can_be_spawned_although_attempts_borrow() {
        let spawned = tokio::spawn(async move {
            let responses = [Err(BUSY), Ok("healthy".to_owned())];
            let attempt = async |attempt| {
                time::sleep(Duration::from_secs(1)).await;
                responses[attempt as usize - 1].clone()
            };
            let retrying = Retrying::new(plain(5)).observer(|_: &FailedAttempt<'_>| ());
            retrying.run(attempt).await
        });
        assert_eq!(spawned.await.unwrap().unwrap(), "healthy");
    }
}
