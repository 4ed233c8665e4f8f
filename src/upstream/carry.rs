//! A request on its way upstream, through all its attempts.
//!
//! Two things are told apart. A request that provably nobody got moves on to the next server at once, each
//! once, whatever it is and whatever the budget: that is not a second execution, and no load on whoever
//! did not take it. Anything else is a retry, and takes leave five times over: its upstream has retries, its
//! method or its key makes it safe, all of its body is at hand, the policy finds it worth while and in
//! time, and the budget has room.
//!
//! An answer that is not tried again after is passed on as it came, its `Retry-After` included.

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use http::Response;
use hyper::body::Incoming;
use tokio::time::Sleep;

use super::answer;
use super::attempt::{Attempt, attempt};
use super::balance::{Among, Places};
use super::error::ForwardError;
use super::outgoing::{Outgoing, Spare};
use super::patience::Patience;
use super::pool::Lease;
use super::target::{Target, Visit};
use crate::admin::metrics::{RetryRefusal, UpstreamMetrics};
use crate::retry::{Course, Failure, GiveUp, Next, RetryAfter, Wait};

/// A request on its way upstream.
#[derive(Debug)]
pub(super) struct Carrying<'a> {
    target: &'a Target,
    metrics: &'a UpstreamMetrics,
    patience: Patience,
    max_body: u64,
    /// What it takes to send it once more, where that is safe.
    spare: Option<Spare>,
    course: Option<Course>,
    /// Servers it went to, the last one last.
    tried: Places,
    /// Attempts made.
    pub(super) attempts: u32,
    /// Whether anybody may have got it without its answer having come back.
    pub(super) lost: bool,
}

/// An answer to pass on.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) response: Response<Incoming>,
    pub(super) lease: Lease,
    pub(super) visit: Visit,
}

/// What comes after an attempt.
enum Step {
    /// Another one, at once.
    Again(Outgoing, Among),
    /// Nothing.
    Done(Result<Answered, ForwardError>),
}

impl<'a> Carrying<'a> {
    pub(super) fn new(
        target: &'a Target,
        metrics: &'a UpstreamMetrics,
        patience: Patience,
        max_body: u64,
        spare: Option<Spare>,
    ) -> Self {
        Self {
            target,
            metrics,
            patience,
            max_body,
            spare,
            course: target.retry.map(|policy| policy.begin()),
            tried: Places::new(),
            attempts: 0,
            lost: false,
        }
    }

    /// Carries the request to its answer.
    pub(super) async fn carry(&mut self, outgoing: Outgoing) -> Result<Answered, ForwardError> {
        let (mut outgoing, mut among) = (outgoing, Among::PreferUntried);
        let mut unreached = None;
        loop {
            let mut visit = match self.target.visit(&self.tried, among) {
                Ok(visit) => visit,
                Err(unavailable) => {
                    let Some(error) = unreached.take() else {
                        return Err(unavailable.into());
                    };
                    match self.unreached(error).await {
                        Ok(()) => among = Among::PreferUntried,
                        Err(error) => return Err(error),
                    }
                    continue;
                }
            };
            self.tried.push(visit.place());
            self.attempts += 1;
            let host = &self.target.standing.upstream.host;
            let ended = attempt(
                visit.server(),
                host,
                outgoing,
                &self.patience,
                self.max_body,
            );
            let step = match ended.await {
                Attempt::Answered(response, lease) => self.answered(response, lease, visit).await,
                // The time is over, which says nothing about the server, and leaves none for another.
                Attempt::Unsent(_, error @ ForwardError::NotReachedInTime(_)) => {
                    return Err(error);
                }
                Attempt::Unsent(back, error) => {
                    visit.failed();
                    tracing::debug!(server = visit.name(), %error, "not reached");
                    unreached = Some(error);
                    Step::Again(back, Among::Untried)
                }
                Attempt::Lost(error) => self.lost(error, visit).await,
            };
            match step {
                Step::Again(next, next_among) => (outgoing, among) = (next, next_among),
                Step::Done(result) => return result,
            }
        }
    }

    /// No server that is left could be reached: is any to be tried again?
    async fn unreached(&mut self, error: ForwardError) -> Result<(), ForwardError> {
        let Some(wait) = self.retry(error.failure(), None) else {
            return Err(error);
        };
        self.pause(wait, &error).await;
        Ok(())
    }

    /// There is an answer: is it the last word?
    async fn answered(
        &mut self,
        response: Response<Incoming>,
        lease: Lease,
        mut visit: Visit,
    ) -> Step {
        if let Some(fault) = answer::framing_fault(response.headers()) {
            return self.lost(ForwardError::BadAnswer(fault), visit).await;
        }
        let status = response.status();
        visit.answered(status);
        let failed = status.is_server_error() || status.is_client_error();
        if failed && self.can_resend() {
            let told =
                RetryAfter::of(response.headers()).map(|told| told.wait(self.target.clock.wall()));
            if let Some(wait) = self.retry(Failure::Status(status), told)
                && let Some(again) = self.spare.as_ref().and_then(Spare::again)
            {
                answer::discard(response, lease);
                drop(visit);
                self.pause(wait, &status).await;
                return Step::Again(again, Among::PreferUntried);
            }
        }
        Step::Done(Ok(Answered {
            response,
            lease,
            visit,
        }))
    }

    /// The request may have been carried out, and there is no answer.
    async fn lost(&mut self, error: ForwardError, mut visit: Visit) -> Step {
        self.lost = true;
        if error.is_clients() {
            return Step::Done(Err(error));
        }
        visit.failed();
        drop(visit);
        if self.can_resend()
            && let Some(wait) = self.retry(error.failure(), None)
            && let Some(again) = self.spare.as_ref().and_then(Spare::again)
        {
            self.pause(wait, &error).await;
            return Step::Again(again, Among::PreferUntried);
        }
        Step::Done(Err(error))
    }

    /// Whether it is safe to send the request once more, and possible.
    fn can_resend(&self) -> bool {
        self.spare.as_ref().is_some_and(Spare::is_whole)
    }

    /// How long to wait before a retry, if there is to be one; from then on it counts.
    fn retry(&mut self, failure: Failure, told: Option<Duration>) -> Option<Wait> {
        let course = self.course.as_mut()?;
        let elapsed = self.patience.started().elapsed();
        match course.failed(failure, told, elapsed, &mut fastrand::Rng::new()) {
            Next::GiveUp(GiveUp::NotWorthIt) => None,
            Next::GiveUp(GiveUp::Exhausted) => {
                self.metrics.retry_refused(RetryRefusal::Attempts);
                None
            }
            Next::GiveUp(GiveUp::TooLate) => {
                self.metrics.retry_refused(RetryRefusal::Deadline);
                None
            }
            Next::Retry(wait) => {
                let budget = self.target.standing.budget.as_ref();
                let now = self.target.clock.now();
                if budget.is_some_and(|budget| !budget.withdraw(now)) {
                    self.metrics.retry_refused(RetryRefusal::Budget);
                    return None;
                }
                self.metrics.retries.inc();
                Some(wait)
            }
        }
    }

    /// The wait before a retry.
    fn pause(&mut self, wait: Wait, why: &dyn fmt::Display) -> Pin<Box<Sleep>> {
        if self.tried.len() >= self.target.standing.servers.len() {
            // Another round, but not with the one that failed last, if there is another.
            let last = self.tried.pop();
            self.tried.clear();
            self.tried.extend(last);
        }
        tracing::info!(
            upstream = &*self.target.standing.upstream.name,
            attempt = self.attempts,
            delay_ms = u64::try_from(wait.delay.as_millis()).unwrap_or(u64::MAX),
            retry_after = wait.told,
            %why,
            "an attempt failed, and another is made"
        );
        // Boxed, because it is rare and large: every request's future would be as large otherwise.
        Box::pin(tokio::time::sleep(wait.delay))
    }
}
