//! The execution of a key, from its claim to its record.
//!
//! It does not depend on its caller: whether the client is still connected shows only when the response is delivered,
//! after it was recorded.

use std::sync::Arc;

use http::{HeaderName, Request, Response};
use tokio::sync::OwnedSemaphorePermit;

use super::super::gather::{Gathered, gather};
use super::super::judge::{Disposition, is_stream, judge};
use super::super::stored_response::forgo_trailers;
use super::super::{ExecutionOutcome, IdempotencyError, Permit, Records, StoredResponse};
use super::{RouteKeys, Shared, store_failed};
use crate::access_log::{KeyUse, Notes};
use crate::body::{BodyError, RequestBody, ResponseBody};
use crate::buffers::Buffered;
use crate::client::ClientId;
use crate::context::{Failed, Resend, Undone};
use crate::failpoint::failpoint;
use crate::problem::Problem;
use crate::respond::is_rate_limit_field;

/// An execution whose key is claimed.
pub(super) struct Execution<S> {
    pub(super) shared: Arc<Shared<S>>,
    pub(super) client: ClientId,
    pub(super) keys: Arc<RouteKeys>,
    /// Notes for the access log, if the request is logged.
    pub(super) notes: Option<Arc<Notes>>,
    /// Its permit among the executions in flight.
    pub(super) _place: OwnedSemaphorePermit,
}

impl<S: Records> Execution<S> {
    /// Executes `request`, records the outcome, and returns what the caller receives.
    pub(super) async fn run<F, Fut>(
        self,
        mut permit: Permit,
        request: Request<RequestBody>,
        execute: F,
    ) -> Result<Response<ResponseBody>, Problem>
    where
        F: FnOnce(Request<RequestBody>, Resend) -> Fut + Send,
        Fut: Future<Output = Result<Response<ResponseBody>, Failed>> + Send,
    {
        failpoint!("after-claim");
        if permit.has_lapsed(self.shared.clock.now()) {
            // Nothing was sent, so the permit frees its key as it is dropped.
            return Err(IdempotencyError::StoreUnavailable.into());
        }
        permit.sending();
        let resend = if self.keys.holds_unknown() {
            Resend::Never
        } else {
            Resend::Always
        };
        let (outcome, result) = match execute(request, resend).await {
            Ok(response) => self.conclude(response).await,
            Err(failed) => (self.after_failure(&failed), Err(failed.problem)),
        };
        failpoint!("after-upstream");
        let recorded = self.record(permit, outcome).await;
        failpoint!("after-commit");
        // A response that is not recorded is not delivered either.
        recorded?;
        result
    }

    /// Returns what a request without a response means for its key.
    fn after_failure(&self, failed: &Failed) -> ExecutionOutcome {
        if failed.undone == Undone::Lost && self.keys.holds_unknown() {
            ExecutionOutcome::Unknown
        } else {
            ExecutionOutcome::Released(Some(Err(failed.problem.clone())))
        }
    }

    /// Returns what `response` means for its key, and what the caller receives. A body that is stored is charged until
    /// the caller has received it. A body beyond a bound is streamed.
    async fn conclude(
        &self,
        mut response: Response<ResponseBody>,
    ) -> (ExecutionOutcome, Result<Response<ResponseBody>, Problem>) {
        let rule = &self.keys.rule;
        let is_released = match judge(rule, response.status(), response.headers()) {
            Disposition::Stream => return (ExecutionOutcome::Tombstone, Ok(response)),
            Disposition::Store => false,
            Disposition::Release if is_stream(response.headers()) => {
                return (ExecutionOutcome::Released(None), Ok(response));
            }
            Disposition::Release => true,
        };
        let mut charge = self.shared.buffers.charge(self.client, Buffered::Response);
        let outcome = match gather(response.body_mut(), rule.max_response, &mut charge).await {
            Ok(Gathered::Whole(body)) => {
                forgo_trailers(response.headers_mut());
                // A replay has the RateLimit headers of its own time. Waiters after a release get this response at once.
                let exclude = |name: &HeaderName| {
                    rule.exclude_headers.contains(name)
                        || (!is_released && is_rate_limit_field(name))
                };
                let (status, headers) = (response.status(), response.headers());
                let stored = StoredResponse::without(exclude, status, headers, &body);
                let stored = Arc::new(stored);
                // The stored copy, so that the bytes are in memory once.
                *response.body_mut() = charge.hold(stored.body()).into();
                if is_released {
                    ExecutionOutcome::Released(Some(Ok(stored)))
                } else {
                    ExecutionOutcome::Completed(stored)
                }
            }
            Ok(Gathered::Partial { held, next, .. }) => {
                response.body_mut().put_back(charge.hold(held), next);
                if is_released {
                    ExecutionOutcome::Released(None)
                } else {
                    ExecutionOutcome::Tombstone
                }
            }
            Err(error) => {
                let (outcome, problem) = self.truncated(&error, is_released);
                return (outcome, Err(problem));
            }
        };
        (outcome, Ok(response))
    }

    /// Returns what a response means whose body ends early or is invalid, and what the caller receives instead.
    /// If the status of the response means that the request was not executed, its key is released: the status
    /// holds without the body.
    fn truncated(&self, error: &BodyError, not_executed: bool) -> (ExecutionOutcome, Problem) {
        tracing::warn!(%error, not_executed, "response to a keyed request is incomplete");
        let timeout = error.timeout();
        let failure = match timeout {
            Some(_) => "The response did not arrive completely in time",
            None if error.is_invalid_http() => "The body of the response is not valid HTTP",
            None => "The upstream closed the connection before the end of the response",
        };
        let is_held = !not_executed && self.keys.holds_unknown();
        let execution = if not_executed {
            "; its status means that the request was not executed"
        } else if is_held {
            ""
        } else {
            "; whether the request was executed is not known"
        };
        let detail = format!("{failure}{execution}.");
        let problem = match timeout {
            Some(phase) => Problem::upstream_timeout(phase, &detail, is_held),
            None => Problem::upstream_unavailable(&detail, is_held),
        };
        let outcome = if is_held {
            ExecutionOutcome::Unknown
        } else {
            ExecutionOutcome::Released(Some(Err(problem.clone())))
        };
        (outcome, problem)
    }

    /// Records the outcome of an execution. Returns what the caller receives instead of the response if the request was
    /// executed and that is not recorded.
    async fn record(&self, permit: Permit, outcome: ExecutionOutcome) -> Result<(), Problem> {
        let Shared { records, clock, .. } = &*self.shared;
        let metrics = self.keys.metrics();
        let (is_executed, is_unknown) = (
            outcome.is_executed(),
            matches!(outcome, ExecutionOutcome::Unknown),
        );
        let started = clock.now();
        let ended = records.end(permit, outcome).await;
        if is_executed {
            metrics.complete_latency.record(clock.now().since(started));
            ended.map_err(|error| {
                metrics.lost.inc();
                store_failed("complete", &error, metrics);
                self.note_unknown();
                self.keys.outcome_unknown().into()
            })
        } else {
            let (count, step) = if is_unknown {
                self.note_unknown();
                (&metrics.lost, "mark unknown")
            } else {
                (&metrics.released, "release")
            };
            count.inc();
            // Without this record the key is unknown, so the caller receives its response in any case.
            if let Err(error) = ended {
                store_failed(step, &error, metrics);
            }
            Ok(())
        }
    }

    fn note_unknown(&self) {
        if let Some(notes) = &self.notes {
            notes.facts().idempotency = Some(KeyUse::Unknown);
        }
    }
}
