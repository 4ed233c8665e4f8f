//! Why a call to Redis failed, with a remedy where one is known.

use std::sync::Arc;
use std::time::Duration;

use redis::{ErrorKind, RedisError};
use thiserror::Error;

use crate::idempotency::StoreError;

/// Why Redis did not execute a call.
#[derive(Clone, Debug, Error)]
pub(super) enum CallError {
    /// The circuit breaker is open, so nothing was sent.
    #[error("Redis is not called since it failed: {0}")]
    Unavailable(Arc<str>),
    /// No reply in time. Redis may have executed the call.
    #[error("Redis did not reply within {0:?}")]
    Timeout(Duration),
    /// Redis has no memory left for a write.
    #[error("Redis has no memory left: {0}")]
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
            // The open breaker was logged.
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
        return "it did not answer in time".to_owned();
    }
    if error.is_connection_refusal() {
        return format!("cannot connect: {error}");
    }
    // A command that a script may not run has no code of its own.
    let denied_in_script = || {
        let detail = error.detail();
        detail.is_some_and(|it| it.contains("The user executing the script"))
    };
    let remedy = match error.code() {
        Some("NOAUTH") => "; it requires a password: set `store.password_file`",
        Some("WRONGPASS") => "; check `store.user` and `store.password_file`",
        Some("NOPERM") => "; the user of `store.user` may not do this",
        _ if denied_in_script() => "; the user of `store.user` may not do this",
        Some("READONLY") => "; it is a replica: `store.url` must name the primary",
        Some("OOM") => "; raise its `maxmemory`",
        _ if error.kind() == ErrorKind::AuthenticationFailed => {
            "; check `store.user` and `store.password_file`"
        }
        _ if error.kind() == ErrorKind::Parse => "; whatever `store.url` names is not Redis",
        _ => "",
    };
    let lost = if error.is_connection_dropped() {
        "the connection was lost: "
    } else {
        ""
    };
    format!("{lost}{error}{remedy}")
}
