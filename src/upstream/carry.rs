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
use super::target::{Target, Unavailable, Visit};
use crate::context::RequestContext;
use crate::metrics::{RetryRefusal, UpstreamMetrics};
use crate::retry::{Course, Failure, GiveUp, Next, Policy, RetryAfter, Wait};

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
    ctx: &'a RequestContext,
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

/// Another attempt that is to be made.
struct Again {
    wait: Wait,
    outgoing: Outgoing,
}

impl<'a> Carrying<'a> {
    pub(super) fn new(
        target: &'a Target,
        patience: Patience,
        max_body: u64,
        spare: Option<Spare>,
        ctx: &'a RequestContext,
    ) -> Self {
        Self {
            target,
            metrics: &target.metrics,
            patience,
            max_body,
            spare,
            course: target.retry.map(Policy::begin),
            tried: Places::new(),
            ctx,
            attempts: 0,
            lost: false,
        }
    }

    /// Carries the request to its answer.
    pub(super) async fn carry(&mut self, mut outgoing: Outgoing) -> Result<Answered, ForwardError> {
        // Why the server before this one was not reached, where it was not.
        let mut unreached = None;
        loop {
            let among = match unreached {
                None => Among::PreferUntried,
                Some(_) => Among::Untried,
            };
            let mut visit = match self.target.visit(&self.tried, among) {
                Ok(visit) => visit,
                Err(unavailable) => {
                    self.another_round(unreached.take(), unavailable)?.await;
                    continue;
                }
            };
            self.tried.push(visit.place());
            self.attempts += 1;
            self.metrics.attempts.inc();
            self.ctx.note(|facts| {
                facts.attempts = self.attempts;
                facts.server = Some(visit.name().into());
            });
            unreached = None;
            let host = &self.target.standing.upstream.host;
            match attempt(
                &mut visit,
                host,
                &mut outgoing,
                &self.patience,
                self.max_body,
            )
            .await
            {
                Attempt::Answered(response, lease) => {
                    let Some(again) = self.after_answer(&response, &mut visit) else {
                        return Ok(Answered {
                            response,
                            lease,
                            visit,
                        });
                    };
                    drop(visit);
                    let pause = self.pause(again.wait, &response.status());
                    answer::discard(response, lease);
                    pause.await;
                    outgoing = again.outgoing;
                }
                Attempt::Unsent(error) => {
                    visit.failed_with(&error);
                    if matches!(error, ForwardError::NotReachedInTime(_)) {
                        // There is no time left for another.
                        return Err(error);
                    }
                    tracing::debug!(server = visit.name(), %error, "not reached");
                    unreached = Some(error);
                }
                Attempt::Lost(error) => {
                    let Some(again) = self.after_loss(&error, &mut visit) else {
                        return Err(error);
                    };
                    drop(visit);
                    self.pause(again.wait, &error).await;
                    outgoing = again.outgoing;
                }
            }
        }
    }

    /// There is no server left to go to: the wait for another round, if it was only that none was reached and
    /// they are to be tried again.
    fn another_round(
        &mut self,
        unreached: Option<ForwardError>,
        unavailable: Unavailable,
    ) -> Result<Pin<Box<Sleep>>, ForwardError> {
        let error = unreached.ok_or(unavailable)?;
        let Some(wait) = self.retry(error.failure(), None) else {
            return Err(error);
        };
        let pause = self.pause(wait, &error);
        // None of them was reached, so none is past asking.
        self.tried.clear();
        Ok(pause)
    }

    /// There is an answer: the attempt to make in its place, if it is not the last word.
    fn after_answer(&mut self, response: &Response<Incoming>, visit: &mut Visit) -> Option<Again> {
        let status = response.status();
        visit.answered(status);
        if !status.is_server_error() && !status.is_client_error() {
            return None;
        }
        let told = RetryAfter::of(response.headers());
        let told = told.map(|told| told.wait(self.target.clock.wall()));
        self.again(Failure::Status(status), told)
    }

    /// The request may have been carried out, and there is no answer: the attempt to make all the same, if
    /// that does no harm.
    fn after_loss(&mut self, error: &ForwardError, visit: &mut Visit) -> Option<Again> {
        self.lost = true;
        visit.failed_with(error);
        if error.is_clients() {
            return None;
        }
        self.again(error.failure(), None)
    }

    /// Another attempt, if there is to be one.
    fn again(&mut self, failure: Failure, told: Option<Duration>) -> Option<Again> {
        if !self.spare.as_ref().is_some_and(Spare::is_whole) {
            return None;
        }
        let wait = self.retry(failure, told)?;
        let outgoing = self.spare.as_ref()?.again()?;
        Some(Again { wait, outgoing })
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
                let standing = &self.target.standing;
                if !standing.will_admit(self.target.clock.now().after(wait.delay)) {
                    self.metrics.retry_refused(RetryRefusal::Circuit);
                    return None;
                }
                let budget = standing.budget.as_ref();
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
