//! Runs the proxy: listeners, workers, connections, drain.
//!
//! Each worker is a thread with a single-threaded runtime, its own listeners on the same addresses (`SO_REUSEPORT`: the
//! kernel distributes connections) and its own upstream connections, so a request never changes threads. The rejected
//! alternative is a runtime that steals work: every request pays for it, and the load of many small clients is even
//! without it.
//!
//! A drain stops accepting, lets every connection finish its request, and ends when all have or after `shutdown_grace`.
//! The admin listener is not part of a [`Gateway`]: only `tidegate serve` starts it.
//!
//! ```
//! use std::sync::Arc;
//!
//! use tidegate::clock::Clock;
//! use tidegate::config::{self, Environment, Overrides};
//! use tidegate::gateway::Gateway;
//! use tidegate::pipeline::Shared;
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
//! let shared = Shared::open(Arc::new(loaded.policy), Clock::real())?;
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
mod tls;
mod worker;

use std::net::SocketAddr;
use std::thread::JoinHandle;

use thiserror::Error;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::pipeline::{Pipeline, Shared};
use crate::upstream::health::HealthChecks;

pub use crate::upstream::connect::ConnectorError;
pub use listen::ListenError;
pub use tls::TlsError;

/// A gateway that is listening.
#[derive(Debug)]
pub struct Gateway {
    addresses: Vec<SocketAddr>,
    workers: Vec<JoinHandle<()>>,
    stop: Stop,
    shared: Shared,
}

/// Tells a gateway to stop. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    drain: CancellationToken,
    halt: CancellationToken,
}

/// A worker ended by a fault of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a worker has crashed; what it served was cut off")]
pub struct Crashed;

/// Why a gateway cannot start.
#[derive(Debug, Error)]
pub enum StartError {
    /// It cannot listen where it is told to.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Its certificate or key cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// An upstream's settings cannot be put to work.
    #[error(transparent)]
    Upstream(#[from] ConnectorError),
    /// A thread cannot be started.
    #[error("cannot start a worker: {0}")]
    Worker(#[source] std::io::Error),
}

impl Gateway {
    /// Binds, starts the workers, and returns once all of them are accepting.
    pub fn start(shared: Shared) -> Result<Self, StartError> {
        let settings = &shared.policy.server;
        let tls = settings.tls.as_ref().map(tls::acceptor).transpose()?;
        let sockets = listen::bind(&settings.listen, settings.workers)?;
        // Everything that can fail on its own comes first: once a worker runs, it takes traffic.
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
                    tls: tls.clone(),
                    stop: stop.clone(),
                    checks: if number == 0 {
                        checks(&shared)?
                    } else {
                        Vec::new()
                    },
                    connections: (settings.caps.connections / settings.workers).max(1),
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

    /// Where it listens; ports that were left to the system are filled in.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// What tells it to stop.
    pub fn stopper(&self) -> Stop {
        self.stop.clone()
    }

    /// What its workers share.
    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Waits until it has stopped.
    pub fn join(self) -> Result<(), Crashed> {
        let ends: Vec<_> = self.workers.into_iter().map(JoinHandle::join).collect();
        if ends.iter().all(Result::is_ok) {
            Ok(())
        } else {
            Err(Crashed)
        }
    }
}

/// The health checks of all upstreams that have any.
fn checks(shared: &Shared) -> Result<Vec<HealthChecks>, ConnectorError> {
    let checks = shared.upstream_states.iter();
    checks
        .filter_map(|state| HealthChecks::of(state, &shared.clock).transpose())
        .collect()
}

impl Stop {
    /// Stop accepting, finish what is in flight within the grace.
    pub fn drain(&self) {
        self.drain.cancel();
    }

    /// Stop at once.
    pub fn halt(&self) {
        self.drain();
        self.halt.cancel();
    }

    /// Whether it has been told to stop.
    pub fn is_draining(&self) -> bool {
        self.drain.is_cancelled()
    }
}

#[cfg(test)]
mod tests;
