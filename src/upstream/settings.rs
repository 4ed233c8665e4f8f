//! How an upstream that struggles is treated, as the policy has it.

use std::num::NonZeroU32;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderValue;
use http::uri::PathAndQuery;

use crate::retry::{self, Preset};

/// `[upstream.NAME.retry]`: when a request is sent once more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetrySettings {
    /// What comes after each attempt. Its deadline is the request's, all attempts together.
    pub policy: retry::Policy,
    /// Bytes of a request's body that are kept for another attempt; larger ones are sent once.
    pub max_body: usize,
    /// How many retries there may be for all requests.
    pub budget: BudgetSettings,
}

/// How many retries an upstream is sent at most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BudgetSettings {
    /// The part of its requests that may be retries.
    pub ratio: f64,
    /// Over how long that is counted.
    pub window: Duration,
    /// Retries a second there may be whatever the traffic.
    pub floor: u32,
}

/// `[upstream.NAME.breaker]`: when a server is left alone.
#[derive(Clone, Debug, PartialEq)]
pub struct BreakerSettings {
    /// Whether it ever is.
    pub enabled: bool,
    /// Failures in a row that open it.
    pub consecutive_failures: NonZeroU32,
    /// The part of requests that opens it when they fail.
    pub failure_ratio: f64,
    /// Over how long that is counted.
    pub window: Duration,
    /// Requests there have to be in that time before their ratio says anything.
    pub min_requests: NonZeroU32,
    /// How long it is open at first.
    pub open: Duration,
    /// And at most, however often probes fail.
    pub open_max: Duration,
    /// What callers get while every server's is open, instead of the gateway's own words.
    pub fallback: Option<Fallback>,
}

/// The body of an answer while there is nobody to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fallback {
    /// Its bytes.
    pub body: Bytes,
    /// Its `Content-Type`.
    pub content_type: HeaderValue,
}

/// `health` of an upstream: how its servers are asked whether they are well.
#[derive(Clone, Debug, PartialEq)]
pub struct HealthSettings {
    /// What is asked for, by GET.
    pub path: PathAndQuery,
    /// How often.
    pub interval: Duration,
    /// How long an answer may take.
    pub timeout: Duration,
    /// The part of the servers that may be taken out for failing; the others stay, well or not.
    pub max_ejected: f64,
}

/// `[upstream.NAME.concurrency]`: how many requests it is sent at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConcurrencySettings {
    /// Never fewer.
    pub min: NonZeroU32,
    /// Never more.
    pub max: NonZeroU32,
    /// Where it begins.
    pub initial: NonZeroU32,
}

impl RetrySettings {
    /// When the head of an answer has to be there, if there is ever a second attempt.
    pub fn deadline(&self) -> Option<Duration> {
        let retries = self.policy.attempts > NonZeroU32::MIN;
        self.policy.deadline.filter(|_| retries)
    }
}

impl Default for RetrySettings {
    fn default() -> Self {
        Self {
            policy: retry::Policy {
                deadline: Some(Duration::from_secs(30)),
                ..Preset::Standard.policy()
            },
            max_body: 64 * 1024,
            budget: BudgetSettings::default(),
        }
    }
}

impl Default for BudgetSettings {
    fn default() -> Self {
        Self {
            ratio: 0.1,
            window: Duration::from_secs(10),
            floor: 3,
        }
    }
}

impl Default for BreakerSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            consecutive_failures: NonZeroU32::new(5).expect("not zero"),
            failure_ratio: 0.5,
            window: Duration::from_secs(10),
            min_requests: NonZeroU32::new(20).expect("not zero"),
            open: Duration::from_secs(5),
            open_max: Duration::from_mins(1),
            fallback: None,
        }
    }
}

impl Default for ConcurrencySettings {
    fn default() -> Self {
        Self {
            min: NonZeroU32::new(4).expect("not zero"),
            max: NonZeroU32::new(1_000).expect("not zero"),
            initial: NonZeroU32::new(20).expect("not zero"),
        }
    }
}
