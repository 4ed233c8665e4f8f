//! Response headers for SDKs that read more than `Retry-After`.
//!
//! The clients of openai and anthropic read `Retry-After-Ms` before `Retry-After` and obey `X-Should-Retry`. Stripe's
//! clients ignore `Retry-After`, retry every 409 and 5xx and no 429, unless `Stripe-Should-Retry` overrides it. boto3
//! reads `X-Amz-Retry-After` only.
//!
//! A hint is `false` only if the gateway gives every repetition of the request the same response. Other failures have no
//! such hint: each client keeps its own policy for them.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::retry_after;

/// A response header that an SDK reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// `Retry-After-Ms`: the wait in milliseconds.
    Ms,
    /// `X-Should-Retry`: `true` with a wait, `false` if a retry cannot succeed.
    ShouldRetry,
    /// `Stripe-Should-Retry`: the same.
    Stripe,
    /// `X-Amz-Retry-After`: the wait in milliseconds.
    Amz,
}

/// The hints on rejections: `[respond] hints`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hints(Vec<Hint>);

impl Default for Hints {
    fn default() -> Self {
        Self(vec![Hint::Ms, Hint::ShouldRetry])
    }
}

/// Keeps the first of equal hints.
impl FromIterator<Hint> for Hints {
    fn from_iter<I: IntoIterator<Item = Hint>>(hints: I) -> Self {
        let mut unique = Vec::new();
        for hint in hints {
            if !unique.contains(&hint) {
                unique.push(hint);
            }
        }
        Self(unique)
    }
}

impl Hint {
    fn header(self) -> HeaderName {
        match self {
            Self::Ms => const { HeaderName::from_static("retry-after-ms") },
            Self::ShouldRetry => const { HeaderName::from_static("x-should-retry") },
            Self::Stripe => const { HeaderName::from_static("stripe-should-retry") },
            Self::Amz => const { HeaderName::from_static("x-amz-retry-after") },
        }
    }

    fn is_verdict(self) -> bool {
        matches!(self, Self::ShouldRetry | Self::Stripe)
    }

    /// The name of the header, as CORS lists it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ms => "Retry-After-Ms",
            Self::ShouldRetry => "X-Should-Retry",
            Self::Stripe => "Stripe-Should-Retry",
            Self::Amz => "X-Amz-Retry-After",
        }
    }
}

impl Hints {
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = Hint> {
        self.0.iter().copied()
    }

    /// Adds the hints that go with a `Retry-After` of this wait.
    pub(super) fn retry_after(&self, wait: Duration, headers: &mut HeaderMap) {
        for hint in self.iter() {
            let value = if hint.is_verdict() {
                const { HeaderValue::from_static("true") }
            } else {
                retry_after::milliseconds(wait)
            };
            headers.insert(hint.header(), value);
        }
    }

    /// Marks a response as final: a repeated request gets it again, or one that is no better.
    pub(crate) fn do_not_retry(&self, headers: &mut HeaderMap) {
        for hint in self.iter().filter(|hint| hint.is_verdict()) {
            headers.insert(hint.header(), const { HeaderValue::from_static("false") });
        }
    }
}
