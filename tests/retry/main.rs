//! What the documents behind the presets promise, carried out in virtual time.
//!
//! One file a document. Each has an API that answers from a script, a client that calls it by a preset, and a
//! look at when the calls came. Time is tokio's paused clock, so a wait of half an hour takes no time and is
//! exact to the millisecond.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod authorization_api;
mod handbook;
mod sender;
mod traffic_control;

use std::future::ready;
use std::time::{Duration, SystemTime};

use http::{HeaderValue, Response, StatusCode, header};
use tidegate::retry::{ErrorResponse, GaveUp, Observer, Policy, Retrying};
use tokio::time::Instant;

/// Wednesday, 21 October 2026, 07:28:00.
const WEDNESDAY: Duration = Duration::from_mins(29_876_128);

/// An API that answers its calls from a script, and with its last answer from then on.
struct Api {
    script: Vec<Response<()>>,
    /// When it was called.
    calls: Vec<Instant>,
}

/// How a request went.
struct Story {
    ended: Result<StatusCode, GaveUp<ErrorResponse>>,
    /// When each attempt was made.
    calls: Vec<Instant>,
}

impl Api {
    fn answering(statuses: &[u16]) -> Self {
        let answer = |status: &u16| Response::builder().status(*status).body(()).unwrap();
        Self {
            script: statuses.iter().map(answer).collect(),
            calls: Vec::new(),
        }
    }

    /// Puts a `Retry-After` on all the answers that are errors.
    fn telling(mut self, retry_after: &str) -> Self {
        for answer in &mut self.script {
            if answer.status().as_u16() >= 400 {
                let value = HeaderValue::from_str(retry_after).unwrap();
                answer.headers_mut().insert(header::RETRY_AFTER, value);
            }
        }
        self
    }

    fn call(&mut self) -> Response<()> {
        let turn = self.calls.len().min(self.script.len() - 1);
        self.calls.push(Instant::now());
        self.script[turn].clone()
    }

    /// Calls it as `retrying` says.
    async fn called_by<O: Observer>(mut self, retrying: Retrying<O>) -> Story {
        let began = Instant::now();
        let ended = retrying
            .wall(move || SystemTime::UNIX_EPOCH + WEDNESDAY + began.elapsed())
            .run(|_| ready(ErrorResponse::check(self.call())))
            .await;
        Story {
            ended: ended.map(|answer| answer.status()),
            calls: self.calls,
        }
    }

    /// Calls it by this policy, with chance from this seed.
    async fn called(self, policy: Policy, seed: u64) -> Story {
        self.called_by(Retrying::new(policy).seed(seed)).await
    }
}

impl Story {
    /// Seconds between one attempt and the next.
    fn waits(&self) -> Vec<f64> {
        let pairs = self.calls.windows(2);
        pairs
            .map(|pair| (pair[1] - pair[0]).as_secs_f64())
            .collect()
    }

    /// Whether its waits are these, to within this part of each.
    fn waited(&self, seconds: &[f64], tolerance: f64) -> bool {
        let waits = self.waits();
        let near =
            |(wait, second): (&f64, &f64)| (wait - second).abs() <= second * tolerance + TICK;
        waits.len() == seconds.len() && waits.iter().zip(seconds).all(near)
    }
}

/// Tokio's clock counts milliseconds, and rounds up.
const TICK: f64 = 0.001;
