//! The loop over all attempts to send one request: failover, retries and the delays between them.
//!
//! A request that provably was not sent fails over to another server without delay, once to each server. Failover
//! ignores the method and the retry budget, because no server executed the request or had load from it.
//!
//! Any other further attempt is a retry. It requires a retry configuration, a method or key that makes a second
//! execution safe, a copy of the forwarded part of the body, and the consent of retry policy, circuit breakers and
//! retry budget.
//!
//! A request that a reused connection loses before the first byte of a response is neither: it is sent once more at once,
//! on a fresh connection, if its method is idempotent, it holds no claim, and its whole body is in memory.
//!
//! If no retry follows a response, the gateway forwards the response unchanged, including its `Retry-After`.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::Response;
use hyper::body::Incoming;
use tokio::time::Sleep;

use super::attempt::{AttemptOutcome, Sending, attempt};
use super::balance::{Candidates, ServerIndexes};
use super::connection_auth;
use super::error::ForwardError;
use super::pool::{ConnectionChoice, Lease, RECENT};
use super::request::{RequestCopy, UpstreamRequest};
use super::response;
use super::target::{AttemptGuard, Target};
use super::timeouts::RequestTimeouts;
use crate::metrics::{RetryRejection, UpstreamMetrics};
use crate::request::context::{ClientConnection, RequestContext};
use crate::retry::{Failure, GiveUp, Next, RetryAfter, RetryPolicy, RetryState, Wait};

#[derive(Debug)]
pub(super) struct Attempts<'a> {
    target: &'a Target,
    metrics: &'a UpstreamMetrics,
    timeouts: RequestTimeouts,
    /// `None` if a second execution of the request would not be safe.
    copy: Option<RequestCopy>,
    client: Option<&'a Arc<ClientConnection>>,
    retry: Option<RetryState>,
    /// In the order of the attempts.
    tried: ServerIndexes,
    ctx: &'a RequestContext,
    /// Includes failovers and retries.
    pub(super) count: u32,
    pub(super) is_lost: bool,
}

impl<'a> Attempts<'a> {
    pub(super) fn new(
        target: &'a Target,
        retry: Option<RetryPolicy>,
        timeouts: RequestTimeouts,
        copy: Option<RequestCopy>,
        client: Option<&'a Arc<ClientConnection>>,
        ctx: &'a RequestContext,
    ) -> Self {
        Self {
            target,
            metrics: &target.metrics,
            timeouts,
            copy,
            client,
            retry: retry.map(RetryPolicy::begin),
            tried: ServerIndexes::new(),
            ctx,
            count: 0,
            is_lost: false,
        }
    }

    pub(super) async fn run(
        &mut self,
        mut request: UpstreamRequest,
    ) -> Result<(Response<Incoming>, Lease, AttemptGuard), ForwardError> {
        // The choice is made before the first attempt, because an attempt writes `Host` into the request.
        let unsent = (request.request.as_ref()).expect("the request is present before it is sent");
        let host = (self.target.state.upstream.host).for_request(unsent.headers());
        // `Some` if the last attempt sent nothing: the next one is a failover.
        let mut unsent_error = None;
        let mut owned = self.begin_owned();
        let mut is_resent = false;
        loop {
            let candidates = match unsent_error {
                None => Candidates::PreferUntried,
                Some(_) => Candidates::Untried,
            };
            let begun = match owned.take() {
                Some(owned) => Ok(owned),
                None => (self.target.begin_attempt(&self.tried, candidates))
                    .map(|guard| (guard, self.choose_connection(is_resent))),
            };
            let (mut guard, connection) = match begun {
                Ok(begun) => begun,
                Err(unavailable) => {
                    self.wait_for_servers(unsent_error.take(), unavailable)?
                        .await;
                    continue;
                }
            };
            self.begun(&guard);
            unsent_error = None;
            let sending = Sending {
                host,
                timeouts: &self.timeouts,
                client: self.client,
            };
            match attempt(&mut guard, connection, &mut request, &sending).await {
                AttemptOutcome::Responded(response, lease) => {
                    let Some((wait, retry)) = self.after_response(&response, &mut guard) else {
                        return Ok((response, lease, guard));
                    };
                    drop(guard);
                    let delay = self.delay_retry(wait, &response.status());
                    response::discard(response, lease);
                    delay.await;
                    request = retry;
                }
                AttemptOutcome::Unsent(error) => {
                    guard.failed_with(&error);
                    if matches!(error, ForwardError::NotReachedInTime(_)) {
                        // No failover, because the deadline of the request has passed.
                        return Err(error);
                    }
                    tracing::debug!(
                        upstream = &*self.target.state.upstream.name,
                        server = guard.name(),
                        %error,
                        "cannot send request to upstream server, failing over if another server is available"
                    );
                    unsent_error = Some(error);
                }
                AttemptOutcome::Lost(error) => {
                    if matches!(error, ForwardError::ReusedClosed(_))
                        && let Some(again) = self.resend()
                    {
                        is_resent = true;
                        request = again;
                        continue;
                    }
                    let Some((wait, retry)) = self.after_loss(&error, &mut guard) else {
                        return Err(error);
                    };
                    drop(guard);
                    self.delay_retry(wait, &error).await;
                    request = retry;
                }
            }
        }
    }

    fn begun(&mut self, guard: &AttemptGuard) {
        self.tried.push(guard.index());
        self.count += 1;
        self.metrics.attempts.inc();
        self.ctx.note(|facts| {
            facts.attempts = self.count;
            facts.server = Some(guard.name().into());
        });
    }

    fn begin_owned(&self) -> Option<(AttemptGuard, ConnectionChoice<'a>)> {
        let client = self.client?;
        let (server, connection) = connection_auth::take(client, &self.target.pools())?;
        if let Ok(guard) = self.target.begin_attempt_at(server) {
            let connection = ConnectionChoice::Owned(Box::new(connection), client);
            Some((guard, connection))
        } else {
            connection_auth::give(client, Arc::clone(self.target.pool(server)), connection);
            None
        }
    }

    fn choose_connection(&self, is_resent: bool) -> ConnectionChoice<'a> {
        let is_repeatable = self.copy.as_ref().is_some_and(|copy| copy.is_repeatable);
        match (is_resent, is_repeatable) {
            (true, _) => ConnectionChoice::Fresh,
            (false, true) => ConnectionChoice::Pooled(Duration::MAX),
            (false, false) => ConnectionChoice::Pooled(RECENT),
        }
    }

    fn resend(&mut self) -> Option<UpstreamRequest> {
        let copy = self.copy.as_ref().filter(|copy| copy.is_repeatable)?;
        let request = copy.to_request()?;
        // The same server can be chosen again, because the close says nothing about its health.
        self.tried.pop();
        self.metrics.resent.inc();
        Some(request)
    }

    /// Fails with the error for the client if no retry is allowed.
    fn wait_for_servers(
        &mut self,
        unsent_error: Option<ForwardError>,
        unavailable: ForwardError,
    ) -> Result<Pin<Box<Sleep>>, ForwardError> {
        let error = unsent_error.ok_or(unavailable)?;
        let Some(wait) = self.wait_before_retry(error.failure(), None) else {
            return Err(error);
        };
        let delay = self.delay_retry(wait, &error);
        // The next attempt can choose any server again, because no server received the request.
        self.tried.clear();
        Ok(delay)
    }

    /// Returns the retry that replaces the response.
    fn after_response(
        &mut self,
        response: &Response<Incoming>,
        guard: &mut AttemptGuard,
    ) -> Option<(Wait, UpstreamRequest)> {
        let status = response.status();
        guard.responded(status);
        if !status.is_server_error() && !status.is_client_error() {
            return None;
        }
        let retry_after = RetryAfter::of(response.headers());
        let retry_after = retry_after.map(|value| value.wait(self.target.clock.wall()));
        self.planned_retry(Failure::Status(status), retry_after)
    }

    /// The server may have executed the request.
    fn after_loss(
        &mut self,
        error: &ForwardError,
        guard: &mut AttemptGuard,
    ) -> Option<(Wait, UpstreamRequest)> {
        self.is_lost = true;
        guard.failed_with(error);
        if error.is_client_fault() {
            return None;
        }
        self.planned_retry(error.failure(), None)
    }

    fn planned_retry(
        &mut self,
        failure: Failure,
        retry_after: Option<Duration>,
    ) -> Option<(Wait, UpstreamRequest)> {
        if !self
            .copy
            .as_ref()
            .is_some_and(RequestCopy::is_ready_for_retry)
        {
            return None;
        }
        let wait = self.wait_before_retry(failure, retry_after)?;
        let request = self.copy.as_ref()?.to_request()?;
        Some((wait, request))
    }

    fn wait_before_retry(
        &mut self,
        failure: Failure,
        retry_after: Option<Duration>,
    ) -> Option<Wait> {
        let retry = self.retry.as_mut()?;
        let elapsed = self.timeouts.started().elapsed();
        let state = &self.target.state;
        let budget = state.budget.as_ref();
        let now = self.target.clock.now();
        let rejection = match retry.failed(failure, retry_after, elapsed, &mut fastrand::Rng::new())
        {
            Next::GiveUp(GiveUp::NotWorthIt) => return None,
            Next::GiveUp(GiveUp::Exhausted) => RetryRejection::Attempts,
            Next::GiveUp(GiveUp::TooLate) => RetryRejection::Deadline,
            Next::Retry(wait) if !state.will_admit(now.after(wait.delay)) => {
                RetryRejection::Circuit
            }
            Next::Retry(_) if budget.is_some_and(|budget| !budget.withdraw(now)) => {
                RetryRejection::Budget
            }
            Next::Retry(wait) => {
                self.metrics.retries.inc();
                return Some(wait);
            }
        };
        self.metrics.retry_rejected(rejection);
        None
    }

    fn delay_retry(&mut self, wait: Wait, why: &dyn fmt::Display) -> Pin<Box<Sleep>> {
        if self.tried.len() >= self.target.state.servers.len() {
            // The next attempt can choose any server, but the one that failed last only if no other is available.
            let last = self.tried.pop();
            self.tried.clear();
            self.tried.extend(last);
        }
        tracing::info!(
            upstream = &*self.target.state.upstream.name,
            attempt = self.count,
            delay_ms = u64::try_from(wait.delay.as_millis()).unwrap_or(u64::MAX),
            delay_from_retry_after = wait.from_header,
            reason = %why,
            "retrying upstream request"
        );
        // Boxed, because an unboxed timer would enlarge the future of every request.
        Box::pin(tokio::time::sleep(wait.delay))
    }
}
