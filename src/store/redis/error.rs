//! Errors of calls to Redis, with a remedy where one is known.

use std::sync::Arc;
use std::time::Duration;

use redis::{ErrorKind, RedisError};
use thiserror::Error;

use crate::idempotency::StoreError;

const NO_PERMISSION: &str =
    "; the Redis user of `store.user` lacks a permission: grant it with ACL SETUSER";

#[derive(Clone, Debug, Error)]
pub(super) enum CallError {
    #[error("Redis is unavailable, the circuit breaker is open: {0}")]
    Unavailable(Arc<str>),
    /// Redis can have executed the call.
    #[error("Redis did not reply within {0:?}")]
    Timeout(Duration),
    /// Redis is at `maxmemory`.
    #[error("Redis is out of memory: {0}")]
    Full(Arc<str>),
    /// Redis can have executed the call.
    #[error("{0}")]
    ConnectionLost(Arc<str>),
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
            // The circuit breaker logged its reason when it opened.
            CallError::Unavailable(_) => Self::known(error),
            _ => Self::new(error),
        }
    }
}

pub(super) fn is_lost(error: &RedisError) -> bool {
    error.is_io_error() || error.is_connection_dropped() || error.is_unrecoverable_error()
}

fn describe(error: &RedisError) -> String {
    if error.is_timeout() {
        return "Redis timed out; check the load of Redis and the network".to_owned();
    }
    if error.is_connection_refusal() {
        return format!("cannot connect to Redis: {error}");
    }
    // Redis sends no error code if a command inside a script is denied.
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
