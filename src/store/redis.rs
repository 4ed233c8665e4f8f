//! Buckets and records in Redis or Valkey, shared by a fleet of gateways.
//!
//! Everything that must be one step is a script, and Redis's own clock is the only one that counts: two
//! gateways whose clocks differ by minutes still agree. A request with limits is one round trip, however
//! many limits it has; a request with a key is one to claim it and one to record what came of it.
//!
//! Redis can be slow, full, gone, or another one than before. Every call has a deadline, a
//! [breaker] keeps requests from waiting for one that is known to be down, and the
//! [monitor] looks at it from a thread of its own and says when it may be asked again. What requests get
//! meanwhile is not decided here but by each limit's `on_store_error`, and for keys by refusing them.
//!
//! On a cluster the records of one scope lie in one slot, so that a claim is one step there, too; the
//! buckets of one request may lie in several, and are charged one slot at a time.

mod breaker;
pub mod buckets;
mod connection;
mod core;
mod link;
mod monitor;
mod portrait;
pub mod records;
mod script;
pub mod settings;
mod sight;
mod way;

use std::io;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;
use thiserror::Error;
use tokio_util::sync::CancellationToken;

use self::buckets::RedisBuckets;
use self::connection::Client;
use self::core::Core;
use self::link::Link;
use self::monitor::Monitor;
use self::records::RedisRecords;
use self::settings::RedisSettings;
use crate::clock::Clock;
use crate::hash_keys::HashKeySource;
use crate::store::{Health, Part};

pub use connection::ClientError;
pub use portrait::Unfit;

/// How long a start waits to see Redis; after that the gateway starts without it.
const FIRST_LOOK: Duration = Duration::from_secs(2);

/// How long an end waits for what is still to be told to Redis.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// A Redis, and what looks after it. Cheap to clone; the last one dropped lets go of it.
#[derive(Clone, Debug)]
pub struct Redis(Arc<Kept>);

#[derive(Debug)]
struct Kept {
    core: Arc<Core>,
    done: CancellationToken,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Why a gateway does not start with this Redis. That it cannot be reached is none: it starts without.
#[derive(Debug, Error)]
pub enum OpenError {
    /// It cannot even be tried.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// It was reached, and will not do.
    #[error("the Redis at {nodes} cannot be used: {unfit}")]
    Unfit {
        /// Where it is.
        nodes: String,
        /// Why not.
        unfit: Unfit,
    },
    /// Its thread cannot be started.
    #[error("cannot start a thread for the store")]
    Thread(#[source] io::Error),
}

impl Redis {
    /// Gets ready to use the Redis of `settings`; `keyed` if it is to keep idempotency keys. Waits for it, but
    /// not long.
    pub fn open(settings: RedisSettings, keyed: bool, clock: Clock) -> Result<Self, OpenError> {
        let nodes = settings.nodes.to_string();
        // Before there is a runtime: one that is dropped where another one runs panics.
        let client = Client::new(&settings)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(OpenError::Thread)?;
        let background = runtime.handle().clone();
        let core = Arc::new(Core::new(settings, client, clock, background));
        let done = CancellationToken::new();
        let (first, seen) = mpsc::sync_channel(1);
        let monitor = Monitor::new(Arc::clone(&core), keyed);
        let (ended, ends) = (done.clone(), Arc::clone(&core));
        let thread = thread::Builder::new()
            .name("tidegate-redis".into())
            .spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        () = monitor.watch(first) => {}
                        () = ended.cancelled() => {}
                    }
                    ends.loose_ends.close();
                    // What is not told by then comes to its end by itself, with its lease.
                    let _ = tokio::time::timeout(LAST_WORDS, ends.loose_ends.wait()).await;
                });
                runtime.shutdown_background();
            })
            .map_err(OpenError::Thread)?;
        let redis = Self(Arc::new(Kept {
            core,
            done,
            thread: Mutex::new(Some(thread)),
        }));
        match seen.recv_timeout(FIRST_LOOK) {
            Ok(Err(unfit)) => Err(OpenError::Unfit { nodes, unfit }),
            Ok(Ok(())) | Err(_) => Ok(redis),
        }
    }

    /// What names are made with.
    pub fn hash_keys(&self) -> HashKeySource {
        self.0.core.naming()
    }

    /// The records in it.
    pub fn records(&self) -> RedisRecords {
        RedisRecords::new(self.clone())
    }

    /// Returns the health of limits and records.
    pub fn health(&self) -> [Health; 2] {
        [Part::Limits, Part::Records].map(|part| {
            let breaker = self.0.core.breaker(part);
            let unknown = || "it was never reached".into();
            Health {
                part,
                degraded: breaker
                    .is_open()
                    .then(|| breaker.why().unwrap_or_else(unknown)),
                failures: breaker.failures(),
            }
        })
    }

    /// The buckets in it. While it cannot be asked, as many as `max_clients` are tracked here instead.
    pub fn buckets(&self, max_clients: usize) -> RedisBuckets {
        RedisBuckets::new(self, max_clients)
    }

    /// Lets go of it, and waits until what was still to be told to it is told, though not for long.
    pub fn close(&self) {
        self.0.close();
    }

    /// A way to it for one user.
    fn link(&self) -> Link {
        Link::new(Arc::clone(&self.0.core))
    }
}

impl Kept {
    fn close(&self) {
        self.done.cancel();
        let thread = self.thread.lock().take();
        // Its own thread may be the last to hold it, for a moment; it does not wait for itself.
        if let Some(thread) = thread
            && thread.thread().id() != thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the thread that looks after Redis has crashed");
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.close();
    }
}
