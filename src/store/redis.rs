//! Rate limit buckets and idempotency records in Redis or Valkey, shared by a fleet of gateways.
//!
//! Every operation that must be atomic is a Lua script, and uses the clock of Redis, so the clocks of the gateways can
//! differ. Limits need one round trip, however many they are. A key needs one to claim it and one to store the record.
//!
//! A circuit breaker stops calls to a Redis that fails, and the [monitor](health) closes it after a successful probe.
//! While it is open, `on_store_error` of each limit applies, and requests with a key are rejected.
//!
//! On a cluster the records of one scope are in one slot, because a script can use the keys of one slot only. One
//! script per slot charges the buckets of a request. If one of them rejects, the charges of the others are refunded.

pub(crate) mod buckets;
mod client;
mod client_state;
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
use self::client::RedisClient;
use self::client_state::ClientState;
use self::connection::Endpoint;
use self::health::Monitor;
use self::records::RedisRecords;
use self::settings::RedisSettings;
use crate::clock::Clock;
use crate::request::hash_keys::HashKeySource;
use crate::store::{Health, Part};

pub(crate) use health::UnusableServer;

/// If the first probe takes longer, the gateway starts without Redis.
const FIRST_PROBE: Duration = Duration::from_secs(2);

/// Longest wait at shutdown for tasks that write to Redis.
const SHUTDOWN: Duration = Duration::from_secs(2);

/// Clones share server and monitor thread. The drop of the last clone stops the thread.
#[derive(Clone, Debug)]
pub(crate) struct Redis(Arc<MonitoredRedis>);

#[derive(Debug)]
struct MonitoredRedis {
    state: Arc<ClientState>,
    done: CancellationToken,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Why the gateway cannot start with the configured Redis. An unreachable Redis is no such error.
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
    /// Waits up to 2 s for the first probe. `keyed` states whether Redis also stores idempotency records.
    pub(crate) fn open(
        settings: RedisSettings,
        keyed: bool,
        clock: Clock,
    ) -> Result<Self, RedisOpenError> {
        let nodes = settings.nodes.to_string();
        // Created before the runtime: an error would drop the runtime, which panics if the caller runs inside another
        // one.
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
                    // If the end of a claim is not stored by then, its lease expires and its outcome becomes unknown.
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

    pub(crate) fn hash_keys(&self) -> HashKeySource {
        self.0.state.hash_keys()
    }

    pub(crate) fn records(&self) -> RedisRecords {
        RedisRecords::new(self.clone())
    }

    pub(crate) fn reload(&self, is_keyed: bool, lease: Duration) {
        self.0.state.reload(is_keyed, lease);
    }

    /// Limits and records, in this order.
    pub(crate) fn health(&self) -> [Health; 2] {
        [Part::Limits, Part::Records].map(|part| self.0.state.breaker(part).health())
    }

    /// While Redis does not respond, up to `max_clients` buckets in memory are used instead.
    pub(crate) fn buckets(&self, max_clients: usize) -> RedisBuckets {
        RedisBuckets::new(self, max_clients)
    }

    pub(crate) fn close(&self) {
        self.0.close();
    }

    /// Each client has its own connection.
    fn client(&self, part: Part) -> RedisClient {
        RedisClient::new(Arc::clone(&self.0.state), part)
    }
}

impl MonitoredRedis {
    fn close(&self) {
        self.done.cancel();
        let thread = self.thread.lock().take();
        // The monitor thread can drop the last clone, and a thread cannot join itself.
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
