//! Steps of a scenario: what the gateway does with a request.

use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};

/// The configuration parses it from a text such as `delay 200ms + 429 retry-after=2`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Step {
    pub(crate) text: Arc<str>,
    /// Places in `text` of the content of each body (`None`) and header. Reports redact them.
    pub(crate) contents: Vec<(Option<HeaderName>, Range<usize>)>,
    /// Time from the arrival of the request to the action.
    pub(crate) delay: Duration,
    pub(crate) action: StepAction,
    /// Bytes per second; `None` means that the body is sent at once.
    pub(crate) rate: Option<u64>,
    pub(crate) retry_after: Option<RetryAfterText>,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    /// `None` means the default body.
    pub(crate) body: Option<Bytes>,
    /// Body bytes that are sent before the action takes effect.
    pub(crate) after: Option<u64>,
    pub(crate) extent: Extent,
    /// Probability of the action, from 0 to 1. If the action is not chosen, the request passes.
    pub(crate) chance: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepAction {
    Respond(StatusCode),
    /// The request goes to the upstream. Without an upstream, the gateway responds with 200.
    Pass,
    /// The response body pauses for this time.
    Stall(Duration),
    /// The connection is reset (HTTP/2: the stream).
    Reset,
    /// The connection is closed before the response is complete (HTTP/2: the stream is reset).
    Truncate,
    /// The request goes to the upstream, and the connection is reset instead of delivering the response.
    ExecutedThenLost,
    /// The HTTP/2 connection ends with GOAWAY. On HTTP/1, this is [`Reset`](Self::Reset).
    GoAway,
    /// The HTTP/2 stream is reset with `REFUSED_STREAM`. On HTTP/1, this is [`Reset`](Self::Reset).
    RefusedStream,
    /// The listener accepts no connections. Requests on open connections are reset.
    Refuse,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    Times(NonZeroU32),
    /// All requests within this time. The time starts with the first request that reaches the step.
    For(Duration),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RetryAfterText {
    /// This text, which can be invalid.
    Literal(HeaderValue),
    /// HTTP date this long after the response, rounded up to a second.
    DateIn(Duration),
    /// HTTP date this long before the response.
    DateBefore(Duration),
}

impl Step {
    pub(crate) fn respond(status: StatusCode) -> Self {
        Self {
            text: status.as_str().into(),
            contents: Vec::new(),
            delay: Duration::ZERO,
            action: StepAction::Respond(status),
            rate: None,
            retry_after: None,
            headers: Vec::new(),
            body: None,
            after: None,
            extent: Extent::Times(NonZeroU32::MIN),
            chance: 1.0,
        }
    }
}

impl RetryAfterText {
    pub(crate) fn value(&self, now: SystemTime) -> HeaderValue {
        let date = match self {
            Self::Literal(value) => return value.clone(),
            // A date has no fraction of a second. It is rounded up, so that it is not early.
            Self::DateIn(after) => now
                .checked_add(*after)
                .and_then(|date| date.checked_add(Duration::from_nanos(999_999_999))),
            Self::DateBefore(before) => now.checked_sub(*before),
        };
        let date = httpdate::fmt_http_date(date.unwrap_or(now));
        HeaderValue::try_from(date).expect("an HTTP date is visible ASCII")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_rounded_up_to_a_second() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_millis(1_500);
        let value = |text: RetryAfterText| text.value(now).to_str().unwrap().to_owned();
        let date = RetryAfterText::DateIn(Duration::from_secs(2));
        assert_eq!(value(date), "Thu, 01 Jan 1970 00:00:04 GMT");
        let date = RetryAfterText::DateBefore(Duration::from_secs(1));
        assert_eq!(value(date), "Thu, 01 Jan 1970 00:00:00 GMT");
    }
}
