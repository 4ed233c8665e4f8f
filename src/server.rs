//! Runs the gateway: binds the listeners, starts the workers, serves connections, and drains on shutdown.
//!
//! Each worker is a thread with a single-threaded runtime, its own listeners and its own upstream connections, so a
//! request never changes threads. The workers listen on the same addresses with `SO_REUSEPORT`, and the kernel
//! distributes connections among them. A work-stealing runtime would add a cost to every request. It is not needed,
//! because many small clients load the workers evenly.
//!
//! A shutdown starts after `drain_delay` with a drain. During a drain, the workers accept no new connections and finish
//! the requests in flight. An idle HTTP/1 connection can send one more request within 1 s, because the client can have
//! sent it before it notices the close. The drain ends when all connections are closed, or after `shutdown_grace`. The
//! admin listener is not part of a [`Gateway`], because only
//! `tidegate serve` starts it.
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
mod refusal;
mod tls;
mod worker;

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

use thiserror::Error;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::refusal::RefusalWatch;
use crate::pipeline::{GatewayState, Pipeline};
use crate::upstream::addresses::Addresses;
use crate::upstream::health::HealthChecks;

pub use crate::upstream::connect::ConnectorError;
pub use listen::ListenError;
pub(crate) use refusal::Refusal;
pub use tls::TlsError;

/// A running gateway. Dropping this value does not stop the gateway.
#[derive(Debug)]
pub struct Gateway {
    addresses: Vec<SocketAddr>,
    workers: Vec<JoinHandle<()>>,
    stop: Stop,
    shared: GatewayState,
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
    /// The TLS certificate or private key of the listeners is unusable.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The TLS settings of an upstream are unusable.
    #[error(transparent)]
    Upstream(#[from] ConnectorError),
    /// The async runtime or the thread of a worker cannot be created.
    #[error("cannot start a worker thread: {0}")]
    Worker(#[source] std::io::Error),
}

impl Gateway {
    /// Binds the listeners and starts the workers. Returns when all worker threads are started.
    pub fn start(shared: GatewayState) -> Result<Self, StartError> {
        let settings = &shared.policy.server;
        let tls = settings.tls.as_ref().map(tls::acceptor).transpose()?;
        let sockets = listen::bind(&settings.listen, settings.workers)?;
        Self::start_on(sockets, tls.as_ref(), &RefusalWatch::never(), shared)
    }

    /// Starts a gateway whose listeners can refuse connections for a time.
    pub(crate) fn start_with_refusal(shared: GatewayState) -> Result<(Self, Refusal), StartError> {
        let settings = &shared.policy.server;
        let tls = settings.tls.as_ref().map(tls::acceptor).transpose()?;
        let sockets = listen::bind(&settings.listen, settings.workers)?;
        let refusal = Refusal::new(&sockets).map_err(StartError::Worker)?;
        let gateway = Self::start_on(sockets, tls.as_ref(), &refusal.watch(), shared)?;
        Ok((gateway, refusal))
    }

    fn start_on(
        sockets: listen::Sockets,
        tls: Option<&TlsAcceptor>,
        refusal: &RefusalWatch,
        shared: GatewayState,
    ) -> Result<Self, StartError> {
        // All workers are prepared before the first worker starts. If preparing fails, no worker has accepted a
        // connection yet.
        let stop = Stop::default();
        let prepared = sockets
            .per_worker
            .into_iter()
            .enumerate()
            .map(|(number, sockets)| {
                let tasks = TaskTracker::new();
                Ok(worker::Worker {
                    pipeline: Pipeline::new(&shared, number, tasks.clone())?,
                    tasks,
                    sockets,
                    tls: tls.cloned(),
                    stop: stop.clone(),
                    refusal: refusal.clone(),
                    checks: if number == 0 {
                        health_checks(&shared)?
                    } else {
                        Vec::new()
                    },
                    addresses: if number == 0 {
                        server_addresses(&shared)
                    } else {
                        Vec::new()
                    },
                    timer_delay: shared.scenarios.measure_timers(),
                    connections: Arc::clone(&shared.connections),
                })
            })
            .collect::<Result<Vec<_>, StartError>>()?;
        let mut workers = Vec::with_capacity(prepared.len());
        for (number, worker) in prepared.into_iter().enumerate() {
            match worker.start(number) {
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
            shared,
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

    /// Returns the state that all workers share, such as the stores and the configuration.
    pub fn shared(&self) -> &GatewayState {
        &self.shared
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

/// Creates the health checks of all upstreams that have health checks in the configuration.
fn health_checks(shared: &GatewayState) -> Result<Vec<HealthChecks>, ConnectorError> {
    let checks = shared.upstream_states.iter();
    checks
        .filter_map(|state| HealthChecks::of(state, &shared.clock).transpose())
        .collect()
}

/// Returns the addresses of all servers of all upstreams.
fn server_addresses(shared: &GatewayState) -> Vec<Arc<Addresses>> {
    let servers = shared.upstream_states.iter().flat_map(|it| &it.servers);
    servers
        .map(|server| Arc::clone(&server.addresses))
        .collect()
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

    /// Whether [`drain`](Self::drain) or [`halt`](Self::halt) was called.
    pub fn is_draining(&self) -> bool {
        self.drain.is_cancelled()
    }
}

#[cfg(test)]
mod tests;
