//! Runs the gateway: binds the listeners, starts the workers, serves connections, and drains on shutdown.
//!
//! Each worker is a thread with a single-threaded runtime, its own listeners and its own upstream connections, so a
//! request never changes threads. The workers listen on the same addresses with `SO_REUSEPORT`, and the kernel
//! distributes connections among them. A work-stealing runtime would add a cost to every request, and many small clients
//! load the workers evenly without it.
//!
//! A shutdown starts after `drain_delay` with a drain: the workers accept no new connections and finish the requests in
//! flight. An idle HTTP/1 connection can send one more request within 1 s, because the client can have sent it before it
//! notices the close. The drain ends when all connections are closed, or after `shutdown_grace`.
//!
//! ```
//! use std::sync::Arc;
//!
//! use tidegate::clock::Clock;
//! use tidegate::config::{self, Environment, Overrides};
//! use tidegate::server::Gateway;
//! use tidegate::pipeline::GatewayState;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let file = r#"
//!     [server]
//!     listen = "127.0.0.1:0"
//!     [upstream.api]
//!     servers = ["http://127.0.0.1:9000"]
//!     [[route]]
//!     name = "all"
//!     path = "/"
//! "#;
//! let loaded = config::parse("gateway.toml", file, &Environment::of_process(), &Overrides::default())?;
//! let shared = GatewayState::open(Arc::new(loaded.policy), Clock::real())?;
//! let gateway = Gateway::start(shared)?;
//! println!("listening on {}", gateway.addresses()[0]);
//!
//! gateway.stopper().drain();
//! gateway.join()?;
//! # Ok(())
//! # }
//! ```

mod connection;
mod drain;
mod listen;
pub(crate) mod live;
mod refusal;
pub(crate) mod reload;
mod worker;

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

use arc_swap::ArcSwap;
use thiserror::Error;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::live::{Live, LiveWorker};
use self::refusal::RefusalWatch;
use crate::pipeline::{GatewayState, Pipeline};

pub(crate) use listen::Inherited;
pub use listen::ListenError;
pub(crate) use refusal::Refusal;

/// A running gateway. Dropping this value does not stop the gateway.
#[derive(Debug)]
pub struct Gateway {
    addresses: Vec<SocketAddr>,
    workers: Vec<JoinHandle<()>>,
    stop: Stop,
    live: Arc<Live>,
}

/// A handle that stops a gateway, either after a drain or immediately. It is cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    drain: CancellationToken,
    halt: CancellationToken,
}

/// Error: a worker thread panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "a worker thread panicked, and its requests in flight were aborted (standard error contains the panic message)"
)]
pub struct Crashed;

/// Why a gateway cannot start.
#[derive(Debug, Error)]
pub enum StartError {
    /// A listener cannot be bound to its configured address.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The async runtime or the thread of a worker cannot be created.
    #[error("cannot start a worker thread: {0}")]
    Worker(#[source] std::io::Error),
}

impl Gateway {
    /// Binds the listeners and starts the workers. Returns when all worker threads are started.
    pub fn start(shared: GatewayState) -> Result<Self, StartError> {
        Self::start_with(shared, &Inherited::default())
    }

    /// Uses the inherited sockets for their addresses.
    pub(crate) fn start_with(
        shared: GatewayState,
        inherited: &Inherited,
    ) -> Result<Self, StartError> {
        let settings = &shared.policy.server;
        let sockets = listen::bind(&settings.listen, settings.workers, inherited)?;
        Self::start_on(sockets, &RefusalWatch::never(), shared)
    }

    /// The listeners can refuse connections for a time.
    pub(crate) fn start_with_refusal(shared: GatewayState) -> Result<(Self, Refusal), StartError> {
        let settings = &shared.policy.server;
        let sockets = listen::bind(&settings.listen, settings.workers, &Inherited::default())?;
        let refusal = Refusal::new(&sockets).map_err(StartError::Worker)?;
        let gateway = Self::start_on(sockets, &refusal.watch(), shared)?;
        Ok((gateway, refusal))
    }

    fn start_on(
        sockets: listen::Sockets,
        refusal: &RefusalWatch,
        shared: GatewayState,
    ) -> Result<Self, StartError> {
        // All workers are prepared before the first one starts, so that a failure aborts no connection.
        let stop = Stop::default();
        let prepared = sockets
            .per_worker
            .into_iter()
            .enumerate()
            .map(|(number, sockets)| {
                let tasks = TaskTracker::new();
                let pipeline = Pipeline::new(&shared, number, tasks.clone());
                let worker = worker::Worker {
                    pipeline: Arc::new(ArcSwap::from_pointee(pipeline)),
                    tasks,
                    sockets,
                    stop: stop.clone(),
                    refusal: refusal.clone(),
                    connections: Arc::clone(&shared.connections),
                };
                let runtime = worker::runtime().map_err(StartError::Worker)?;
                Ok((worker, runtime))
            })
            .collect::<Result<Vec<_>, StartError>>()?;
        let live = prepared.iter().map(|(worker, runtime)| LiveWorker {
            pipeline: Arc::clone(&worker.pipeline),
            runtime: runtime.handle().clone(),
        });
        let live = Arc::new(Live::new(shared, live.collect()));
        let mut workers = Vec::with_capacity(prepared.len());
        for (number, (worker, runtime)) in prepared.into_iter().enumerate() {
            match worker.start(number, runtime) {
                Ok(thread) => workers.push(thread),
                Err(error) => {
                    stop.halt();
                    return Err(StartError::Worker(error));
                }
            }
        }
        Ok(Self {
            addresses: sockets.addresses,
            workers,
            stop,
            live,
        })
    }

    /// Returns the addresses that the listeners are bound to. A configured port 0 is replaced by the port that the
    /// system chose.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns a handle with which any thread can stop the gateway.
    pub fn stopper(&self) -> Stop {
        self.stop.clone()
    }

    /// Returns the state that all workers share, such as the stores and the configuration in force.
    pub fn shared(&self) -> Arc<GatewayState> {
        self.live.state()
    }

    pub(crate) fn live(&self) -> &Arc<Live> {
        &self.live
    }

    /// Waits until all workers have stopped. Blocks the calling thread. Returns an error if a worker panicked.
    pub fn join(self) -> Result<(), Crashed> {
        let ends: Vec<_> = self.workers.into_iter().map(JoinHandle::join).collect();
        if ends.iter().all(Result::is_ok) {
            Ok(())
        } else {
            Err(Crashed)
        }
    }
}

impl Stop {
    /// Starts a shutdown. After `drain_delay`, the gateway accepts no new connections, and finishes the requests in
    /// flight within `shutdown_grace`.
    pub fn drain(&self) {
        self.drain.cancel();
    }

    /// Stops the gateway immediately and aborts the requests in flight.
    pub fn halt(&self) {
        self.drain();
        self.halt.cancel();
    }

    pub(crate) async fn drained(&self) {
        self.drain.cancelled().await;
    }

    /// Whether [`drain`](Self::drain) or [`halt`](Self::halt) was called.
    pub fn is_draining(&self) -> bool {
        self.drain.is_cancelled()
    }
}

#[cfg(test)]
mod tests;
