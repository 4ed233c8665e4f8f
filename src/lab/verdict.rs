//! Verdicts of the rules, with their evidence. docs/lab.md says what each rule judges.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::operation::Operation;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verdict {
    Pass,
    /// The client should be improved, but does no harm by itself.
    Warn,
    Fail,
    NotEnoughData,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Rule {
    RetryAfter,
    LongRetryAfter,
    Retries,
    Retryable,
    FinalResponse,
    Stops,
    Backoff,
    Jitter,
    SameKey,
    SameBody,
    NewKey,
    UnsafeRetry,
    Synchrony,
    Amplification,
    ConnectionReuse,
}

#[derive(Clone, Debug)]
pub(crate) struct RuleVerdict {
    pub(crate) rule: Rule,
    pub(crate) verdict: Verdict,
    /// What the client does, in one sentence with figures.
    pub(crate) summary: String,
    /// At most [`MAX_EVIDENCE`].
    pub(crate) evidence: Vec<Evidence>,
}

#[derive(Clone, Debug)]
pub(crate) struct Evidence {
    /// Index in the trace; `None` if the observation concerns no single attempt.
    pub(crate) attempt: Option<usize>,
    /// Times, statuses, gaps and headers, such as "503 at 1.204 s, retried after 0.998 s".
    pub(crate) text: String,
}

pub(crate) const MAX_EVIDENCE: usize = 5;

#[derive(Clone, Debug)]
pub(crate) struct Judgement {
    /// In the order of [`Rule::ALL`].
    pub(crate) rules: Vec<RuleVerdict>,
    /// Operations in the order of their first attempt.
    pub(crate) operations: Vec<Operation>,
    /// Attempts that belong to no operation, because several operations match.
    pub(crate) unattributed: Vec<usize>,
    /// A retry is early if it arrives more than this time before the stated time.
    pub(crate) tolerance: Duration,
}

impl Rule {
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
    /// The worst verdict of the rules that had enough data.
    pub(crate) fn verdict(&self) -> Verdict {
        let has = |verdict| self.rules.iter().any(|rule| rule.verdict == verdict);
        [Verdict::Fail, Verdict::Warn, Verdict::Pass]
            .into_iter()
            .find(|verdict| has(*verdict))
            .unwrap_or(Verdict::NotEnoughData)
    }
}
