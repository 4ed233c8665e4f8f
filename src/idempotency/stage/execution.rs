//! Execution of a request, from the claim on its key to the stored record. The response is stored before it is sent to
//! the client.

use std::sync::Arc;

use http::header::{CONNECTION, UPGRADE};
use http::{HeaderName, Request, Response};
use tokio::sync::OwnedSemaphorePermit;

use super::super::disposition::{is_stream, means_not_executed};
use super::super::stored_response::{ORIGINAL_REQUEST_ID, remove_trailer_header};
use super::super::{
    ClaimRejection, ExecutionOutcome, IdempotencyError, OnUnknown, Permit, Records, StoredResponse,
};
use super::{RouteKeys, StageState, note, store_failed};
use crate::failpoint::failpoint;
use crate::request::body::{BodyError, ReadBody, RequestBody, ResponseBody, read_body};
use crate::request::buffers::Buffered;
use crate::request::client::ClientId;
use crate::request::context::{Delivery, FailedRequest};
use crate::request::log_fields::{AccessLogNotes, KeyUse};
use crate::request::request_id::RequestId;
use crate::respond::{Problem, is_rate_limit_field};

pub(super) struct Execution<S> {
    pub(super) stage: Arc<StageState<S>>,
    pub(super) client: ClientId,
    pub(super) keys: Arc<RouteKeys>,
    pub(super) request_id: Option<RequestId>,
    /// `None` if the request is not logged.
    pub(super) notes: Option<Arc<AccessLogNotes>>,
    /// Returned when the execution is dropped.
    pub(super) _slot: OwnedSemaphorePermit,
}

impl<S: Records> Execution<S> {
    pub(super) async fn run<F, Fut>(
        self,
        mut permit: Permit,
        request: Request<RequestBody>,
        execute: F,
    ) -> Result<Response<ResponseBody>, Problem>
    where
        F: FnOnce(Request<RequestBody>, Option<OnUnknown>) -> Fut + Send,
        Fut: Future<Output = Result<Response<ResponseBody>, FailedRequest>> + Send,
    {
        self.keys.metrics().claims.inc();
        failpoint!("after-claim");
        if permit.is_lease_over(self.stage.clock.now()) {
            // The request was not sent, so dropping the permit releases the key.
            return Err(IdempotencyError::StoreUnavailable.into());
        }
        permit.mark_sent();
        let on_unknown = self.keys.rule.settings.on_unknown;
        let (outcome, result) = match execute(request, Some(on_unknown)).await {
            Ok(response) => self.outcome_of_response(response).await,
            Err(failed) => (self.outcome_of_failure(&failed), Err(failed.problem)),
        };
        failpoint!("after-upstream");
        let stored = self.store_outcome(permit, outcome).await;
        failpoint!("after-commit");
        // A retry would not get the response, so this client does not get it either.
        stored?;
        result
    }

    fn outcome_of_failure(&self, failed: &FailedRequest) -> ExecutionOutcome {
        if failed.delivery == Delivery::PossiblySent && self.keys.holds_unknown() {
            ExecutionOutcome::Unknown
        } else if failed.problem.requires_http1 {
            // This concerns the connection of one client. A waiting request on another can be executed.
            ExecutionOutcome::Released(None)
        } else {
            ExecutionOutcome::Released(Some(Err(failed.problem.clone())))
        }
    }

    /// A stored body counts against `max_buffered` until it is sent to the client. A body that exceeds a bound is
    /// streamed and not stored.
    async fn outcome_of_response(
        &self,
        mut response: Response<ResponseBody>,
    ) -> (ExecutionOutcome, Result<Response<ResponseBody>, Problem>) {
        let rule = &self.keys.rule;
        let is_released = means_not_executed(rule, response.status(), response.headers());
        let without_response = if is_released {
            ExecutionOutcome::Released(None)
        } else {
            ExecutionOutcome::Tombstone
        };
        if is_stream(response.headers()) {
            return (without_response, Ok(response));
        }
        let mut charge = self.stage.buffers.charge(self.client, Buffered::Response);
        let outcome = match read_body(response.body_mut(), rule.max_response, &mut charge).await {
            Ok(ReadBody::Whole(body)) => {
                remove_trailer_header(response.headers_mut());
                // These would be outdated in a replay, or belong to one connection, such as `Upgrade` of a 426. A
                // response that releases the key keeps them, because waiting requests get it immediately.
                let is_current = |name: &HeaderName| {
                    is_rate_limit_field(name)
                        || matches!(*name, CONNECTION | UPGRADE)
                        || *name == ORIGINAL_REQUEST_ID
                };
                let exclude = |name: &HeaderName| {
                    rule.exclude_headers.contains(name) || (!is_released && is_current(name))
                };
                let (status, headers) = (response.status(), response.headers());
                let request_id = self.request_id.as_ref().filter(|_| !is_released);
                let stored =
                    StoredResponse::copy_without(exclude, status, headers, request_id, &body);
                let stored = Arc::new(stored);
                // The client gets the stored copy, so that the bytes are in memory only once.
                *response.body_mut() = charge.hold(stored.body()).into();
                if is_released {
                    ExecutionOutcome::Released(Some(Ok(stored)))
                } else {
                    ExecutionOutcome::Completed(stored)
                }
            }
            Ok(ReadBody::Partial { held, next, .. }) => {
                response.body_mut().put_back(charge.hold(held), next);
                without_response
            }
            Err(error) => {
                let (outcome, problem) = self.outcome_of_truncated(&error, is_released);
                return (outcome, Err(problem));
            }
        };
        (outcome, Ok(response))
    }

    /// For a response whose body ends early or is malformed. The status is valid without the body, so the key is
    /// released if it rules out an execution.
    fn outcome_of_truncated(
        &self,
        error: &BodyError,
        not_executed: bool,
    ) -> (ExecutionOutcome, Problem) {
        tracing::warn!(%error, not_executed, "incomplete or invalid response to request with idempotency key");
        let timeout = error.timeout();
        let failure = match timeout {
            None if matches!(error, BodyError::Application(_)) => {
                "The application failed before the end of its response."
            }
            Some(_) => "The upstream did not send the complete response in time.",
            None if error.is_invalid_http() => {
                "The upstream sent a response body that is not valid HTTP."
            }
            None => "The upstream closed the connection before the end of the response.",
        };
        let is_held = !not_executed && self.keys.holds_unknown();
        let remedy = if not_executed {
            " The status of the response means that the request was not executed. Retry it with the same key."
        } else if is_held {
            ""
        } else {
            " The request may have been executed. Retry it with the same key. The API must detect the duplicate."
        };
        let detail = format!("{failure}{remedy}");
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

    /// Fails if the request was executed and this could not be stored.
    async fn store_outcome(
        &self,
        permit: Permit,
        outcome: ExecutionOutcome,
    ) -> Result<(), Problem> {
        let StageState { records, clock, .. } = &*self.stage;
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
                note(self.notes.as_ref(), KeyUse::Unknown);
                ClaimRejection::OutcomeUnknown.problem(&self.keys.rule.settings)
            })
        } else {
            let (count, step) = if is_unknown {
                note(self.notes.as_ref(), KeyUse::Unknown);
                (&metrics.lost, "mark unknown")
            } else {
                (&metrics.released, "release")
            };
            count.inc();
            // The client gets its response although the outcome (`Released` or `Unknown`) was not stored: the key is
            // then unknown in the store, so `on_unknown = "hold"` excludes a second execution.
            if let Err(error) = ended {
                store_failed(step, &error, metrics);
            }
            Ok(())
        }
    }
}
