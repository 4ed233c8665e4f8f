//! `/flaky/SCRIPT`: answers that fail as the path says, one after the other.
//!
//! `/flaky/429,429:10,200` is answered with 429, then with 429 and `Retry-After: 10`, then with 200, and then
//! from the beginning again. Each path and query has a turn of its own, so `?run=7` starts afresh. The script
//! is in the path, not in a configuration: whoever tries a client out has it before their eyes.

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

/// Scripts whose turn is remembered; when there are more, all begin again.
const MAX_SCRIPTS: usize = 10_000;

/// Whose turn it is, by path and query.
type Turns = Arc<Mutex<HashMap<String, usize>>>;

/// One answer of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    status: StatusCode,
    /// Seconds, in `Retry-After`.
    retry_after: Option<u32>,
}

pub(super) fn router() -> Router<super::Books> {
    let turns = Turns::default();
    Router::new()
        .route("/{script}", any(answer))
        .with_state(turns)
}

async fn answer(State(turns): State<Turns>, Path(script): Path<String>, uri: Uri) -> Response {
    let steps: Vec<Step> = match script.split(',').map(str::parse).collect() {
        Ok(steps) => steps,
        Err(error) => return error_of(&error),
    };
    let turn = take_turn(&turns, uri.to_string());
    let step = steps[turn % steps.len()];
    let body = Json(json!({ "turn": turn + 1, "status": step.status.as_u16() }));
    let mut response = (step.status, body).into_response();
    if let Some(seconds) = step.retry_after {
        response
            .headers_mut()
            .insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

/// How often this was asked for before.
fn take_turn(turns: &Turns, asked: String) -> usize {
    let mut turns = turns.lock();
    if turns.len() >= MAX_SCRIPTS && !turns.contains_key(&asked) {
        turns.clear();
    }
    let turn = turns.entry(asked).or_default();
    *turn += 1;
    *turn - 1
}

fn error_of(error: &NotAStep) -> Response {
    let error = json!({ "error": error.to_string() });
    (StatusCode::BAD_REQUEST, Json(error)).into_response()
}

/// Part of a script that says nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no status from 200 to 599, nor one with seconds, such as 429:10")]
struct NotAStep(String);

impl FromStr for Step {
    type Err = NotAStep;

    fn from_str(step: &str) -> Result<Self, NotAStep> {
        let (status, seconds) = match step.split_once(':') {
            Some((status, seconds)) => (status, Some(seconds)),
            None => (step, None),
        };
        let wrong = || NotAStep(step.to_owned());
        let number = status.parse().ok();
        let number = number.filter(|number| (200..600).contains(number));
        let status = number.and_then(|number| StatusCode::from_u16(number).ok());
        let retry_after: Result<Option<u32>, ParseIntError> = seconds.map(str::parse).transpose();
        Ok(Self {
            status: status.ok_or_else(wrong)?,
            retry_after: retry_after.map_err(|_| wrong())?,
        })
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::Request;
    use tower::ServiceExt as _;

    use super::*;

    /// Status and `Retry-After` of what is answered to each of these, one after the other.
    async fn answers(paths: &[&str]) -> Vec<(u16, Option<String>)> {
        let router = router().with_state(super::super::Books::default());
        let mut answers = Vec::new();
        for path in paths {
            let request = Request::get(*path).body(Body::empty()).unwrap();
            let response = router.clone().oneshot(request).await.unwrap();
            let told = response.headers().get(header::RETRY_AFTER);
            let told = told.map(|told| told.to_str().unwrap().to_owned());
            answers.push((response.status().as_u16(), told));
        }
        answers
    }

    #[tokio::test]
    async fn a_script_is_answered_step_by_step_and_from_the_beginning_again() {
        let told = answers(&["/429:10,503,200"; 4]).await;
        let ten = || Some("10".to_owned());
        assert_eq!(told, [(429, ten()), (503, None), (200, None), (429, ten())]);
    }

    #[tokio::test]
    async fn each_path_and_query_has_its_own_turn() {
        let told = answers(&["/500,200", "/500,200?run=2", "/500,200", "/500,200?run=2"]).await;
        let statuses: Vec<u16> = told.into_iter().map(|(status, _)| status).collect();
        assert_eq!(statuses, [500, 500, 200, 200]);
    }

    #[tokio::test]
    async fn what_is_no_script_is_a_bad_request() {
        for path in [
            "/soon", "/199", "/600", "/429:", "/429:-1", "/200,", "/429:1.5",
        ] {
            assert_eq!(answers(&[path]).await[0].0, 400, "{path}");
        }
    }

    #[test]
    fn a_flood_of_scripts_is_forgotten() {
        let turns = Turns::default();
        for number in 0..MAX_SCRIPTS {
            take_turn(&turns, number.to_string());
        }
        assert_eq!(take_turn(&turns, "0".to_owned()), 1);
        assert_eq!(take_turn(&turns, "another".to_owned()), 0);
        assert_eq!(turns.lock().len(), 1);
    }
}
