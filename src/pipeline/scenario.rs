//! Responds to the requests of a route with a scenario, and traces them.

use std::sync::Arc;
use std::time::Duration;

use http::Request;
use http_body_util::BodyExt as _;

use super::{Pipeline, Routed};
use crate::http::service::Reply;
use crate::idempotency::IdempotencyKey;
use crate::idempotency::key::IDEMPOTENCY_KEY;
use crate::request::body::{RequestBody, ResponseBody};
use crate::request::buffers::Buffered;
use crate::request::test_id::TestId;
use crate::respond::Problem;
use crate::scenario::step::StepAction;
use crate::scenario::trace::{Attempt, ObservedBody};
use crate::scenario::{ScenarioState, TracedAttempt, respond};

/// Bytes of a request body that are read before the response, and compared between attempts.
const MAX_COMPARED: usize = 1 << 20;

/// Bytes of a request body in a trace that includes bodies.
const MAX_CONTENT: usize = 64 * 1024;

const MAX_LOST_READ: Duration = Duration::from_mins(1);

impl Pipeline {
    /// The request body is read first, because the trace contains its hash. Then the limits apply, and then the next
    /// step of the scenario.
    pub(super) async fn run_scenario(
        &self,
        routed: &Arc<Routed>,
        scenario: &Arc<ScenarioState>,
        mut request: Request<RequestBody>,
    ) -> (Reply<ResponseBody>, TracedAttempt) {
        let Routed { ctx, rule, .. } = &**routed;
        let arrived = scenario.elapsed();
        let client = ctx.caller.id();
        let charge = self.buffers.charge(client, Buffered::Upload);
        let read = request.body_mut().buffer(MAX_COMPARED, charge).await;

        let named = TestId::of(request.headers());
        let test = routed.arrival.test.as_ref().or(named.as_ref());
        let run = scenario.run_id(client, test);
        let header = rule.keys.as_ref().map(|keys| keys.header().clone());
        let header = header.unwrap_or(IDEMPOTENCY_KEY);
        let key = IdempotencyKey::of(&request.headers().get_all(header));
        let key = key.ok().flatten().map(|key| key.as_str().to_owned());
        let traced = scenario.begin(
            &run,
            Attempt {
                client,
                connection: routed.arrival.connection.number,
                version: request.version(),
                method: request.method().clone(),
                target: target(&request),
                test: routed.arrival.test.clone(),
                headers: request.headers().clone(),
                key: key.clone(),
                body: observe_body(request.body(), scenario.includes_bodies()),
                arrived,
                step: None,
                response: None,
            },
        );

        let reject = |problem| self.reject(problem, &ctx.preferences, ctx.notes.as_ref());
        if let Err(error) = read {
            return (reject(error.into()), traced);
        }
        let charged = self
            .throttle
            .charge(ctx, &rule.limits, request.headers().into());
        let admission = match charged.await {
            Ok(admission) => admission,
            Err(problem) => return (reject(problem), traced),
        };
        let reply = match scenario.next_step(&run, key.as_deref()) {
            None => self.execute(routed, request).await.map(Reply::Response),
            Some(step) => {
                traced.set_step(&step);
                tokio::time::sleep(step.delay).await;
                self.act(routed, &step, request).await
            }
        };
        let mut reply = reply.unwrap_or_else(reject);
        self.add_headers(routed, &admission, &mut reply);
        (reply, traced)
    }

    async fn act(
        &self,
        routed: &Arc<Routed>,
        step: &crate::scenario::step::Step,
        request: Request<RequestBody>,
    ) -> Result<Reply<ResponseBody>, Problem> {
        match step.action {
            StepAction::Pass => return self.execute(routed, request).await.map(Reply::Response),
            StepAction::ExecutedThenLost => {
                // The response is read to its end, so that the upstream has executed the request.
                if let Ok(response) = self.execute(routed, request).await {
                    let mut body = response.into_body();
                    let read = async { while let Some(Ok(_)) = body.frame().await {} };
                    let _endless = tokio::time::timeout(MAX_LOST_READ, read).await;
                }
            }
            _ => {}
        }
        routed.ctx.note(|fields| fields.reason = Some("scenario"));
        Ok(respond::reply(step, self.clock.wall()))
    }
}

fn target(request: &Request<RequestBody>) -> String {
    let target = request.uri().path_and_query();
    target.map_or_else(String::new, ToString::to_string)
}

/// Of a body longer than [`MAX_COMPARED`], only the start is hashed.
fn observe_body(body: &RequestBody, includes_content: bool) -> ObservedBody {
    let start: Vec<u8> = body.start().flatten().copied().take(MAX_COMPARED).collect();
    let declared = http_body::Body::size_hint(body).exact();
    ObservedBody {
        length: declared.unwrap_or(start.len() as u64),
        hash: *blake3::hash(&start).as_bytes(),
        is_partial: body.whole().is_none() && start.len() < MAX_COMPARED,
        content: includes_content
            .then(|| bytes::Bytes::copy_from_slice(&start[..start.len().min(MAX_CONTENT)])),
    }
}
