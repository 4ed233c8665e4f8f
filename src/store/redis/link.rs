//! One user's way to Redis: a connection of its own, deadlines, and what failures mean.
//!
//! All requests of a worker share one connection and are written to it as they come, without waiting for
//! each other's answers. The connection lives on the runtime of whoever uses the link, so no request
//! crosses threads; that is why a clone of a store gets a link of its own.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::{FromRedisValue, RedisError, Value};
use thiserror::Error;
use tokio::time::timeout;

use super::connection::Connection;
use super::core::Core;
use super::script::{CONFIRM, Call};
use super::way::{Established, Way};
use crate::idempotency::StoreError;
use crate::store::Part;

/// A way to Redis.
#[derive(Debug)]
pub(super) struct Link(Arc<Way>);

/// Why Redis did not do what it was asked.
#[derive(Clone, Debug, Error)]
pub(super) enum Failure {
    /// It is not even asked.
    #[error("Redis is not asked since it failed: {0}")]
    Down(Arc<str>),
    /// It did not answer in time; whether it did what it was asked is not known.
    #[error("Redis did not answer within {0:?}")]
    Late(Duration),
    /// It has no memory left for it.
    #[error("Redis has no memory left: {0}")]
    Full(Arc<str>),
    /// The connection failed, or Redis refused.
    #[error("{0}")]
    Failed(Arc<str>),
}

impl Link {
    /// A way to the Redis of `core`, which is taken when it is first needed.
    pub(super) fn new(core: Arc<Core>) -> Self {
        Self(Arc::new(Way::new(core)))
    }

    /// Another way to the same Redis.
    pub(super) fn another(&self) -> Self {
        Self::new(Arc::clone(self.core()))
    }

    /// Where it leads.
    pub(super) fn core(&self) -> &Arc<Core> {
        self.0.core()
    }

    /// Has a script run for `part`.
    pub(super) async fn ask<T: FromRedisValue>(
        &self,
        part: Part,
        call: &Call,
    ) -> Result<T, Failure> {
        self.check(part)?;
        let breaker = self.core().breaker(part);
        let within = self.core().patience(part);
        let used = AtomicU64::new(0);
        let value = match timeout(within, self.run(call, &used)).await {
            Ok(Ok(value)) => value,
            Ok(Err(error)) => return Err(self.failed(part, &error)),
            Err(_) => {
                // Its other end may be gone without a word; a new one costs little.
                self.0.forget(used.load(Ordering::Relaxed));
                let late = Failure::Late(within);
                if breaker.failed(&late) {
                    self.core().sound_alarm();
                }
                return Err(late);
            }
        };
        breaker.succeeded();
        T::from_redis_value(value).map_err(|error| {
            Failure::Failed(format!("Redis answered what it should not: {error}").into())
        })
    }

    /// Runs a script on which no request depends. Returns `None` if it fails or times out. A failure is counted in
    /// the metrics, and does not open the breaker.
    pub(super) async fn attempt<T: FromRedisValue>(&self, part: Part, call: &Call) -> Option<T> {
        self.check(part).ok()?;
        let used = AtomicU64::new(0);
        let reason = match timeout(self.core().patience(part), self.run(call, &used)).await {
            Ok(Ok(value)) => match T::from_redis_value(value) {
                Ok(value) => return Some(value),
                Err(error) => error.to_string(),
            },
            Ok(Err(error)) => describe(&error),
            Err(_) => "it timed out".to_owned(),
        };
        self.core().breaker(part).count_failure();
        tracing::debug!(reason, "optional Redis script failed");
        None
    }

    /// A connection for something that is no script, found to be of use just now.
    pub(super) async fn connection(&self, part: Part) -> Result<Connection, Failure> {
        self.check(part)?;
        let mut ping = redis::pipe();
        ping.cmd("PING").ignore();
        let (connection, ()) = self.query(part, &ping, self.core().patience(part)).await?;
        Ok(connection)
    }

    /// Waits until `wanted` replicas have `record`, and returns how many do.
    ///
    /// WAIT counts from the last write of its own connection, so this connection writes the expiry of `record` again.
    /// WAIT also holds up later commands on its connection, so the connection is used for nothing else.
    pub(super) async fn replicas(&self, record: &str, wanted: NonZeroU32) -> Result<u32, Failure> {
        let part = Part::Records;
        self.check(part)?;
        let within = self.core().patience(part);
        let mut asked = redis::pipe();
        // On a cluster, the key of the first command selects the server for both.
        asked.add_command(CONFIRM.on(&[record]).whole());
        asked.cmd("WAIT").arg(wanted.get()).arg(millis(within));
        // WAIT alone can take `within`.
        let (_, (exists, have)) = self.query::<(bool, u32)>(part, &asked, within * 2).await?;
        if exists {
            Ok(have)
        } else {
            Err(Failure::Failed("the record is gone".into()))
        }
    }

    /// Has commands done that may be done twice, on a new connection if the one there is turns out to be gone;
    /// and gives back the connection that they were done on.
    async fn query<T: FromRedisValue>(
        &self,
        part: Part,
        asked: &redis::Pipeline,
        within: Duration,
    ) -> Result<(Connection, T), Failure> {
        let mut last = None;
        for _ in 0..2 {
            let established = self.0.establish().await;
            let Established {
                mut connection,
                number,
                ..
            } = established.map_err(|error| self.failed(part, &error))?;
            match timeout(within, asked.query_async(&mut connection)).await {
                Ok(Ok(told)) => return Ok((connection, told)),
                Ok(Err(error)) if is_gone(&error) => {
                    self.0.forget(number);
                    self.core().sound_alarm();
                    last = Some(error);
                }
                Ok(Err(error)) => return Err(self.failed(part, &error)),
                Err(_) => {
                    self.0.forget(number);
                    return Err(Failure::Late(within));
                }
            }
        }
        let error = last.expect("it was tried");
        Err(self.failed(part, &error))
    }

    /// Whether Redis may be asked.
    fn check(&self, part: Part) -> Result<(), Failure> {
        let breaker = self.core().breaker(part);
        if breaker.is_open() {
            let unknown = || "it was never reached".into();
            return Err(Failure::Down(breaker.why().unwrap_or_else(unknown)));
        }
        Ok(())
    }

    /// Has a script run, on a new connection if the one there is turns out to be gone: a server closes those
    /// that were idle for long. Every script may run twice: one that charges then charges twice, which is a
    /// token lost; the others know their own. The connection last `used` is told by its number.
    async fn run(&self, call: &Call, used: &AtomicU64) -> Result<Value, RedisError> {
        let mut established = self.0.establish().await?;
        used.store(established.number, Ordering::Relaxed);
        match call.run(&mut established.connection).await {
            Err(error) if is_gone(&error) => {
                self.0.forget(established.number);
                // It may have been restarted, without what it knew.
                self.core().sound_alarm();
                let mut established = self.0.establish().await?;
                used.store(established.number, Ordering::Relaxed);
                let again = call.run(&mut established.connection).await;
                if again.as_ref().is_err_and(is_gone) {
                    self.0.forget(established.number);
                }
                again
            }
            done => done,
        }
    }

    /// What `error` means for those who come after.
    fn failed(&self, part: Part, error: &RedisError) -> Failure {
        let breaker = self.core().breaker(part);
        let why = Failure::from(error);
        let opened = match why {
            // Records that are there can be replayed, and claims be concluded.
            Failure::Full(_) if part == Part::Records => false,
            _ if is_gone(error) => breaker.failed(&why) | breaker.open(&why),
            _ => breaker.failed(&why),
        };
        if opened {
            self.core().sound_alarm();
        }
        why
    }
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Down(_) => Self::known(failure),
            _ => Self::new(failure),
        }
    }
}

impl From<&RedisError> for Failure {
    fn from(error: &RedisError) -> Self {
        let text = describe(error).into();
        match error.code() {
            Some("OOM") => Self::Full(text),
            _ => Self::Failed(text),
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Whether a connection is of no use any more.
pub(super) fn is_gone(error: &RedisError) -> bool {
    error.is_io_error() || error.is_connection_dropped() || error.is_unrecoverable_error()
}

/// What is wrong, with what can be done about it where that is known.
pub(super) fn describe(error: &RedisError) -> String {
    let remedy = match error.code() {
        Some("NOAUTH") => "; it wants a password: set `store.password_file`",
        Some("WRONGPASS") => "; check `store.user` and `store.password_file`",
        Some("NOPERM") => "; the user of `store.user` may not do this",
        // What a script may not do has no code of its own.
        _ if error
            .detail()
            .is_some_and(|it| it.contains("The user executing the script")) =>
        {
            "; the user of `store.user` may not do this"
        }
        Some("READONLY") => "; it is a replica: `store.url` must name the primary",
        Some("OOM") => "; raise its `maxmemory`",
        _ if error.kind() == redis::ErrorKind::AuthenticationFailed => {
            "; check `store.user` and `store.password_file`"
        }
        _ if error.kind() == redis::ErrorKind::Parse => "; whatever `store.url` names is not Redis",
        _ => "",
    };
    if error.is_timeout() {
        return "it did not answer in time".to_owned();
    }
    if error.is_connection_refusal() {
        return format!("nobody listens there: {error}");
    }
    let what = if error.is_connection_dropped() {
        "the connection was lost: "
    } else {
        ""
    };
    format!("{what}{error}{remedy}")
}
