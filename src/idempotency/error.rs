//! Why the idempotency stage rejects a request.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, StatusCode};

use super::{FieldError, KeyError, Mismatch};
use crate::problem::{Problem, SHORTLY};

/// Why the idempotency stage rejects a request.
#[derive(Clone, Debug)]
pub enum IdempotencyError {
    /// The route requires a key, and the request has none.
    KeyMissing {
        /// The header that can contain the key.
        header: HeaderName,
        /// The member of a JSON body that can contain the key.
        field: Option<Arc<str>>,
    },
    /// The header does not contain a valid key.
    KeyInvalid {
        /// The header of the key.
        header: HeaderName,
        /// Why the key is not valid.
        error: KeyError,
    },
    /// The JSON body does not contain a valid key.
    FieldInvalid {
        /// The member of the key.
        field: Arc<str>,
        /// Why the key is not valid.
        error: FieldError,
    },
    /// The request has a key and switches protocols.
    Upgrade,
    /// The key was used for another request.
    KeyReused(Mismatch),
    /// The first request with the key is in flight.
    InFlight,
    /// The outcome of the request with the key is unknown.
    OutcomeUnknown {
        /// Whether the key is held, so that it does not execute again.
        is_held: bool,
    },
    /// The request of the key was executed, and its response was not stored.
    ResponseNotRetained,
    /// The caller has as many keys as its scope permits.
    KeysExhausted {
        /// `max_keys_per_scope`.
        limit: NonZeroU32,
        /// No key of the scope expires sooner.
        no_sooner: Duration,
    },
    /// The client holds its share of the keys of the store.
    ClientKeysExhausted {
        /// The share, in keys.
        limit: u64,
        /// No key of the client expires sooner.
        no_sooner: Duration,
    },
    /// The store has no capacity for another key.
    StoreFull,
    /// The worker has as many executions in flight as it permits.
    TooManyExecutions,
    /// The body exceeds what `max_buffered` or `max_buffered_per_client` leaves.
    BuffersFull,
    /// The store does not respond, or reports an error.
    StoreUnavailable,
}

/// The detail of an unknown outcome whose key is held.
const OUTCOME_HELD: &str = "A request with this idempotency key was sent and its response was lost. It may have been \
                            executed, and the gateway does not execute it again under this key. Query the API for the \
                            result before you use a new key.";

/// The detail of an unknown outcome on a route that releases the key.
const OUTCOME_RELEASED: &str = "A request with this idempotency key was sent and its response was lost. It may have been \
                                executed. A retry with the same key is sent to the upstream, which handles the key.";

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
                    "This request must have an idempotency key. Send a unique key in the header '{header}'{field}, \
                     and send the same key with each retry."
                );
                new(StatusCode::BAD_REQUEST, MISSING, &detail)
            }
            E::KeyInvalid { header, error } => {
                let detail = format!(
                    "The idempotency key in '{header}' is not valid: {error}. Send one header line with 1 to 255 visible \
                     ASCII characters, bare or as a quoted string."
                );
                new(StatusCode::BAD_REQUEST, INVALID, &detail)
            }
            E::FieldInvalid { field, error } => {
                let detail = format!(
                    "The member '{field}' of the JSON body, which can contain the idempotency key, cannot be used: \
                     {error}. {}.",
                    error.remedy()
                );
                new(StatusCode::BAD_REQUEST, INVALID, &detail)
            }
            E::Upgrade => Self::bad_request(
                "A request with an idempotency key cannot switch protocols, because the gateway cannot replay what \
                 follows. Remove the key or the Upgrade header.",
            ),
            E::KeyReused(mismatch) => new(StatusCode::UNPROCESSABLE_ENTITY, REUSED, reused(mismatch)),
            E::InFlight => in_flight(),
            E::OutcomeUnknown { is_held } => outcome_unknown(is_held),
            E::ResponseNotRetained => not_retained(),
            E::KeysExhausted { limit, no_sooner } => {
                let detail = format!(
                    "This caller holds {limit} idempotency keys that have not expired, which is the maximum. The request was \
                     not sent. Retry with the same key when some of its keys have expired."
                );
                new(StatusCode::TOO_MANY_REQUESTS, EXHAUSTED, &detail).retry_after(no_sooner)
            }
            E::ClientKeysExhausted { limit, no_sooner } => {
                let detail = format!(
                    "This client holds {limit} idempotency keys or more, counted over all its credentials, which is \
                     its share of the store. The request was not sent. Retry with the same key when some of its keys \
                     have expired."
                );
                new(StatusCode::TOO_MANY_REQUESTS, EXHAUSTED, &detail).retry_after(no_sooner)
            }
            E::StoreFull => Self::store_unavailable(
                "The store has no capacity for another idempotency key. This request was not sent. Retry it later with the \
                 same key.",
            ),
            E::TooManyExecutions => Self::store_unavailable(
                "The gateway has as many requests with idempotency keys in flight as it permits. This request was not \
                 sent. Retry it later with the same key.",
            ),
            E::BuffersFull => Self::store_unavailable(
                "The memory for request and response bodies is in use (`max_buffered`, `max_buffered_per_client`). \
                 This request was not sent. Retry it unchanged.",
            )
            .retry_after(SHORTLY),
            E::StoreUnavailable => Self::store_unavailable(
                "The store of idempotency keys is not available. This request was not sent. Retry it later with the same \
                 key.",
            ),
        }
    }
}

fn reused(mismatch: Mismatch) -> &'static str {
    match mismatch {
        Mismatch::Request => {
            "This idempotency key was used for another request, which differs in method, host, path, query or body. \
             Use a new key for a new request, and send a repeated one unchanged."
        }
        Mismatch::Credentials => {
            "This idempotency key was used for the same request with other credentials: a cookie, or a header whose \
             name marks it as a credential. Use a new key. If retries of one caller change these credentials, set \
             `scope` on the route to what identifies the caller."
        }
    }
}

fn in_flight() -> Problem {
    Problem::new(
        StatusCode::CONFLICT,
        "idempotency-in-flight",
        "Request in flight",
        "The first request with this idempotency key is still in flight. Repeat this request with the same key to get \
         its response.",
    )
    .retry_after(SHORTLY)
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
        problem = problem.final_for_retries();
    }
    problem
}

fn not_retained() -> Problem {
    Problem::new(
        StatusCode::CONFLICT,
        "response-not-retained",
        "Response not retained",
        "The request with this idempotency key was executed, and its response was not stored. The gateway does not \
         execute it again under this key. Query the API for the result.",
    )
    .final_for_retries()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Retry;

    #[test]
    fn a_retry_can_succeed_only_where_the_condition_can_end() {
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
