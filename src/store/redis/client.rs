//! A Redis client with one connection, which it replaces when the connection is lost. Each call has a deadline and
//! reports its result to the circuit breaker.
//!
//! All requests of a worker share one multiplexed connection. The connection runs on the runtime that uses the client,
//! so no request crosses threads. Each clone of a store opens its own connection. Connecting takes several round trips,
//! more than the timeout of a rate limit call allows. A separate task therefore connects, and continues after the
//! request has timed out. All requests that arrive in the meantime wait for this task, and fail together if it fails.
//!
//! `redis::aio::ConnectionManager` is not used for three reasons. It cannot run a check between connecting and the
//! first command, but this client must check the secret that all gateways share. It does not support clusters. After a
//! timeout, it neither repeats the command nor reconnects.

use std::future::Future;
use std::io;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::{Mutex, RwLock};
use redis::{FromRedisValue, Pipeline, RedisError, Value};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::task::TaskTracker;

use super::connection::{Endpoint, RedisConnection, with_timeout};
use super::error::CallError;
use super::health::StoreBreaker;
use super::script::{CONFIRM, Call};
use super::settings::RedisSettings;
use crate::clock::Clock;
use crate::request::hash_keys::{HashKeySource, HashKeys, Secret};
use crate::store::{CapacityUse, Part};

/// State that all clients of one Redis share.
#[derive(Debug)]
pub(super) struct ClientState {
    pub(super) settings: RedisSettings,
    /// Whether Redis stores idempotency records.
    is_keyed: AtomicBool,
    /// Lease of new claims. It follows the timeouts of the routes, but becomes shorter only by a restart: the renewal
    /// of claims could not follow.
    lease: Mutex<Duration>,
    pub(super) clock: Clock,
    pub(super) endpoint: Endpoint,
    limits: StoreBreaker,
    records: StoreBreaker,
    /// Use of `maxmemory` at the last probe; `None` if Redis has no `maxmemory`.
    pub(super) memory_use: Mutex<Option<CapacityUse>>,
    /// Keys for hashes. They are derived from the secret of the fleet, or from a random secret until the first probe.
    hash_keys: Arc<RwLock<HashKeys>>,
    /// Number of detected restarts or replacements of Redis. Clients replace the connections of an earlier epoch.
    epoch: AtomicU64,
    /// Notifies the monitor that it must probe Redis before the current interval ends.
    pub(super) probe_requested: Notify,
    /// The runtime of the monitor. It runs tasks that no request waits for.
    background: Handle,
    /// Background tasks that shutdown waits for, up to 2 s.
    pub(super) tracked: TaskTracker,
}

impl ClientState {
    pub(super) fn new(
        settings: RedisSettings,
        is_keyed: bool,
        endpoint: Endpoint,
        clock: Clock,
        background: Handle,
    ) -> Self {
        Self {
            is_keyed: AtomicBool::new(is_keyed),
            lease: Mutex::new(settings.lease),
            endpoint,
            limits: StoreBreaker::new(Part::Limits, &settings.nodes),
            records: StoreBreaker::new(Part::Records, &settings.nodes),
            memory_use: Mutex::default(),
            settings,
            clock,
            hash_keys: Arc::new(RwLock::new(Secret::random().into())),
            epoch: AtomicU64::new(0),
            probe_requested: Notify::new(),
            background,
            tracked: TaskTracker::new(),
        }
    }

    pub(super) fn is_keyed(&self) -> bool {
        self.is_keyed.load(Ordering::Relaxed)
    }

    pub(super) fn lease(&self) -> Duration {
        *self.lease.lock()
    }

    /// Changes what depends on the routes of the configuration. A Redis that stored no records is used for them after
    /// the monitor has checked its settings.
    pub(super) fn reload(&self, is_keyed: bool, lease: Duration) {
        let mut longest = self.lease.lock();
        *longest = lease.max(*longest);
        drop(longest);
        if is_keyed && !self.is_keyed.swap(is_keyed, Ordering::Relaxed) {
            self.records
                .open(&"Redis is being checked for idempotency records");
            self.probe_requested.notify_one();
        }
    }

    pub(super) fn breaker(&self, part: Part) -> &StoreBreaker {
        match part {
            Part::Limits => &self.limits,
            Part::Records => &self.records,
        }
    }

    /// Returns `store.limits_timeout` or `store.records_timeout`.
    pub(super) fn timeout(&self, part: Part) -> Duration {
        match part {
            Part::Limits => self.settings.limits_timeout,
            Part::Records => self.settings.records_timeout,
        }
    }

    pub(super) fn hash_keys(&self) -> HashKeySource {
        HashKeySource::Shared(Arc::clone(&self.hash_keys))
    }

    pub(super) fn secret(&self) -> Secret {
        self.hash_keys.read().secret
    }

    pub(super) fn set_secret(&self, secret: Secret) {
        *self.hash_keys.write() = secret.into();
    }

    /// Returns the Redis key of a value that all gateways share. All these Redis keys are in one slot, so one script
    /// can use them.
    pub(super) fn fleet_key(&self, name: &str) -> String {
        format!("{}:{{fleet}}:{name}", self.settings.prefix)
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Invalidates all connections and all cached rejections, because Redis was restarted or replaced.
    pub(super) fn begin_epoch(&self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// Makes the monitor probe Redis within 20 ms.
    pub(super) fn request_probe(&self) {
        self.probe_requested.notify_one();
    }

    /// Runs `task` on the runtime of the monitor. Shutdown waits up to 2 s for the end of the task.
    pub(super) fn spawn_tracked(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tracked.spawn_on(task, &self.background);
    }

    /// Runs `task` on the runtime of the monitor. Shutdown cancels the task.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.background.spawn(task);
    }

    /// Connects, and reads the secret of the fleet from Redis. Fails if it differs from the secret that the monitor has
    /// read. The monitor must then probe the server before requests use it.
    async fn connect(&self) -> Result<RedisConnection, CallError> {
        let mut connection = self.endpoint.connect().await?;
        let mut get = redis::cmd("GET");
        get.arg(self.fleet_key("secret"));
        let stored = get.query_async(&mut connection);
        let stored: Option<Vec<u8>> = with_timeout(self.timeout(Part::Records), stored).await?;
        if stored.as_deref() != Some(self.secret().as_bytes()) {
            self.request_probe();
            let reason = "Redis has another fleet secret, so it lost its data or was replaced";
            return Err(CallError::ConnectionLost(reason.into()));
        }
        Ok(connection)
    }
}

/// A client for the calls of one part of the store. Clones share the connection.
#[derive(Clone, Debug)]
pub(super) struct RedisClient {
    state: Arc<ClientState>,
    part: Part,
    current: Arc<Mutex<Option<ConnectionAttempt>>>,
}

/// A running attempt to connect, or its connection after the attempt has succeeded.
#[derive(Clone, Debug)]
struct ConnectionAttempt {
    epoch: u64,
    connection: Shared<BoxFuture<'static, Result<RedisConnection, CallError>>>,
}

impl RedisClient {
    /// Creates a client that connects on its first call.
    pub(super) fn new(state: Arc<ClientState>, part: Part) -> Self {
        Self {
            state,
            part,
            current: Arc::default(),
        }
    }

    /// Creates a client for the same Redis and the same part, with its own connection.
    pub(super) fn with_own_connection(&self) -> Self {
        Self::new(Arc::clone(&self.state), self.part)
    }

    pub(super) fn state(&self) -> &Arc<ClientState> {
        &self.state
    }

    /// Runs a script that a request needs. Fails without a call while the circuit breaker is open.
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

    /// Runs a script on which no request depends, and returns `None` if it fails. The metrics count a failure, but the
    /// circuit breaker does not.
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

    /// Returns a connection that has replied to a PING. The caller runs commands on it that are not scripts.
    pub(super) async fn connection(&self) -> Result<RedisConnection, CallError> {
        let mut ping = redis::pipe();
        ping.cmd("PING").ignore();
        let (connection, ()) = self.query(&ping, self.timeout()).await?;
        Ok(connection)
    }

    /// Waits until `wanted` replicas have `record`. Returns how many replicas have it. After a timeout, this is fewer
    /// than `wanted`.
    ///
    /// The command WAIT covers only writes on its own connection, so this connection first sets the expiry of `record`
    /// again. WAIT also blocks later commands on its connection, so no other call uses the connection.
    pub(super) async fn wait_for_replicas(
        &self,
        record: &str,
        wanted: NonZeroU32,
    ) -> Result<u32, CallError> {
        let within = self.timeout();
        let millis = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
        let mut pipeline = redis::pipe();
        // On a cluster, the Redis key of the first command selects the server for both commands.
        pipeline.add_command(CONFIRM.call(&[record]).with_text());
        pipeline.cmd("WAIT").arg(wanted.get()).arg(millis);
        // The timeout is twice `within`, because WAIT alone can take `within`.
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

    /// Runs a script. Repeats the script once on a new connection if the connection is lost, because servers close idle
    /// connections.
    ///
    /// Redis can therefore run a script twice. A repeated charge takes tokens from the client twice. All other scripts
    /// detect that they have already run.
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
            // An open connection is used without a timeout, because it is ready. The call then needs one timer instead
            // of two.
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

    /// Runs commands, and repeats them once on a new connection if the connection is lost. The timeout `within` applies
    /// to each attempt, and does not include the time to connect. Also returns the connection.
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
                // This timeout is not reported to the circuit breaker, because a slow replica is not a failure of the
                // server.
                Err(error @ CallError::Timeout(_)) => return Err(error),
                Err(error) => return Err(self.failed(error)),
            }
        }
    }

    /// Returns the connection, and the `ConnectionAttempt` that opened the connection.
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

    /// Returns the current attempt to connect, or starts one.
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
                // The failed attempt is removed by its task, because all requests that waited for it can have timed
                // out. The next request starts a new attempt.
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

    /// Drops the connection `used`, unless another connection has already replaced it.
    fn discard(&self, used: &ConnectionAttempt) {
        let is_used = |current: &mut ConnectionAttempt| current.connection.ptr_eq(&used.connection);
        self.current.lock().take_if(is_used);
    }

    /// Returns whether to repeat the call that failed with `error`. Drops the connection if it is lost or if the call
    /// timed out. After a timeout, the server can be gone without a TCP reset.
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
            // The probe is requested because Redis can have restarted without its data.
            self.state.request_probe();
        }
        is_lost && !std::mem::replace(retried, true)
    }

    /// Fails while the circuit breaker is open.
    fn check(&self) -> Result<(), CallError> {
        match self.breaker().degraded() {
            None => Ok(()),
            Some(reason) => Err(CallError::Unavailable(reason)),
        }
    }

    /// Reports `error` to the circuit breaker, and returns `error`.
    fn failed(&self, error: CallError) -> CallError {
        let breaker = self.breaker();
        let opened = match error {
            // The circuit breaker ignores this error, because a Redis without free memory can still replay records and
            // end claims.
            CallError::Full(_) if self.part == Part::Records => false,
            CallError::ConnectionLost(_) => breaker.failed(&error) | breaker.open(&error),
            _ => breaker.failed(&error),
        };
        if opened {
            self.state.request_probe();
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

    use super::super::script::CHARGE;
    use super::*;

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
            .run_within(within, &CHARGE.call(&["bucket"]), false)
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
        let call = CHARGE.call(&["bucket"]);
        let run = || client.run_within(Duration::from_secs(30), &call, false);
        let (first, second) = tokio::join!(run(), run());
        for error in [first.unwrap_err(), second.unwrap_err()] {
            assert!(matches!(error, CallError::ConnectionLost(_)), "{error}");
        }
        assert!(listener.accept().is_ok());
        assert!(listener.accept().is_err(), "there was one attempt");
    }
}
