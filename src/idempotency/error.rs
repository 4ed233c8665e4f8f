//! Errors of the idempotency stage, and their conversion to the problem responses that clients receive.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, StatusCode};

use super::{BodyKeyError, KeyError, Mismatch};
use crate::respond::{Problem, RETRY_SOON};

/// Reason for which the idempotency stage rejects a request.
#[derive(Clone, Debug)]
pub enum IdempotencyError {
    /// The route requires an idempotency key, and the request has none.
    KeyMissing {
        /// Header that can contain the idempotency key.
        header: HeaderName,
        /// Member of a JSON body that can contain the idempotency key; `None` if the route has no `body_field`.
        field: Option<Arc<str>>,
    },
    /// The header contains an idempotency key that is not valid.
    KeyInvalid {
        /// Header that contains the idempotency key.
        header: HeaderName,
        /// Reason why the key in the header is invalid.
        error: KeyError,
    },
    /// The JSON body does not contain a valid idempotency key.
    BodyKeyInvalid {
        /// Member of the JSON body that should contain the idempotency key.
        field: Arc<str>,
        /// Reason why the key in the body is invalid.
        error: BodyKeyError,
    },
    /// The request has an idempotency key and upgrades the connection to another protocol.
    Upgrade,
    /// The idempotency key was used for a different request.
    KeyReused(Mismatch),
    /// The first request with the idempotency key is in flight.
    InFlight,
    /// The first request with the idempotency key was sent, and its outcome is unknown.
    OutcomeUnknown {
        /// Whether the route has `on_unknown = "hold"`: the gateway then rejects every retry with this key until its
        /// record expires.
        is_held: bool,
    },
    /// The first request with the idempotency key was executed, but its response was not stored.
    ResponseNotRetained,
    /// The scope of the caller has the maximum number of idempotency keys.
    KeysExhausted {
        /// Maximum number of idempotency keys per scope: `max_keys_per_scope`.
        limit: NonZeroU32,
        /// Lower bound of the time until the next key of the scope expires.
        min_wait: Duration,
    },
    /// The client already uses its share of the idempotency keys in the store.
    ClientKeysExhausted {
        /// Maximum number of idempotency keys per client.
        limit: u64,
        /// Lower bound of the time until the next key of the client expires.
        min_wait: Duration,
    },
    /// The idempotency store has no capacity for another key.
    StoreFull,
    /// The worker has the maximum number of requests with idempotency keys in flight.
    TooManyExecutions,
    /// The body of the request or of the replay exceeds the memory that `max_buffered` or `max_buffered_per_client`
    /// permits.
    BuffersFull,
    /// The idempotency store does not respond, or reports an error.
    StoreUnavailable,
}

/// Detail of the problem on a route with `on_unknown = "hold"`, where the gateway rejects a retry with the same key.
const OUTCOME_HELD: &str = "The request with this idempotency key was sent and may have been executed, but its \
                            response was lost. Query the API for the result before you use a new key.";

/// Detail of the problem on a route with `on_unknown = "release"`, where the gateway executes a retry with the same
/// key.
const OUTCOME_RELEASED: &str = "The request with this idempotency key was sent and may have been executed, but its \
                                response was lost. Retry it with the same key. The API must detect the duplicate.";

const MISSING: (&str, &str) = ("idempotency-key-missing", "Idempotency key missing");
const INVALID: (&str, &str) = ("idempotency-key-invalid", "Idempotency key invalid");
const REUSED: (&str, &str) = ("idempotency-key-reused", "Idempotency key reused");
const EXHAUSTED: (&str, &str) = ("idempotency-keys-exhausted", "Idempotency keys exhausted");

impl From<IdempotencyError> for Problem {
    fn from(error: IdempotencyError) -> Self {
        use IdempotencyError as E;
        let new =
            |status, (kind, title), detail: &str| Self::new(status, kind, title, detail.to_owned());
        match error {
            E::KeyMissing { header, field } => {
                let field = field.map_or_else(String::new, |field| {
                    format!(" or in the member '{field}' of a JSON body")
                });
                let detail = format!(
                    "This request requires an idempotency key. Send a unique key in the header '{header}'{field}, and \
                     the same key with each retry."
                );
                new(StatusCode::BAD_REQUEST, MISSING, &detail)
            }
            E::KeyInvalid { header, error } => {
                let detail = format!(
                    "The request header '{header}' is invalid: {error}. Send one header line with 1 to \
                     255 visible ASCII characters, with or without quotes."
                );
                new(StatusCode::BAD_REQUEST, INVALID, &detail)
            }
            E::BodyKeyInvalid { field, error } => {
                let detail = format!(
                    "The idempotency key in the member '{field}' of the JSON body cannot be read: {error}. {}.",
                    error.remedy()
                );
                new(StatusCode::BAD_REQUEST, INVALID, &detail)
            }
            E::Upgrade => Self::bad_request(
                "A request with an idempotency key cannot switch protocols, because the new protocol cannot be \
                 replayed. Remove the key or the Upgrade header.",
            ),
            E::KeyReused(mismatch) => new(StatusCode::UNPROCESSABLE_ENTITY, REUSED, reused(mismatch)),
            E::InFlight => in_flight(),
            E::OutcomeUnknown { is_held } => outcome_unknown(is_held),
            E::ResponseNotRetained => not_retained(),
            E::KeysExhausted { limit, min_wait } => {
                let detail = format!(
                    "This caller has {limit} idempotency keys that have not expired, which is the maximum. The request \
                     was not executed. Retry it with the same key when other keys have expired."
                );
                new(StatusCode::TOO_MANY_REQUESTS, EXHAUSTED, &detail).retry_after(min_wait)
            }
            E::ClientKeysExhausted { limit, min_wait } => {
                let detail = format!(
                    "This client has {limit} idempotency keys or more, which is the maximum for all its credentials \
                     together. The request was not executed. Retry it with the same key when other keys have expired."
                );
                new(StatusCode::TOO_MANY_REQUESTS, EXHAUSTED, &detail).retry_after(min_wait)
            }
            E::StoreFull => Self::store_unavailable(
                "The idempotency store is full. The request was not executed. Retry it later with the same key.",
            ),
            E::TooManyExecutions => Self::store_unavailable(
                "The maximum number of requests with idempotency keys is in flight. The request was not executed. \
                 Retry it later with the same key.",
            ),
            E::BuffersFull => Self::store_unavailable(
                "There is no free memory for request and response bodies (`max_buffered`, \
                 `max_buffered_per_client`). The request was not executed. Retry it later with the same key.",
            )
            .retry_after(RETRY_SOON),
            E::StoreUnavailable => Self::store_unavailable(
                "The idempotency store is unavailable. The request was not executed. Retry it later with the same \
                 key.",
            ),
        }
    }
}

fn reused(mismatch: Mismatch) -> &'static str {
    match mismatch {
        Mismatch::Request => {
            "This idempotency key was used for a different request: method, host, path, query or body differ. Use a \
             new key for a new request, and send a retry unchanged."
        }
        Mismatch::Credentials => {
            "This idempotency key was used for the same request with other credentials: a cookie, or a header such as \
             an API key or token. Use a new key. If these credentials change between retries of one caller, the \
             operator can set `scope` of the route to a header or cookie that does not change."
        }
    }
}

fn in_flight() -> Problem {
    Problem::new(
        StatusCode::CONFLICT,
        "idempotency-in-flight",
        "Request in flight",
        "The first request with this idempotency key is still in flight. Retry with the same key to get its response.",
    )
    .retry_after(RETRY_SOON)
}

fn outcome_unknown(is_held: bool) -> Problem {
    let detail = if is_held {
        OUTCOME_HELD
    } else {
        OUTCOME_RELEASED
    };
    let mut problem = Problem::new(
        StatusCode::CONFLICT,
        "idempotency-outcome-unknown",
        "Outcome unknown",
        detail,
    );
    problem.is_outcome_unknown = true;
    if is_held {
        problem = problem.never_retry();
    }
    problem
}

fn not_retained() -> Problem {
    Problem::new(
        StatusCode::CONFLICT,
        "response-not-retained",
        "Response not retained",
        "The request with this idempotency key was executed, but its response was not stored. Query the API for the \
         result.",
    )
    .never_retry()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::respond::Retry;

    #[test]
    fn retry_after_is_set_only_if_the_condition_is_temporary() {
        use IdempotencyError as E;
        for (error, expected) in [
            (E::InFlight, Some(1)),
            (E::BuffersFull, Some(1)),
            (E::StoreFull, Some(5)),
            (E::StoreUnavailable, Some(5)),
            (E::TooManyExecutions, Some(5)),
        ] {
            let wait = expected.map(Duration::from_secs);
            let problem = Problem::from(error.clone());
            let Retry::After(found, _) = problem.retry else {
                panic!("{error:?}: {problem:?}");
            };
            assert_eq!(Some(found), wait, "{error:?}");
        }
        for error in [
            E::OutcomeUnknown { is_held: true },
            E::ResponseNotRetained,
            E::KeyReused(Mismatch::Request),
            E::Upgrade,
        ] {
            assert_eq!(
                Problem::from(error.clone()).retry,
                Retry::Never,
                "{error:?}"
            );
        }
        let released = Problem::from(E::OutcomeUnknown { is_held: false });
        assert_eq!(released.retry, Retry::Unspecified);
        assert!(released.is_outcome_unknown);
    }
}
