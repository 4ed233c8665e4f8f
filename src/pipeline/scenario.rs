//! Responds to the requests of a route with a scenario, and records them.

use std::sync::Arc;

use http::uri::PathAndQuery;
use http::{HeaderValue, Request, Response};
use http_body_util::BodyExt as _;

use super::{Pipeline, Routed, with_target};
use crate::body::{RequestBody, ResponseBody};
use crate::buffers::Buffered;
use crate::idempotency::IdempotencyKey;
use crate::idempotency::key::IDEMPOTENCY_KEY;
use crate::path;
use crate::problem::Problem;
use crate::scenario::observation::{Attempt, ObservedBody};
use crate::scenario::step::StepAction;
use crate::scenario::{CountBy, Recording, ScenarioState, X_TIDEGATE_TEST, is_test_id, respond};

/// Maximum number of bytes of a request body that are read before the response, and compared between attempts.
const MAX_COMPARED: usize = 1 << 20;

/// Maximum number of bytes of a request body in a record that includes bodies.
const MAX_CONTENT: usize = 64 * 1024;

/// Start of a path that names a test, as in `/t/ID/path`.
const TEST_PREFIX: &str = "/t/";

impl Pipeline {
    /// Responds to a request of a route with a scenario. The request body is read first, because the record contains
    /// its hash. Then the rate limits apply, and then the next step of the scenario.
    pub(super) async fn run_scenario(
        &self,
        routed: &Arc<Routed>,
        scenario: &Arc<ScenarioState>,
        mut request: Request<RequestBody>,
    ) -> (Response<ResponseBody>, Recording) {
        let Routed { ctx, rule, .. } = &**routed;
        let arrived = scenario.elapsed();
        let client = ctx.caller.id();
        let charge = self.buffers.charge(client, Buffered::Upload);
        let read = request.body_mut().buffer(MAX_COMPARED, charge).await;

        let test = request.headers().get(&X_TIDEGATE_TEST);
        let run = scenario.run_id(client, test.and_then(|test| test.to_str().ok()));
        let header = rule.keys.as_ref().map(|keys| keys.header().clone());
        let header = header.unwrap_or(IDEMPOTENCY_KEY);
        let key = IdempotencyKey::of(&request.headers().get_all(header));
        let key = key.ok().flatten().map(|key| key.as_str().to_owned());
        let recording = scenario.begin(
            &run,
            Attempt {
                client,
                connection: routed.arrival.connection.number,
                version: request.version(),
                method: request.method().clone(),
                target: target(&request),
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
            return (reject(error.into()), recording);
        }
        let charged = self.throttle.charge(ctx, &rule.limits, request.headers());
        let admission = match charged.await {
            Ok(admission) => admission,
            Err(problem) => return (reject(problem), recording),
        };
        let response = match scenario.next_step(&run, key.as_deref()) {
            None => self.execute(routed, request).await,
            Some(step) => {
                recording.set_step(&step);
                tokio::time::sleep(step.delay).await;
                self.act(routed, &step, request).await
            }
        };
        let mut response = response.unwrap_or_else(reject);
        self.add_headers(routed, &admission, response.headers_mut());
        (response, recording)
    }

    /// Does what a step demands, after its delay.
    async fn act(
        &self,
        routed: &Arc<Routed>,
        step: &crate::scenario::step::Step,
        request: Request<RequestBody>,
    ) -> Result<Response<ResponseBody>, Problem> {
        match step.action {
            StepAction::Pass => return self.execute(routed, request).await,
            StepAction::ExecutedThenLost => {
                // The response is read to its end, so that the upstream has executed the request.
                if let Ok(response) = self.execute(routed, request).await {
                    let mut body = response.into_body();
                    while let Some(Ok(_)) = body.frame().await {}
                }
            }
            _ => {}
        }
        routed.ctx.note(|fields| fields.reason = Some("scenario"));
        Ok(respond::response(step, self.clock.wall()))
    }

    /// Removes `/t/ID/` from the path of a request and sets its header `X-Tidegate-Test`, if the rest of the path belongs
    /// to a route whose scenario counts by test. Otherwise the request is unchanged.
    pub(super) fn remove_test_prefix(&self, request: &mut Request<RequestBody>) {
        let target = request
            .uri()
            .path_and_query()
            .map_or("", PathAndQuery::as_str);
        let Some((id, rest)) = target
            .strip_prefix(TEST_PREFIX)
            .and_then(|rest| rest.split_once('/'))
            .filter(|(id, _)| is_test_id(id))
        else {
            return;
        };
        let Ok(uri) = with_target(request.uri(), format!("/{rest}")) else {
            return;
        };
        let Ok(path) = path::read(uri.path(), uri.query()) else {
            return;
        };
        let rule = self.routes.select(request.method(), &path);
        let scenario = rule.ok().and_then(|rule| rule.scenario.as_ref());
        if scenario.is_some_and(|state| state.scenario.by == CountBy::Test)
            && let Ok(id) = HeaderValue::from_str(id)
        {
            request.headers_mut().insert(X_TIDEGATE_TEST, id);
            *request.uri_mut() = uri;
        }
    }
}

fn target(request: &Request<RequestBody>) -> String {
    let target = request.uri().path_and_query();
    target.map_or_else(String::new, ToString::to_string)
}

/// Returns the length and hash of a body. Of a body that is not complete in memory, only the start is known.
fn observe_body(body: &RequestBody, includes_content: bool) -> ObservedBody {
    let start = body.start();
    let length = http_body::Body::size_hint(body).exact();
    ObservedBody {
        length: length.unwrap_or(start.len() as u64),
        hash: *blake3::hash(start).as_bytes(),
        content: includes_content
            .then(|| bytes::Bytes::copy_from_slice(&start[..start.len().min(MAX_CONTENT)])),
    }
}
