//! Buckets and records in Redis or Valkey, shared by a fleet of gateways.
//!
//! Every operation that must be atomic is a script, and all scripts use the clock of Redis, so the clocks of gateways
//! need not agree. A request with limits is one round trip, however many limits it has. A request with a key is one
//! to claim the key and one to store the record.
//!
//! Every call has a deadline. A circuit breaker stops calls to a Redis that fails, and the [monitor](health) closes
//! it after a successful probe. What requests get meanwhile is decided by the `on_store_error` of each limit, and
//! requests with a key are rejected.
//!
//! On a cluster the records of one scope are in one slot, so that a claim is atomic there too. The buckets of one
//! request can be in several slots, and are charged one slot at a time.

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
use self::client::{Client, ClientState};
use self::connection::Endpoint;
use self::health::Monitor;
use self::records::RedisRecords;
use self::settings::RedisSettings;
use crate::clock::Clock;
use crate::hash_keys::HashKeySource;
use crate::store::{Health, Part};

pub(crate) use health::Unfit;

/// How long startup waits for the first probe. After that the gateway starts without Redis.
const FIRST_PROBE: Duration = Duration::from_secs(2);

/// How long shutdown waits for tracked tasks.
const SHUTDOWN: Duration = Duration::from_secs(2);

/// A Redis with its monitor thread. Clones share both; dropping the last clone stops the thread.
#[derive(Clone, Debug)]
pub(crate) struct Redis(Arc<Running>);

#[derive(Debug)]
struct Running {
    state: Arc<ClientState>,
    done: CancellationToken,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Why a gateway cannot start with this Redis. An unreachable Redis is no error: the gateway starts without it.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The file of CA certificates cannot be read.
    #[error("cannot read the certificates in {path}")]
    Certificates {
        /// The path of the file.
        path: String,
        /// The error of the file system.
        #[source]
        error: io::Error,
    },
    /// The Redis library rejects the settings.
    #[error("cannot set up a client for Redis")]
    Settings(#[source] redis::RedisError),
    /// The server was reached and cannot be used.
    #[error("the Redis at {nodes} cannot be used: {unfit}")]
    Unfit {
        /// The configured addresses.
        nodes: String,
        /// The reason, with a remedy.
        unfit: Unfit,
    },
    /// The monitor thread cannot be started.
    #[error("cannot start a thread for the store")]
    Thread(#[source] io::Error),
}

impl Redis {
    /// Starts to use the Redis of `settings`, for idempotency keys too if `keyed`. Waits up to 2 s for the first probe.
    pub(crate) fn open(
        settings: RedisSettings,
        keyed: bool,
        clock: Clock,
    ) -> Result<Self, OpenError> {
        let nodes = settings.nodes.to_string();
        // Before the runtime is built: dropping a runtime inside another one panics.
        let endpoint = Endpoint::new(&settings)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(OpenError::Thread)?;
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
                        () = monitor.watch(first) => {}
                        () = ended.cancelled() => {}
                    }
                    ends.tracked.close();
                    // A claim that is not ended by then lapses with its lease.
                    let _ = tokio::time::timeout(SHUTDOWN, ends.tracked.wait()).await;
                });
                runtime.shutdown_background();
            })
            .map_err(OpenError::Thread)?;
        let redis = Self(Arc::new(Running {
            state,
            done,
            thread: Mutex::new(Some(thread)),
        }));
        match probed.recv_timeout(FIRST_PROBE) {
            Ok(Err(unfit)) => Err(OpenError::Unfit { nodes, unfit }),
            Ok(Ok(())) | Err(_) => Ok(redis),
        }
    }

    /// Returns the keys for hashes, which follow the secret of the fleet.
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

    /// Returns the buckets in this Redis. While it does not respond, up to `max_clients` are tracked in memory.
    pub(crate) fn buckets(&self, max_clients: usize) -> RedisBuckets {
        RedisBuckets::new(self, max_clients)
    }

    /// Stops the monitor, and waits up to 2 s for tracked tasks.
    pub(crate) fn close(&self) {
        self.0.close();
    }

    /// Returns a client with its own connection.
    fn client(&self, part: Part) -> Client {
        Client::new(Arc::clone(&self.0.state), part)
    }
}

impl Running {
    fn close(&self) {
        self.done.cancel();
        let thread = self.thread.lock().take();
        // The monitor thread can drop the last clone, and must not wait for itself.
        if let Some(thread) = thread
            && thread.thread().id() != thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the thread that looks after Redis has crashed");
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.close();
    }
}
