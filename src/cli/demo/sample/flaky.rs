//! `/flaky/SCRIPT`: a sequence of scripted responses.
//!
//! Requests to `/flaky/429,429:10,200` get 429, then 429 with `Retry-After: 10`, then 200. Then the sequence restarts.
//! Each combination of path and query has its own position in the sequence, so a new query such as `?run=7` starts at
//! the first step. The script is in the path and not in a configuration, so that it is visible in each request.

use std::collections::HashMap;
use std::num::ParseIntError;
use std::str::FromStr;
use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use axum::{Json, Router};
use parking_lot::Mutex;
use serde_json::json;

/// Maximum number of stored positions. At this number, a new path or query makes all scripts restart.
const MAX_SCRIPTS: usize = 10_000;

/// Number of earlier requests to each path and query. This number is the position in the script.
type ScriptPositions = Arc<Mutex<HashMap<String, usize>>>;

/// One response of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ScriptStep {
    status: StatusCode,
    /// Value of `Retry-After`, in seconds. `None` means that the response has no `Retry-After`.
    retry_after: Option<u32>,
}

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
    let steps: Vec<ScriptStep> = match script.split(',').map(str::parse).collect() {
        Ok(steps) => steps,
        Err(error) => return bad_request(&error),
    };
    let position = next_position(&positions, uri.to_string());
    let step = steps[position % steps.len()];
    let body = Json(json!({ "turn": position + 1, "status": step.status.as_u16() }));
    let mut response = (step.status, body).into_response();
    if let Some(seconds) = step.retry_after {
        response
            .headers_mut()
            .insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

/// Returns the number of earlier requests to a path and query (`target`), and counts this request.
fn next_position(positions: &ScriptPositions, target: String) -> usize {
    let mut positions = positions.lock();
    if positions.len() >= MAX_SCRIPTS && !positions.contains_key(&target) {
        positions.clear();
    }
    let position = positions.entry(target).or_default();
    *position += 1;
    *position - 1
}

fn bad_request(error: &InvalidStep) -> Response {
    let error = json!({ "error": error.to_string() });
    (StatusCode::BAD_REQUEST, Json(error)).into_response()
}

/// Error: a step of the script is neither `STATUS` nor `STATUS:SECONDS`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a valid step of the script: write a status from 200 to 599, with optional Retry-After seconds, such \
     as 429:10"
)]
struct InvalidStep(String);

impl FromStr for ScriptStep {
    type Err = InvalidStep;

    fn from_str(step: &str) -> Result<Self, InvalidStep> {
        let (status, seconds) = match step.split_once(':') {
            Some((status, seconds)) => (status, Some(seconds)),
            None => (step, None),
        };
        let invalid = || InvalidStep(step.to_owned());
        let number = status.parse().ok();
        let number = number.filter(|number| (200..600).contains(number));
        let status = number.and_then(|number| StatusCode::from_u16(number).ok());
        let retry_after: Result<Option<u32>, ParseIntError> = seconds.map(str::parse).transpose();
        Ok(Self {
            status: status.ok_or_else(invalid)?,
            retry_after: retry_after.map_err(|_| invalid())?,
        })
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::Request;
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
        for number in 0..MAX_SCRIPTS {
            next_position(&positions, number.to_string());
        }
        assert_eq!(next_position(&positions, "0".to_owned()), 1);
        assert_eq!(next_position(&positions, "another".to_owned()), 0);
        assert_eq!(positions.lock().len(), 1);
    }
}
