//! All attempts to send a request to a server of its upstream.
//!
//! A request that provably was not sent fails over to the next server at once, to each server once, whatever its method
//! and the budget: that is not a second execution, and no load on the server that was not reached. Any other further
//! attempt is a retry. It needs five conditions: the upstream has retries, the method or the key makes it safe, the whole
//! body is in memory, the retry policy allows it in time, and the budget is not used up.
//!
//! A response that is not followed by a retry is forwarded as it arrived, with its `Retry-After`.

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use http::Response;
use hyper::body::Incoming;
use tokio::time::Sleep;

use super::attempt::{Attempt, attempt};
use super::balance::{Among, Places};
use super::error::ForwardError;
use super::pool::Lease;
use super::request::{RequestCopy, UpstreamRequest};
use super::response;
use super::target::{AttemptGuard, Target, Unavailable};
use super::timeouts::RequestTimeouts;
use crate::context::RequestContext;
use crate::metrics::{RetryRefusal, UpstreamMetrics};
use crate::retry::{Failure, GiveUp, Next, Policy, RetryAfter, RetryState, Wait};

/// The attempts to send a request.
#[derive(Debug)]
pub(super) struct Attempts<'a> {
    target: &'a Target,
    metrics: &'a UpstreamMetrics,
    timeouts: RequestTimeouts,
    max_body: u64,
    /// The copy for a retry, if a retry is safe.
    copy: Option<RequestCopy>,
    retry: Option<RetryState>,
    /// Servers that were tried, in order.
    tried: Places,
    ctx: &'a RequestContext,
    /// Number of attempts so far.
    pub(super) count: u32,
    /// Whether a server may have received the request although no response arrived.
    pub(super) is_lost: bool,
}

/// A response to forward.
#[derive(Debug)]
pub(super) struct Responded {
    pub(super) response: Response<Incoming>,
    pub(super) lease: Lease,
    pub(super) guard: AttemptGuard,
}

/// A retry that is due.
struct Retry {
    wait: Wait,
    request: UpstreamRequest,
}

impl<'a> Attempts<'a> {
    pub(super) fn new(
        target: &'a Target,
        timeouts: RequestTimeouts,
        max_body: u64,
        copy: Option<RequestCopy>,
        ctx: &'a RequestContext,
    ) -> Self {
        Self {
            target,
            metrics: &target.metrics,
            timeouts,
            max_body,
            copy,
            retry: target.retry.map(Policy::begin),
            tried: Places::new(),
            ctx,
            count: 0,
            is_lost: false,
        }
    }

    /// Sends the request until a response is to be forwarded, or no attempt is left.
    pub(super) async fn run(
        &mut self,
        mut request: UpstreamRequest,
    ) -> Result<Responded, ForwardError> {
        // Why the last server was not reached, if it was not.
        let mut unreached = None;
        loop {
            let among = match unreached {
                None => Among::PreferUntried,
                Some(_) => Among::Untried,
            };
            let mut guard = match self.target.begin_attempt(&self.tried, among) {
                Ok(guard) => guard,
                Err(unavailable) => {
                    self.wait_for_servers(unreached.take(), unavailable)?.await;
                    continue;
                }
            };
            self.tried.push(guard.place());
            self.count += 1;
            self.metrics.attempts.inc();
            self.ctx.note(|facts| {
                facts.attempts = self.count;
                facts.server = Some(guard.name().into());
            });
            unreached = None;
            let host = &self.target.state.upstream.host;
            match attempt(
                &mut guard,
                host,
                &mut request,
                &self.timeouts,
                self.max_body,
            )
            .await
            {
                Attempt::Responded(response, lease) => {
                    let Some(retry) = self.after_response(&response, &mut guard) else {
                        return Ok(Responded {
                            response,
                            lease,
                            guard,
                        });
                    };
                    drop(guard);
                    let pause = self.pause(retry.wait, &response.status());
                    response::discard(response, lease);
                    pause.await;
                    request = retry.request;
                }
                Attempt::Unsent(error) => {
                    guard.failed_with(&error);
                    if matches!(error, ForwardError::NotReachedInTime(_)) {
                        // There is no time left for another.
                        return Err(error);
                    }
                    tracing::debug!(server = guard.name(), %error, "request not sent to upstream server");
                    unreached = Some(error);
                }
                Attempt::Lost(error) => {
                    let Some(retry) = self.after_loss(&error, &mut guard) else {
                        return Err(error);
                    };
                    drop(guard);
                    self.pause(retry.wait, &error).await;
                    request = retry.request;
                }
            }
        }
    }

    /// Returns the wait before all servers are tried again, if none was reached and the policy allows a retry.
    fn wait_for_servers(
        &mut self,
        unreached: Option<ForwardError>,
        unavailable: Unavailable,
    ) -> Result<Pin<Box<Sleep>>, ForwardError> {
        let error = unreached.ok_or(unavailable)?;
        let Some(wait) = self.wait_before_retry(error.failure(), None) else {
            return Err(error);
        };
        let pause = self.pause(wait, &error);
        // No server was reached, so all can be tried again.
        self.tried.clear();
        Ok(pause)
    }

    /// Returns the retry that replaces a response, if one is due.
    fn after_response(
        &mut self,
        response: &Response<Incoming>,
        guard: &mut AttemptGuard,
    ) -> Option<Retry> {
        let status = response.status();
        guard.responded(status);
        if !status.is_server_error() && !status.is_client_error() {
            return None;
        }
        let retry_after = RetryAfter::of(response.headers());
        let retry_after = retry_after.map(|value| value.wait(self.target.clock.wall()));
        self.next(Failure::Status(status), retry_after)
    }

    /// Returns the retry of a request without a response, which a server may have executed, if a retry is safe.
    fn after_loss(&mut self, error: &ForwardError, guard: &mut AttemptGuard) -> Option<Retry> {
        self.is_lost = true;
        guard.failed_with(error);
        if error.is_clients() {
            return None;
        }
        self.next(error.failure(), None)
    }

    /// Returns the next attempt, if the request can be sent again and the policy allows it.
    fn next(&mut self, failure: Failure, retry_after: Option<Duration>) -> Option<Retry> {
        if !self.copy.as_ref().is_some_and(RequestCopy::is_whole) {
            return None;
        }
        let wait = self.wait_before_retry(failure, retry_after)?;
        let request = self.copy.as_ref()?.again()?;
        Some(Retry { wait, request })
    }

    /// Returns the wait before a retry, if the policy and the budget allow one. The budget counts it from then on.
    fn wait_before_retry(
        &mut self,
        failure: Failure,
        retry_after: Option<Duration>,
    ) -> Option<Wait> {
        let retry = self.retry.as_mut()?;
        let elapsed = self.timeouts.started().elapsed();
        match retry.failed(failure, retry_after, elapsed, &mut fastrand::Rng::new()) {
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
                let state = &self.target.state;
                if !state.will_admit(self.target.clock.now().after(wait.delay)) {
                    self.metrics.retry_refused(RetryRefusal::Circuit);
                    return None;
                }
                let budget = state.budget.as_ref();
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

    /// Logs a retry and returns the wait before it.
    fn pause(&mut self, wait: Wait, why: &dyn fmt::Display) -> Pin<Box<Sleep>> {
        if self.tried.len() >= self.target.state.servers.len() {
            // All servers can be tried again, the one that failed last only if there is no other.
            let last = self.tried.pop();
            self.tried.clear();
            self.tried.extend(last);
        }
        tracing::info!(
            upstream = &*self.target.state.upstream.name,
            attempt = self.count,
            delay_ms = u64::try_from(wait.delay.as_millis()).unwrap_or(u64::MAX),
            retry_after = wait.told,
            %why,
            "retrying upstream request"
        );
        // Boxed, because it is rare and large: the future of every request would be as large otherwise.
        Box::pin(tokio::time::sleep(wait.delay))
    }
}
