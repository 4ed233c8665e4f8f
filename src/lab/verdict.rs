//! Verdicts: the rules of the lab, and the result of each rule with its evidence.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::operation::Operation;

/// Result of a rule or of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verdict {
    /// The client follows the rule.
    Pass,
    /// The client should be improved, but does no harm by itself.
    Warn,
    /// The client violates the rule.
    Fail,
    /// The requests of the client do not show whether it follows the rule.
    NotEnoughData,
}

/// Rule by which the lab judges a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Rule {
    /// Waits for the time in `Retry-After` and similar headers, if it is below one minute.
    RetryAfter,
    /// What the client does if the stated time is one minute or more: waits, gives up, or retries early.
    LongRetryAfter,
    /// Retries a failure that a retry can repair.
    Retries,
    /// Does not retry a failure that a retry cannot repair, such as 400.
    Retryable,
    /// Does not retry a response that is marked as final: 409 or 422.
    FinalResponse,
    /// Gives up after a bounded number of attempts. Many attempts are a warning if the operation ends.
    Stops,
    /// The delay between attempts grows.
    Backoff,
    /// The delay between attempts is random.
    Jitter,
    /// All attempts of an operation have the same idempotency key.
    SameKey,
    /// All attempts of an operation have the same body.
    SameBody,
    /// Each operation has a new idempotency key.
    NewKey,
    /// Does not repeat a POST or PATCH without an idempotency key.
    UnsafeRetry,
    /// Clients that fail at the same time do not retry at the same time.
    Synchrony,
    /// Number of requests per operation.
    Amplification,
    /// Attempts use the same connection if it is still usable.
    ConnectionReuse,
}

/// Verdict of one rule.
#[derive(Clone, Debug)]
pub(crate) struct RuleVerdict {
    pub(crate) rule: Rule,
    pub(crate) verdict: Verdict,
    /// What the client does, in one sentence with figures.
    pub(crate) summary: String,
    /// Observations that support the verdict, at most [`MAX_EVIDENCE`].
    pub(crate) evidence: Vec<Evidence>,
}

/// Observation that supports a verdict.
#[derive(Clone, Debug)]
pub(crate) struct Evidence {
    /// Index of the attempt in the trace; `None` if the observation concerns no single attempt.
    pub(crate) attempt: Option<usize>,
    /// Times, statuses, gaps and headers, such as "503 at 1.204 s, retried after 0.998 s".
    pub(crate) text: String,
}

/// Maximum number of observations in the evidence of a rule.
pub(crate) const MAX_EVIDENCE: usize = 5;

/// Result of all rules for a trace.
#[derive(Clone, Debug)]
pub(crate) struct Judgement {
    /// One verdict per rule, in the order of [`Rule::ALL`].
    pub(crate) rules: Vec<RuleVerdict>,
    /// Operations in the order of their first attempt.
    pub(crate) operations: Vec<Operation>,
    /// Indices of the attempts that belong to no operation, because several operations match.
    pub(crate) unattributed: Vec<usize>,
    /// A retry is early if it arrives more than this time before the stated time.
    pub(crate) tolerance: Duration,
}

impl Rule {
    /// All rules, in the order in which reports list them.
    pub(crate) const ALL: [Self; 15] = [
        Self::RetryAfter,
        Self::LongRetryAfter,
        Self::Retries,
        Self::Retryable,
        Self::FinalResponse,
        Self::Stops,
        Self::Backoff,
        Self::Jitter,
        Self::SameKey,
        Self::SameBody,
        Self::NewKey,
        Self::UnsafeRetry,
        Self::Synchrony,
        Self::Amplification,
        Self::ConnectionReuse,
    ];

    /// Returns the name of the rule in JSON, `JUnit` and baselines.
    pub(crate) fn id(self) -> &'static str {
        match self {
            Self::RetryAfter => "retry-after",
            Self::LongRetryAfter => "long-retry-after",
            Self::Retries => "retries",
            Self::Retryable => "retryable-only",
            Self::FinalResponse => "final-response",
            Self::Stops => "stops",
            Self::Backoff => "backoff",
            Self::Jitter => "jitter",
            Self::SameKey => "same-key",
            Self::SameBody => "same-body",
            Self::NewKey => "new-key",
            Self::UnsafeRetry => "post-without-key",
            Self::Synchrony => "synchrony",
            Self::Amplification => "amplification",
            Self::ConnectionReuse => "connection-reuse",
        }
    }

    /// Returns the rule as a phrase about the client, for people.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::RetryAfter => "waits for the stated time",
            Self::LongRetryAfter => "handles waits of a minute or more",
            Self::Retries => "retries retryable failures",
            Self::Retryable => "retries only retryable failures",
            Self::FinalResponse => "accepts final 409 and 422",
            Self::Stops => "stops retrying",
            Self::Backoff => "increases its delay",
            Self::Jitter => "randomises its delay",
            Self::SameKey => "keeps the key of an operation",
            Self::SameBody => "keeps the request of an operation",
            Self::NewKey => "uses a new key for a new operation",
            Self::UnsafeRetry => "repeats no POST without a key",
            Self::Synchrony => "spreads retries of many clients",
            Self::Amplification => "limits requests per operation",
            Self::ConnectionReuse => "reuses connections",
        }
    }
}

impl Verdict {
    /// Returns the name of the verdict in JSON and baselines.
    pub(crate) fn id(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Warn => "warn",
            Self::Fail => "fail",
            Self::NotEnoughData => "not-enough-data",
        }
    }
}

impl Judgement {
    /// Returns the worst verdict of all rules that had enough data.
    pub(crate) fn verdict(&self) -> Verdict {
        let has = |verdict| self.rules.iter().any(|rule| rule.verdict == verdict);
        [Verdict::Fail, Verdict::Warn, Verdict::Pass]
            .into_iter()
            .find(|verdict| has(*verdict))
            .unwrap_or(Verdict::NotEnoughData)
    }
}
