//! Simulated clients: they follow a retry policy, or break one of the rules, in virtual time.

use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fastrand::Rng;
use http::header::{RETRY_AFTER, SET_COOKIE};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Version};

use crate::config::Environment;
use crate::config::lab::ScenarioFile;
use crate::request::client::ClientId;
use crate::retry::{
    Backoff, Failure, Jitter, Next, RetryAfter, RetryAfterPolicy, RetryPolicy, RetryState,
    RetryTable, Strategy,
};
use crate::scenario::step::Step;
use crate::scenario::trace::{Attempt, ObservedBody, ObservedResponse, ResponseEnd, Trace};

/// Response of the simulated server to an attempt.
#[derive(Clone, Copy, Debug)]
pub(super) enum SimulatedStep {
    /// Response without a stated time.
    Status(u16),
    /// Response with `Retry-After` in seconds.
    Seconds(u16, u64),
    /// Response with `Retry-After` as a date at least this number of seconds ahead.
    Date(u16, u64),
    /// No response: the gateway closes the connection.
    Reset,
}

/// Deviation of a client from its policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Defect {
    None,
    RetriesBadRequest,
    ChangesBody,
    ChangesKey,
    ReusesKey,
    OmitsKey,
    /// Retries one second before a date.
    EarlyOnDates,
    /// Retries one second before a time in seconds.
    EarlyOnSeconds,
}

/// Trace of simulated clients.
pub(super) struct SimulatedClients {
    random: Rng,
    started: SystemTime,
    attempts: Vec<Attempt>,
    operations: u64,
    keys: u64,
}

impl SimulatedClients {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: Rng::with_seed(seed),
            started: SystemTime::UNIX_EPOCH + Duration::from_millis(1_800_000_000_300),
            attempts: Vec::new(),
            operations: 0,
            keys: 0,
        }
    }

    /// Adds `number` operations of this many clients. Each starts at a random time within an hour. Odd operations are
    /// POST requests with a key, and the others are GET requests.
    pub(super) fn run(
        &mut self,
        policy: RetryPolicy,
        defect: Defect,
        steps: &[SimulatedStep],
        number: u32,
        clients: u32,
    ) {
        for operation in 0..number {
            let client = client(operation % clients);
            let start = Duration::from_secs_f64(3_600.0 * self.random.f64());
            self.operation(client, start, policy, defect, steps);
        }
    }

    /// Adds an operation. Its last step repeats until the client gives up.
    pub(super) fn operation(
        &mut self,
        client: ClientId,
        start: Duration,
        policy: RetryPolicy,
        defect: Defect,
        steps: &[SimulatedStep],
    ) {
        let id = self.operations;
        self.operations += 1;
        self.keys += 1;
        let is_post = id % 2 == 1 || matches!(defect, Defect::OmitsKey | Defect::ReusesKey);
        let mut state = policy.begin();
        let mut arrived = start;
        for number in 0.. {
            let step = steps[number.min(steps.len() - 1)];
            if defect == Defect::ChangesKey && number > 0 {
                self.keys += 1;
            }
            let mut attempt = attempt(client, arrived, Method::GET, &format!("/orders/{id}"));
            attempt.connection = id;
            if is_post || matches!(defect, Defect::ChangesBody | Defect::ChangesKey) {
                attempt.method = Method::POST;
                let version = if defect == Defect::ChangesBody {
                    number
                } else {
                    0
                };
                attempt.body = body(&format!("order {id} version {version}"));
                attempt.key = match defect {
                    Defect::OmitsKey => None,
                    Defect::ReusesKey => Some("the-key".into()),
                    _ => Some(format!("key-{}", self.keys)),
                };
            }
            let started = arrived + self.latency();
            attempt.response = Some(self.respond(step, started));
            let next = self.next(&attempt, defect, &mut state, start);
            self.attempts.push(attempt);
            match next {
                Some(delay) => arrived = started + delay + self.latency(),
                None => break,
            }
        }
    }

    /// Returns the delay before the next attempt, from the response to this one. `None` if there is none.
    fn next(
        &mut self,
        attempt: &Attempt,
        defect: Defect,
        state: &mut RetryState,
        start: Duration,
    ) -> Option<Duration> {
        let response = attempt.response.as_ref().unwrap();
        let failure = match response.status {
            None => Failure::Disconnected,
            Some(status) if status.as_u16() < 400 => return None,
            Some(StatusCode::BAD_REQUEST) if defect == Defect::RetriesBadRequest => {
                Failure::Status(StatusCode::SERVICE_UNAVAILABLE)
            }
            Some(status) => Failure::Status(status),
        };
        let now = self.started + response.started;
        let hint = RetryAfter::of(&response.headers).map(|hint| match (hint, defect) {
            (RetryAfter::At(_), Defect::EarlyOnDates)
            | (RetryAfter::Seconds(_), Defect::EarlyOnSeconds) => {
                hint.wait(now).saturating_sub(Duration::from_secs(1))
            }
            _ => hint.wait(now),
        });
        match state.failed(
            failure,
            hint,
            response.started.saturating_sub(start),
            &mut self.random,
        ) {
            Next::Retry(wait) => Some(wait.delay),
            Next::GiveUp(_) => None,
        }
    }

    fn respond(&mut self, step: SimulatedStep, started: Duration) -> ObservedResponse {
        let mut headers = HeaderMap::new();
        headers.insert(SET_COOKIE, HeaderValue::from_static("unrelated=1"));
        let status = match step {
            SimulatedStep::Status(status) => Some(status),
            SimulatedStep::Seconds(status, seconds) => {
                headers.insert(RETRY_AFTER, seconds.into());
                Some(status)
            }
            SimulatedStep::Date(status, seconds) => {
                // A date has no fraction of a second, so it is rounded up.
                let date = self.started + started + Duration::from_secs(seconds + 1);
                let date = httpdate::fmt_http_date(date).parse().unwrap();
                headers.insert(RETRY_AFTER, date);
                Some(status)
            }
            SimulatedStep::Reset => None,
        };
        let end = if status.is_some() {
            ResponseEnd::Complete
        } else {
            ResponseEnd::Aborted
        };
        ObservedResponse {
            status: status.map(|status| StatusCode::from_u16(status).unwrap()),
            headers,
            started,
            ended: started,
            end,
        }
    }

    fn latency(&mut self) -> Duration {
        Duration::from_secs_f64(0.003 * self.random.f64())
    }

    /// Returns the trace, in the order of arrival.
    pub(super) fn trace(mut self) -> Trace {
        self.attempts.sort_by_key(|attempt| attempt.arrived);
        trace_of(self.attempts)
    }
}

/// Returns a trace of these attempts.
pub(super) fn trace_of(attempts: Vec<Attempt>) -> Trace {
    Trace {
        started: SystemTime::UNIX_EPOCH + Duration::from_millis(1_800_000_000_300),
        attempts,
        untraced: 0,
        timer_delay: Duration::from_millis(1),
    }
}

/// Returns a request without body, key and response.
pub(super) fn attempt(
    client: ClientId,
    arrived: Duration,
    method: Method,
    target: &str,
) -> Attempt {
    Attempt {
        client,
        connection: 1,
        version: Version::HTTP_11,
        method,
        target: target.into(),
        headers: HeaderMap::new(),
        key: None,
        body: ObservedBody::default(),
        arrived,
        test: None,
        step: None,
        response: None,
    }
}

/// Parses a step as the configuration does.
pub(super) fn step(text: &str) -> Arc<Step> {
    let text = format!("[scenario.a]\nsteps = [{}]\n", serde_json::json!(text));
    let file = ScenarioFile {
        name: "lab.toml",
        text: &text,
    };
    let scenarios = file.scenarios(&Environment::default());
    let scenarios = scenarios.unwrap_or_else(|errors| panic!("{errors}"));
    Arc::clone(&scenarios[0].steps[0])
}

pub(super) fn body(text: &str) -> ObservedBody {
    ObservedBody {
        is_partial: false,
        length: text.len() as u64,
        hash: *blake3::hash(text.as_bytes()).as_bytes(),
        content: None,
    }
}

/// Returns the client with this number.
pub(super) fn client(number: u32) -> ClientId {
    ClientId::of(IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + number)), 64)
}

/// Returns a policy with a base of 1 s, a cap of 30 s and four attempts.
pub(super) fn policy(strategy: Strategy, jitter: Jitter) -> RetryPolicy {
    RetryPolicy {
        table: RetryTable::Handbook,
        backoff: Backoff {
            strategy,
            base: Duration::from_secs(1),
            cap: Duration::from_secs(30),
            factor: 2.0,
            jitter,
        },
        attempts: NonZeroU32::new(4).unwrap(),
        deadline: None,
        retry_after: RetryAfterPolicy::Obeyed {
            most: Duration::from_mins(5),
        },
    }
}
