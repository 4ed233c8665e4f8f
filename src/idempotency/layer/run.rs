//! The one execution of a key, from its claim to its record.
//!
//! It never looks at its caller: whether anybody still listens shows only when the answer is handed over,
//! after it was recorded.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderName, Request, Response};
use http_body::Body;
use tokio::sync::OwnedSemaphorePermit;
use tower::Service;

use super::super::answer::forgo_trailers;
use super::super::gather::{Gathered, gather};
use super::super::judge::{Course, Undone, is_stream, judge, lost};
use super::super::{Answer, Kept, OnUnknown, Permit, Records, Rule, Told};
use super::{Shared, note, outcome_unknown, store_failed};
use crate::access_log::{KeyUse, Notes};
use crate::buffers::Buffered;
use crate::client::ClientId;
use crate::failpoint::failpoint;
use crate::respond::body::BodyError;
use crate::respond::{Asked, Rejection, rate_limit};
use crate::route::RouteId;
use crate::throttle::{Passage, Resending};
use crate::upstream::relay::RelayError;

/// An execution that has been claimed.
pub(super) struct Execution<S> {
    pub(super) shared: Arc<Shared<S>>,
    pub(super) client: ClientId,
    pub(super) rule: Arc<Rule>,
    pub(super) route: RouteId,
    pub(super) asked: Asked,
    /// The notes for the access log, if the request is logged.
    pub(super) notes: Option<Arc<Notes>>,
    /// Its place among the executions underway.
    pub(super) _place: OwnedSemaphorePermit,
}

/// What an execution means for its key.
enum Conclusion {
    Complete(Kept),
    Release(Option<Arc<Answer>>),
    Unknown,
}

impl<S: Records> Execution<S> {
    /// Carries `request` out, records what came of it, and returns what its caller is told.
    #[expect(
        clippy::manual_async_fn,
        reason = "an async fn keeps room for its arguments twice, and this future is moved to where it runs"
    )]
    pub(super) fn run<Inner, ReqBody, ResBody>(
        self,
        mut permit: Permit,
        mut request: Request<ReqBody>,
        mut inner: Inner,
    ) -> impl Future<Output = Result<Response<Told<ResBody>>, Inner::Error>> + Send
    where
        Inner: Service<Request<ReqBody>, Response = Response<ResBody>> + Send,
        Inner::Future: Send,
        Inner::Error: Send,
        ReqBody: Send,
        ResBody: Body<Data = Bytes> + Unpin + Send,
        ResBody::Error: Into<BodyError> + Send,
    {
        async move {
            failpoint!("after-claim");
            if permit.has_lapsed(self.shared.clock.now()) {
                // Nothing was sent, so the permit frees its key as it is dropped.
                let rejection = Rejection::StoreUnavailable;
                return Ok(self.refusal(&rejection));
            }
            permit.sending();
            if let Some(passage) = request.extensions_mut().get_mut::<Passage>() {
                passage.resending = match self.rule.terms.on_unknown {
                    OnUnknown::Hold => Resending::Never,
                    OnUnknown::Release => Resending::Always,
                };
            }
            let (conclusion, answered) = match inner.call(request).await {
                Ok(response) => {
                    let mut response = response.map(Told::passing);
                    let conclusion = self.conclude(&mut response).await;
                    if matches!(conclusion, Conclusion::Unknown) {
                        // The gateway's own rejections have the hint. Embedded services send others.
                        let hints = &self.shared.manner.hints;
                        hints.do_not_retry(response.headers_mut());
                    }
                    (conclusion, Ok(response))
                }
                Err(error) => {
                    let conclusion = match lost(&self.rule) {
                        Course::Release => Conclusion::Release(None),
                        _ => Conclusion::Unknown,
                    };
                    (conclusion, Err(error))
                }
            };
            failpoint!("after-upstream");
            let recorded = self.record(permit, conclusion).await;
            failpoint!("after-commit");
            match recorded {
                Ok(()) => answered,
                // What is not on record is not given out either.
                Err(rejection) => Ok(self.refusal(&rejection)),
            }
        }
    }

    /// Returns what `response` means for its key, and leaves in `response` what the caller receives. A body that is
    /// stored is charged until the caller has received it. A body beyond a bound is streamed.
    async fn conclude<B>(&self, response: &mut Response<Told<B>>) -> Conclusion
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: Into<BodyError>,
    {
        let undone = response.extensions().get::<Undone>().copied();
        let release = match judge(&self.rule, response.status(), response.headers(), undone) {
            Course::Unknown => return Conclusion::Unknown,
            Course::Stream => return Conclusion::Complete(Kept::Tombstone),
            Course::Keep => false,
            Course::Release if is_stream(response.headers()) => return Conclusion::Release(None),
            Course::Release => true,
        };
        let buffers = &self.shared.buffers;
        let mut charge = buffers.charge(self.client, Buffered::Response);
        match gather(response.body_mut(), self.rule.max_response, &mut charge).await {
            Ok(Gathered::Whole(body)) => {
                forgo_trailers(response.headers_mut());
                // A replay has the RateLimit headers of its own time. Waiters after a release get this response at once.
                let exclude = |name: &HeaderName| {
                    self.rule.exclude_headers.contains(name)
                        || (!release && rate_limit::is_field(name))
                };
                let answer = Answer::without(exclude, response.status(), response.headers(), &body);
                let answer = Arc::new(answer);
                // The stored copy, so that the bytes are in memory once.
                *response.body_mut() = charge.hold(answer.body()).into();
                if release {
                    Conclusion::Release(Some(answer))
                } else {
                    Conclusion::Complete(Kept::Answer(answer))
                }
            }
            Ok(Gathered::Partial { held, next, .. }) => {
                response.body_mut().put_back(charge.hold(held), next);
                if release {
                    Conclusion::Release(None)
                } else {
                    Conclusion::Complete(Kept::Tombstone)
                }
            }
            Err(error) => {
                let (conclusion, refusal) = self.truncated(&error.into(), release);
                *response = refusal;
                conclusion
            }
        }
    }

    /// Returns what a response means whose body ends early or is invalid, and what the caller receives instead.
    /// If the status of the response means that the request was not executed, its key is released: the status
    /// holds without the body.
    fn truncated<B>(
        &self,
        error: &BodyError,
        not_executed: bool,
    ) -> (Conclusion, Response<Told<B>>) {
        tracing::warn!(%error, not_executed, "response to a keyed request is incomplete");
        let error = error.downcast_ref::<RelayError>();
        let phase = error.and_then(RelayError::phase);
        let problem = match phase {
            Some(_) => "The response did not arrive completely in time",
            None if error.is_some_and(RelayError::is_invalid_http) => {
                "The body of the response is not valid HTTP"
            }
            None => "The upstream closed the connection before the end of the response",
        };
        let is_held = !not_executed && lost(&self.rule) == Course::Unknown;
        let execution = if not_executed {
            "; its status means that the request was not executed"
        } else if is_held {
            ""
        } else {
            "; whether the request was executed is not known"
        };
        let detail = format!("{problem}{execution}.").into();
        let rejection = match phase {
            Some(phase) => Rejection::UpstreamTimeout {
                phase,
                detail,
                is_held,
            },
            None => Rejection::UpstreamUnavailable { detail, is_held },
        };
        let (head, body) = self.refusal::<Bytes>(&rejection).into_parts();
        let conclusion = if is_held {
            Conclusion::Unknown
        } else {
            Conclusion::Release(Some(Arc::new(Answer::of(&head, &body, &[]))))
        };
        (conclusion, Response::from_parts(head, body.into()))
    }

    fn refusal<B: From<Bytes>>(&self, rejection: &Rejection) -> Response<B> {
        let notes = self.notes.as_ref();
        self.shared.refusal(rejection, &self.asked, notes)
    }

    /// Records what an execution means for its key. Returns what the caller receives instead of the response if a
    /// completion is not recorded.
    async fn record(&self, permit: Permit, conclusion: Conclusion) -> Result<(), Rejection> {
        let Shared { records, clock, .. } = &*self.shared;
        let metrics = self.shared.metrics(self.route);
        match conclusion {
            Conclusion::Complete(kept) => {
                let started = clock.now();
                let completed = records.complete(permit, kept).await;
                let took = clock.now().since(started);
                metrics.complete_latency.record(took);
                completed.map_err(|error| {
                    metrics.lost.inc();
                    store_failed("complete", &error, metrics);
                    outcome_unknown(&self.rule)
                })
            }
            // These two say less than was known before; the caller may have its answer either way.
            Conclusion::Release(answer) => {
                metrics.released.inc();
                if let Err(error) = records.release(permit, answer).await {
                    store_failed("release", &error, metrics);
                }
                Ok(())
            }
            Conclusion::Unknown => {
                metrics.lost.inc();
                note(self.notes.as_ref(), KeyUse::Unknown);
                if let Err(error) = records.mark_unknown(permit).await {
                    store_failed("mark unknown", &error, metrics);
                }
                Ok(())
            }
        }
    }
}
