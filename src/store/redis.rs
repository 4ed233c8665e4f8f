//! Buckets and records in Redis or Valkey, shared by a fleet of gateways.
//!
//! Every operation that must be atomic is a script, and all scripts use the clock of Redis, so the clocks of gateways
//! need not agree. A request with limits needs one round trip, however many limits it has. A request with a key needs
//! one round trip to claim the key and one to store the record.
//!
//! Every call has a deadline. A circuit breaker stops calls to a Redis that fails, and the [monitor](health) closes
//! it after a successful probe. While it is open, the `on_store_error` of each limit decides, and requests with an
//! idempotency key are rejected.
//!
//! On a cluster the records of one scope are in one slot, so that a claim is atomic there too. The buckets of one
//! request can be in several slots. One script per slot charges them, and rejected requests are refunded.

pub(crate) mod buckets;
mod client;
mod connection;
mod error;
mod health;
pub(crate) mod records;
mod script;
pub(crate) mod settings;

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
use crate::hash_keys::HashKeySource;
use crate::store::{Health, Part};

pub(crate) use health::UnusableServer;

/// Longest wait for the first probe at startup. After it, the gateway starts without Redis.
const FIRST_PROBE: Duration = Duration::from_secs(2);

/// Longest wait for tracked tasks at shutdown.
const SHUTDOWN: Duration = Duration::from_secs(2);

/// A Redis server or cluster with its monitor thread. Clones share both. Dropping the last clone stops the thread.
#[derive(Clone, Debug)]
pub(crate) struct Redis(Arc<MonitoredRedis>);

#[derive(Debug)]
struct MonitoredRedis {
    state: Arc<ClientState>,
    done: CancellationToken,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Why the gateway cannot start with the configured Redis. An unreachable Redis is not an error: the gateway starts
/// without it.
#[derive(Debug, Error)]
pub enum RedisOpenError {
    /// The file of CA certificates cannot be read.
    #[error("cannot read the CA certificates of `store.ca_file` in {path}")]
    Certificates {
        /// The path of the file.
        path: String,
        /// The error of the file system.
        #[source]
        error: io::Error,
    },
    /// The Redis library rejects the settings.
    #[error("cannot create a Redis client from the settings in [store]")]
    Settings(#[source] redis::RedisError),
    /// A server responds, but cannot be used.
    #[error("the Redis at {nodes} cannot be used: {reason}")]
    UnusableServer {
        /// The configured addresses.
        nodes: String,
        /// The reason, with a remedy.
        reason: UnusableServer,
    },
    /// The monitor thread cannot be started.
    #[error("cannot start the monitor thread of the Redis store")]
    Thread(#[source] io::Error),
}

impl Redis {
    /// Starts the monitor of the Redis in `settings`, and waits up to 2 s for the first probe. If `keyed`, Redis also
    /// stores idempotency records.
    pub(crate) fn open(
        settings: RedisSettings,
        keyed: bool,
        clock: Clock,
    ) -> Result<Self, RedisOpenError> {
        let nodes = settings.nodes.to_string();
        // Created before the runtime: an error here must not drop the runtime, which panics inside another runtime.
        let endpoint = Endpoint::new(&settings)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(RedisOpenError::Thread)?;
        let background = runtime.handle().clone();
        let state = Arc::new(ClientState::new(settings, endpoint, clock, background));
        let done = CancellationToken::new();
        let (first, probed) = mpsc::sync_channel(1);
        let monitor = Monitor::new(Arc::clone(&state), keyed);
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
                    // The lease of a claim that has not ended by then expires, and its key becomes unknown.
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

    /// Returns the hash keys, which are derived from the secret of the fleet.
    pub(crate) fn hash_keys(&self) -> HashKeySource {
        self.0.state.hash_keys()
    }

    /// Returns the records in this Redis.
    pub(crate) fn records(&self) -> RedisRecords {
        RedisRecords::new(self.clone())
    }

    /// Returns the health of limits and records.
    pub(crate) fn health(&self) -> [Health; 2] {
        [Part::Limits, Part::Records].map(|part| self.0.state.breaker(part).health())
    }

    /// Returns the buckets in this Redis. While Redis does not respond, up to `max_clients` buckets are in memory.
    pub(crate) fn buckets(&self, max_clients: usize) -> RedisBuckets {
        RedisBuckets::new(self, max_clients)
    }

    /// Stops the monitor, and waits up to 2 s for tracked tasks.
    pub(crate) fn close(&self) {
        self.0.close();
    }

    /// Returns a client with its own connection.
    fn client(&self, part: Part) -> RedisClient {
        RedisClient::new(Arc::clone(&self.0.state), part)
    }
}

impl MonitoredRedis {
    fn close(&self) {
        self.done.cancel();
        let thread = self.thread.lock().take();
        // The monitor thread can drop the last clone, and must not wait for itself.
        if let Some(thread) = thread
            && thread.thread().id() != thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("Redis monitor thread panicked");
        }
    }
}

impl Drop for MonitoredRedis {
    fn drop(&mut self) {
        self.close();
    }
}
