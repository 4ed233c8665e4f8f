//! Errors of the idempotency stage, and their problems.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, StatusCode};

use super::{BodyKeyError, KeyError, Mismatch, OnUnknown, RecordSettings};
use crate::respond::{Problem, RETRY_SOON};

#[derive(Clone, Debug)]
pub enum IdempotencyError {
    KeyMissing {
        header: HeaderName,
        field: Option<Arc<str>>,
    },
    KeyInvalid {
        header: HeaderName,
        error: KeyError,
    },
    BodyKeyInvalid {
        field: Arc<str>,
        error: BodyKeyError,
    },
    Upgrade,
    InFlight,
    TooManyExecutions,
    /// The body of the request or of the replay exceeds `max_buffered` or `max_buffered_per_client`.
    BuffersFull,
    StoreUnavailable,
}

/// Why a claim on a key is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimRejection {
    /// The key was used for a different request.
    KeyReused(Mismatch),
    /// An equal request was sent, but its outcome is unknown.
    OutcomeUnknown,
    /// An equal request was executed, but its response is not stored.
    ResponseNotRetained,
    /// The scope of a new key has `max_keys_per_scope` keys.
    ScopeFull {
        /// Lower bound of the time until the next key of the scope expires.
        min_wait: Duration,
    },
    /// The client of a new key uses its share of the store.
    ClientFull {
        /// Maximum number of keys per client.
        limit: u64,
        /// Lower bound of the time until the next key of the client expires.
        min_wait: Duration,
    },
    /// The store has `max_keys` keys, or Redis is out of memory.
    StoreFull,
}

/// For `on_unknown = "hold"`.
const OUTCOME_HELD: &str = "The request with this idempotency key was sent and may have been executed, but its \
                            response was lost. Query the API for the result before you use a new key.";

/// For `on_unknown = "release"`.
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
            E::InFlight => in_flight(),
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

impl ClaimRejection {
    pub(super) fn problem(self, settings: &RecordSettings) -> Problem {
        let exhausted = |min_wait, detail: String| {
            let (kind, title) = EXHAUSTED;
            Problem::new(StatusCode::TOO_MANY_REQUESTS, kind, title, detail).retry_after(min_wait)
        };
        match self {
            Self::KeyReused(mismatch) => {
                let (kind, title) = REUSED;
                Problem::new(
                    StatusCode::UNPROCESSABLE_ENTITY,
                    kind,
                    title,
                    reused(mismatch),
                )
            }
            Self::OutcomeUnknown => outcome_unknown(settings.on_unknown),
            Self::ResponseNotRetained => not_retained(),
            Self::ScopeFull { min_wait } => {
                let limit = settings.max_keys_per_scope;
                let detail = format!(
                    "This caller has {limit} idempotency keys that have not expired, which is the maximum. The request \
                     was not executed. Retry it with the same key when other keys have expired."
                );
                exhausted(min_wait, detail)
            }
            Self::ClientFull { limit, min_wait } => {
                let detail = format!(
                    "This client has {limit} idempotency keys or more, which is the maximum for all its credentials \
                     together. The request was not executed. Retry it with the same key when other keys have expired."
                );
                exhausted(min_wait, detail)
            }
            Self::StoreFull => Problem::store_unavailable(
                "The idempotency store is full. The request was not executed. Retry it later with the same key.",
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

fn outcome_unknown(on_unknown: OnUnknown) -> Problem {
    let new = |detail| {
        Problem::new(
            StatusCode::CONFLICT,
            "idempotency-outcome-unknown",
            "Outcome unknown",
            detail,
        )
    };
    let mut problem = match on_unknown {
        OnUnknown::Hold => new(OUTCOME_HELD).never_retry(),
        OnUnknown::Release => new(OUTCOME_RELEASED),
    };
    problem.is_outcome_unknown = true;
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
        let settings = RecordSettings::default();
        let full = ClaimRejection::StoreFull.problem(&settings);
        assert!(matches!(full.retry, Retry::After(wait, _) if wait.as_secs() == 5));
        for problem in [
            ClaimRejection::OutcomeUnknown.problem(&settings),
            ClaimRejection::ResponseNotRetained.problem(&settings),
            ClaimRejection::KeyReused(Mismatch::Request).problem(&settings),
            E::Upgrade.into(),
        ] {
            assert_eq!(problem.retry, Retry::Never, "{problem:?}");
        }
        let released = ClaimRejection::OutcomeUnknown.problem(&RecordSettings {
            on_unknown: OnUnknown::Release,
            ..settings
        });
        assert_eq!(released.retry, Retry::Unspecified);
        assert!(released.is_outcome_unknown);
    }
}
