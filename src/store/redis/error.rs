//! Errors of calls to Redis, with a remedy where one is known.

use std::sync::Arc;
use std::time::Duration;

use redis::{ErrorKind, RedisError};
use thiserror::Error;

use crate::idempotency::StoreError;

/// Remedy if the Redis user lacks a permission.
const NO_PERMISSION: &str =
    "; the Redis user of `store.user` lacks a permission, see its ACL rules";

/// Why a call to Redis failed.
#[derive(Clone, Debug, Error)]
pub(super) enum CallError {
    /// The circuit breaker is open, so the call was not sent.
    #[error("Redis is unavailable, circuit breaker open: {0}")]
    Unavailable(Arc<str>),
    /// Redis did not reply before the deadline. It may have executed the call.
    #[error("Redis did not reply within {0:?}")]
    Timeout(Duration),
    /// Redis rejected a write because it is at `maxmemory`.
    #[error("Redis is out of memory: {0}")]
    Full(Arc<str>),
    /// There is no connection, or it was lost. Redis may have executed the call.
    #[error("{0}")]
    ConnectionLost(Arc<str>),
    /// Redis returned an error.
    #[error("{0}")]
    Failed(Arc<str>),
}

impl From<RedisError> for CallError {
    fn from(error: RedisError) -> Self {
        let text = describe(&error).into();
        if is_lost(&error) {
            Self::ConnectionLost(text)
        } else if error.code() == Some("OOM") {
            Self::Full(text)
        } else {
            Self::Failed(text)
        }
    }
}

impl From<CallError> for StoreError {
    fn from(error: CallError) -> Self {
        match error {
            // The breaker logged its reason when it opened.
            CallError::Unavailable(_) => Self::known(error),
            _ => Self::new(error),
        }
    }
}

/// Returns whether the connection is unusable after `error`.
pub(super) fn is_lost(error: &RedisError) -> bool {
    error.is_io_error() || error.is_connection_dropped() || error.is_unrecoverable_error()
}

/// Describes `error`, with a remedy if one is known.
fn describe(error: &RedisError) -> String {
    if error.is_timeout() {
        return "Redis timed out".to_owned();
    }
    if error.is_connection_refusal() {
        return format!("cannot connect: {error}");
    }
    // If the user has no permission for a command in a script, the error has no code.
    let denied_in_script = || {
        let detail = error.detail();
        detail.is_some_and(|it| it.contains("The user executing the script"))
    };
    let remedy = match error.code() {
        Some("NOAUTH") => "; Redis requires a password: set `store.password_file`",
        Some("WRONGPASS") => "; check `store.user` and `store.password_file`",
        Some("NOPERM") => NO_PERMISSION,
        _ if denied_in_script() => NO_PERMISSION,
        Some("READONLY") => "; the server is a replica: `store.url` must name the primary",
        Some("OOM") => "; raise `maxmemory` of Redis",
        _ if error.kind() == ErrorKind::AuthenticationFailed => {
            "; check `store.user` and `store.password_file`"
        }
        _ if error.kind() == ErrorKind::Parse => "; the server at `store.url` is not Redis",
        _ => "",
    };
    let lost = if error.is_connection_dropped() {
        "connection to Redis lost: "
    } else {
        ""
    };
    format!("{lost}{error}{remedy}")
}
