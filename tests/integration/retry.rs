//! Tests that each retry preset behaves as its document specifies, in virtual time.
//!
//! Each file covers one document. A test calls a scripted API with a preset and checks the times of the calls. The
//! tests pause the tokio clock, so a delay of half an hour takes no real time and is exact to the millisecond.

mod authorization_api;
mod handbook;
mod sender;
mod traffic_control;

use std::future::ready;
use std::time::{Duration, SystemTime};

use http::{HeaderValue, Response, StatusCode, header};
use tidegate::retry::{ErrorResponse, GaveUp, Observer, RetryPolicy, Retrying};
use tokio::time::Instant;

/// Wednesday, 21 October 2026, 07:28:00 UTC, as the time since the Unix epoch.
const WEDNESDAY: Duration = Duration::from_mins(29_876_128);

/// An API that returns the responses of `script` in order, and repeats the last one.
struct Api {
    script: Vec<Response<()>>,
    /// When the API was called.
    calls: Vec<Instant>,
}

/// Result of a request, and the times of its attempts.
struct RequestRun {
    result: Result<StatusCode, GaveUp<ErrorResponse>>,
    /// When each attempt was made.
    calls: Vec<Instant>,
}

impl Api {
    fn responding(statuses: &[u16]) -> Self {
        let response = |status: &u16| Response::builder().status(*status).body(()).unwrap();
        Self {
            script: statuses.iter().map(response).collect(),
            calls: Vec::new(),
        }
    }

    /// Adds a `Retry-After` to all responses with a status of 400 or above.
    fn with_retry_after(mut self, retry_after: &str) -> Self {
        for response in &mut self.script {
            if response.status().as_u16() >= 400 {
                let value = HeaderValue::from_str(retry_after).unwrap();
                response.headers_mut().insert(header::RETRY_AFTER, value);
            }
        }
        self
    }

    fn respond(&mut self) -> Response<()> {
        let index = self.calls.len().min(self.script.len() - 1);
        self.calls.push(Instant::now());
        self.script[index].clone()
    }

    /// Calls the API with `retrying`, whose wall clock starts at [`WEDNESDAY`].
    async fn call_with<O: Observer>(mut self, retrying: Retrying<O>) -> RequestRun {
        let began = Instant::now();
        let result = retrying
            .wall(move || SystemTime::UNIX_EPOCH + WEDNESDAY + began.elapsed())
            .run(|_| ready(ErrorResponse::check(self.respond())))
            .await;
        RequestRun {
            result: result.map(|response| response.status()),
            calls: self.calls,
        }
    }

    /// Calls the API with this policy and this seed of the jitter.
    async fn call_with_policy(self, policy: RetryPolicy, seed: u64) -> RequestRun {
        self.call_with(Retrying::new(policy).seed(seed)).await
    }
}

impl RequestRun {
    /// Returns the delays between the attempts, in seconds.
    fn delays(&self) -> Vec<f64> {
        let pairs = self.calls.windows(2);
        pairs
            .map(|pair| (pair[1] - pair[0]).as_secs_f64())
            .collect()
    }

    /// Whether the delays between the attempts match `seconds`. `tolerance` is the allowed difference, as a fraction of
    /// each delay.
    fn has_delays(&self, seconds: &[f64], tolerance: f64) -> bool {
        let delays = self.delays();
        let near =
            |(delay, second): (&f64, &f64)| (delay - second).abs() <= second * tolerance + TICK;
        delays.len() == seconds.len() && delays.iter().zip(seconds).all(near)
    }
}

/// Resolution of tokio timers in seconds. A delay can be this much longer than requested, because timers round up.
const TICK: f64 = 0.001;
