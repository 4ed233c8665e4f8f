//! A Redis client with one connection, which it replaces when the connection is lost. Each call has a deadline and
//! reports its result to the circuit breaker.
//!
//! All requests of a worker share one multiplexed connection on the runtime of the worker, so no request crosses
//! threads. Connecting takes several round trips, more than the timeout of a rate limit call allows. So a separate task
//! connects, and continues after the request has timed out. All requests that arrive meanwhile wait for this task, and
//! fail together if it fails.
//!
//! `redis::aio::ConnectionManager` cannot check the secret of the fleet between connecting and the first command, does
//! not support clusters, and neither repeats the command nor reconnects after a timeout.

use std::io;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use redis::{FromRedisValue, Pipeline, RedisError, Value};
use tokio::time::{Instant, timeout, timeout_at};

use super::client_state::ClientState;
use super::connection::RedisConnection;
use super::error::CallError;
use super::health::StoreBreaker;
use super::script::{CONFIRM, Call};
use crate::store::Part;

/// Clones share the connection.
#[derive(Clone, Debug)]
pub(super) struct RedisClient {
    state: Arc<ClientState>,
    part: Part,
    current: Arc<Mutex<Option<ConnectionAttempt>>>,
}

#[derive(Clone, Debug)]
struct ConnectionAttempt {
    epoch: u64,
    connection: Shared<BoxFuture<'static, Result<RedisConnection, CallError>>>,
}

impl RedisClient {
    pub(super) fn new(state: Arc<ClientState>, part: Part) -> Self {
        Self {
            state,
            part,
            current: Arc::default(),
        }
    }

    pub(super) fn with_own_connection(&self) -> Self {
        Self::new(Arc::clone(&self.state), self.part)
    }

    pub(super) fn state(&self) -> &Arc<ClientState> {
        &self.state
    }

    /// Fails without a call while the circuit breaker is open.
    pub(super) async fn run<T: FromRedisValue>(&self, call: &Call) -> Result<T, CallError> {
        self.check()?;
        match self.run_within(self.timeout(), call, false).await {
            Ok(value) => {
                self.breaker().succeeded();
                let unexpected = |error| format!("Redis returned an unexpected reply: {error}");
                T::from_redis_value(value)
                    .map_err(|error| CallError::Failed(unexpected(error).into()))
            }
            Err(error) => Err(self.failed(error)),
        }
    }

    /// For a script on which no request depends: the metrics count a failure, but the circuit breaker does not.
    pub(super) async fn run_optional<T: FromRedisValue>(&self, call: &Call) -> Option<T> {
        self.check().ok()?;
        let reason = match self.run_within(self.timeout(), call, true).await {
            Ok(value) => match T::from_redis_value(value) {
                Ok(reply) => return Some(reply),
                Err(error) => error.to_string(),
            },
            Err(error) => error.to_string(),
        };
        self.breaker().count_failure();
        tracing::debug!(reason, "Redis script failed, requests are not affected");
        None
    }

    /// A connection that has replied to a PING, for commands that are not scripts.
    pub(super) async fn connection(&self) -> Result<RedisConnection, CallError> {
        let mut ping = redis::pipe();
        ping.cmd("PING").ignore();
        let (connection, ()) = self.query(&ping, self.timeout()).await?;
        Ok(connection)
    }

    /// Returns how many replicas have `record`; fewer than `wanted` after a timeout.
    ///
    /// WAIT covers only writes on its own connection, so this connection first sets the expiry of `record` again. WAIT
    /// also blocks its connection, so no other call uses it.
    pub(super) async fn wait_for_replicas(
        &self,
        record: &str,
        wanted: NonZeroU32,
    ) -> Result<u32, CallError> {
        let within = self.timeout();
        let millis = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
        let mut pipeline = redis::pipe();
        // On a cluster, the Redis key of the first command selects the server for both commands.
        pipeline.cmd("EVAL").arg(CONFIRM).arg(1).arg(record);
        pipeline.cmd("WAIT").arg(wanted.get()).arg(millis);
        // WAIT alone can take `within`.
        let (_, (exists, have)) = self.query::<(bool, u32)>(&pipeline, within * 2).await?;
        if exists {
            Ok(have)
        } else {
            Err(CallError::Failed(
                "the idempotency record is no longer in Redis: it expired, or Redis lost its data"
                    .into(),
            ))
        }
    }

    /// Repeats the script once if the connection is lost, because servers close idle connections. Redis can therefore
    /// run a script twice. A repeated charge takes tokens twice; all other scripts detect that they have already run.
    async fn run_within(
        &self,
        within: Duration,
        call: &Call,
        is_optional: bool,
    ) -> Result<Value, CallError> {
        let deadline = Instant::now() + within;
        let late = |_| CallError::Timeout(within);
        let mut retried = false;
        loop {
            // An open connection is ready, so the call needs one timer instead of two.
            let connected = match self.connect().now_or_never() {
                Some(connected) => connected,
                None => timeout_at(deadline, self.connect()).await.map_err(late)?,
            };
            let (used, mut connection) = connected?;
            let reply = timeout_at(deadline, call.run(&mut connection)).await;
            match reply.map_err(late).and_then(|reply| Ok(reply?)) {
                // The connection stays open after the timeout of an optional script, because other requests use it.
                Err(error @ CallError::Timeout(_)) if is_optional => return Err(error),
                Err(error) if self.should_retry(&used, &error, &mut retried) => {}
                done => return done,
            }
        }
    }

    /// As [`run_within`](Self::run_within), but `within` applies to each attempt and does not include the time to
    /// connect.
    async fn query<T: FromRedisValue>(
        &self,
        commands: &Pipeline,
        within: Duration,
    ) -> Result<(RedisConnection, T), CallError> {
        self.check()?;
        let mut retried = false;
        loop {
            let connected = self.connect().await;
            let (used, mut connection) = connected.map_err(|error| self.failed(error))?;
            let reply = timeout(within, commands.query_async(&mut connection)).await;
            let reply = reply.map_err(|_| CallError::Timeout(within));
            match reply.and_then(|reply: Result<T, RedisError>| Ok(reply?)) {
                Ok(reply) => return Ok((connection, reply)),
                Err(error) if self.should_retry(&used, &error, &mut retried) => {}
                // A slow replica is not a failure of the server, so the circuit breaker does not count it.
                Err(error @ CallError::Timeout(_)) => return Err(error),
                Err(error) => return Err(self.failed(error)),
            }
        }
    }

    async fn connect(&self) -> Result<(ConnectionAttempt, RedisConnection), CallError> {
        let used = self.current_attempt();
        let connected = match used.connection.peek() {
            Some(connected) => connected.clone(),
            None => used.connection.clone().await,
        };
        match connected {
            Ok(connection) => Ok((used, connection)),
            Err(error) => {
                self.discard(&used);
                Err(error)
            }
        }
    }

    fn current_attempt(&self) -> ConnectionAttempt {
        let epoch = self.state.epoch();
        let mut current = self.current.lock();
        if let Some(known) = current.as_ref().filter(|known| known.epoch == epoch) {
            return known.clone();
        }
        let (state, slot) = (Arc::clone(&self.state), Arc::clone(&self.current));
        let attempt = tokio::spawn(async move {
            let connection = state.connect().await;
            if connection.is_err() {
                // All requests that waited for the failed attempt can have timed out.
                slot.lock().take_if(|current| current.epoch == epoch);
            }
            connection
        });
        let cancelled = |error| Err(RedisError::from(io::Error::other(error)).into());
        let connection = attempt.map(move |done| done.unwrap_or_else(cancelled));
        let connection = connection.boxed().shared();
        current
            .insert(ConnectionAttempt { epoch, connection })
            .clone()
    }

    /// Drops `used`, unless another connection has already replaced it.
    fn discard(&self, used: &ConnectionAttempt) {
        let is_used = |current: &mut ConnectionAttempt| current.connection.ptr_eq(&used.connection);
        self.current.lock().take_if(is_used);
    }

    /// After a timeout, the connection is dropped too: the server can be gone without a TCP reset.
    fn should_retry(
        &self,
        used: &ConnectionAttempt,
        error: &CallError,
        retried: &mut bool,
    ) -> bool {
        let is_lost = matches!(error, CallError::ConnectionLost(_));
        if is_lost || matches!(error, CallError::Timeout(_)) {
            self.discard(used);
        }
        if is_lost {
            // Redis can have restarted without its data.
            self.state.probe_requested.notify_one();
        }
        is_lost && !std::mem::replace(retried, true)
    }

    fn check(&self) -> Result<(), CallError> {
        match self.breaker().degraded() {
            None => Ok(()),
            Some(reason) => Err(CallError::Unavailable(reason)),
        }
    }

    /// Reports `error` to the circuit breaker.
    fn failed(&self, error: CallError) -> CallError {
        let breaker = self.breaker();
        let opened = match error {
            // Ignored, because a Redis without free memory can still replay records and end claims.
            CallError::Full(_) if self.part == Part::Records => false,
            CallError::ConnectionLost(_) => breaker.failed(&error) | breaker.open(&error),
            _ => breaker.failed(&error),
        };
        if opened {
            self.state.probe_requested.notify_one();
        }
        error
    }

    fn breaker(&self) -> &StoreBreaker {
        self.state.breaker(self.part)
    }

    fn timeout(&self) -> Duration {
        self.state.timeout(self.part)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use tokio::runtime::Handle;

    use super::super::connection::Endpoint;
    use super::super::script::CHARGE;
    use super::super::settings::RedisSettings;
    use super::*;
    use crate::clock::Clock;

    /// Creates a listener that accepts connections and never replies, and a client of it. Connecting fails after 300
    /// ms.
    fn unresponsive() -> (TcpListener, RedisClient) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let settings = RedisSettings {
            records_timeout: Duration::from_millis(300),
            ..RedisSettings::for_test(listener.local_addr().unwrap().port())
        };
        let endpoint = Endpoint::new(&settings).unwrap();
        let state = ClientState::new(settings, true, endpoint, Clock::real(), Handle::current());
        (listener, RedisClient::new(Arc::new(state), Part::Limits))
    }

    #[tokio::test]
    async fn a_failed_attempt_to_connect_is_dropped_after_all_requests_timed_out() {
        let (_listener, client) = unresponsive();
        let within = Duration::from_millis(10);
        let error = client
            .run_within(within, &Call::new(&CHARGE, &["bucket"]), false)
            .await;
        assert!(matches!(error, Err(CallError::Timeout(it)) if it == within));
        let attempt = client
            .current
            .lock()
            .clone()
            .expect("the attempt continues");
        let error = attempt.connection.await.map(|_| ()).unwrap_err();
        assert!(matches!(error, CallError::ConnectionLost(_)), "{error}");
        assert!(client.current.lock().is_none());
    }

    #[tokio::test]
    async fn requests_that_arrive_during_an_attempt_to_connect_share_its_failure() {
        let (listener, client) = unresponsive();
        let call = Call::new(&CHARGE, &["bucket"]);
        let run = || client.run_within(Duration::from_secs(30), &call, false);
        let (first, second) = tokio::join!(run(), run());
        for error in [first.unwrap_err(), second.unwrap_err()] {
            assert!(matches!(error, CallError::ConnectionLost(_)), "{error}");
        }
        assert!(listener.accept().is_ok());
        assert!(listener.accept().is_err(), "there was one attempt");
    }
}
