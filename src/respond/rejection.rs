//! Why the gateway would not carry a request on.
//!
//! Each reason has a status, a problem type (`urn:tidegate:problem:…`), a title that is the same every
//! time and a detail that tells the client's author what to do. These are fixed: clients switch on them.

use std::borrow::Cow;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue, StatusCode};

use crate::idempotency::{FieldError, KeyError, Mismatch};
use crate::throttle::{Limit, RetryAfterForm};
use crate::upstream::Fallback;
use crate::upstream::patience::Phase;
use crate::wire::Violation;

/// Why the gateway would not carry a request on.
#[derive(Clone, Debug)]
pub enum Rejection {
    /// One or more limits reject it.
    RateLimited {
        /// The limit with the longest wait.
        limit: Arc<Limit>,
        /// Time until all limits would admit the request.
        wait: Duration,
        /// The other limits that reject it, longest wait first.
        others: Vec<Arc<Limit>>,
    },
    /// It is not a request the gateway can take for what it seems.
    BadRequest {
        /// 400, or a status that says more.
        status: StatusCode,
        /// What is wrong with it.
        detail: Cow<'static, str>,
    },
    /// Its method is never forwarded.
    MethodNotAllowed,
    /// No route takes it.
    NoRoute,
    /// Its body is larger than the gateway takes.
    PayloadTooLarge {
        /// The most it takes, in bytes.
        limit: u64,
    },
    /// No server could be reached, or no complete and valid response arrived.
    UpstreamUnavailable {
        /// The failure, as a sentence.
        detail: Cow<'static, str>,
        /// Whether the outcome of the request's idempotency key is held as unknown.
        is_held: bool,
    },
    /// A timeout of the upstream expired.
    UpstreamTimeout {
        /// The timeout that expired.
        phase: Phase,
        /// The failure, as a sentence.
        detail: Cow<'static, str>,
        /// Whether the outcome of the request's idempotency key is held as unknown.
        is_held: bool,
    },
    /// Everybody behind the gateway is left alone for a while, having failed.
    CircuitOpen {
        /// The upstream's name.
        upstream: Arc<str>,
        /// How long the first of its servers stays so, where that is known.
        wait: Option<Duration>,
        /// What is said instead of the gateway's own words.
        fallback: Option<Fallback>,
    },
    /// As many requests are underway behind the gateway as can be carried out there.
    Overloaded {
        /// The upstream's name.
        upstream: Arc<str>,
    },
    /// The route requires an idempotency key, and the request has none.
    KeyMissing {
        /// The header that can contain the key.
        header: HeaderName,
        /// The member of a JSON body that can contain the key.
        field: Option<Arc<str>>,
    },
    /// The header does not contain a valid idempotency key.
    KeyInvalid {
        /// The header of the key.
        header: HeaderName,
        /// Why the key is not valid.
        error: KeyError,
    },
    /// The JSON body does not contain a valid idempotency key.
    FieldInvalid {
        /// The member of the key.
        field: Arc<str>,
        /// Why the key is not valid.
        error: FieldError,
    },
    /// Its idempotency key was used for another request.
    KeyReused(Mismatch),
    /// The first request with its idempotency key is still running.
    InFlight,
    /// The outcome of the request with its idempotency key is unknown.
    OutcomeUnknown {
        /// Whether the key is held, so that it does not execute again.
        is_held: bool,
    },
    /// The request of its idempotency key was carried out, and the answer was not kept.
    ResponseNotRetained,
    /// Its caller has as many idempotency keys as it may have.
    KeysExhausted {
        /// How many it may have.
        limit: NonZeroU32,
        /// None expires sooner.
        no_sooner: Duration,
    },
    /// The client holds its share of the idempotency keys of the store.
    ClientKeysExhausted {
        /// The share, in keys.
        limit: u64,
        /// No key of the client expires sooner.
        no_sooner: Duration,
    },
    /// There is no room for another idempotency key.
    StoreFull,
    /// As many requests with idempotency keys are being carried out as may be at once.
    TooManyExecutions,
    /// It has an idempotency key, and its body exceeds what `max_buffered` or `max_buffered_per_client` leaves.
    BuffersFull,
    /// Idempotency keys cannot be kept at present.
    StoreUnavailable,
    /// Limits that must not be passed unchecked cannot be checked at present.
    LimitsUnavailable,
}

/// When to come back for what is about to be over.
const SHORTLY: Duration = Duration::from_secs(1);

/// When to come back for what somebody has to mend first.
const AFTER_A_WHILE: Duration = Duration::from_secs(5);

/// Follows the failure of a keyed request whose outcome is held as unknown.
const HELD: &str = " The request may have been executed, so its outcome is unknown. Its idempotency key is held: a \
                    retry with the same key gets 409 idempotency-outcome-unknown. Query the API for the result before \
                    you use a new key.";

/// The detail of an unknown outcome whose key is held.
const OUTCOME_HELD: &str = "A request with this idempotency key was sent and its response was lost. It may have been \
                            executed, and the gateway does not execute it again under this key. Query the API for the \
                            result before you use a new key.";

/// The detail of an unknown outcome on a route that releases the key.
const OUTCOME_RELEASED: &str = "A request with this idempotency key was sent and its response was lost. It may have been \
                                executed. A retry with the same key is sent to the upstream, which handles the key.";

impl From<Violation> for Rejection {
    fn from(violation: Violation) -> Self {
        Self::BadRequest {
            status: violation.status(),
            detail: violation.to_string().into(),
        }
    }
}

impl Rejection {
    /// A 400 that says what is wrong.
    pub fn bad_request(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::BadRequest {
            status: StatusCode::BAD_REQUEST,
            detail: detail.into(),
        }
    }

    /// Its status code.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::RateLimited { .. }
            | Self::KeysExhausted { .. }
            | Self::ClientKeysExhausted { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::BadRequest { status, .. } => *status,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::NoRoute => StatusCode::NOT_FOUND,
            Self::PayloadTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::UpstreamUnavailable { .. } => StatusCode::BAD_GATEWAY,
            Self::UpstreamTimeout { .. } => StatusCode::GATEWAY_TIMEOUT,
            Self::KeyMissing { .. } | Self::KeyInvalid { .. } | Self::FieldInvalid { .. } => {
                StatusCode::BAD_REQUEST
            }
            Self::KeyReused(_) => StatusCode::UNPROCESSABLE_ENTITY,
            Self::InFlight | Self::OutcomeUnknown { .. } | Self::ResponseNotRetained => {
                StatusCode::CONFLICT
            }
            Self::CircuitOpen { .. }
            | Self::Overloaded { .. }
            | Self::StoreFull
            | Self::TooManyExecutions
            | Self::BuffersFull
            | Self::StoreUnavailable
            | Self::LimitsUnavailable => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// Its problem type, without the `urn:tidegate:problem:` that all share.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::RateLimited { .. } => "rate-limited",
            Self::BadRequest { .. } | Self::MethodNotAllowed => "bad-request",
            Self::NoRoute => "no-route",
            Self::PayloadTooLarge { .. } => "payload-too-large",
            Self::UpstreamUnavailable { .. } | Self::Overloaded { .. } => "upstream-unavailable",
            Self::CircuitOpen { .. } => "circuit-open",
            Self::UpstreamTimeout { .. } => "upstream-timeout",
            Self::KeyMissing { .. } => "idempotency-key-missing",
            Self::KeyInvalid { .. } | Self::FieldInvalid { .. } => "idempotency-key-invalid",
            Self::KeyReused(_) => "idempotency-key-reused",
            Self::InFlight => "idempotency-in-flight",
            Self::OutcomeUnknown { .. } => "idempotency-outcome-unknown",
            Self::ResponseNotRetained => "response-not-retained",
            Self::KeysExhausted { .. } | Self::ClientKeysExhausted { .. } => {
                "idempotency-keys-exhausted"
            }
            Self::StoreFull
            | Self::TooManyExecutions
            | Self::BuffersFull
            | Self::StoreUnavailable
            | Self::LimitsUnavailable => "store-unavailable",
        }
    }

    /// What it is called, whatever the occasion.
    pub fn title(&self) -> &'static str {
        match self {
            Self::RateLimited { .. } => "Too many requests",
            Self::BadRequest { .. } => "Bad request",
            Self::MethodNotAllowed => "Method not allowed",
            Self::NoRoute => "No route",
            Self::PayloadTooLarge { .. } => "Request body too large",
            Self::UpstreamUnavailable { .. } => "Upstream unavailable",
            Self::UpstreamTimeout { .. } => "Upstream timed out",
            Self::CircuitOpen { .. } => "Circuit open",
            Self::Overloaded { .. } => "Upstream overloaded",
            Self::KeyMissing { .. } => "Idempotency key missing",
            Self::KeyInvalid { .. } | Self::FieldInvalid { .. } => "Idempotency key invalid",
            Self::KeyReused(_) => "Idempotency key reused",
            Self::InFlight => "Request in flight",
            Self::OutcomeUnknown { .. } => "Outcome unknown",
            Self::ResponseNotRetained => "Response not retained",
            Self::KeysExhausted { .. } | Self::ClientKeysExhausted { .. } => {
                "Idempotency keys exhausted"
            }
            Self::StoreFull
            | Self::TooManyExecutions
            | Self::BuffersFull
            | Self::StoreUnavailable
            | Self::LimitsUnavailable => "Store unavailable",
        }
    }

    /// What happened this time, and what to do about it.
    pub fn detail(&self) -> Cow<'static, str> {
        match self {
            Self::RateLimited { limit, wait, .. } => {
                let mut text = Vec::new();
                append_rate_limited(&mut text, limit, *wait);
                String::from_utf8(text)
                    .expect("parts that are UTF-8")
                    .into()
            }
            Self::UpstreamUnavailable { detail, is_held }
            | Self::UpstreamTimeout {
                detail, is_held, ..
            } if *is_held => format!("{detail}{HELD}").into(),
            Self::BadRequest { detail, .. }
            | Self::UpstreamUnavailable { detail, .. }
            | Self::UpstreamTimeout { detail, .. } => detail.clone(),
            Self::CircuitOpen { upstream, .. } => format!(
                "Every server of the upstream '{upstream}' has failed and is left alone for a while, so \
                 nothing was sent. Come back when Retry-After says."
            )
            .into(),
            Self::Overloaded { upstream } => format!(
                "The upstream '{upstream}' has all the requests underway that it can take, so nothing was \
                 sent. Come back when Retry-After says."
            )
            .into(),
            Self::MethodNotAllowed => {
                "CONNECT and TRACE are not forwarded, nor is a request for '*'.".into()
            }
            Self::NoRoute => "No route of the gateway takes this method and path.".into(),
            Self::PayloadTooLarge { limit } => {
                format!("The gateway takes request bodies of at most {limit} bytes here.").into()
            }
            Self::KeyMissing { header, field } => {
                let field = field.as_ref().map_or_else(String::new, |field| {
                    format!(" or in the member '{field}' of a JSON body")
                });
                format!(
                    "This request must have an idempotency key. Send a unique key in the header '{header}'{field}, \
                     and send the same key with each retry."
                )
                .into()
            }
            Self::KeyInvalid { header, error } => format!(
                "The idempotency key in '{header}' is not valid: {error}. Send one header line with 1 to 255 visible \
                 ASCII characters, bare or as a quoted string."
            )
            .into(),
            Self::FieldInvalid { field, error } => format!(
                "The member '{field}' of the JSON body, which can contain the idempotency key, cannot be used: {error}. \
                 {}.",
                error.remedy()
            )
            .into(),
            Self::KeyReused(Mismatch::Request) => "This idempotency key was used for another request, which \
                 differs in method, host, path, query or body. Use a new key for a new request, and send a \
                 repeated one unchanged."
                .into(),
            Self::KeyReused(Mismatch::Credentials) => "This idempotency key was used for the same request with \
                 other credentials: a cookie, or a header whose name marks it as a credential. Use a new key. If \
                 retries of one caller change these credentials, set `scope` on the route to what identifies the \
                 caller."
                .into(),
            Self::InFlight => "The first request with this idempotency key is still running. Repeat this one \
                 with the same key to get its answer."
                .into(),
            Self::OutcomeUnknown { is_held: true } => OUTCOME_HELD.into(),
            Self::OutcomeUnknown { is_held: false } => OUTCOME_RELEASED.into(),
            Self::ResponseNotRetained => "The request with this idempotency key was carried out, and its \
                 answer was not kept. It will not be carried out again under this key: ask the API for \
                 the result."
                .into(),
            Self::KeysExhausted { limit, .. } => format!(
                "This caller has used {limit} idempotency keys that have not expired yet, which is the \
                 most it may have. Slow down until some have expired."
            )
            .into(),
            Self::ClientKeysExhausted { limit, .. } => format!(
                "This client holds {limit} idempotency keys or more, counted over all its credentials, which is its \
                 share of the store. The request was not sent. Retry with the same key when some of its keys have \
                 expired."
            )
            .into(),
            Self::StoreFull => "There is no room for another idempotency key, so nothing was carried out. Try \
                 again later with the same key."
                .into(),
            Self::TooManyExecutions => "As many requests with idempotency keys are being carried out as may \
                 be at once, so nothing was done for this one. Try again later with the same key."
                .into(),
            Self::BuffersFull => "The memory for request and response bodies is in use (`max_buffered`, \
                 `max_buffered_per_client`). This request was not sent. Retry it unchanged."
                .into(),
            Self::LimitsUnavailable => "The limits on this request cannot be checked at present, so it was not \
                 carried out. Try again later."
                .into(),
            Self::StoreUnavailable => "Idempotency keys cannot be kept at present, so nothing was carried \
                 out. Try again later with the same key."
                .into(),
        }
    }

    /// Appends [`detail`](Self::detail), without an allocation for the most frequent rejection.
    pub(super) fn append_detail(&self, out: &mut Vec<u8>) {
        match self {
            Self::RateLimited { limit, wait, .. } => append_rate_limited(out, limit, *wait),
            _ => out.extend_from_slice(self.detail().as_bytes()),
        }
    }

    /// When to come back, where coming back helps, and how to write it.
    pub fn wait(&self) -> Option<(Duration, RetryAfterForm)> {
        match self {
            Self::RateLimited { limit, wait, .. } => Some((*wait, limit.retry_after)),
            Self::InFlight | Self::Overloaded { .. } | Self::BuffersFull => {
                Some((SHORTLY, RetryAfterForm::Seconds))
            }
            Self::CircuitOpen { wait, .. } => {
                Some((wait.unwrap_or(SHORTLY), RetryAfterForm::Seconds))
            }
            Self::KeysExhausted { no_sooner, .. } | Self::ClientKeysExhausted { no_sooner, .. } => {
                Some((*no_sooner, RetryAfterForm::Seconds))
            }
            Self::StoreFull
            | Self::TooManyExecutions
            | Self::StoreUnavailable
            | Self::LimitsUnavailable => Some((AFTER_A_WHILE, RetryAfterForm::Seconds)),
            _ => None,
        }
    }

    /// Whether the outcome of the request's idempotency key is held as unknown.
    pub(super) fn is_outcome_unknown(&self) -> bool {
        match self {
            Self::UpstreamUnavailable { is_held, .. } | Self::UpstreamTimeout { is_held, .. } => {
                *is_held
            }
            Self::OutcomeUnknown { .. } => true,
            _ => false,
        }
    }

    /// Whether a retry cannot get a better response.
    pub(super) fn is_final(&self) -> bool {
        let status = self.status();
        let is_released = matches!(self, Self::OutcomeUnknown { is_held: false });
        (self.is_outcome_unknown() && !is_released)
            || matches!(self, Self::ResponseNotRetained)
            || status == StatusCode::BAD_REQUEST
            || status == StatusCode::PAYLOAD_TOO_LARGE
            || status == StatusCode::UNPROCESSABLE_ENTITY
    }

    /// Returns the limit with the longest wait, and the other limits that reject the request, longest wait first.
    pub(super) fn violated(&self) -> Option<(&Limit, &[Arc<Limit>])> {
        match self {
            Self::RateLimited { limit, others, .. } => Some((limit, others)),
            _ => None,
        }
    }

    /// What took too long, where that is what is wrong.
    pub(super) fn phase(&self) -> Option<Phase> {
        match self {
            Self::UpstreamTimeout { phase, .. } => Some(*phase),
            _ => None,
        }
    }

    /// What is said instead of the gateway's own words, where somebody chose them.
    pub(super) fn fallback(&self) -> Option<&Fallback> {
        match self {
            Self::CircuitOpen { fallback, .. } => fallback.as_ref(),
            _ => None,
        }
    }

    /// The methods that would have been taken, where that is what is wrong.
    pub(super) fn allow(&self) -> Option<HeaderValue> {
        matches!(self, Self::MethodNotAllowed)
            .then(|| HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"))
    }
}

fn append_rate_limited(out: &mut Vec<u8>, limit: &Limit, wait: Duration) {
    let seconds = super::retry_after::whole_seconds(wait);
    out.extend_from_slice(b"The limit '");
    out.extend_from_slice(limit.name.as_bytes());
    out.extend_from_slice(b"' is used up. Wait ");
    out.extend_from_slice(itoa::Buffer::new().format(seconds).as_bytes());
    out.extend_from_slice(if seconds == 1 {
        b" second"
    } else {
        b" seconds"
    });
    out.extend_from_slice(b" before the next request.");
}
