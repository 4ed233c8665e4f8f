//! `/flaky/SCRIPT`: a sequence of scripted responses.
//!
//! Requests to `/flaky/429,429:10,200` get 429, then 429 with `Retry-After: 10`, then 200. Then the sequence restarts.
//! Each combination of path and query has its own position in the sequence, so a new query such as `?run=7` starts at
//! the first step. The script is in the path and not in a configuration, so that it is visible in each request. Its
//! steps are steps of a scenario.

use std::collections::HashMap;
use std::num::ParseIntError;
use std::sync::Arc;
use std::time::SystemTime;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderValue, StatusCode, Uri};
use axum::response::Response;
use axum::routing::any;
use parking_lot::Mutex;
use serde_json::json;

use crate::clock::Moment;
use crate::scenario::step::{RetryAfterText, Step, StepAction};
use crate::scenario::{AtEnd, CountBy, Position, Scenario, respond as scripted};

/// Maximum number of stored positions. At this number, a new path or query makes all scripts restart.
const MAX_SCRIPTS: usize = 10_000;

/// Position of each path and query in its script, with the number of earlier requests.
type ScriptPositions = Arc<Mutex<HashMap<String, (Position, u64)>>>;

pub(super) fn router() -> Router<super::SharedLedger> {
    let positions = ScriptPositions::default();
    Router::new()
        .route("/{script}", any(respond))
        .with_state(positions)
}

async fn respond(
    State(positions): State<ScriptPositions>,
    Path(script): Path<String>,
    uri: Uri,
) -> Response {
    let scenario = match parse(&script) {
        Ok(scenario) => scenario,
        Err(error) => return bad_request(&error),
    };
    let (mut step, turn) = next_step(&positions, uri.to_string(), &scenario);
    if let StepAction::Respond(status) = step.action {
        let body = json!({ "turn": turn, "status": status.as_u16() });
        step.body = Some(format!("{body}\n").into());
    }
    scripted::response(&step, SystemTime::now()).map(Body::new)
}

/// Returns the next step of the script of a path and query (`target`), and the number of its requests so far.
fn next_step(positions: &ScriptPositions, target: String, scenario: &Scenario) -> (Step, u64) {
    let mut positions = positions.lock();
    if positions.len() >= MAX_SCRIPTS && !positions.contains_key(&target) {
        positions.clear();
    }
    let new = || (Position::new(scenario.seed, None), 0);
    let (position, turn) = positions.entry(target).or_insert_with(new);
    *turn += 1;
    // The time is not used, because no step of a script has a duration.
    let step = position.next(scenario, Moment::from_nanos(0));
    let step = step.expect("a script restarts at its end and has no step with a chance");
    (Step::clone(&step), *turn)
}

fn parse(script: &str) -> Result<Scenario, InvalidStep> {
    let steps = script.split(',').map(|text| parse_step(text).map(Arc::new));
    Ok(Scenario {
        name: "flaky".into(),
        summary: None,
        steps: steps.collect::<Result<_, _>>()?,
        at_end: AtEnd::Restart,
        by: CountBy::Client,
        seed: 0,
    })
}

fn bad_request(error: &InvalidStep) -> Response {
    let error = json!({ "error": error.to_string() });
    super::json_line(StatusCode::BAD_REQUEST, &error)
}

/// Error: a step of the script is neither `STATUS` nor `STATUS:SECONDS`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a valid step of the script: write a status from 200 to 599, with optional Retry-After seconds, such \
     as 429:10"
)]
struct InvalidStep(String);

fn parse_step(text: &str) -> Result<Step, InvalidStep> {
    let (status, seconds) = match text.split_once(':') {
        Some((status, seconds)) => (status, Some(seconds)),
        None => (text, None),
    };
    let invalid = || InvalidStep(text.to_owned());
    let number = status.parse().ok();
    let number = number.filter(|number| (200..600).contains(number));
    let status = number.and_then(|number| StatusCode::from_u16(number).ok());
    let seconds: Result<Option<u32>, ParseIntError> = seconds.map(str::parse).transpose();
    let seconds = seconds.map_err(|_| invalid())?;
    Ok(Step {
        retry_after: seconds.map(|seconds| RetryAfterText::Literal(HeaderValue::from(seconds))),
        ..Step::respond(status.ok_or_else(invalid)?)
    })
}

#[cfg(test)]
mod tests {
    use axum::http::{Request, header};
    use tower::ServiceExt as _;

    use super::*;

    /// Sends requests to these paths in order. Returns the status and `Retry-After` of each response.
    async fn responses(paths: &[&str]) -> Vec<(u16, Option<String>)> {
        let router = router().with_state(super::super::SharedLedger::default());
        let mut responses = Vec::new();
        for path in paths {
            let request = Request::get(*path).body(Body::empty()).unwrap();
            let response = router.clone().oneshot(request).await.unwrap();
            let retry_after = response.headers().get(header::RETRY_AFTER);
            let retry_after = retry_after.map(|value| value.to_str().unwrap().to_owned());
            responses.push((response.status().as_u16(), retry_after));
        }
        responses
    }

    #[tokio::test]
    async fn responses_follow_the_script_and_restart_at_its_end() {
        let found = responses(&["/429:10,503,200"; 4]).await;
        let ten = || Some("10".to_owned());
        assert_eq!(
            found,
            [(429, ten()), (503, None), (200, None), (429, ten())]
        );
    }

    #[tokio::test]
    async fn each_path_and_query_has_its_own_position() {
        let found = responses(&["/500,200", "/500,200?run=2", "/500,200", "/500,200?run=2"]).await;
        let statuses: Vec<u16> = found.into_iter().map(|(status, _)| status).collect();
        assert_eq!(statuses, [500, 500, 200, 200]);
    }

    #[tokio::test]
    async fn an_invalid_script_gets_400() {
        for path in [
            "/soon", "/199", "/600", "/429:", "/429:-1", "/200,", "/429:1.5",
        ] {
            assert_eq!(responses(&[path]).await[0].0, 400, "{path}");
        }
    }

    #[test]
    fn all_positions_are_cleared_at_the_maximum() {
        let positions = ScriptPositions::default();
        let scenario = parse("503,200").unwrap();
        let turn = |target: String| next_step(&positions, target, &scenario).1;
        for number in 0..MAX_SCRIPTS {
            turn(number.to_string());
        }
        assert_eq!(turn("0".to_owned()), 2);
        assert_eq!(turn("another".to_owned()), 1);
        assert_eq!(positions.lock().len(), 1);
    }
}
