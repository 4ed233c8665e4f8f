//! Rate limit buckets and idempotency records in Redis or Valkey, shared by a fleet of gateways.
//!
//! Every operation that must be atomic is a Lua script. All scripts use the clock of Redis, so the clocks of the
//! gateways can differ. A request with rate limits needs one round trip, however many limits it has. A request with an
//! idempotency key needs one round trip to claim the key, and one to store the record.
//!
//! Every call has a deadline. A circuit breaker stops calls to a Redis that fails, and the [monitor](health) closes the
//! breaker after a successful probe. While the breaker is open, `on_store_error` of each rate limit applies, and
//! requests with an idempotency key are rejected.
//!
//! On a cluster the records of one scope are in one slot, because a script can use the keys of one slot only. The
//! buckets of one request can be in several slots. One script per slot charges them. If one of these scripts rejects
//! the request, the charges of the others are refunded.

pub(crate) mod buckets;
mod client;
mod connection;
mod error;
mod health;
pub(crate) mod records;
mod script;
pub(crate) mod settings;
pub(crate) mod url;

use std::io;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;
use thiserror::Error;
use tokio_util::sync::CancellationToken;

use self::buckets::RedisBuckets;
use self::client::{ClientState, RedisClient};
use self::connection::Endpoint;
use self::health::Monitor;
use self::records::RedisRecords;
use self::settings::RedisSettings;
use crate::clock::Clock;
use crate::request::hash_keys::HashKeySource;
use crate::store::{CapacityUse, Health, Part};

pub(crate) use health::UnusableServer;

/// Longest wait for the first probe at startup. If the probe takes longer, the gateway starts without Redis.
const FIRST_PROBE: Duration = Duration::from_secs(2);

/// Longest wait at shutdown for background tasks that write to Redis.
const SHUTDOWN: Duration = Duration::from_secs(2);

/// A Redis server or cluster, and the thread that monitors it. Clones share server and thread. The drop of the last
/// clone stops the thread.
#[derive(Clone, Debug)]
pub(crate) struct Redis(Arc<MonitoredRedis>);

#[derive(Debug)]
struct MonitoredRedis {
    state: Arc<ClientState>,
    done: CancellationToken,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Why the gateway cannot start with the configured Redis. An unreachable Redis does not cause this error, because the
/// gateway starts without it.
#[derive(Debug, Error)]
pub enum RedisOpenError {
    /// The file of `store.ca_file` cannot be read.
    #[error("cannot read the CA certificates in {path}, the file of `store.ca_file`")]
    Certificates {
        /// Path of the file of `store.ca_file`.
        path: String,
        /// The error that reading the file returned.
        #[source]
        error: io::Error,
    },
    /// The Redis library cannot use the settings in `[store]`, for example the CA certificates.
    #[error("the Redis client rejects the settings in [store]; correct `url` or `ca_file`")]
    Settings(#[source] redis::RedisError),
    /// A server responds, but the gateway cannot use it.
    #[error("the gateway cannot use the Redis at {nodes}: {reason}")]
    UnusableServer {
        /// The addresses in `store.url`.
        nodes: String,
        /// Why the gateway cannot use the server, and how to correct the problem.
        reason: UnusableServer,
    },
    /// The operating system cannot create the monitor thread or its event loop.
    #[error(
        "cannot start the thread that monitors Redis; check the limits on threads and open files of this process"
    )]
    Thread(#[source] io::Error),
}

impl Redis {
    /// Starts the monitor thread of the Redis in `settings`, and waits up to 2 s for its first probe. `keyed` states
    /// whether Redis also stores idempotency records.
    pub(crate) fn open(
        settings: RedisSettings,
        keyed: bool,
        clock: Clock,
    ) -> Result<Self, RedisOpenError> {
        let nodes = settings.nodes.to_string();
        // The endpoint is created before the runtime. In the opposite order, an error of `Endpoint::new` would drop the
        // runtime. Dropping a runtime panics if the caller runs inside another runtime.
        let endpoint = Endpoint::new(&settings)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(RedisOpenError::Thread)?;
        let background = runtime.handle().clone();
        let state = Arc::new(ClientState::new(
            settings, keyed, endpoint, clock, background,
        ));
        let done = CancellationToken::new();
        let (first, probed) = mpsc::sync_channel(1);
        let monitor = Monitor::new(Arc::clone(&state));
        let (ended, ends) = (done.clone(), Arc::clone(&state));
        let thread = thread::Builder::new()
            .name("tidegate-redis".into())
            .spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        () = monitor.run(first) => {}
                        () = ended.cancelled() => {}
                    }
                    ends.tracked.close();
                    // A timeout is ignored. If the end of a claim is not stored by then, the lease of the claim
                    // expires, and the outcome of its execution becomes unknown.
                    let _ = tokio::time::timeout(SHUTDOWN, ends.tracked.wait()).await;
                });
                runtime.shutdown_background();
            })
            .map_err(RedisOpenError::Thread)?;
        let redis = Self(Arc::new(MonitoredRedis {
            state,
            done,
            thread: Mutex::new(Some(thread)),
        }));
        match probed.recv_timeout(FIRST_PROBE) {
            Ok(Err(reason)) => Err(RedisOpenError::UnusableServer { nodes, reason }),
            Ok(Ok(())) | Err(_) => Ok(redis),
        }
    }

    /// Returns the source of the keys for keyed hashes. These keys are derived from the secret of the fleet.
    pub(crate) fn hash_keys(&self) -> HashKeySource {
        self.0.state.hash_keys()
    }

    /// Creates the store of idempotency records in this Redis, and starts its background tasks.
    pub(crate) fn records(&self) -> RedisRecords {
        RedisRecords::new(self.clone())
    }

    /// Changes what depends on the routes of the configuration: whether Redis stores idempotency records, and the
    /// lease.
    pub(crate) fn reload(&self, is_keyed: bool, lease: Duration) {
        self.0.state.reload(is_keyed, lease);
    }

    /// Returns the health of the rate limits and of the idempotency records, in this order.
    pub(crate) fn health(&self) -> [Health; 2] {
        [Part::Limits, Part::Records].map(|part| self.0.state.breaker(part).health())
    }

    pub(crate) fn capacity_use(&self) -> Option<CapacityUse> {
        *self.0.state.memory_use.lock()
    }

    /// Creates the store of rate limit buckets in this Redis. While Redis does not respond, up to `max_clients` buckets
    /// in memory are used instead.
    pub(crate) fn buckets(&self, max_clients: usize) -> RedisBuckets {
        RedisBuckets::new(self, max_clients)
    }

    /// Stops the monitor thread, and waits up to 2 s for background tasks that write to Redis.
    pub(crate) fn close(&self) {
        self.0.close();
    }

    /// Creates a client with its own connection, for the calls of `part`.
    fn client(&self, part: Part) -> RedisClient {
        RedisClient::new(Arc::clone(&self.0.state), part)
    }
}

impl MonitoredRedis {
    fn close(&self) {
        self.done.cancel();
        let thread = self.thread.lock().take();
        // The join is skipped on the monitor thread itself: that thread can drop the last clone, and a thread cannot
        // join itself.
        if let Some(thread) = thread
            && thread.thread().id() != thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("thread that monitors Redis panicked");
        }
    }
}

impl Drop for MonitoredRedis {
    fn drop(&mut self) {
        self.close();
    }
}
