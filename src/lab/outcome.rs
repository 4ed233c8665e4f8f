//! Classification of attempts by their responses.
//!
//! A client can retry fewer failures than the lab counts as retryable.

use std::fmt;
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};

use crate::scenario::trace::{Attempt, ResponseEnd};

const SHOULD_RETRY: [&str; 2] = ["x-should-retry", "stripe-should-retry"];

/// Result of an attempt, as the client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Complete response with a status below 400.
    Success,
    /// Complete response with a status that a retry can change: 408, 425, 429, 5xx, or a 409 that asks for a retry.
    Retryable(StatusCode),
    /// Complete response with any other status from 400.
    Final(StatusCode),
    /// No response, or an incomplete one.
    Lost,
}

impl Outcome {
    pub(crate) fn of(attempt: &Attempt) -> Self {
        let Some(response) = &attempt.response else {
            return Self::Lost;
        };
        match (response.status, response.end) {
            (Some(status), ResponseEnd::Complete) => Self::of_response(status, &response.headers),
            _ => Self::Lost,
        }
    }

    /// The outcome that the client knows at a time. An attempt without response at that time is lost, because a client
    /// that sends the request again has stopped waiting.
    pub(crate) fn at(attempt: &Attempt, time: Duration) -> Self {
        match &attempt.response {
            Some(response) if response.started <= time => Self::of(attempt),
            _ => Self::Lost,
        }
    }

    fn of_response(status: StatusCode, headers: &HeaderMap) -> Self {
        match status.as_u16() {
            ..400 => Self::Success,
            408 | 425 | 429 | 500.. => Self::Retryable(status),
            409 if asks_for_retry(headers) => Self::Retryable(status),
            _ => Self::Final(status),
        }
    }

    /// The failure need not be retryable.
    pub(crate) fn is_failure(self) -> bool {
        self != Self::Success
    }

    pub(crate) fn is_retryable(self) -> bool {
        matches!(self, Self::Retryable(_) | Self::Lost)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Success => f.write_str("success"),
            Self::Retryable(status) | Self::Final(status) => f.write_str(status.as_str()),
            Self::Lost => f.write_str("no complete response"),
        }
    }
}

pub(super) fn is_marked_final(headers: &HeaderMap) -> bool {
    has_should_retry(headers, b"false")
}

fn asks_for_retry(headers: &HeaderMap) -> bool {
    !is_marked_final(headers)
        && (headers.contains_key(RETRY_AFTER) || has_should_retry(headers, b"true"))
}

fn has_should_retry(headers: &HeaderMap, value: &[u8]) -> bool {
    SHOULD_RETRY
        .iter()
        .filter_map(|name| headers.get(*name))
        .any(|found| found.as_bytes().eq_ignore_ascii_case(value))
}
