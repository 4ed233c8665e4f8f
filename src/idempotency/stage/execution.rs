//! The execution of a key, from its claim to its record.
//!
//! It does not depend on its caller: whether the client is still connected shows only when the response is delivered,
//! after it was recorded.

use std::sync::Arc;

use http::{HeaderName, Request, Response};
use tokio::sync::OwnedSemaphorePermit;

use super::super::answer::forgo_trailers;
use super::super::gather::{Gathered, gather};
use super::super::judge::{Course, is_stream, judge, lost};
use super::super::{Answer, IdempotencyError, Kept, OnUnknown, Permit, Records};
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

/// What an execution means for its key.
enum Conclusion {
    Complete(Kept),
    Release(Option<Arc<Answer>>),
    Unknown,
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
        let resend = match self.keys.rule.terms.on_unknown {
            OnUnknown::Hold => Resend::Never,
            OnUnknown::Release => Resend::Always,
        };
        let (conclusion, result) = match execute(request, resend).await {
            Ok(response) => self.conclude(response).await,
            Err(failed) => (self.after_failure(failed.undone), Err(failed.problem)),
        };
        failpoint!("after-upstream");
        let recorded = self.record(permit, conclusion).await;
        failpoint!("after-commit");
        // A response that is not recorded is not delivered either.
        recorded?;
        result
    }

    /// Returns what a request without a response means for its key.
    fn after_failure(&self, undone: Undone) -> Conclusion {
        match undone {
            Undone::Unsent => Conclusion::Release(None),
            Undone::Lost => match lost(&self.keys.rule) {
                Course::Release => Conclusion::Release(None),
                _ => Conclusion::Unknown,
            },
        }
    }

    /// Returns what `response` means for its key, and what the caller receives. A body that is stored is charged until
    /// the caller has received it. A body beyond a bound is streamed.
    async fn conclude(
        &self,
        mut response: Response<ResponseBody>,
    ) -> (Conclusion, Result<Response<ResponseBody>, Problem>) {
        let rule = &self.keys.rule;
        let is_released = match judge(rule, response.status(), response.headers()) {
            Course::Unknown => return (Conclusion::Unknown, Ok(response)),
            Course::Stream => return (Conclusion::Complete(Kept::Tombstone), Ok(response)),
            Course::Keep => false,
            Course::Release if is_stream(response.headers()) => {
                return (Conclusion::Release(None), Ok(response));
            }
            Course::Release => true,
        };
        let mut charge = self.shared.buffers.charge(self.client, Buffered::Response);
        let conclusion = match gather(response.body_mut(), rule.max_response, &mut charge).await {
            Ok(Gathered::Whole(body)) => {
                forgo_trailers(response.headers_mut());
                // A replay has the RateLimit headers of its own time. Waiters after a release get this response at once.
                let exclude = |name: &HeaderName| {
                    rule.exclude_headers.contains(name)
                        || (!is_released && is_rate_limit_field(name))
                };
                let answer = Answer::without(exclude, response.status(), response.headers(), &body);
                let answer = Arc::new(answer);
                // The stored copy, so that the bytes are in memory once.
                *response.body_mut() = charge.hold(answer.body()).into();
                if is_released {
                    Conclusion::Release(Some(answer))
                } else {
                    Conclusion::Complete(Kept::Answer(answer))
                }
            }
            Ok(Gathered::Partial { held, next, .. }) => {
                response.body_mut().put_back(charge.hold(held), next);
                if is_released {
                    Conclusion::Release(None)
                } else {
                    Conclusion::Complete(Kept::Tombstone)
                }
            }
            Err(error) => {
                let (conclusion, problem) = self.truncated(&error, is_released);
                return (conclusion, Err(problem));
            }
        };
        (conclusion, Ok(response))
    }

    /// Returns what a response means whose body ends early or is invalid, and what the caller receives instead.
    /// If the status of the response means that the request was not executed, its key is released: the status
    /// holds without the body.
    fn truncated(&self, error: &BodyError, not_executed: bool) -> (Conclusion, Problem) {
        tracing::warn!(%error, not_executed, "response to a keyed request is incomplete");
        let timeout = error.timeout();
        let failure = match timeout {
            Some(_) => "The response did not arrive completely in time",
            None if error.is_invalid_http() => "The body of the response is not valid HTTP",
            None => "The upstream closed the connection before the end of the response",
        };
        let is_held = !not_executed && lost(&self.keys.rule) == Course::Unknown;
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
        let conclusion = if is_held {
            Conclusion::Unknown
        } else {
            Conclusion::Release(None)
        };
        (conclusion, problem)
    }

    /// Records what an execution means for its key. Returns what the caller receives instead of the response if a
    /// completion is not recorded.
    async fn record(&self, permit: Permit, conclusion: Conclusion) -> Result<(), Problem> {
        let Shared { records, clock, .. } = &*self.shared;
        let metrics = self.keys.metrics();
        match conclusion {
            Conclusion::Complete(kept) => {
                let started = clock.now();
                let completed = records.complete(permit, kept).await;
                let took = clock.now().since(started);
                metrics.complete_latency.record(took);
                completed.map_err(|error| {
                    metrics.lost.inc();
                    store_failed("complete", &error, metrics);
                    self.note_unknown();
                    self.keys.outcome_unknown().into()
                })
            }
            // These two record less than was known before, so the caller receives its response in any case.
            Conclusion::Release(answer) => {
                metrics.released.inc();
                if let Err(error) = records.release(permit, answer).await {
                    store_failed("release", &error, metrics);
                }
                Ok(())
            }
            Conclusion::Unknown => {
                metrics.lost.inc();
                self.note_unknown();
                if let Err(error) = records.mark_unknown(permit).await {
                    store_failed("mark unknown", &error, metrics);
                }
                Ok(())
            }
        }
    }

    fn note_unknown(&self) {
        if let Some(notes) = &self.notes {
            notes.facts().idempotency = Some(KeyUse::Unknown);
        }
    }
}
