//! One worker: a thread, a runtime, its listeners and their connections.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;

use super::Stop;
use super::connection::{self, Terms};
use super::drain::Drain;
use crate::context::ConnectionPermit;
use crate::http1::FlushBatch;
use crate::pipeline::Pipeline;
use crate::upstream::health::HealthChecks;

/// Pause of a worker after a failed accept. The usual cause is that the process has no file descriptors left, until
/// connections close.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Period of the timer that is always armed: long enough to cost nothing, and shorter than the timeouts of requests.
const TICK: Duration = Duration::from_millis(500);

pub(super) struct Worker {
    pub(super) pipeline: Pipeline,
    /// Tracks its connections, and tasks that outlive them.
    pub(super) tasks: TaskTracker,
    pub(super) sockets: Vec<TcpListener>,
    pub(super) tls: Option<TlsAcceptor>,
    pub(super) stop: Stop,
    /// Health checks that it makes for all workers.
    pub(super) checks: Vec<HealthChecks>,
    /// Connections open at once.
    pub(super) connections: usize,
}

impl Worker {
    /// Starts the worker on its own thread.
    pub(super) fn start(self, number: usize) -> io::Result<JoinHandle<()>> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        std::thread::Builder::new()
            .name(format!("tidegate-{number}"))
            .spawn(move || {
                runtime.block_on(self.work());
                // Does not wait for a name that is still being resolved.
                runtime.shutdown_background();
            })
    }

    async fn work(self) {
        let settings = self.pipeline.settings();
        let (grace, deadlines, caps) = (settings.shutdown_grace, settings.deadlines, settings.caps);
        let tasks = self.tasks;
        let drain = Drain::default();
        // A listener holds a permit while it waits for a connection.
        let permits = self.connections + self.sockets.len() - 1;
        let permits = Arc::new(Semaphore::new(permits.min(Semaphore::MAX_PERMITS)));
        let terms = Arc::new(Terms {
            pipeline: Arc::new(self.pipeline),
            tls: self.tls,
            deadlines,
            caps,
            drain: drain.clone(),
            flush_batch: FlushBatch::default(),
            tasks: tasks.clone(),
        });
        tokio::spawn(tick());
        for checks in self.checks {
            tokio::spawn(checks.run());
        }
        for socket in self.sockets {
            tasks.spawn(accept(socket, Arc::clone(&terms), Arc::clone(&permits)));
        }
        drop(terms);
        self.stop.drain.cancelled().await;
        drain.give();
        tasks.close();
        tokio::select! {
            () = tasks.wait() => {}
            () = tokio::time::sleep(grace) => {
                tracing::warn!(remaining = tasks.len(), "shutdown grace period expired, aborting remaining tasks");
            }
            () = self.stop.halt.cancelled() => {}
        }
    }
}

/// Keeps a timer armed that is due sooner than those of requests. The runtime wakes itself through a file descriptor
/// whenever a new timer is the next one due, which the timer of every request would be otherwise.
async fn tick() {
    loop {
        tokio::time::sleep(TICK).await;
    }
}

/// Accepts connections until the drain. Connections that the kernel has accepted by then are still served.
async fn accept(socket: TcpListener, terms: Arc<Terms>, permits: Arc<Semaphore>) {
    let listener = match tokio::net::TcpListener::from_std(socket) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "listener failed");
            return;
        }
    };
    loop {
        // The permit first: a connection that cannot be served waits in the kernel, at little cost.
        let permit = tokio::select! {
            permit = Arc::clone(&permits).acquire_owned() => permit.expect("never closed"),
            () = terms.drain.watch() => return,
        };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = terms.drain.watch() => {
                serve_queued(listener, &terms);
                return;
            }
        };
        match accepted {
            Ok((stream, peer)) => spawn(stream, peer, &terms, Some(permit)),
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves the connections that the kernel has accepted and queued.
fn serve_queued(listener: tokio::net::TcpListener, terms: &Arc<Terms>) {
    let Ok(listener) = listener.into_std() else {
        return;
    };
    while let Ok((stream, peer)) = listener.accept() {
        let stream = stream
            .set_nonblocking(true)
            .and_then(|()| TcpStream::from_std(stream));
        if let Ok(stream) = stream {
            spawn(stream, peer, terms, None);
        }
    }
}

/// Serves a connection in its own task.
fn spawn(
    stream: TcpStream,
    peer: SocketAddr,
    terms: &Arc<Terms>,
    permit: Option<OwnedSemaphorePermit>,
) {
    let counted = terms.pipeline.metrics().connected();
    let permit = Arc::new(ConnectionPermit::new(counted, permit));
    let serving = connection::serve(stream, peer.ip(), permit, Arc::clone(terms));
    terms.tasks.spawn(serving);
}
