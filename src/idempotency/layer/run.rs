//! The one execution of a key, from its claim to its record.
//!
//! It runs in a task of its own and never looks at its caller: whether anybody still listens shows only
//! when the answer is handed over, after it was recorded.

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, response};
use http_body::Body;
use tokio::sync::oneshot;
use tower::Service;

use super::super::answer::forgo_trailers;
use super::super::gather::{Gathered, gather};
use super::super::judge::{Course, Undone, judge, lost};
use super::super::{Answer, Kept, Permit, Records, Rule, Told};
use super::{Shared, store_failed};
use crate::failpoint::failpoint;
use crate::respond::body::BodyError;
use crate::respond::{Asked, Rejection};
use crate::route::RouteId;

/// An execution that has been claimed.
pub(super) struct Execution<S> {
    pub(super) shared: Arc<Shared<S>>,
    pub(super) permit: Permit,
    pub(super) rule: Arc<Rule>,
    pub(super) route: RouteId,
    pub(super) asked: Asked,
}

impl<S: Records> Execution<S> {
    /// Carries `request` out, records what came of it, and then tells its caller.
    pub(super) async fn run<Inner, ReqBody, ResBody>(
        mut self,
        request: Request<ReqBody>,
        mut inner: Inner,
        tell: oneshot::Sender<Result<Response<Told<ResBody>>, Inner::Error>>,
    ) where
        Inner: Service<Request<ReqBody>, Response = Response<ResBody>>,
        ResBody: Body<Data = Bytes> + Unpin,
        ResBody::Error: Into<BodyError>,
    {
        failpoint!("after-claim");
        self.permit.sending();
        let told = match inner.call(request).await {
            Ok(response) => Ok(self.settle(response).await),
            Err(error) => {
                self.forget().await;
                Err(error)
            }
        };
        failpoint!("after-commit");
        // Nobody may be listening any more, and that is fine: the record is there.
        drop(tell.send(told));
    }

    /// Records what `response` means, and returns what the caller is told.
    async fn settle<B>(self, response: Response<B>) -> Response<Told<B>>
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: Into<BodyError>,
    {
        let undone = response.extensions().get::<Undone>().copied();
        let (mut head, body) = response.into_parts();
        let course = judge(&self.rule, head.status, &head.headers, undone);
        match course {
            Course::Unknown => {
                self.forget().await;
                Response::from_parts(head, Told::passing(body))
            }
            Course::Stream => self.entomb(head, Told::passing(body)).await,
            Course::Keep | Course::Release => match gather(body, self.rule.max_response).await {
                Ok(Gathered::Whole(body)) => {
                    forgo_trailers(&mut head);
                    failpoint!("after-upstream");
                    self.conclude(course, head, body).await
                }
                Ok(Gathered::TooLarge { held, rest }) => {
                    let body = Told::resumed(held, rest);
                    if course == Course::Keep {
                        self.entomb(head, body).await
                    } else {
                        self.release(None).await;
                        Response::from_parts(head, body)
                    }
                }
                Err(error) => self.broke_off(error.into()).await,
            },
        }
    }

    /// Ends with an answer that was read to its end.
    async fn conclude<B>(
        self,
        course: Course,
        head: response::Parts,
        body: Bytes,
    ) -> Response<Told<B>> {
        let answer = Answer::of(&head, body.clone(), &self.rule.exclude_headers);
        let answer = Arc::new(answer);
        if course == Course::Keep {
            self.complete(
                Kept::Answer(answer),
                Response::from_parts(head, body.into()),
            )
            .await
        } else {
            self.release(Some(answer)).await;
            Response::from_parts(head, body.into())
        }
    }

    /// Ends with an answer that cannot be kept.
    async fn entomb<B>(self, head: response::Parts, body: Told<B>) -> Response<Told<B>> {
        self.complete(Kept::Tombstone, Response::from_parts(head, body))
            .await
    }

    /// Ends with `response`, which its caller gets only if the record stands.
    async fn complete<B>(self, kept: Kept, response: Response<Told<B>>) -> Response<Told<B>> {
        let Self {
            shared,
            permit,
            route,
            asked,
            ..
        } = self;
        let started = shared.clock.now();
        let recorded = shared.records.complete(permit, kept).await;
        let metrics = shared.metrics(route);
        let took = shared.clock.now().since(started);
        metrics.complete_latency.record(took);
        match recorded {
            Ok(()) => response,
            Err(error) => {
                store_failed("complete", &error, metrics);
                shared.refusal(&Rejection::OutcomeUnknown, &asked)
            }
        }
    }

    /// Ends with an answer that broke off.
    async fn broke_off<B>(self, error: BodyError) -> Response<Told<B>> {
        tracing::warn!(%error, "the answer to a keyed request broke off");
        let rejection = Rejection::UpstreamUnavailable {
            detail: "The answer broke off before its end; whether the request was carried out is not known."
                .into(),
        };
        let response = self.shared.refusal(&rejection, &self.asked);
        if lost(&self.rule) == Course::Release {
            let (head, body): (_, Bytes) = response.into_parts();
            return self.conclude(Course::Release, head, body).await;
        }
        self.forget().await;
        response.map(Told::from)
    }

    /// Ends as unknown.
    async fn forget(self) {
        let metrics = self.shared.metrics(self.route);
        metrics.lost.inc();
        if let Err(error) = self.shared.records.mark_unknown(self.permit).await {
            store_failed("mark unknown", &error, metrics);
        }
    }

    /// Ends as if it had never been.
    async fn release(self, answer: Option<Arc<Answer>>) {
        let metrics = self.shared.metrics(self.route);
        metrics.released.inc();
        if let Err(error) = self.shared.records.release(self.permit, answer).await {
            store_failed("release", &error, metrics);
        }
    }
}
