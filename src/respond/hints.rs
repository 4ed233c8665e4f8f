//! Response headers with retry hints, for SDKs that do not rely on `Retry-After` alone.
//!
//! The SDKs `openai` and `anthropic` prefer `Retry-After-Ms` to `Retry-After`, and obey `X-Should-Retry`. The SDKs of
//! Stripe ignore `Retry-After`; without `Stripe-Should-Retry` they retry after a 409 or 5xx, but not after a 429. boto3
//! reads only `X-Amz-Retry-After`. The hints are `false` only if every retry would get the same response. If the
//! gateway does not know, it sends none.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::retry_after;

/// Header on rejections that tells SDKs whether and when to retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "gateway",
    derive(serde::Deserialize, schemars::JsonSchema),
    serde(rename_all = "kebab-case")
)]
pub enum Hint {
    /// `Retry-After-Ms`: how long to wait before a retry, in milliseconds (read by openai and anthropic).
    Ms,
    /// `X-Should-Retry`: `true` with `Retry-After`, `false` if a retry cannot succeed (read by openai and anthropic).
    ShouldRetry,
    /// `Stripe-Should-Retry`: same values as `X-Should-Retry` (read by Stripe).
    Stripe,
    /// `X-Amz-Retry-After`: how long to wait before a retry, in milliseconds (read by boto3).
    Amz,
}

/// Retry hints of rejections, without duplicates: `hints` in `[respond]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hints(Vec<Hint>);

impl Default for Hints {
    fn default() -> Self {
        Self(vec![Hint::Ms, Hint::ShouldRetry])
    }
}

/// Keeps the first of several equal hints.
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

    fn is_boolean(self) -> bool {
        matches!(self, Self::ShouldRetry | Self::Stripe)
    }

    /// As in `Access-Control-Expose-Headers`.
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

    pub(super) fn retry_after(&self, wait: Duration, headers: &mut HeaderMap) {
        for hint in self.iter() {
            let value = if hint.is_boolean() {
                const { HeaderValue::from_static("true") }
            } else {
                retry_after::milliseconds(wait)
            };
            headers.insert(hint.header(), value);
        }
    }

    /// To be called only if a retry cannot succeed.
    pub(crate) fn do_not_retry(&self, headers: &mut HeaderMap) {
        for hint in self.iter().filter(|hint| hint.is_boolean()) {
            headers.insert(hint.header(), const { HeaderValue::from_static("false") });
        }
    }
}
